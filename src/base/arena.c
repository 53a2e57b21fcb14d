// An arena hands out pieces of borrowed memory, one after another. The building code runs twice:
// once to measure, once to place. If the two runs differ, the arena aborts, so that a wrong plan
// cannot become a wild write.
#include "base/arena.h"
#include "base/round.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

_Noreturn static void defect(const struct dt_arena *arena, const char *what, int64_t value)
{
    fprintf(stderr,
            "dtrain: bug in a memory plan: %s %" PRId64 " (arena of %" PRId64 " bytes, %" PRId64
            " used)\n",
            what, value, arena->size, arena->used);
    abort();
}

struct dt_arena dt_arena_measure(void)
{
    return (struct dt_arena){0};
}

struct dt_arena dt_arena_place(void *base, int64_t size)
{
    struct dt_arena arena = {.base = base, .size = size};
    if (size < 0)
        defect(&arena, "size", size);
    if ((uintptr_t)base % DT_ARENA_ALIGN != 0)
        defect(&arena, "base misaligned by", (int64_t)((uintptr_t)base % DT_ARENA_ALIGN));
    return arena;
}

void *dt_arena_take(struct dt_arena *arena, int64_t bytes)
{
    if (bytes < 0 || bytes > INT64_MAX - DT_ARENA_ALIGN - arena->used)
        defect(arena, "taking", bytes);
    int64_t start = arena->used;
    int64_t used = start + dt_round_up(bytes, DT_ARENA_ALIGN);
    if (arena->base && used > arena->size)
        defect(arena, "taking", bytes);
    arena->used = used;
    if (used > arena->peak)
        arena->peak = used;
    return arena->base ? arena->base + start : NULL;
}

int64_t dt_arena_mark(const struct dt_arena *arena)
{
    return arena->used;
}

void dt_arena_release(struct dt_arena *arena, int64_t mark)
{
    if (mark < 0 || mark > arena->used || mark % DT_ARENA_ALIGN != 0)
        defect(arena, "release to", mark);
    arena->used = mark;
}
