// Targets as the inputs of a layer, for an output that is conditioned on those before it. For
// output k, of width n, columns first … first + n - 1 of a row become
//   categorical: out[r, first + i] = [i = targets[r, target]]          (one hot)
//   others:      out[r, first + i] = targets[r, target + i]
// Other columns of `out` stay as they are.
#pragma once

#include "base/view.h"
#include "kernels/policy_loss.h"

struct dt_encode_targets_args {
    int64_t n;                                      // outputs
    struct dt_output_slice outputs[DT_OUTPUTS_MAX]; // weight and smoothing are not read
    struct dt_view targets;                         // classes as in policy_loss.h
    struct dt_view out;                             // written in the outputs' columns
};

// clang-format off
#define DT_ROWS_encode_targets                                \
    SIZE(M, out.rows) SIZE(D, out.cols) SIZE(W, targets.cols) \
    STORAGE(T, out.dtype)                                     \
    RANGE(n, n, 1, DT_OUTPUTS_MAX)                            \
    OUTPUTS(D, W)                                             \
    ARRAY(IN,  M, W, DT_F32, targets)                         \
    ARRAY(OUT, M, D, T,      out)
// clang-format on
