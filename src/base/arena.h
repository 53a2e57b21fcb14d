// One allocation, carved by the code that uses it. That code runs twice: first on a measuring
// arena (base NULL), then on a placing one. Nothing is freed individually; the memory is borrowed
// from the caller who passed `base`.
#pragma once

#include <stdint.h>

enum { DT_ARENA_ALIGN = 256 }; // bytes; suits SIMD, cuBLASLt and cp.async

struct dt_arena {
    char *base;   // NULL: measuring, dt_arena_take returns NULL
    int64_t size; // bytes at base (0 when measuring)
    int64_t used; // bytes taken so far, a multiple of DT_ARENA_ALIGN
    int64_t peak; // the highest `used` ever seen
};

struct dt_arena dt_arena_measure(void);
struct dt_arena dt_arena_place(void *base, int64_t size); // base aligned to DT_ARENA_ALIGN
// The next `bytes` bytes (>= 0), aligned. Taking more than was measured is a defect and aborts.
void *dt_arena_take(struct dt_arena *arena, int64_t bytes);
// Stack discipline within a building function: mark, take, release.
int64_t dt_arena_mark(const struct dt_arena *arena);
void dt_arena_release(struct dt_arena *arena, int64_t mark);
