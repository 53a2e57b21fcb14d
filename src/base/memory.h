// Allocates host memory; the error says what it was for.
//
//     int64_t *ends;
//     DT_TRY(DT_NEW(&ends, n, "the ends of %d rows", n));
//
// allocates n zeroed items of the type that `ends` points to (at least one byte); release them with
// free(). On failure `ends` is NULL and the error is "no memory for the ends of 7 rows (56 bytes)".
#pragma once

#include "base/error.h"

#include <stdint.h>
#include <stdlib.h>

#define DT_NEW(pointer, n, ...) DT_NEW_HINT((pointer), (n), NULL, __VA_ARGS__)
// DT_NEW with a hint for the user (or NULL).
#define DT_NEW_HINT(pointer, n, hint, ...)                                                         \
    dt_memory_new((pointer), (n), sizeof **(pointer), 0, (hint), __VA_ARGS__)
// Replaces the items at `pointer` by n new ones, unless *room items are enough.
#define DT_ROOM(pointer, room, n, hint, ...)                                                       \
    ((n) <= *(room) ? DT_OK                                                                        \
     : (free(*(pointer)), *(room) = 0, DT_NEW_HINT(pointer, n, hint, __VA_ARGS__))                 \
         ? DT_MACHINE                                                                              \
         : (*(room) = (n), DT_OK))
// `bytes` zeroed bytes.
#define DT_NEW_BYTES(pointer, bytes, ...) dt_memory_new((pointer), (bytes), 1, 0, NULL, __VA_ARGS__)
// `bytes` uninitialised bytes at a multiple of `align`, a power of two.
#define DT_NEW_ALIGNED(pointer, bytes, align, hint, ...)                                           \
    dt_memory_new((pointer), (bytes), 1, (align), (hint), __VA_ARGS__)

// `pointer` is the address of a pointer; align 0: zeroed memory from calloc.
dt_status dt_memory_new(void *pointer, int64_t n, size_t item_bytes, size_t align, const char *hint,
                        const char *format, ...) __attribute__((format(printf, 6, 7)));
// Memory for a text, filled as by printf. On failure *text is NULL.
dt_status dt_memory_text(char **text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
