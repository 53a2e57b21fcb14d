// Sizes: rounded to whole blocks, the smaller and the larger of two.
#pragma once

#include <stdint.h>

static inline int64_t dt_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

// The least multiple of `step` that is not below n.
static inline int64_t dt_round_up(int64_t n, int64_t step)
{
    return dt_ceil_div(n, step) * step;
}

static inline int64_t dt_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t dt_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
