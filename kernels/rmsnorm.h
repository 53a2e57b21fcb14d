// RMSNorm without weights, in place [Zhang & Sennrich 2019], for dt, B and C in FalconMamba's mixer
// [Zuo et al. 2024]. Each of G equal groups of columns has a norm of its own.
//   forward:   x_i = x_i · rstd,   rstd = 1 / sqrt(mean_{i in group} x_i² + eps)
//   backward:  dx_i = rstd · (dx_i - n_i · mean_{j in group}(dx_j n_j)),   n: forward's result
// Statistics are fp32. Views are of one dtype, the storage (bf16 or fp32), with any strides; G
// divides their columns.
#pragma once

#include "base/view.h"

struct dt_rmsnorm_forward_args {
    int64_t groups; // G
    float eps;
    struct dt_view x;
    float *rstd; // NULL: no backward follows
};

struct dt_rmsnorm_backward_args {
    int64_t groups;
    struct dt_view n;
    const float *rstd; // from forward
    struct dt_view dx;
};

// clang-format off
#define DT_ROWS_rmsnorm_forward                       \
    SIZE(M, x.rows) SIZE(E, x.cols)                   \
    RANGE(G, groups, 1, E)                            \
    MULTIPLE(x.cols, G)                               \
    STORAGE(T, x.dtype)                               \
    NUMBER(eps, 0.0, 2.0)                             \
    ARRAY(ADD,                    M, E, T,      x)    \
    ARRAY(OUT | CACHED | OR_NULL, M, G, DT_F32, rstd)
#define DT_ROWS_rmsnorm_backward            \
    SIZE(M, n.rows) SIZE(E, n.cols)         \
    RANGE(G, groups, 1, E)                  \
    MULTIPLE(n.cols, G)                     \
    STORAGE(T, n.dtype)                     \
    ARRAY(IN,          M, E, T,      n)     \
    ARRAY(IN | CACHED, M, G, DT_F32, rstd)  \
    ARRAY(ADD,         M, E, T,      dx)    \
    APART(dx, n)
// clang-format on
