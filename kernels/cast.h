// y_i = x_i in another element type: fp32 -> bf16 rounds to nearest even, bf16 -> fp32 is exact.
#pragma once

#include "base/dtype.h"

struct dt_cast_args {
    int64_t n;
    const void *x;
    enum dt_dtype x_type;
    void *y;
    enum dt_dtype y_type;
};

// clang-format off
#define DT_ROWS_cast                      \
    COUNT(n, n)                           \
    STORAGE(X, x_type) STORAGE(Y, y_type) \
    ARRAY(IN,  1, n, X, x)                \
    ARRAY(OUT, 1, n, Y, y)                \
    APART(y, x)
// clang-format on
