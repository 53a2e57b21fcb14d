// The scratch rows of backward and its loops over a block. Private to scan_backward_cpu.c and
// scan_sweep_cpu.c.
#pragma once

#include "kernels/scan_cpu.h"

enum { SCAN_TILE = SCAN_STATES * DT_LANES };

// One thread's rows.
struct scan_scratch {
    struct scan_rows in;
    float *carry, *da;         // [n_state] rows: exp(Δ A) dh, Σ_t of da_log / A
    float *starts;             // [blocks of a chunk][n_state] rows: h before each block
    float *dd_skip, *ddt_bias; // one row each: sums over t
    float *u, *slope;          // [DT_BLOCK] rows: u, dΔ / d delta
    float *ds, *dz;            // [DT_BLOCK] rows: dy silu(z), dy silu'(z)
    float *dh_b, *dh_a;        // [DT_BLOCK] rows: Σ_n dh B, Σ_n dh exp(Δ A) h A log2(e)
    float *decay, *before;     // [DT_BLOCK, SCAN_TILE]: exp(Δ A) (0 at a reset), h_{t-1}
    float *db, *dc;            // [DT_BLOCK, SCAN_TILE]: sums over the piece's channels, by lane
};

// Runs SCAN_STATES states from n0 and DT_LANES channels from `lane` over a block from the first
// state `start` ([n_state] rows), keeping decay and state of each step; s += C · h, dc += ds h.
void scan_replay(const struct scan_block *block, const struct scan_scratch *scratch,
                 const float *start, int64_t n0, int64_t lane);
// Carries dh of these states and channels from the block's last step to its first.
void scan_sweep(const struct scan_block *block, const struct scan_scratch *scratch,
                const struct dt_ahead *ahead, int64_t n0, int64_t lane);
// to[t, n] = Σ over lanes of from[t, n] for SCAN_STATES states; rows of `to` are n_state apart.
void scan_sum_lanes(const float *from, int64_t steps, int64_t n_state, float *to);
