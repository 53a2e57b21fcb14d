// The hot loops of the scan: a block forward, which backward reruns to keep each step's decay and
// state, and a block backwards. States and gradients are local arrays of constant size, which stay
// in registers or in the L1 cache.
#include "kernels/scan_backward_cpu.h"

// Runs SCAN_STATES states from n0 and DT_LANES channels from `lane` over a block: advances h, s +=
// C · h. keep: scratch gets decay and state of each step, and dc += ds h.
DT_INLINE void run_tile(const struct scan_block *block, const struct scan_scratch *scratch,
                        bool keep, int64_t n0, int64_t lane, float h[SCAN_STATES][DT_LANES],
                        float *restrict s_rows)
{
    const float *restrict a = block->a + n0 * DT_PITCH + lane;
    for (int64_t t = 0; t < block->steps; t++) {
        int64_t row = t * DT_PITCH + lane;
        const float *restrict b = block->b + t * block->n_state + n0;
        const float *restrict c = block->c + t * block->n_state + n0;
        float *restrict dc = keep ? scratch->dc + t * SCAN_TILE : NULL;
        float *restrict decay = keep ? scratch->decay + t * SCAN_TILE : NULL;
        float *restrict before = keep ? scratch->before + t * SCAN_TILE : NULL;
        float delta[DT_LANES], du[DT_LANES], ds[DT_LANES], s[DT_LANES];
        bool reset = block->reset && block->reset[t];
        dt_load_lanes(block->delta + row, delta);
        dt_load_lanes(block->du + row, du);
        if (keep)
            dt_load_lanes(scratch->ds + row, ds);
        dt_load_lanes(s_rows + row, s);
        if (n0 == 0)
            dt_prefetch(block->ahead, t, lane);
        if (reset)
            scan_clear(h);
#pragma GCC unroll 8
        for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                float e = scan_exp2(delta[l] * a[n * DT_PITCH + l]);
                if (keep) {
                    decay[n * DT_LANES + l] = e;
                    before[n * DT_LANES + l] = h[n][l];
                }
                h[n][l] = e * h[n][l] + du[l] * b[n];
                s[l] += c[n] * h[n][l];
                if (keep)
                    dc[n * DT_LANES + l] += ds[l] * h[n][l];
            }
        dt_store_lanes(s, s_rows + row);
        if (keep && reset) // stops the gradient from t to t - 1
            memset(decay, 0, SCAN_TILE * sizeof *decay);
    }
}

DT_CLONES
void scan_advance(const struct scan_block *block, float *h_rows, float *s_rows)
{
    for (int64_t lane = 0; lane < block->padded; lane += DT_LANES)
        for (int64_t n0 = 0; n0 < block->n_state; n0 += SCAN_STATES) {
            float h[SCAN_STATES][DT_LANES], *rows = h_rows + n0 * DT_PITCH + lane;
            for (int n = 0; n < SCAN_STATES; n++)
                dt_load_lanes(rows + n * DT_PITCH, h[n]);
            run_tile(block, NULL, false, n0, lane, h, s_rows);
            for (int n = 0; n < SCAN_STATES; n++)
                dt_store_lanes(h[n], rows + n * DT_PITCH);
        }
}

DT_CLONES
void scan_replay(const struct scan_block *block, const struct scan_scratch *scratch,
                 const float *start, int64_t n0, int64_t lane)
{
    float h[SCAN_STATES][DT_LANES];
    for (int n = 0; n < SCAN_STATES; n++)
        dt_load_lanes(start + (n0 + n) * DT_PITCH + lane, h[n]);
    run_tile(block, scratch, true, n0, lane, h, scratch->in.s);
}

DT_CLONES
void scan_sweep(const struct scan_block *block, const struct scan_scratch *scratch,
                const struct dt_ahead *ahead, int64_t n0, int64_t lane)
{
    const float *restrict a = block->a + n0 * DT_PITCH + lane;
    float *restrict da_rows = scratch->da + n0 * DT_PITCH + lane;
    float carry[SCAN_STATES][DT_LANES], da[SCAN_STATES][DT_LANES];
    for (int n = 0; n < SCAN_STATES; n++)
        dt_load_lanes(scratch->carry + (n0 + n) * DT_PITCH + lane, carry[n]);
    scan_clear(da);
    for (int64_t t = block->steps - 1; t >= 0; t--) {
        int64_t row = t * DT_PITCH + lane;
        const float *restrict b = block->b + t * block->n_state + n0;
        const float *restrict c = block->c + t * block->n_state + n0;
        const float *restrict decay = scratch->decay + t * SCAN_TILE;
        const float *restrict before = scratch->before + t * SCAN_TILE;
        float *restrict db = scratch->db + t * SCAN_TILE;
        float delta[DT_LANES], du[DT_LANES], ds[DT_LANES], dh_b[DT_LANES], dh_a[DT_LANES];
        dt_load_lanes(block->delta + row, delta);
        dt_load_lanes(block->du + row, du);
        dt_load_lanes(scratch->ds + row, ds);
        dt_load_lanes(scratch->dh_b + row, dh_b);
        dt_load_lanes(scratch->dh_a + row, dh_a);
        if (n0 == 0)
            dt_prefetch(ahead, t, lane);
#pragma GCC unroll 8
        for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                float dh = ds[l] * c[n] + carry[n][l];
                float back = dh * decay[n * DT_LANES + l];
                float q = back * before[n * DT_LANES + l];
                carry[n][l] = back;
                db[n * DT_LANES + l] += dh * du[l];
                dh_b[l] += dh * b[n];
                dh_a[l] += q * a[n * DT_PITCH + l];
                da[n][l] += q * delta[l];
            }
        dt_store_lanes(dh_b, scratch->dh_b + row);
        dt_store_lanes(dh_a, scratch->dh_a + row);
    }
    for (int n = 0; n < SCAN_STATES; n++) {
        dt_store_lanes(carry[n], scratch->carry + (n0 + n) * DT_PITCH + lane);
#pragma omp simd
        for (int l = 0; l < DT_LANES; l++)
            da_rows[n * DT_PITCH + l] += da[n][l];
    }
}

DT_CLONES
void scan_sum_lanes(const float *restrict from, int64_t steps, int64_t n_state, float *restrict to)
{
    for (int64_t t = 0; t < steps; t++)
        for (int n = 0; n < SCAN_STATES; n++) {
            float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
            for (int l = 0; l < DT_LANES; l++)
                sum += from[(t * SCAN_STATES + n) * DT_LANES + l];
            to[t * n_state + n] = sum;
        }
}
