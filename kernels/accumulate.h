// y_i += x_i, one rounding an element: one arena of gradients onto another, or a bf16 array onto an
// fp32 one; in fp64 the sums of a loss.
#pragma once

#include "base/dtype.h"

#include <stdint.h>

struct dt_accumulate_args {
    int64_t n;
    const void *x; // [n] fp32, bf16 or fp64, in
    enum dt_dtype x_type;
    void *y; // [n] fp32, or fp64 where x is, +=
};
