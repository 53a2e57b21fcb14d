// *sum = Σ_i bits(x_i) · (2 i + 1) mod 2^64: whole numbers, so every order of the additions gives
// the same sum. Arrays that differ in one element (a NaN's payload, the sign of a zero), or in the
// order of two, have different sums; other differences cancel about once in 2^64.
#pragma once

#include <stdint.h>

struct dt_checksum_args {
    int64_t n;
    const float *x;  // [n] fp32, in
    uint64_t *sum;   // one on the device, =
    void *workspace; // one uint64_t per DT_NORM_BLOCK elements
    int64_t workspace_bytes;
};
