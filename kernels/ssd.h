// State-space duality, the scan of Mamba-2 [Dao & Gu 2024]: every head has one decay, and heads of
// a group share B and C. Softplus and D skip are fused.
//   Δ_t = clamp(softplus(dt_t + dt_bias), dt_min, dt_max)       (softplus linear above 20)
//   a_t = exp(Δ_t · A)                              A = -exp(a_log), one number per head
//   h_t = a_t · h_{t-1} + Δ_t · x_t · B_tᵀ          h: [P, N] per head, fp32
//   y_t = h_t · C_t + d_skip · x_t
// h_{-1} is h0, or zero. reset[t] = 1: a document starts at t, h_{t-1} (at t = 0: h0) counts as
// zero. reset[t] also stops the gradient from t to t - 1.
//
// Implementations use the matrix form over chunks of Q tokens. With X = Δ_t x_t as rows [Q, P],
// l_t = Σ_{s<=t} Δ_s A from the chunk's start, decay[t, s] = exp(l_t - l_s) for s <= t with no
// reset in (s, t], else 0, and keep_t = exp(l_t), or 0 from the chunk's first reset on:
//   Y      = (decay ∘ C Bᵀ) X + keep ∘ C h_beforeᵀ + d_skip ∘ x
//   h_next = keep_{Q-1} · h_before + (decay[Q-1, :] ∘ X)ᵀ B
// All exponents are <= 0. Heads of a group share C Bᵀ. States are fp32; with bf16 storage, operands
// of products may be rounded to bf16, their sums never.
//
// Backward, with dh_t the gradient of h_t (from y_t and from h_{t+1}):
//   dh_t = dy_t · C_tᵀ + a_{t+1} · dh_{t+1}               (the second term 0 where reset[t+1]; at
//                                                          the last t: dh_last, or zero)
//   dh0  = a_0 · dh_0                                     (0 where reset[0])
//   dC_t = Σ_{heads} h_tᵀ · dy_t              dB_t = Σ_{heads} Δ_t · dh_tᵀ · x_t
//   dx_t = d_skip · dy_t + Δ_t · dh_t · B_t
//   dlog_t = a_t · Σ_{p,n} dh_t ∘ h_{t-1}                 (0 where reset[t]); the gradient of Δ_t A
//   dΔ_t = A · dlog_t + x_tᵀ · dh_t · B_t                 (0 where the clamp holds Δ_t)
//   ddt_t = dΔ_t · σ(dt_t + dt_bias)
//   da_log = Σ_{b,t} dlog_t · Δ_t · A      dd_skip = Σ_{b,t} dy_tᵀ · x_t
//   ddt_bias = Σ_{b,t} ddt_t
// In chunks, with dM = dY Xᵀ, W = dM ∘ decay ∘ C Bᵀ, and dh_end the gradient of h_next (after the
// last chunk dh_last; before the first dh_before is dh0):
//   dC = (Σ_{heads} dM ∘ decay) B + Σ_{heads} keep ∘ dY h_before
//   dB = (Σ_{heads} dM ∘ decay)ᵀ C + Σ_{heads} decay[Q-1, :] ∘ X dh_end
//   dX = (decay ∘ C Bᵀ)ᵀ dY + decay[Q-1, :] ∘ B dh_endᵀ
//   dh_before = keep_{Q-1} · dh_end + (keep ∘ dY)ᵀ C
//   dlog_t = Σ_{s < t <= u} W[u, s] + Σ_{u >= t} keep_u · dY_uᵀ h_before C_u
//          + Σ_{s < t} decay[Q-1, s] · X_sᵀ dh_end B_s + keep_{Q-1} · Σ dh_end ∘ h_before
// which sums terms that belong to dlog_t only: <dy, y> - <dX, X> would cancel. (A term crosses no
// reset: decay and keep are 0 there.) Sums over heads, batch and time have a fixed order: no
// atomics, no bit depends on threads.
//
// A view's rows are the tokens of B sequences one after another, row b·L + t. Columns of x and y:
// head h, element p at h·P + p; of b and c: group g, state n at g·N + n; head h uses group
// h / (H / G). Strides and places are free: x, B and C are columns of the convolution's output, dt
// is the last columns of the input projection's. All views are of one dtype, the storage (bf16 or
// fp32). N in [1, DT_SSD_STATES_MAX], P in [1, DT_SSD_HEAD_MAX], G divides H; L, B >= 1; L elements
// take less than 2^31 bytes.
#pragma once

#include "base/view.h"

#include <stdbool.h>

enum { DT_SSD_STATES_MAX = 256, DT_SSD_HEAD_MAX = 256 }; // N, P

