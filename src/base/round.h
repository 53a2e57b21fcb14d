// Arithmetic on sizes: rounding, minimum, maximum, powers of two.
#pragma once

#include <stdbool.h>
#include <stdint.h>

static inline int64_t dt_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

// The least multiple of `step` >= n.
static inline int64_t dt_round_up(int64_t n, int64_t step)
{
    return dt_ceil_div(n, step) * step;
}

static inline bool dt_is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static inline int64_t dt_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t dt_max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
