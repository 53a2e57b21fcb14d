// A batch is a list of named arrays, each [b, T] of `width` elements. A reader kind says which ones
// its files yield, the model which ones it reads; everything between them (loader, input,
// evaluation) follows these lists, knows bytes, and names no array.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_BATCH_ARRAYS = 8,
    DT_IGNORED = -100, // a label that the loss skips (kernels/xent.h: DT_LABEL_IGNORED)
};

struct dt_array_spec {
    const char *name; // a literal
    enum dt_dtype type;
    int64_t width; // elements per position: 1 of token ids, a frame's size of frames
    bool optional; // yielded: only by some datasets; read: not needed
    int32_t last;  // of an i32 array of a recurrent state: its numbers are in [0, last]
    double pad;    // yielded, fp32 or i32: in rows that the loss ignores; others hold zeros
};

struct dt_array_list {
    int n;
    struct dt_array_spec arrays[DT_BATCH_ARRAYS];
};

// Adds an array and returns its index. A second array of that name must agree in type and width, is
// the same array, and makes it required unless both are optional. -1, with an error: they disagree,
// or the list is full.
int dt_array_list_add(struct dt_array_list *list, const char *name, enum dt_dtype type,
                      int64_t width, bool optional);
int dt_array_list_find(const struct dt_array_list *list, const char *name); // index, or -1
// The first array of `reads` that `yields` lacks, or has of another type or width; NULL: none.
const struct dt_array_spec *dt_array_list_missing(const struct dt_array_list *yields,
                                                  const struct dt_array_list *reads);
static inline int64_t dt_array_bytes(const struct dt_array_spec *spec, int64_t positions)
{
    return positions * spec->width * dt_dtype_size(spec->type);
}

struct dt_array {
    struct dt_array_spec spec;
    void *data; // [sequences, length, width], host memory
};
struct dt_batch {
    int64_t step;              // from 0
    int64_t sequences, length; // b, T
    int n_arrays;
    struct dt_array arrays[DT_BATCH_ARRAYS];
};
const struct dt_array *dt_batch_find(const struct dt_batch *batch, const char *name); // or NULL
