// How ops along the sequence are cut on the CPU. A piece of work is one sequence and a group of up
// to DT_GROUP neighbouring channels; it walks the sequence in blocks of up to DT_BLOCK tokens whose
// inputs are widened to fp32 rows first. The cut follows from the shapes alone, never from threads;
// pieces write to disjoint places.
#pragma once

#include "kernels/storage_cpu.h"

#include <stdbool.h>

enum {
    DT_LANES = 16, // channels of a vector loop: one AVX-512 register, two AVX2, four SSE
    DT_GROUP = 256,
    DT_PITCH = DT_GROUP + DT_LANES, // floats between rows; not a power of two (cache conflicts)
    DT_BLOCK = 32,
    DT_PIECES = 32, // groups get narrower until there are this many pieces
};

struct dt_cut {
    int64_t width;  // channels of a group
    int64_t groups; // groups of a sequence
};

struct dt_piece {
    int64_t sequence, group;
    int64_t first, count; // channels
    int64_t padded;       // count rounded up to DT_LANES
};

static inline struct dt_cut dt_cut(int64_t batch, int64_t channels)
{
    struct dt_cut cut = {.width = DT_GROUP};
    while (cut.width > DT_LANES && batch * dt_ceil_div(channels, cut.width) < DT_PIECES)
        cut.width /= 2;
    cut.groups = dt_ceil_div(channels, cut.width);
    return cut;
}

static inline struct dt_piece dt_piece(const struct dt_cut *cut, int64_t channels, int64_t index)
{
    struct dt_piece piece = {.sequence = index / cut->groups, .group = index % cut->groups};
    piece.first = piece.group * cut->width;
    piece.count = dt_min_i64(channels - piece.first, cut->width);
    piece.padded = dt_round_up(piece.count, DT_LANES);
    return piece;
}

// Loads or stores DT_LANES channels of a row. A local array keeps what a loop updates for many n in
// a register.
DT_INLINE void dt_load_lanes(const float *from, float *restrict to)
{
#pragma omp simd
    for (int l = 0; l < DT_LANES; l++)
        to[l] = from[l];
}

DT_INLINE void dt_store_lanes(const float *restrict from, float *to)
{
#pragma omp simd
    for (int l = 0; l < DT_LANES; l++)
        to[l] = from[l];
}

// Converts the piece's channels of row `row` of a view to a padded fp32 row, or back.
DT_INLINE void dt_load_piece(const struct dt_piece *piece, const struct dt_view *from, int64_t row,
                             float *restrict out)
{
    dt_load_row(from->dtype, dt_view_at(from, row, piece->first), piece->count, piece->padded, out);
}

DT_INLINE void dt_store_piece(const struct dt_piece *piece, const struct dt_view *to, int64_t row,
                              const float *restrict in)
{
    dt_store_row(to->dtype, in, piece->count, dt_view_at(to, row, piece->first));
}

// An argument whose rows are needed soon. Hardware does not prefetch rows that are far apart:
// without this the fp32 scan took twice the time.
struct dt_ahead {
    const char *rows;           // the first row at the piece's first channel, or NULL
    int64_t stride, lane_bytes; // bytes between rows, and of a channel
};
enum { DT_AHEAD = 4 };

static inline struct dt_ahead dt_ahead(const struct dt_piece *piece, const struct dt_view *view,
                                       int64_t row)
{
    int64_t size = dt_dtype_size(view->dtype);
    return (struct dt_ahead){dt_view_at(view, row, piece->first), view->stride * size, size};
}

// Prefetches the channels from `lane` on of row t of each of the DT_AHEAD arguments.
DT_INLINE void dt_prefetch(const struct dt_ahead *ahead, int64_t t, int64_t lane)
{
    for (int k = 0; k < DT_AHEAD; k++)
        if (ahead[k].rows)
            __builtin_prefetch(ahead[k].rows + t * ahead[k].stride + lane * ahead[k].lane_bytes, 0,
                               2);
}
