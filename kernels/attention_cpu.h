// Shared by both passes of attention on the CPU. A piece of work is a sequence and a group of
// heads. Its keys are loaded in tiles of KEYS, its queries in tiles of QUERIES, both as padded and
// rotated fp32 rows, which dt_gemm_direct multiplies in cache. Masked pairs cost nothing beyond the
// edge of a panel. All sizes depend only on shapes, never on threads.
#pragma once

#include "kernels/cpu.h"
#include "kernels/gemm_tile_cpu.h"
#include "kernels/storage_cpu.h"
#include "kernels/workspace_cpu.h"

#include <stdbool.h>

enum {
    DT_KEYS = 96,                      // keys per tile, and the pitch of an array of scores
    DT_QUERIES = 4 * DT_DIRECT_ROWS,   // queries per tile of backward
    DT_PANEL = DT_DIRECT_ROWS,         // queries (or keys) per product
    DT_PANEL_KEYS = DT_DIRECT_COLUMNS, // keys per product, across
    // Rows to prefetch ahead. (Measured at B 32, L 60, E 64: saves a third of both passes.)
    DT_ATTENTION_AHEAD = 6
};
_Static_assert(DT_KEYS % DT_PANEL == 0 && DT_KEYS % DT_PANEL_KEYS == 0, "whole panels");

// Data that all pieces read, computed first, in the workspace.
struct dt_attention_shared {
    const struct dt_attention_inputs *in;
    const struct dt_gemm_kernel *kernel;
    int64_t before; // positions before 0 that k0 has rows for
    int64_t pitch;  // pitch of a head's padded row: E rounded up to DT_DIRECT_COLUMNS
    int64_t heads;  // heads per group
    float scale;    // 1 / sqrt(E)
    float *angles;  // [before + L, E]: cosines, then sines, of position j in row before + j
    int32_t *starts, *stops; // [B, L]: what t sees, [start, stop)
};

// The first position >= 0 that sees j or a later position.
static inline int64_t dt_attention_first(const struct dt_attention_inputs *in,
                                         const int32_t *starts, int64_t j)
{
    return j < 0 ? 0 : in->both ? starts[j] : j;
}

struct dt_attention_shared dt_attention_share(const struct dt_attention_inputs *in,
                                              struct dt_arena *arena);
// Fills the arrays. Called by all threads of a team; a barrier must follow.
void dt_attention_prepare(const struct dt_attention_shared *shared);

// Loads a row of E values as fp32, rotated by position j, times scale; zeros up to the pitch.
void dt_attention_load(const struct dt_attention_shared *shared, const void *row, int64_t j,
                       float scale, float *out);
// dt_attention_load without rotation.
void dt_attention_load_plain(const struct dt_attention_shared *shared, const void *row, float *out);
// Rotates the gradient of a rotated row back in place, times scale, and stores it.
void dt_attention_turn_back(const struct dt_attention_shared *shared, float *row, int64_t j,
                            float scale);
void dt_attention_store(const struct dt_attention_shared *shared, float *row, int64_t j,
                        float scale, void *out);
// A tile of keys and values in a thread's memory, padded with zero rows to a whole panel.
struct dt_attention_keys {
    float *keys, *values;               // [KEYS, pitch]
    float *turned_keys, *turned_values; // [pitch, KEYS]; turned_values NULL: not needed
};
// Loads positions [j, j + n) of sequence b, group g.
void dt_attention_load_keys(const struct dt_attention_shared *shared, int64_t b, int64_t g,
                            int64_t j, int64_t n, const struct dt_attention_keys *tile);
