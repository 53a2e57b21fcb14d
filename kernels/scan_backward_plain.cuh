// The scan backward by the formulas, for any N: one thread per channel, one state at a time (all
// states would need local memory, as in scan_forward.cu), with sums over a block's 128 channels by
// dt_block_sum. Also what it shares with the fast kernel: the workspace and a token's derived
// values. Private to scan_backward.cu.
#pragma once

#include "kernels/scan.cuh"

enum { PLAIN_CHANNELS = 128 };

// Partial sums and passing values in the workspace.
struct backward_space {
    float *columns;       // [B, L, blocks, 2 N]: dB, then dC, of a block's channels
    float *parameters;    // [runs, N + 2, D]: da_log, dd_skip, ddt_bias of a run
    scan_passing passing; // dh from later segments
    float *starts;        // fast: [B, ceil(L / TILE), N, D]; NULL: kept by forward
    float *history;       // plain: [B, chunk, D] of h_{t-1}
    float *dh_b, *dh_a;   // plain: [B, chunk, D] of sums over n
    float *carry;         // plain: [B, N, D] of dh at the chunk after
};

// Values of token t of a channel for the formulas.
struct token {
    float u, delta, ds, gate; // gate: dz / s
};

template <class T>
DT_DEVICE token read_token(const dt_scan_backward_args &args, int64_t row, int64_t d)
{
    token k;
    const float z = dt_get<T>(args.in.z, row, d);
    const float dy = dt_get<T>(args.dy, row, d);
    const float x = dt_get<T>(args.in.delta, row, d) + args.in.dt_bias[d];
    const float open = dt_sigmoid(z);
    k.u = dt_get<T>(args.in.u, row, d);
    k.delta = scan_softplus(x);
    k.ds = dy * z * open;
    k.gate = dy * open * (1.0f + z * (1.0f - open));
    return k;
}

// Run by the whole block for channels [128 block, …) of sequence b; threads beyond the last channel
// only take part in the sums over channels.
template <class T>
static __global__ void __launch_bounds__(PLAIN_CHANNELS, 2)
    scan_backward_plain(const dt_scan_backward_args args, int64_t blocks, backward_space space)
{
    const int64_t b = blockIdx.x / blocks, block = blockIdx.x % blocks;
    const int64_t d = block * PLAIN_CHANNELS + threadIdx.x;
    const int64_t L = args.in.length, D = args.in.u.cols, N = args.in.b.cols;
    const int64_t chunks = (L - 1) / args.in.chunk + 1, most = dt_least(args.in.chunk, L);
    const bool active = d < D;
    float *da_of = space.parameters + b * (N + 2) * D + d, *carry_of = space.carry + b * N * D + d;
    float dd_skip = 0.0f, ddt_bias = 0.0f;
    for (int64_t n = 0; n < N && active; n++) {
        da_of[n * D] = 0.0f;
        carry_of[n * D] = args.dh_last ? args.dh_last[(b * D + d) * N + n] : 0.0f;
    }
    for (int64_t chunk = chunks - 1; chunk >= 0; chunk--) {
        const int64_t begin = chunk * args.in.chunk, steps = dt_least(args.in.chunk, L - begin);
        const int64_t first = b * L + begin;
        float *history = space.history + b * most * D + d;
        float *dh_b = space.dh_b + b * most * D + d, *dh_a = space.dh_a + b * most * D + d;
        for (int64_t t = 0; t < steps && active; t++)
            dh_b[t * D] = dh_a[t * D] = 0.0f;
        for (int64_t n = 0; n < N; n++) {
            const float a = active ? scan_scaled_a(args.in.a_log[d * N + n]) : 0.0f;
            float h = active ? args.states[((b * chunks + chunk) * N + n) * D + d] : 0.0f;
            float da = active ? da_of[n * D] : 0.0f, carry = active ? carry_of[n * D] : 0.0f;
            for (int64_t t = 0; t < steps && active; t++) {
                const int64_t row = first + t;
                const token k = read_token<T>(args, row, d);
                const T *B = dt_at<T>(args.in.b, row);
                h = args.in.reset && args.in.reset[row] ? 0.0f : h;
                history[t * D] = h;
                h = dt_exp2(k.delta * a) * h + k.delta * k.u * dt_to_f32(B[n]);
            }
            for (int64_t t = steps - 1; t >= 0; t--) {
                const int64_t row = first + t;
                const bool cut = args.in.reset && args.in.reset[row];
                float db = 0.0f, dc = 0.0f;
                if (active) {
                    const token k = read_token<T>(args, row, d);
                    const float B = dt_get<T>(args.in.b, row, n);
                    const float C = dt_get<T>(args.in.c, row, n);
                    const float before = history[t * D], decay = dt_exp2(k.delta * a);
                    const float dh = k.ds * C + carry, back = dh * decay;
                    const float q = cut ? 0.0f : back * before;
                    db = dh * k.delta * k.u;
                    dc = k.ds * (decay * before + k.delta * k.u * B);
                    dh_b[t * D] += dh * B;
                    dh_a[t * D] += q * a;
                    da += q * k.delta * a * DT_LN_2;
                    carry = cut ? 0.0f : back;
                }
                db = dt_block_sum<PLAIN_CHANNELS>(db);
                dc = dt_block_sum<PLAIN_CHANNELS>(dc);
                if (threadIdx.x == 0) {
                    space.columns[(row * blocks + block) * 2 * N + n] = db;
                    space.columns[(row * blocks + block) * 2 * N + N + n] = dc;
                }
            }
            if (active) {
                da_of[n * D] = da;
                carry_of[n * D] = carry;
            }
        }
        for (int64_t t = 0; t < steps && active; t++) {
            const int64_t row = first + t;
            const token k = read_token<T>(args, row, d);
            // σ(x) = 1 - exp(-softplus(x)), without its cancellation
            const float slope = -expm1f(-k.delta);
            const float ddelta = (dh_a[t * D] * DT_LN_2 + k.u * dh_b[t * D]) * slope;
            dt_put<T>(args.du, row, d, k.ds * args.in.d_skip[d] + k.delta * dh_b[t * D]);
            dt_put<T>(args.ddelta, row, d, ddelta);
            dt_put<T>(args.dz, row, d, k.gate * args.s[row * D + d]);
            dd_skip += k.ds * k.u;
            ddt_bias += ddelta;
        }
    }
    if (active) {
        float *end = space.parameters + (b + 1) * (N + 2) * D + d;
        end[-2 * D] = dd_skip, end[-D] = ddt_bias;
    }
    for (int64_t n = 0; n < N && active && args.dh0; n++)
        args.dh0[(b * D + d) * N + n] = carry_of[n * D];
}
