// An op's workspace on the CPU. The same code runs twice: it measures, then carves. The shared
// arrays come first, then each thread's scratch.
#pragma once

#include "base/arena.h"
#include "base/round.h"

#include <omp.h>
#include <stddef.h>

// Extra bytes that let an arena be aligned in a workspace that is not.
enum { DT_SLACK = DT_ARENA_ALIGN };

static inline struct dt_arena dt_workspace_arena(void *workspace, int64_t bytes)
{
    int64_t base = dt_round_up((int64_t)(intptr_t)workspace, DT_ARENA_ALIGN);
    return dt_arena_place((void *)(intptr_t)base, bytes - DT_SLACK);
}

// The calling thread's share of the rest of a workspace.
static inline struct dt_arena dt_thread_arena(const struct dt_arena *shared, int threads)
{
    int64_t bytes = (shared->size - shared->used) / threads / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
    return dt_arena_place(shared->base + shared->used + omp_get_thread_num() * bytes, bytes);
}

static inline float *dt_take_floats(struct dt_arena *arena, int64_t rows, int64_t pitch)
{
    return dt_arena_take(arena, rows * pitch * (int64_t)sizeof(float));
}

// Carves each array of a NULL-terminated list.
static inline void dt_take_arrays(struct dt_arena *arena, int64_t rows, int64_t pitch,
                                  float **const *arrays)
{
    for (; *arrays; arrays++)
        **arrays = dt_take_floats(arena, rows, pitch);
}
