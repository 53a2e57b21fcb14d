// *sum = Σ x_i², in double, by fixed blocks of DT_NORM_BLOCK elements summed in order: the same
// bits however many threads, ranks or devices work on it. A non-finite element gives a non-finite
// sum. Either half can be asked for alone, so that blocks may be summed in several places.
#pragma once

#include <stdint.h>

enum { DT_NORM_BLOCK = 65536 };

enum dt_squares {
    DT_SQUARES,        // both
    DT_SQUARES_BLOCKS, // workspace = each block's sum; `sum` is not written
    DT_SQUARES_TOTAL,  // *sum = of the blocks' sums in workspace; x is not read
};

struct dt_sum_squares_args {
    int64_t n;
    enum dt_squares part;
    const float *x;  // [n] fp32, in
    double *sum;     // one double on the device, =
    void *workspace; // one double per block
    int64_t workspace_bytes;
};
