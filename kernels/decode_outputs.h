// Converts outputs in place, from z to the units of the data. policy_loss.h defines the symbols and
// the formulas of y and σ. By kind of output:
//   categorical, bernoulli:       z stays                                              (logits)
//   regression, huber, quantile:  y_i · deviation_i + mean_i
//   gmm:                          z_0 … z_{K-1} stay, y_ci · deviation_i + mean_i, σ_ci ·
//   deviation_i
// z already includes the bias.
#pragma once

#include "base/view.h"
#include "kernels/policy_loss.h"

struct dt_decode_outputs_args {
    int64_t n;                                      // outputs
    struct dt_output_slice outputs[DT_OUTPUTS_MAX]; // `first` counts columns of z; weight,
                                                    // smoothing, levels unused
    int64_t targets;                                // columns of the targets
    const float *mean, *deviation;                  // of the targets; NULL: 0 and 1
    struct dt_view z;                               // read and written
};

// clang-format off
#define DT_ROWS_decode_outputs                                    \
    SIZE(M, z.rows) SIZE(D, z.cols) SIZE(W, targets)              \
    RANGE(n, n, 1, DT_OUTPUTS_MAX)                                \
    OUTPUTS(D, W)                                                 \
    ARRAY(IN | CACHED | OR_NULL,       1, W, DT_F32, mean)        \
    ARRAY(IN | CACHED | NEED(a->mean), 1, W, DT_F32, deviation)   \
    ARRAY(ADD,                         M, D, DT_F32, z)
// clang-format on
