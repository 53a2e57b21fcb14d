// Causal depthwise convolution and SiLU, channel-last.
//   s_t = bias + Σ_{j=0}^{K-1} w_j · x_{t-(K-1)+j}        per channel; w_{K-1} multiplies x_t
//   y_t = s_t · σ(s_t)
// x_{-1}, x_{-2}, … are the last rows of x0, or zero. Where reset[t] = 1 a document starts at t:
// for outputs at and after t, taps before t count as zero (x0 too when t = 0), until the next
// reset.
//   ds_t = dy_t · σ(s_t) · (1 + s_t · (1 - σ(s_t)))
//   dx_t = Σ_j w_j · ds_{t+(K-1)-j} + dx_last       over taps that no reset cuts; dx_last: the row
//                                                   of x_t among the gradients of x_last, if any
//   dx0: the dx_t of t < 0                          the same sum; 0 where reset[0]
//   dw_j (+)= Σ_{b,t} ds_t · x_{t-(K-1)+j}          x0 included
//   dbias (+)= Σ_{b,t} ds_t
// dx0 and dx_last are fp32, because they are partial sums that are rounded to storage once. Forward
// saves nothing: backward recomputes s from x. K in [1, DT_CONV1D_TAPS_MAX]; K = 1 has no x0 and no
// x_last. x_last is right for L < K - 1 too (it then shifts x0), and rows of it before the last
// reset are zero.
#pragma once

#include "base/view.h"

#include <stdbool.h>

enum { DT_CONV1D_TAPS_MAX = 8 };

struct dt_conv1d_silu_inputs {
    int64_t batch, length, taps; // B, L, K
    struct dt_view x;            // row b·L + t
    const float *weight, *bias;
    const void *x0;       // NULL: zeros
    const uint8_t *reset; // NULL: none
};

struct dt_conv1d_silu_forward_args {
    struct dt_conv1d_silu_inputs in;
    struct dt_view y;
    void *x_last; // the last K-1 inputs
};

struct dt_conv1d_silu_backward_args {
    struct dt_conv1d_silu_inputs in; // as in forward
    const float *dx_last;            // gradient of x_last; NULL: zeros
    struct dt_view dy, dx;
    float *dx0; // gradient of x0, or NULL
    float *dweight, *dbias;
    bool accumulate;
    void *workspace; // partial sums
    int64_t workspace_bytes;
};

// clang-format off
#define DT_CONV1D_SILU_INPUTS                                       \
    SIZE(B, in.batch) SIZE(L, in.length)                            \
    RANGE(K, in.taps, 1, DT_CONV1D_TAPS_MAX)                        \
    SIZE(D, in.x.cols)                                              \
    STORAGE(T, in.x.dtype)                                          \
    ARRAY(IN,                    B * L,       D, T,      in.x)      \
    ARRAY(IN | CACHED,           D,           K, DT_F32, in.weight) \
    ARRAY(IN | CACHED,           1,           D, DT_F32, in.bias)   \
    ARRAY(IN | CACHED | OR_NULL, B * (K - 1), D, T,      in.x0)     \
    ARRAY(IN | CACHED | OR_NULL, B,           L, DT_U8,  in.reset)
#define DT_ROWS_conv1d_silu_forward                          \
    DT_CONV1D_SILU_INPUTS                                    \
    ARRAY(OUT,                    B * L,       D, T, y)      \
    ARRAY(OUT | CACHED | OR_NULL, B * (K - 1), D, T, x_last) \
    APART(y, in.x) APART(x_last, in.x0)
#define DT_ROWS_conv1d_silu_backward                              \
    DT_CONV1D_SILU_INPUTS                                         \
    ARRAY(IN | CACHED | OR_NULL,  B * (K - 1), D, DT_F32, dx_last) \
    ARRAY(IN,                     B * L,       D, T,      dy)      \
    ARRAY(OUT,                    B * L,       D, T,      dx)      \
    ARRAY(OUT | CACHED | OR_NULL, B * (K - 1), D, DT_F32, dx0)     \
    ARRAY(SUM | CACHED,           D,           K, DT_F32, dweight) \
    ARRAY(SUM | CACHED,           1,           D, DT_F32, dbias)   \
    APART(dx, dy) APART(dx, in.x) APART(dx0, dx_last)
// clang-format on
