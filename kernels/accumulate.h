// y_i += x_i, fp32 sums: one arena of gradients onto another, or a bf16 array onto an fp32 one.
#pragma once

#include "base/dtype.h"

#include <stdint.h>

struct dt_accumulate_args {
    int64_t n;
    const void *x; // [n] fp32 or bf16, in
    enum dt_dtype x_type;
    float *y; // [n] fp32, +=
};
