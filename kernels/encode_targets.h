// Targets as the inputs of a layer, for an output that is conditioned on those before it. For
// output k, of width n, columns first … first + n - 1 of a row become
//   categorical: out[r, first + i] = [i = targets[r, target]]          (one hot)
//   others:      out[r, first + i] = targets[r, target + i]
// Other columns of `out` stay as they are.
#pragma once

#include "base/view.h"
#include "kernels/policy_loss.h"

struct dt_encode_targets_args {
    int64_t n;                                      // outputs, at most DT_OUTPUTS_MAX
    struct dt_output_slice outputs[DT_OUTPUTS_MAX]; // weight and smoothing are not read
    struct dt_view targets; // [rows, target_width] fp32, in; classes as in policy_loss.h
    struct dt_view out;     // [rows, cols] storage, = in the outputs' columns
};
