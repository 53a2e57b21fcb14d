// The losses of a policy's outputs: each owns a slice of the columns of one array of logits, and of
// one array of targets. With z = logits[r, first …] + bias[first …], t = targets[r, target …], n =
// width, ε = smoothing, the loss of output k at row r is
//   categorical: log Σ exp(z) - Σ_i q_i z_i,                      q_i = (1 - ε) [i = t_0] + ε / n
//   bernoulli:   1/n Σ_i (log(1 + exp(z_i)) - q_i z_i),           q_i = (1 - ε) t_i + ε / 2
//   regression:  1/n Σ_i (z_i - t_i)²
//   huber:       1/n Σ_i (e_i²/2 where |e_i| <= 1, else |e_i| - 1/2),   e_i = z_i - t_i
// which are PyTorch's cross_entropy, binary_cross_entropy_with_logits, mse_loss and huber_loss of
// one row with reduction = mean. A row's loss is Σ_k weight_k loss_k. The measure of an output is
//   categorical: 1 where argmax z = t_0 (the first of equal maxima), else 0
//   bernoulli:   the share of i with (z_i > 0) = (t_i > 1/2)
//   others:      1/n Σ_i |z_i - t_i|
// and dlogits[r, …] = scale · d(row's loss)/dz. A row with mask 0 has no loss, is not counted, and
// its gradient is 0; so is that of columns of no output. Losses are fp32, sums over rows double.
#pragma once

#include "base/view.h"
#include "kernels/loss_sum.h"

enum dt_output_kind {
    DT_OUTPUT_CATEGORICAL,
    DT_OUTPUT_BERNOULLI,
    DT_OUTPUT_REGRESSION,
    DT_OUTPUT_HUBER
};

struct dt_output_slice {
    enum dt_output_kind kind;
    int32_t first, width; // columns of logits; slices ascend and do not overlap
    int32_t target;       // first column of targets: one of a categorical output, else `width`
    float weight, smoothing;
};

struct dt_policy_loss_args {
    int64_t n; // outputs
    struct dt_output_slice outputs[DT_OUTPUTS_MAX];
    struct dt_view logits;
    const float *bias;
    struct dt_view targets; // a class is a whole number in [0, width)
    const uint8_t *mask;    // 0 or 1; NULL: all count
    float scale;
    struct dt_view dlogits;  // data NULL: not wanted; in fp32 it may be `logits` itself
    struct dt_loss_sum *sum; // of metrics those of the n outputs
    void *workspace;
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_policy_loss                                         \
    SIZE(M, logits.rows) SIZE(D, logits.cols) SIZE(W, targets.cols) \
    STORAGE(T, dlogits.dtype)                                       \
    RANGE(n, n, 1, DT_OUTPUTS_MAX)                                  \
    OUTPUTS(D, W)                                                   \
    ARRAY(IN,                    M, D,         DT_F32, logits)      \
    ARRAY(IN | CACHED,           1, D,         DT_F32, bias)        \
    ARRAY(IN,                    M, W,         DT_F32, targets)     \
    ARRAY(IN | CACHED | OR_NULL, 1, M,         DT_U8,  mask)        \
    ARRAY(OUT | OR_NULL,         M, D,         T,      dlogits)     \
    ARRAY(ADD | CACHED,          1, 2 + DT_OUTPUT_METRICS * n, DT_F64, sum)         \
    IN_PLACE(dlogits, logits)
// clang-format on