// The chunks that suit each backend.
enum { DT_SSD_CHUNK_CPU = 64, DT_SSD_CHUNK_CUDA = 128 };
// Limit on min(Q, L), the actual tokens of a chunk, because matrices [Q, Q] are made.
enum { DT_SSD_CHUNK_MAX = 1024 };

struct dt_ssd_inputs {
    int64_t batch, length; // B, L
    int64_t heads, groups; // H, G
    int64_t chunk;         // Q: tokens between saved states
    float dt_min, dt_max;  // 0 and INFINITY: no clamp
    struct dt_view x, b, c;
    struct dt_view dt; // before bias and softplus
    const float *a_log, *d_skip, *dt_bias;
    const float *h0;      // NULL: zeros. Backward finds it in `states`
    const uint8_t *reset; // NULL: none
};

struct dt_ssd_forward_args {
    struct dt_ssd_inputs in;
    struct dt_view y;
    float *h_last; // the state after the last t, [H, P, N], or NULL; may be h0 itself
    // h before the first t of each chunk, [H, N, P], or NULL: no backward follows. If a reset
    // starts the chunk, this is still the h that the reset drops.
    float *states;
    void *workspace;
    int64_t workspace_bytes;
};

struct dt_ssd_backward_args {
    struct dt_ssd_inputs in; // as in forward
    const float *states;     // from forward
    const float *dh_last;    // gradient of h_last; NULL: zeros
    struct dt_view dy, dx, ddt, db, dc;
    float *dh0; // gradient of h0, or NULL
    float *da_log, *dd_skip, *ddt_bias;
    bool accumulate;
    void *workspace;
    int64_t workspace_bytes;
};

// clang-format off
#define DT_SSD_INPUTS                                                                 \
    SIZE(B, in.batch) SIZE(L, in.length) SIZE(Q, in.chunk)                            \
    LIMIT(tokens, dt_min_i64(Q, L), 1, DT_SSD_CHUNK_MAX)                              \
    SIZE(H, in.heads)                                                                 \
    RANGE(G, in.groups, 1, H)                                                         \
    RANGE(HP, in.x.cols, 1, H * DT_SSD_HEAD_MAX)                                      \
    RANGE(GN, in.b.cols, 1, G * DT_SSD_STATES_MAX)                                    \
    MULTIPLE(in.heads, G) MULTIPLE(in.x.cols, H) MULTIPLE(in.b.cols, G)               \
    LET(N, GN / G)                                                                    \
    STORAGE(T, in.x.dtype)                                                            \
    LENGTH(in.length, T)                                                              \
    LET(chunks, dt_ceil_div(L, Q))                                                    \
    NUMBER(in.dt_min, 0.0, HUGE_VAL)                                                  \
    DEMAND(a->in.dt_max >= a->in.dt_min, "in.dt_max is %g, less than in.dt_min = %g", \
    (double)a->in.dt_max, (double)a->in.dt_min)                                       \
    ARRAY(IN,                    B * L,  HP, T,      in.x)                            \
    ARRAY(IN,                    B * L,  H,  T,      in.dt)                           \
    ARRAY(IN,                    B * L,  GN, T,      in.b, in.c)                      \
    ARRAY(IN | CACHED,           1,      H,  DT_F32, in.a_log, in.d_skip, in.dt_bias) \
    ARRAY(IN | CACHED | OR_NULL, B * HP, N,  DT_F32, in.h0)                           \
    ARRAY(IN | CACHED | OR_NULL, B,      L,  DT_U8,  in.reset)
#define DT_ROWS_ssd_forward                                           \
    DT_SSD_INPUTS                                                     \
    ARRAY(OUT,                    B * L,      HP,     T,      y)      \
    ARRAY(OUT | CACHED | OR_NULL, B * HP,     N,      DT_F32, h_last) \
    ARRAY(OUT | OR_NULL,          B * chunks, HP * N, DT_F32, states)
#define DT_ROWS_ssd_backward                                                             \
    DT_SSD_INPUTS                                                                        \
    ARRAY(IN,                     B * chunks, HP * N, DT_F32, states)                    \
    ARRAY(IN | CACHED | OR_NULL,  B * HP,     N,      DT_F32, dh_last)                   \
    ARRAY(IN,                     B * L,      HP,     T,      dy)                        \
    ARRAY(OUT,                    B * L,      HP,     T,      dx)                        \
    ARRAY(OUT,                    B * L,      H,      T,      ddt)                       \
    ARRAY(OUT,                    B * L,      GN,     T,      db, dc)                    \
    ARRAY(OUT | CACHED | OR_NULL, B * HP,     N,      DT_F32, dh0)                       \
    ARRAY(SUM | CACHED,           1,          H,      DT_F32, da_log, dd_skip, ddt_bias) \
    APART(dx, dy) APART(dh0, dh_last)
// clang-format on
