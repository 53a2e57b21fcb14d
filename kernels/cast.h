// y_i = x_i in another element type: fp32 -> bf16 rounds to nearest even, bf16 -> fp32 is exact.
#pragma once

#include "base/dtype.h"

#include <stdint.h>

struct dt_cast_args {
    int64_t n;
    const void *x; // [n], in
    enum dt_dtype x_type;
    void *y; // [n], =; not x itself
    enum dt_dtype y_type;
};
