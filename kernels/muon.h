// The elementwise parts of Muon [Keller Jordan et al. 2024], as torch.optim.Muon: Nesterov momentum
// gives a matrix U [r, c], and Newton–Schulz iterations, with dt_gemm's products, replace it by the
// nearest semi-orthogonal matrix. With c = *control; MOMENTUM and APPLY write nothing if c.skip:
//   MOMENTUM    g = u · c.grad_scale;  m = momentum · m + (1 - momentum) · g
//               u = momentum · m + (1 - momentum) · g
//   START       x = u / max(sqrt(*sum), 1e-7), where *sum = Σ u²           rounded to storage
//   POLYNOMIAL  p = 3.4445 I - 4.7750 gram + 2.0315 square                 [side, side]
//   APPLY       w = w - c.lr · decay · w;  w = w - c.lr · rate · x
//               copy = w rounded to bf16, average as in adamw.h (where they are not NULL)
// An iteration is gram = X·Xᵀ, square = gram·gram, p, X = p·X (r <= c; else Xᵀ·X and X·p).
#pragma once

#include "base/dtype.h"
#include "kernels/update_control.h"

enum dt_muon { DT_MUON_MOMENTUM, DT_MUON_START, DT_MUON_POLYNOMIAL, DT_MUON_APPLY };

struct dt_muon_args {
    enum dt_muon part;
    int64_t n;          // elements; side² in POLYNOMIAL
    int64_t side;       // 1 in other parts
    enum dt_dtype type; // of x, gram, square and p
    float *m, *u;       // u: at first the gradient
    const double *sum;  // on the device
    void *x;
    const void *gram, *square;
    void *p;
    float *weight;
    dt_bf16 *copy;
    float *average; // moving average of the weights
    float momentum, decay, rate, average_decay;
    const struct dt_update_control *control;
};

// clang-format off
#define DT_MUON_IN(wanted, role) (part == DT_MUON_##wanted ? (role) : UNUSED)
#define DT_ROWS_muon                                                                             \
    RANGE(part, part, DT_MUON_MOMENTUM, DT_MUON_APPLY)                                           \
    COUNT(n, n) STORAGE(T, type)                                                                 \
    RANGE(side, side, 1, part == DT_MUON_POLYNOMIAL ? DT_SIZE_MAX : 1)                           \
    DEMAND(part != DT_MUON_POLYNOMIAL || n == side * side, "n is %lld, not the square of %lld",  \
           (long long)n, (long long)side)                                                        \
    NUMBER(momentum, 0.0, 1.0) NUMBER(average_decay, 0.0, 1.0)                                   \
    ARRAY(DT_MUON_IN(MOMENTUM, ADD),                    1, n, DT_F32,  m)                        \
    ARRAY(part == DT_MUON_START ? IN : DT_MUON_IN(MOMENTUM, ADD), 1, n, DT_F32, u)               \
    ARRAY(DT_MUON_IN(START, IN | CACHED),               1, 1, DT_F64,  sum)                      \
    ARRAY(part == DT_MUON_APPLY ? IN : DT_MUON_IN(START, OUT), 1, n, T, x)                       \
    ARRAY(DT_MUON_IN(POLYNOMIAL, IN),                   1, n, T,       gram, square)             \
    ARRAY(DT_MUON_IN(POLYNOMIAL, OUT),                  1, n, T,       p)                        \
    ARRAY(DT_MUON_IN(APPLY, ADD),                       1, n, DT_F32,  weight)                   \
    ARRAY(DT_MUON_IN(APPLY, OUT | OR_NULL),             1, n, DT_BF16, copy)                     \
    ARRAY(DT_MUON_IN(APPLY, ADD | OR_NULL),             1, n, DT_F32,  average)                  \
    ARRAY(part == DT_MUON_APPLY ? IN | CACHED : DT_MUON_IN(MOMENTUM, IN | CACHED),               \
          1, BYTES(*a->control), DT_U8, control)
// clang-format on
