// *sum = Σ_i bits(x_i) · (2 i + 1) mod 2^64: whole numbers, so every order of the additions gives
// the same sum. Arrays that differ in one element (a NaN's payload, the sign of a zero), or in the
// order of two, have different sums; other differences cancel about once in 2^64.
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
