// Encodes targets as inputs of a layer, so that an output can be conditioned on earlier outputs.
// Output k has width n; its columns first … first + n - 1 of a row become
//   categorical: out[r, first + i] = [i = targets[r, target]]                             (one hot)
//   bernoulli:   out[r, first + i] = targets[r, target + i]
//   regression:  out[r, first + i] = (targets[r, target + i] - mean[…]) / deviation[…]
// with the mean and deviation of that target column. A missing target (NaN) becomes zeros. Other
// columns of `out` are unchanged.
#pragma once

#include "base/view.h"
#include "kernels/policy_loss.h"

struct dt_encode_targets_args {
    int64_t n;                                      // outputs
    struct dt_output_slice outputs[DT_OUTPUTS_MAX]; // weights, smoothing, ranges, levels unused
    struct dt_view targets;                         // classes as in policy_loss.h
    const float *mean, *deviation;                  // of the targets; NULL: 0 and 1
    struct dt_view out;                             // written in the outputs' columns
};

// clang-format off
#define DT_ROWS_encode_targets                                        \
    SIZE(M, out.rows) SIZE(D, out.cols) SIZE(W, targets.cols)         \
    STORAGE(T, out.dtype)                                             \
    RANGE(n, n, 1, DT_OUTPUTS_MAX)                                    \
    OUTPUTS(D, W)                                                     \
    ARRAY(IN,                          M, W, DT_F32, targets)         \
    ARRAY(IN | CACHED | OR_NULL,       1, W, DT_F32, mean)            \
    ARRAY(IN | CACHED | NEED(a->mean), 1, W, DT_F32, deviation)       \
    ARRAY(OUT,                         M, D, T,      out)
// clang-format on
