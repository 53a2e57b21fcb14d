// The scratch of backward and its loops over a block. Private to scan_backward_cpu.c and
// scan_sweep_cpu.c.
#pragma once

#include "kernels/scan_cpu.h"

// What backward needs of a vector of channels at one token besides scan_step.
struct scan_slope {
    float u[DT_LANES], slope[DT_LANES];   // u, dΔ / d delta
    float ds[DT_LANES], dz[DT_LANES];     // dy silu(z), dy silu'(z)
    float dh_b[DT_LANES], dh_a[DT_LANES]; // Σ_n dh B, Σ_n dh exp(Δ A) h A log2(e)
};

// What the replay of SCAN_STATES states keeps of a step for the sweep.
struct scan_kept {
    float decay[SCAN_STATES][DT_LANES]; // exp(Δ A), 0 at a reset
    float h[SCAN_STATES][DT_LANES];     // after the step
};

// dB and dC of a token, summed over the piece's vectors of channels.
struct scan_sums {
    float db[SCAN_STATES][DT_LANES], dc[SCAN_STATES][DT_LANES];
};

// One thread's scratch.
struct scan_scratch {
    struct scan_rows in;
    float *carry, *da;         // [n_state] rows: exp(Δ A) dh, Σ_t of da_log / A
    float *starts;             // [blocks of a chunk][n_state] rows: h before each block
    float *dd_skip, *ddt_bias; // one row each: sums over t
    struct scan_slope *slope;  // [vectors, SCAN_STEPS]
    struct scan_kept *kept;    // [DT_BLOCK + 1]: of step t in [t + 1]; [0] has h before the block
    struct scan_sums *sums;    // [DT_BLOCK]
};

// Runs SCAN_STATES states from n0 and DT_LANES channels from `lane` over a block from the first
// state `start` ([n_state] rows), keeping decay and state of each step; s += C · h.
void scan_replay(const struct scan_block *block, const struct scan_scratch *scratch,
                 const float *start, int64_t n0, int64_t lane);
// Carries dh of these states and channels from the block's last step to its first.
void scan_sweep(const struct scan_block *block, const struct scan_scratch *scratch,
                const struct dt_ahead *ahead, int64_t n0, int64_t lane);
// db[t, n] = Σ over lanes of sums[t].db[n] for SCAN_STATES states, and dc likewise; rows of both
// are n_state apart.
void scan_sum_lanes(const struct scan_sums *sums, int64_t steps, int64_t n_state, float *db,
                    float *dc);
