// Normalises numbers as stored by the mean and deviation of their column, in fp32:
//   y[r, i] = (x[r, i] - mean[i]) / deviation[i]      where keep[r], else 0
#pragma once

#include "base/view.h"

struct dt_normalize_args {
    struct dt_view x; // uint8 or fp32
    const float *mean, *deviation;
    const uint8_t *keep; // NULL: all 1
    struct dt_view y;
};

// clang-format off
#define DT_ROWS_normalize                                                                     \
    SIZE(M, x.rows) SIZE(D, x.cols)                                                           \
    STORAGE(T, y.dtype)                                                                       \
    ARRAY(IN,                    M, D, a->x.dtype == DT_U8 ? DT_U8 : DT_F32, x)               \
    ARRAY(IN | CACHED,           1, D, DT_F32,                               mean, deviation) \
    ARRAY(IN | CACHED | OR_NULL, 1, M, DT_U8,                                keep)            \
    ARRAY(OUT,                   M, D, T,                                    y)               \
    APART(y, x)
// clang-format on
