// Values that change from step to step are in one small struct on the device, which adamw reads, so
// that the host never waits. This op computes them from the all-reduced loss and the gradient's sum
// of squares:
//   loss       = loss sum / counted
//   correction = expected / counted
//   grad_norm  = sqrt(sum_squares) · correction
//   grad_scale = correction · min(1, grad_clip / (grad_norm + 1e-6))     (grad_clip 0: correction)
//   skip       = loss or grad_norm not finite, or counted = 0
//   where not skipped: updates += 1, bias1 = 1 - beta1^updates, bias2 = 1 - beta2^updates
// Gradients arrive scaled by 1 / expected; `correction` accounts for ignored labels.
#pragma once

#include "kernels/loss_sum.h"

#include <stdint.h>

struct dt_update_control {
    double loss;      // mean over counted tokens, nats
    double grad_norm; // before clipping
    double counted;   // tokens counted in the global batch
    int64_t updates;  // applied so far, with this one; for bias correction
    float lr;
    float grad_scale;
    float bias1, bias2; // 1 - beta^updates
    int32_t skip;       // 1: weights, moments and `updates` are unchanged
    int32_t skipped_in_a_row;
};

struct dt_update_control_args {
    const struct dt_loss_sum *sum; // global: over all ranks and micro-batches
    const double *sum_squares;     // of the summed gradient
    double expected;               // batch · seq_len: the gradients were scaled by its inverse
    const float *lr;               // of this step
    float beta1, beta2, grad_clip;
    struct dt_update_control *control; // `updates` and `skipped_in_a_row` are also read
};

// clang-format off
#define DT_ROWS_update_control                                                          \
    NUMBER(expected, DBL_MIN, HUGE_VAL) NUMBER(beta1, 0.0, 1.0) NUMBER(beta2, 0.0, 1.0) \
    NUMBER(grad_clip, 0.0, HUGE_VAL)                                                    \
    ARRAY(IN,          1, BYTES(*a->sum),     DT_U8,  sum)                              \
    ARRAY(IN,          1, 1,                  DT_F64, sum_squares)                      \
    ARRAY(IN | CACHED, 1, 1,                  DT_F32, lr)                               \
    ARRAY(ADD,         1, BYTES(*a->control), DT_U8,  control)
// clang-format on
