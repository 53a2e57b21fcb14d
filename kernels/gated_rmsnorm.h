// RMSNorm of a gated input, the norm before Mamba-2's output projection [Dao & Gu 2024, section 7].
// The gate comes first (norm_before_gate = false), and each of G equal groups of columns has a norm
// of its own.
//   forward:   g_i = x_i · silu(z_i)        rstd = 1 / sqrt(mean_{i in group} g_i² + eps)
//              y_i = g_i · rstd · w_i
//   backward:  with n_i = g_i · rstd and q_i = dy_i · w_i:
//              dg_i = rstd · (q_i - n_i · mean_{j in group}(q_j n_j))
//              dx_i = dg_i · silu(z_i)      dz_i = dg_i · x_i · σ(z_i)(1 + z_i(1 - σ(z_i)))
//              dw_i (+)= Σ_rows dy_i · n_i
// Forward saves only rstd. Statistics are fp32. Views are of one dtype, the storage (bf16 or fp32),
// with any strides; G divides their columns. dx may be dy itself.
#pragma once

#include "base/view.h"

#include <stdbool.h>

struct dt_gated_rmsnorm_forward_args {
    int64_t groups; // G
    float eps;
    struct dt_view x, z;
    const float *weight;
    struct dt_view y; // may be x itself
    float *rstd;      // NULL: no backward follows
};

struct dt_gated_rmsnorm_backward_args {
    int64_t groups;
    struct dt_view x, z; // as in forward
    const float *weight;
    const float *rstd; // from forward
    struct dt_view dy, dx, dz;
    float *dweight;
    bool accumulate;
    void *workspace; // partial dweight
    int64_t workspace_bytes;
};

// clang-format off
#define DT_GATED_RMSNORM_INPUTS              \
    SIZE(M, x.rows) SIZE(E, x.cols)          \
    RANGE(G, groups, 1, E)                   \
    MULTIPLE(x.cols, G)                      \
    STORAGE(T, x.dtype)                      \
    ARRAY(IN,          M, E, T,      x, z)   \
    ARRAY(IN | CACHED, 1, E, DT_F32, weight)
#define DT_ROWS_gated_rmsnorm_forward                 \
    DT_GATED_RMSNORM_INPUTS                           \
    NUMBER(eps, 0.0, 2.0)                             \
    ARRAY(OUT,                    M, E, T,      y)    \
    ARRAY(OUT | CACHED | OR_NULL, M, G, DT_F32, rstd)
#define DT_ROWS_gated_rmsnorm_backward         \
    DT_GATED_RMSNORM_INPUTS                    \
    ARRAY(IN | CACHED,  M, G, DT_F32, rstd)    \
    ARRAY(IN,           M, E, T,      dy)      \
    ARRAY(OUT,          M, E, T,      dx, dz)  \
    ARRAY(SUM | CACHED, 1, E, DT_F32, dweight)
// clang-format on
