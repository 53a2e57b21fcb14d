// A bias of the columns of an array.
//   forward:  y[r, i] += bias[i]
//   backward: dbias[i] (+)= Σ_r dy[r, i], over blocks of rows that depend on the shape alone
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_bias_forward_args {
    int64_t rows, width;
    const float *bias;
    float *y;
    int64_t y_stride;
};

struct dt_bias_backward_args {
    int64_t rows, width;
    enum dt_dtype dtype; // of dy
    const void *dy;
    int64_t dy_stride;
    float *dbias;
    bool accumulate;
    void *workspace; // sums of blocks
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_bias_forward                        \
    SIZE(M, rows) SIZE(D, width)                    \
    ARRAY(IN | CACHED, 1, D, DT_F32, bias)          \
    STRIDED(ADD,         M, D, DT_F32, y, y_stride)
#define DT_ROWS_bias_backward                          \
    SIZE(M, rows) SIZE(D, width)                       \
    STORAGE(T, dtype)                                  \
    STRIDED(IN,           M, D, T,      dy, dy_stride) \
    ARRAY(SUM | CACHED, 1, D, DT_F32, dbias)
// clang-format on
