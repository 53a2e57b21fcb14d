// *sum = Σ x_i², in double, by fixed blocks of DT_NORM_BLOCK elements summed in order: the bits do
// not depend on the number of threads, ranks or devices. A non-finite element gives a non-finite
// sum. Each half can be requested alone, so that blocks may be summed in several places.
#pragma once

#include <stdint.h>

enum { DT_NORM_BLOCK = 65536 };

enum dt_squares {
    DT_SQUARES,        // both
    DT_SQUARES_BLOCKS, // workspace = each block's sum; `sum` is not written
    DT_SQUARES_TOTAL,  // *sum = the total of the sums in workspace; x is not read
};

struct dt_sum_squares_args {
    int64_t n;
    enum dt_squares part;
    const float *x;
    double *sum;     // on the device
    void *workspace; // one double per block
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_sum_squares                                                              \
    RANGE(part, part, DT_SQUARES, DT_SQUARES_TOTAL)                                      \
    COUNT(n, n) LET(blocks, dt_ceil_div(n, DT_NORM_BLOCK))                               \
    ARRAY(part == DT_SQUARES_TOTAL ? UNUSED : IN, 1, n, DT_F32, x)                       \
    ARRAY(part == DT_SQUARES_BLOCKS ? UNUSED : OUT | CACHED, 1, 1, DT_F64, sum)          \
    ARRAY(part == DT_SQUARES ? UNUSED : part == DT_SQUARES_BLOCKS ? OUT | CACHED : IN | CACHED, \
          1, blocks, DT_F64, workspace)
// clang-format on
