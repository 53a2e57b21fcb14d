// AdamW with decoupled decay [Loshchilov & Hutter 2019], as torch.optim.AdamW, in one pass over
// flat arrays. With c = *control; writes nothing if c.skip:
//   g = grad · c.grad_scale
//   m = beta1 · m + (1 - beta1) · g
//   v = beta2 · v + (1 - beta2) · g²
//   w = w - c.lr · decay · w
//   w = w - c.lr · lr · (m / c.bias1) / (sqrt(v / c.bias2) + eps)
//   copy = w rounded to storage (where copy is not NULL)
//   average = average + (1 - average_decay) · (w - average) (where average is not NULL)
// `decay` and `lr` (a factor) are constant over spans of the flat arrays; the parameter table gives
// the spans in ascending order. A call may update a piece of the arrays, from element `first` on;
// the last span ends at first + n or later.
#pragma once

#include "base/dtype.h"
#include "kernels/update_control.h"

struct dt_adamw_span {
    int64_t end; // elements [previous end, end)
    float decay, lr;
};

struct dt_adamw_args {
    int64_t n, first; // element 0 here is element `first` of the flat arrays
    float *weight;    // master weights
    float *m, *v;
    const float *grad;
    dt_bf16 *copy;
    float *average; // moving average of the weights
    float beta1, beta2, eps, average_decay;
    int64_t n_spans;
    const struct dt_adamw_span *spans;
    const struct dt_update_control *control;
};

// clang-format off
#define DT_ROWS_adamw                                                        \
    COUNT(n, n)                                                              \
    RANGE(spans, n_spans, n > 0, DT_COUNT_MAX)                               \
    NUMBER(beta1, 0.0, 1.0) NUMBER(beta2, 0.0, 1.0) NUMBER(eps, 0.0, 2.0)    \
    NUMBER(average_decay, 0.0, 1.0)                                          \
    ARRAY(ADD,           1, n,                        DT_F32,  weight, m, v) \
    ARRAY(IN,            1, n,                        DT_F32,  grad)         \
    ARRAY(OUT | OR_NULL, 1, n,                        DT_BF16, copy)         \
    ARRAY(ADD | OR_NULL, 1, n,                        DT_F32,  average)      \
    ARRAY(IN | CACHED,   1, spans * BYTES(*a->spans), DT_U8,   spans)        \
    ARRAY(IN | CACHED,   1, BYTES(*a->control),       DT_U8,   control)
// clang-format on
