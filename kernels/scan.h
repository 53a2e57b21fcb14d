// The selective scan of Mamba-1 [Gu & Dao 2023, Algorithm 2], with softplus, D skip and gate fused.
//   Δ_t = softplus(delta_t + dt_bias)                           (linear above 20)
//   h_t = exp(Δ_t · A) ∘ h_{t-1} + Δ_t · u_t · B_t              A = -exp(a_log), h: [B, D, N], fp32
//   s_t = C_t · h_t + d_skip ∘ u_t
//   y_t = s_t ∘ silu(z_t)
// h_{-1} is h0, or zero. reset[t] = 1: a document starts at t, h_{t-1} (at t = 0: h0) counts as
// zero. reset[t] also stops the gradient from t to t - 1.
//
// Backward, with dh_t the gradient of h_t (from s_t and from h_{t+1}):
//   ds_t = dy_t · silu(z_t)                 dz_t = dy_t · s_t · σ(z_t)(1 + z_t(1 - σ(z_t)))
//   dh_t = ds_t · C_t + exp(Δ_{t+1} A) ∘ dh_{t+1}         (the second term 0 where reset[t+1]; at
//                                                          the last t: dh_last, or zero)
//   dh0  = exp(Δ_0 A) ∘ dh_0                              (0 where reset[0])
//   dC_t = Σ_d ds_t · h_t                   dB_t = Σ_d dh_t · Δ_t · u_t
//   du_t = ds_t · d_skip + Δ_t · Σ_n dh_t · B_t
//   dΔ_t = Σ_n dh_t · (A · exp(Δ_t A) · h_{t-1} + u_t · B_t)
//   ddelta_t = dΔ_t · σ(delta_t + dt_bias)
//   da_log = Σ_{b,t} dh_t · h_{t-1} · exp(Δ_t A) · Δ_t · A
//   dd_skip = Σ_{b,t} ds_t · u_t            ddt_bias = Σ_{b,t} ddelta_t
// It recomputes h from `states`, the h before t = 0, chunk, 2 chunk, … that forward kept; s_t was
// kept too, or is recomputed. Sums over channels, batch and time have a fixed order: no atomics, no
// bit depends on threads.
//
// A view's rows are the tokens of B sequences one after another, row b·L + t; views of D columns
// are per channel, views of N columns per state. Strides and places are free: u, z, B and C are
// usually columns of wider matrices. All views are of one dtype, the storage (bf16 or fp32). N in
// [1, DT_SCAN_STATES_MAX]; D in [1, DT_SCAN_CHANNELS_MAX]; L, B >= 1; L elements take less than
// 2^31 bytes, and B·L is less than 2^32.
#pragma once

#include "base/view.h"

#include <stdbool.h>

enum { DT_SCAN_STATES_MAX = 256, DT_SCAN_CHANNELS_MAX = 1 << 24 }; // N, D

// The chunk that suits the CPU: one block of its backward. Longer chunks cost one more forward run
// of the recurrence, shorter chunks more memory (states take N / chunk floats per channel and
// token).
enum { DT_SCAN_CHUNK_CPU = 32 };
// The chunk that suits CUDA: one tile of its backward, which then computes nothing twice. Chunks
// twice as long would halve the memory of states (`recompute` drops them anyway) and make backward
// a tenth slower.
enum { DT_SCAN_CHUNK_CUDA = 8 };

struct dt_scan_inputs {
    int64_t batch, length;      // B, L
    int64_t chunk;              // steps between saved states
    struct dt_view u, delta, z; // delta: before bias and softplus
    struct dt_view b, c;
    const float *a_log, *d_skip, *dt_bias;
    const float *h0;      // NULL: zeros. Backward finds it in `states`
    const uint8_t *reset; // NULL: none
};

struct dt_scan_forward_args {
    struct dt_scan_inputs in;
    struct dt_view y;
    float *h_last; // the state after the last t, or NULL; may be h0 itself
    // h before the first t of each chunk, [N, D], or NULL: no backward follows. If a reset starts
    // the chunk, this is still the h that the reset drops.
    float *states;
    // s_t, or NULL. CUDA's backward reads it (scan_keeps_s in its op table) and is a fifteenth
    // faster; the CPU's recomputes it.
    float *s;
    void *workspace;
    int64_t workspace_bytes;
};

struct dt_scan_backward_args {
    struct dt_scan_inputs in; // as in forward
    const float *states, *s;  // from forward
    const float *dh_last;     // gradient of h_last; NULL: zeros
    struct dt_view dy, du, ddelta, dz, db, dc;
    float *dh0; // gradient of h0, or NULL
    float *da_log, *dd_skip, *ddt_bias;
    bool accumulate;
    void *workspace; // partial sums
    int64_t workspace_bytes;
};

// clang-format off
#define DT_SCAN_INPUTS                                                         \
    SIZE(B, in.batch) SIZE(L, in.length) SIZE(chunk, in.chunk)                 \
    RANGE(D, in.u.cols, 1, DT_SCAN_CHANNELS_MAX)                               \
    RANGE(N, in.b.cols, 1, DT_SCAN_STATES_MAX)                                 \
    STORAGE(T, in.u.dtype)                                                     \
    LENGTH(in.length, T)                                                       \
    LIMIT(M, B * L, 1, UINT32_MAX)                                             \
    LET(chunks, dt_ceil_div(L, chunk)) LET(keeps_s, backend->op->scan_keeps_s) \
    ARRAY(IN,                    M,     D, T,      in.u, in.delta, in.z)       \
    ARRAY(IN,                    M,     N, T,      in.b, in.c)                 \
    ARRAY(IN | CACHED,           D,     N, DT_F32, in.a_log)                   \
    ARRAY(IN | CACHED,           1,     D, DT_F32, in.d_skip, in.dt_bias)      \
    ARRAY(IN | CACHED | OR_NULL, B * D, N, DT_F32, in.h0)                      \
    ARRAY(IN | CACHED | OR_NULL, B,     L, DT_U8,  in.reset)
#define DT_ROWS_scan_forward                                                   \
    DT_SCAN_INPUTS                                                             \
    ARRAY(OUT,                              M,              D, T,      y)      \
    ARRAY(OUT | CACHED | OR_NULL,           B * D,          N, DT_F32, h_last) \
    ARRAY(OUT | OR_NULL,                    B * chunks * N, D, DT_F32, states) \
    ARRAY(OUT | NEED(keeps_s && a->states), M,              D, DT_F32, s)
#define DT_ROWS_scan_backward                                                     \
    DT_SCAN_INPUTS                                                                \
    ARRAY(IN,                     B * chunks * N, D, DT_F32, states)              \
    ARRAY(IN | NEED(keeps_s),     M,              D, DT_F32, s)                   \
    ARRAY(IN | CACHED | OR_NULL,  B * D,          N, DT_F32, dh_last)             \
    ARRAY(IN,                     M,              D, T,      dy)                  \
    ARRAY(OUT,                    M,              D, T,      du, ddelta, dz)      \
    ARRAY(OUT,                    M,              N, T,      db, dc)              \
    ARRAY(OUT | CACHED | OR_NULL, B * D,          N, DT_F32, dh0)                 \
    ARRAY(SUM | CACHED,           D,              N, DT_F32, da_log)              \
    ARRAY(SUM | CACHED,           1,              D, DT_F32, dd_skip, ddt_bias)   \
    APART(dh0, dh_last)
// clang-format on
