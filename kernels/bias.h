// A bias added to each column of an array.
//   forward:  y[r, i] += bias[i]
//   backward: dbias[i] (+)= Σ_r dy[r, i], over blocks of rows that depend on the shape alone
#pragma once

#include "base/view.h"

#include <stdbool.h>

struct dt_bias_forward_args {
    const float *bias;
    struct dt_view y;
};

struct dt_bias_backward_args {
    struct dt_view dy;
    float *dbias;
    bool accumulate;
    void *workspace; // partial dbias
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_bias_forward               \
    SIZE(M, y.rows) SIZE(D, y.cols)        \
    ARRAY(IN | CACHED, 1, D, DT_F32, bias) \
    ARRAY(ADD,         M, D, DT_F32, y)
#define DT_ROWS_bias_backward                \
    SIZE(M, dy.rows) SIZE(D, dy.cols)        \
    STORAGE(T, dy.dtype)                     \
    ARRAY(IN,           M, D, T,      dy)    \
    ARRAY(SUM | CACHED, 1, D, DT_F32, dbias)
// clang-format on
