// The activation of a feed-forward block, SiLU [Hendrycks & Gimpel 2016], gated [Shazeer 2020,
// SwiGLU] or plain, element by element.
//   y = silu(x) ∘ u                     silu(x) = x · σ(x); without a gate: y = silu(x)
//   dx = dy ∘ u ∘ σ(x)(1 + x(1 - σ(x)))        du = dy ∘ silu(x)
// All views have the rows, columns and dtype (fp32 or bf16) of x; strides are free, so that x and u
// are usually halves of one array. dx and du overlap none of the inputs.
#pragma once

#include "base/view.h"

struct dt_silu_gate_forward_args {
    struct dt_view x; // [rows, cols], in
    struct dt_view u; // likewise; data NULL: no gate
    struct dt_view y; // likewise, =
};

struct dt_silu_gate_backward_args {
    struct dt_view x, u; // as in forward
    struct dt_view dy;   // [rows, cols], in
    struct dt_view dx;   // likewise, =
    struct dt_view du;   // likewise, =; data NULL where there is no gate
};
