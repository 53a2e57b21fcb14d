// *sum = Σ x_i², in double, by fixed blocks of DT_NORM_BLOCK elements summed in order: the same
// bits however many threads, ranks or devices work on it. A non-finite element gives a non-finite
// sum.
#pragma once

#include <stdint.h>

enum { DT_NORM_BLOCK = 65536 };

struct dt_sum_squares_args {
    int64_t n;
    const float *x;  // [n] fp32, in
    double *sum;     // one double on the device, =
    void *workspace; // one double per block
    int64_t workspace_bytes;
};
