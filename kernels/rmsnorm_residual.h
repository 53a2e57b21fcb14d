// Residual addition and RMSNorm in one pass [Zhang & Sennrich 2019; Mamba's prenorm block].
//   forward:   r = residual + x          (x NULL: r = residual)
//              rstd = 1 / sqrt(mean_i r_i² + eps)
//              y_i = r_i · rstd · w_i
//   backward:  with n_i = r_i · rstd and g_i = dy_i · w_i:
//              dr_i (+)= rstd · (g_i - n_i · mean_j(g_j n_j));   dw_i (+)= Σ_rows dy_i · n_i
//              dx = dr, rounded to storage: the gradient of the block output x
// Forward saves r (residual_out) and rstd. Statistics, r and dr are fp32.
#pragma once

#include "base/view.h"

#include <stdbool.h>

struct dt_rmsnorm_residual_forward_args {
    float eps;
    const float *residual;
    struct dt_view x; // data NULL: r = residual
    const float *weight;
    float *residual_out; // may be `residual` itself; NULL: not wanted
    struct dt_view y;
    float *rstd; // NULL: not wanted
};

struct dt_rmsnorm_residual_backward_args {
    struct dt_view dy;
    const float *residual; // forward's residual_out
    const float *rstd;
    const float *weight;
    float *dresidual;
    bool first;        // dr =, else +=; set for the network's last norm
    struct dt_view dx; // dresidual after the update; data NULL: not wanted
    float *dweight;
    bool accumulate;
    void *workspace; // partial dweight
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_rmsnorm_residual_forward             \
    SIZE(M, y.rows) SIZE(D, y.cols)                  \
    STORAGE(T, y.dtype)                              \
    NUMBER(eps, 0.0, 2.0)                            \
    ARRAY(IN,            M, D, DT_F32, residual)     \
    ARRAY(IN | OR_NULL,  M, D, T,      x)            \
    ARRAY(IN | CACHED,   1, D, DT_F32, weight)       \
    ARRAY(OUT | OR_NULL, M, D, DT_F32, residual_out) \
    ARRAY(OUT,           M, D, T,      y)            \
    ARRAY(OUT | OR_NULL, 1, M, DT_F32, rstd)         \
    APART(y, x)
#define DT_ROWS_rmsnorm_residual_backward                \
    SIZE(M, dy.rows) SIZE(D, dy.cols)                    \
    STORAGE(T, dy.dtype)                                 \
    ARRAY(IN,                   M, D, T,      dy)        \
    ARRAY(IN,                   M, D, DT_F32, residual)  \
    ARRAY(IN,                   1, M, DT_F32, rstd)      \
    ARRAY(IN | CACHED,          1, D, DT_F32, weight)    \
    ARRAY(a->first ? OUT : ADD, M, D, DT_F32, dresidual) \
    ARRAY(OUT | OR_NULL,        M, D, T,      dx)        \
    ARRAY(SUM | CACHED,         1, D, DT_F32, dweight)   \
    APART(dx, dy)
// clang-format on
