// *sum = Σ_i bits(x_i) · (2 i + 1) mod 2^64: integer addition, so its order does not matter. Arrays
// that differ in one element (even in a NaN's payload or the sign of a zero), or that swap two
// elements, have different sums; other differences go unnoticed about once in 2^64.
#pragma once

#include <stdint.h>

struct dt_checksum_args {
    int64_t n;
    const float *x;
    uint64_t *sum;   // on the device
    void *workspace; // one uint64_t per DT_NORM_BLOCK elements
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_checksum                   \
    COUNT(n, n)                            \
    ARRAY(IN,           1, n, DT_F32, x)   \
    ARRAY(OUT | CACHED, 1, 1, DT_U64, sum)
// clang-format on
