// The hot loops of the scan: a block forward, which backward reruns to keep each step's decay and
// state, and a block backwards. States and gradients are local arrays of constant size, which stay
// in registers or in the L1 cache.
#include "kernels/scan_backward_cpu.h"

DT_INLINE void load_states(const float *rows, float tile[SCAN_STATES][DT_LANES])
{
    for (int n = 0; n < SCAN_STATES; n++)
        dt_load_lanes(rows + n * DT_PITCH, tile[n]);
}

DT_INLINE void store_states(float tile[SCAN_STATES][DT_LANES], float *rows)
{
    for (int n = 0; n < SCAN_STATES; n++)
        dt_store_lanes(tile[n], rows + n * DT_PITCH);
}

// Runs SCAN_STATES states from n0 and DT_LANES channels from `lane` over a block: advances h, s +=
// C · h. `kept`, unless NULL, gets decay and state of each step.
DT_INLINE void run_tile(const struct scan_block *block, struct scan_kept *restrict kept, int64_t n0,
                        int64_t lane, float h[SCAN_STATES][DT_LANES])
{
    struct scan_step *restrict step = block->step + scan_steps_at(lane);
    float a[SCAN_STATES][DT_LANES];
    load_states(block->a + n0 * DT_PITCH + lane, a);
    for (int64_t t = 0; t < block->steps; t++) {
        const float *restrict b = block->b + t * block->n_state + n0;
        const float *restrict c = block->c + t * block->n_state + n0;
        float delta[DT_LANES], du[DT_LANES], s[DT_LANES];
        bool reset = block->reset && block->reset[t];
        dt_load_lanes(step[t].delta, delta);
        dt_load_lanes(step[t].du, du);
        dt_load_lanes(step[t].s, s);
        if (n0 == 0)
            dt_prefetch(block->ahead, t, lane);
        if (reset)
            scan_clear(h);
#pragma GCC unroll 8
        for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                float e = scan_exp2(delta[l] * a[n][l]);
                h[n][l] = e * h[n][l] + du[l] * b[n];
                s[l] += c[n] * h[n][l];
                if (kept) {
                    kept[t + 1].decay[n][l] = e;
                    kept[t + 1].h[n][l] = h[n][l];
                }
            }
        dt_store_lanes(s, step[t].s);
        if (kept && reset) // stops the gradient from t to t - 1
            scan_clear(kept[t + 1].decay);
    }
}

DT_CLONES
void scan_advance(const struct scan_block *block, float *h_rows)
{
    for (int64_t lane = 0; lane < block->padded; lane += DT_LANES)
        for (int64_t n0 = 0; n0 < block->n_state; n0 += SCAN_STATES) {
            float h[SCAN_STATES][DT_LANES];
            load_states(h_rows + n0 * DT_PITCH + lane, h);
            run_tile(block, NULL, n0, lane, h);
            store_states(h, h_rows + n0 * DT_PITCH + lane);
        }
}

DT_CLONES
void scan_replay(const struct scan_block *block, const struct scan_scratch *scratch,
                 const float *start, int64_t n0, int64_t lane)
{
    float h[SCAN_STATES][DT_LANES];
    load_states(start + n0 * DT_PITCH + lane, h);
    for (int n = 0; n < SCAN_STATES; n++)
        dt_store_lanes(h[n], scratch->kept->h[n]);
    run_tile(block, scratch->kept, n0, lane, h);
}

DT_CLONES
void scan_sweep(const struct scan_block *block, const struct scan_scratch *scratch,
                const struct dt_ahead *ahead, int64_t n0, int64_t lane)
{
    int64_t tile = n0 * DT_PITCH + lane;
    const struct scan_step *restrict step = block->step + scan_steps_at(lane);
    struct scan_slope *restrict slope = scratch->slope + scan_steps_at(lane);
    float a[SCAN_STATES][DT_LANES], carry[SCAN_STATES][DT_LANES], da[SCAN_STATES][DT_LANES];
    load_states(block->a + tile, a);
    load_states(scratch->carry + tile, carry);
    scan_clear(da);
    for (int64_t t = block->steps - 1; t >= 0; t--) {
        const float *restrict b = block->b + t * block->n_state + n0;
        const float *restrict c = block->c + t * block->n_state + n0;
        const struct scan_kept *restrict kept = scratch->kept + t;
        struct scan_sums *restrict sums = scratch->sums + t;
        float delta[DT_LANES], du[DT_LANES], ds[DT_LANES], dh_b[DT_LANES], dh_a[DT_LANES];
        dt_load_lanes(step[t].delta, delta);
        dt_load_lanes(step[t].du, du);
        dt_load_lanes(slope[t].ds, ds);
        dt_load_lanes(slope[t].dh_b, dh_b);
        dt_load_lanes(slope[t].dh_a, dh_a);
        if (n0 == 0)
            dt_prefetch(ahead, t, lane);
#pragma GCC unroll 8
        for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++) {
                float dh = ds[l] * c[n] + carry[n][l];
                float back = dh * kept[1].decay[n][l];
                float q = back * kept[0].h[n][l];
                carry[n][l] = back;
                sums->dc[n][l] += ds[l] * kept[1].h[n][l];
                sums->db[n][l] += dh * du[l];
                dh_b[l] += dh * b[n];
                dh_a[l] += q * a[n][l];
                da[n][l] += q * delta[l];
            }
        dt_store_lanes(dh_b, slope[t].dh_b);
        dt_store_lanes(dh_a, slope[t].dh_a);
    }
    store_states(carry, scratch->carry + tile);
    for (int n = 0; n < SCAN_STATES; n++)
#pragma omp simd
        for (int l = 0; l < DT_LANES; l++)
            scratch->da[tile + n * DT_PITCH + l] += da[n][l];
}

DT_INLINE float sum_lanes(const float *from)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int l = 0; l < DT_LANES; l++)
        sum += from[l];
    return sum;
}

DT_CLONES
void scan_sum_lanes(const struct scan_sums *restrict sums, int64_t steps, int64_t n_state,
                    float *restrict db, float *restrict dc)
{
    for (int64_t t = 0; t < steps; t++)
        for (int n = 0; n < SCAN_STATES; n++) {
            db[t * n_state + n] = sum_lanes(sums[t].db[n]);
            dc[t * n_state + n] = sum_lanes(sums[t].dc[n]);
        }
}
