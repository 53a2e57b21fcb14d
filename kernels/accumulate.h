// y_i += x_i, rounded once per element. Adds one gradient arena to another, a bf16 array to an fp32
// one, or (fp64) the sums of a loss.
#pragma once

#include "base/dtype.h"

struct dt_accumulate_args {
    int64_t n;
    const void *x;
    enum dt_dtype x_type;
    void *y;
};

// clang-format off
#define DT_ROWS_accumulate                             \
    COUNT(n, n)                                        \
    TYPE(T, x_type, DT_F64)                            \
    ARRAY(IN,  1, n, T,                             x) \
    ARRAY(ADD, 1, n, T == DT_F64 ? DT_F64 : DT_F32, y)
// clang-format on
