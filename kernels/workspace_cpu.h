// An op's workspace on the CPU, carved by the same code twice: into sizes, then into arrays. First
// what all threads share, then each thread's scratch.
#pragma once

#include "base/arena.h"
#include "base/round.h"

#include <omp.h>
#include <stddef.h>

// A workspace need not be aligned: with this much more of it, its arena is.
enum { DT_SLACK = DT_ARENA_ALIGN };

static inline struct dt_arena dt_workspace_arena(void *workspace, int64_t bytes)
{
    int64_t base = dt_round_up((int64_t)(intptr_t)workspace, DT_ARENA_ALIGN);
    return dt_arena_place((void *)(intptr_t)base, bytes - DT_SLACK);
}

// The calling thread's share of what is left of a workspace.
static inline struct dt_arena dt_thread_arena(const struct dt_arena *shared, int threads)
{
    int64_t bytes = (shared->size - shared->used) / threads / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
    return dt_arena_place(shared->base + shared->used + omp_get_thread_num() * bytes, bytes);
}

static inline float *dt_take_floats(struct dt_arena *arena, int64_t rows, int64_t pitch)
{
    return dt_arena_take(arena, rows * pitch * (int64_t)sizeof(float));
}

// The same for each array of a list that ends with NULL.
static inline void dt_take_arrays(struct dt_arena *arena, int64_t rows, int64_t pitch,
                                  float **const *arrays)
{
    for (; *arrays; arrays++)
        **arrays = dt_take_floats(arena, rows, pitch);
}
