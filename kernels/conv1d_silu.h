// Causal depthwise convolution and SiLU, channel-last.
//   s_t = bias + Σ_{j=0}^{K-1} w_j · x_{t-(K-1)+j}        per channel; w_{K-1} multiplies x_t
//   y_t = s_t · σ(s_t)
// x_{-1}, x_{-2}, … are the last rows of x0, or zero. Where reset[t] = 1 a document starts at t:
// for outputs at and after t, taps before t count as zero (x0 too when t = 0), until the next
// reset.
//   ds_t = dy_t · σ(s_t) · (1 + s_t · (1 - σ(s_t)))
//   dx_t = Σ_j w_j · ds_{t+(K-1)-j}                 over taps that no reset cuts
//   dw_j (+)= Σ_{b,t} ds_t · x_{t-(K-1)+j}          x0 included, though no gradient flows to it
//   dbias (+)= Σ_{b,t} ds_t
// Forward saves nothing: backward recomputes s from x. K in [1, DT_CONV1D_TAPS_MAX]; K = 1 has no
// x0 and no x_last. x_last is right for L < K - 1 too (it then shifts x0), and rows of it before
// the last reset are zero.
#pragma once

#include "base/view.h"

#include <stdbool.h>
#include <stdint.h>

enum { DT_CONV1D_TAPS_MAX = 8 };

struct dt_conv1d_silu_inputs {
    int64_t batch, length; // B, L
    int64_t taps;          // K
    struct dt_view x;      // [B·L, D] storage (bf16 or fp32), row b·L + t
    const float *weight;   // [D, K]
    const float *bias;     // [D]
    const void *x0;        // [B, K-1, D] storage, or NULL: zeros
    const uint8_t *reset;  // [B, L], or NULL: none
};

struct dt_conv1d_silu_forward_args {
    struct dt_conv1d_silu_inputs in;
    struct dt_view y; // [B·L, D] storage, =
    void *x_last;     // [B, K-1, D] storage, = the last K-1 inputs, or NULL; not x0 itself
};

struct dt_conv1d_silu_backward_args {
    struct dt_conv1d_silu_inputs in; // as in forward
    struct dt_view dy;               // [B·L, D] storage, in
    struct dt_view dx;               // [B·L, D] storage, =
    float *dweight;                  // [D, K], = or, with accumulate, +=
    float *dbias;                    // [D], likewise
    bool accumulate;
    void *workspace; // partial dweight and dbias
    int64_t workspace_bytes;
};
