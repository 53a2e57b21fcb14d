// The losses of a policy's outputs. Each output owns a slice of the columns of one array of logits
// and of one array of targets. For output k at row r let z = logits[r, first …] + bias[first …], ε
// = smoothing, n = columns, t = targets[r, target …] and, for numbers, t'_i = (t_i - mean_i) /
// deviation_i. A NaN target is missing; P is the set of i with a target, m = |P|. A predicted
// number is y_i = z_i or, where low < high, y_i = low + (high - low) (tanh(z_i) + 1) / 2. The loss
// is
//   categorical: log Σ exp(z) - Σ_i q_i z_i,           q_i = (1 - ε) [i = t_0] + ε / width
//   bernoulli:   1/m Σ_P (log(1 + exp(z_i)) - q_i z_i),            q_i = (1 - ε) t_i + ε / 2
//   regression:  1/m Σ_P (y_i - t'_i)²
//   huber:       1/m Σ_P (e_i²/2 where |e_i| <= 1, else |e_i| - 1/2),   e_i = y_i - t'_i
//   gmm:         -log Σ_c π_c Π_P N(t'_i; y_ci, σ_ci²), a mixture of K = parts diagonal Gaussians:
//                π = softmax(z_0 … z_{K-1}), y_ci of z at K + c n + i, and of s at K + (K + c) n +
//                i σ_ci = log(1 + exp(s)) + 1e-4 (the form of robomimic's BC-RNN-GMM)
//   quantile:    1/(m K) Σ_P Σ_j max(q_j u, (q_j - 1) u),   u = t'_i - z at j n + i,  q = levels,
//                of K = parts levels: the pinball loss (Koenker and Bassett 1978)
// The first four are PyTorch's cross_entropy, binary_cross_entropy_with_logits, mse_loss and
// huber_loss of one row with reduction = mean. The measure of an output is
//   categorical: 1 where argmax z = t_0 (the first of equal maxima), else 0
//   bernoulli:   the share of P with (z_i > 0) = (t_i > 1/2)
//   others:      1/m Σ_P |y_i - t'_i| deviation_i, with y of the most likely component of a mixture
//                (the first of equal ones), and of the level `median`
// A row counts if its mask is 1 and at least one output has a target. With u_0 = weights[r, 0] and
// u_k = weights[r, 1 + k] (without weights 1), its loss is Σ_k weight_k u_k loss_k, and it counts
// as u_0; output k adds u_k loss_k, u_k measure_k and u_k to its metrics where it has a target.
// dlogits[r, …] = scale · d(row's loss)/dz; it is 0 in rows that do not count, in columns of no
// output and for missing targets. Losses are fp32, sums over rows double.
#pragma once

#include "base/view.h"
#include "kernels/loss_sum.h"

enum dt_output_kind {
    DT_OUTPUT_CATEGORICAL,
    DT_OUTPUT_BERNOULLI,
    DT_OUTPUT_REGRESSION,
    DT_OUTPUT_HUBER,
    DT_OUTPUT_GMM,
    DT_OUTPUT_QUANTILE
};

enum { DT_OUTPUT_LEVELS = 16, DT_OUTPUT_COMPONENTS = 32 };
#define DT_GMM_SCALE_MIN 1e-4f

struct dt_output_slice {
    enum dt_output_kind kind;
    int32_t first, width;    // columns of logits; slices ascend and do not overlap
    int32_t target, columns; // columns of targets; categorical: one
    int32_t parts;           // components of a mixture, levels of quantiles; else 1
    int32_t median;          // index of the level that is measured
    float weight, smoothing;
    float low, high;                // range of predicted numbers, not of quantiles; equal: none
    float levels[DT_OUTPUT_LEVELS]; // for quantiles, each in (0, 1)
};

struct dt_policy_loss_args {
    int64_t n; // outputs
    struct dt_output_slice outputs[DT_OUTPUTS_MAX];
    struct dt_view logits;
    const float *bias;
    struct dt_view targets;        // a class is a whole number in [0, width)
    const float *mean, *deviation; // of the targets; NULL: 0 and 1
    const uint8_t *mask;           // 0 or 1; NULL: all 1
    struct dt_view weights;        // data NULL: all 1
    float scale;
    struct dt_view dlogits;  // data NULL: not wanted; in fp32 it may be `logits` itself
    struct dt_loss_sum *sum; // with the metrics of the n outputs
    void *workspace;
    int64_t workspace_bytes;
};

// An output's columns of logits.
static inline int64_t dt_output_width(const struct dt_output_slice *o)
{
    int64_t n = o->columns, K = o->parts;
    return o->kind == DT_OUTPUT_CATEGORICAL ? o->width
           : o->kind == DT_OUTPUT_GMM       ? K * (1 + 2 * n)
                                            : K * n;
}

// clang-format off
#define DT_ROWS_policy_loss                                                       \
    SIZE(M, logits.rows) SIZE(D, logits.cols) SIZE(W, targets.cols)               \
    STORAGE(T, dlogits.dtype)                                                     \
    RANGE(n, n, 1, DT_OUTPUTS_MAX)                                                \
    OUTPUTS(D, W)                                                                 \
    ARRAY(IN,                           M, D,     DT_F32, logits)                 \
    ARRAY(IN | CACHED,                  1, D,     DT_F32, bias)                   \
    ARRAY(IN,                           M, W,     DT_F32, targets)                \
    ARRAY(IN | CACHED | OR_NULL,        1, W,     DT_F32, mean)                   \
    ARRAY(IN | CACHED | NEED(a->mean),  1, W,     DT_F32, deviation)              \
    ARRAY(IN | CACHED | OR_NULL,        1, M,     DT_U8,  mask)                   \
    ARRAY(IN | OR_NULL,                 M, 1 + n, DT_F32, weights)                \
    ARRAY(OUT | OR_NULL,                M, D,     T,      dlogits)                \
    ARRAY(ADD | CACHED,                 1, 2 + DT_OUTPUT_METRICS * n, DT_F64, sum) \
    IN_PLACE(dlogits, logits)
// clang-format on
