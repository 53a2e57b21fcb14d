// The activation f of a feed-forward block, gated [Shazeer 2020, SwiGLU] or plain, element by
// element.
//   y = f(x) ∘ u; without a gate: y = f(x)        dx = dy ∘ u ∘ f'(x)        du = dy ∘ f(x)
//   silu  [Hendrycks & Gimpel 2016]   f(x) = x · σ(x)         f'(x) = σ(x)(1 + x(1 - σ(x)))
//   relu2 [So et al. 2021, Primer]    f(x) = max(x, 0)²       f'(x) = 2 max(x, 0)
// All views have the rows, columns and dtype (fp32 or bf16) of x; strides are free, so that x and u
// are usually halves of one array. dx and du overlap none of the inputs.
#pragma once

#include "base/view.h"

#define DT_ACTIVATION_WORDS "silu|relu2"
enum dt_activation { DT_SILU, DT_RELU2 };

struct dt_silu_gate_forward_args {
    enum dt_activation f;
    struct dt_view x, y;
    struct dt_view u; // data NULL: no gate
};

struct dt_silu_gate_backward_args {
    enum dt_activation f;
    struct dt_view x, u; // as in forward
    struct dt_view dy, dx, du;
};

// clang-format off
#define DT_SILU_GATE_INPUTS         \
    RANGE(F, f, DT_SILU, DT_RELU2)  \
    SIZE(M, x.rows) SIZE(D, x.cols) \
    STORAGE(T, x.dtype)             \
    ARRAY(IN,           M, D, T, x) \
    ARRAY(IN | OR_NULL, M, D, T, u)
#define DT_ROWS_silu_gate_forward \
    DT_SILU_GATE_INPUTS           \
    ARRAY(OUT, M, D, T, y)
#define DT_ROWS_silu_gate_backward            \
    DT_SILU_GATE_INPUTS                       \
    ARRAY(IN,                    M, D, T, dy) \
    ARRAY(OUT,                   M, D, T, dx) \
    ARRAY(OUT | NEED(a->u.data), M, D, T, du) \
    APART(dx, x) APART(dx, dy)
// clang-format on
