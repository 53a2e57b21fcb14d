// Residual addition and RMSNorm in one pass [Zhang & Sennrich 2019; Mamba's prenorm block].
//   forward:   r = residual + x          (x NULL: r = residual)
//              rstd = 1 / sqrt(mean_i r_i² + eps)
//              y_i = r_i · rstd · w_i
//   backward:  with n_i = r_i · rstd and g_i = dy_i · w_i:
//              dr_i (+)= rstd · (g_i - n_i · mean_j(g_j n_j));   dw_i (+)= Σ_rows dy_i · n_i
//              dx = dr, rounded to storage: the gradient of the block's output that was added in
// Forward saves r (residual_out) and rstd. Statistics, r and dr are fp32.
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_rmsnorm_residual_forward_args {
    int64_t rows, width;
    enum dt_dtype dtype; // storage: x and y
    float eps;
    const float *residual; // [rows, width] fp32, in
    const void *x;         // [rows, width] storage, in, or NULL
    int64_t x_stride;      // elements between rows
    const float *weight;   // [width] fp32, in
    float *residual_out;   // [rows, width] fp32, =; may be `residual` itself; NULL: not wanted
    void *y;               // [rows, width] storage, =
    int64_t y_stride;
    float *rstd; // [rows] fp32, =, or NULL
};

struct dt_rmsnorm_residual_backward_args {
    int64_t rows, width;
    enum dt_dtype dtype; // storage: dy and dx
    const void *dy;      // [rows, width] storage, in
    int64_t dy_stride;
    const float *residual; // [rows, width] fp32, in: forward's residual_out
    const float *rstd;     // [rows], in
    const float *weight;   // [width], in
    float *dresidual;      // [rows, width] fp32, += , or = with `first`
    bool first;            // the last norm of the network: nothing flows past it
    void *dx;              // [rows, width] storage, = dresidual after the update, or NULL
    int64_t dx_stride;
    float *dweight; // [width] fp32, = or, with accumulate, +=
    bool accumulate;
    void *workspace; // partial dweight
    int64_t workspace_bytes;
};
