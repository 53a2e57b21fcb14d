// A bias of the columns of an array.
//   forward:  y[r, i] += bias[i]
//   backward: dbias[i] (+)= Σ_r dy[r, i], over blocks of rows that depend on the shape alone
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_bias_forward_args {
    int64_t rows, width;
    const float *bias; // [width] fp32, in
    float *y;          // [rows, width] fp32, +=
    int64_t y_stride;
};

struct dt_bias_backward_args {
    int64_t rows, width;
    enum dt_dtype dtype; // of dy
    const void *dy;      // [rows, width] fp32 or bf16, in
    int64_t dy_stride;
    float *dbias; // [width] fp32, = or, with accumulate, +=
    bool accumulate;
    void *workspace; // sums of blocks
    int64_t workspace_bytes;
};
