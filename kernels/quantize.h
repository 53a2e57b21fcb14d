// Symmetric int8 with one scale per row, for activations (a row is a position) and weights (a row
// is an output channel):
//   scale_i = max_j |x_ij| / 127      q_ij = round(x_ij · 127 / max_j |x_ij|), ties to even
// y is either q (int8) or scale_i · q_ij rounded to storage, with which training computes what the
// int8 product will. q is 0 for rows whose largest value is below DT_QUANTIZE_LEAST, whose inverse
// would overflow. A row with a non-finite value becomes NaN in storage, so that the loss shows it;
// its int8 is 0 and its scale NaN. The gradient is straight-through: dx = dy.
#pragma once

#include "base/view.h"

#define DT_QUANTIZE_LEAST 1e-36f

struct dt_quantize_args {
    struct dt_view x;
    struct dt_view y; // x's type or int8
    float *scale;     // NULL: not wanted
};

// clang-format off
#define DT_ROWS_quantize                                            \
    SIZE(M, x.rows) SIZE(D, x.cols)                                 \
    STORAGE(T, x.dtype)                                             \
    LET(int8, a->y.dtype == DT_I8)                                  \
    ARRAY(IN,                        M, D, T,                x)     \
    ARRAY(OUT,                       M, D, int8 ? DT_I8 : T, y)     \
    ARRAY(OUT | CACHED | NEED(int8), 1, M, DT_F32,           scale) \
    APART(y, x)
// clang-format on
