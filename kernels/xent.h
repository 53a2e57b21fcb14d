// Softmax cross-entropy over a tile of logits: loss and, if asked, the gradient.
//   lse_r = log Σ_{v < vocab} exp(logits[r, v]);   loss_r = lse_r - logits[r, labels[r]]
//   dlogits[r, v] = scale · (exp(logits[r, v] - lse_r) - [v = labels[r]])
//   right_r = argmax_v logits[r, v] = labels[r] (the first of equal maxima)
// A row with label -100 is ignored: it has no loss, is neither counted nor right, and its gradient
// is 0. Columns vocab … width-1 pad the vocabulary: they are never read as logits, and their
// gradient is 0. Softmax and loss are fp32, sums double.
#pragma once

#include "base/view.h"
#include "kernels/loss_sum.h"

enum { DT_LABEL_IGNORED = -100 };

// Logits per tile on a CPU: about what its caches hold.
enum { DT_LOGITS_TILE_CPU = 1 << 20 };
// Logits per tile on a GPU: enough to make the traffic of the head's gradient small, which each
// tile reads and writes. With 50,280 x 768 weights that is 309 MB, 72 us on an H200; the products
// of 128 rows take half that time, of 4096 rows sixteen times that. Logits and gradients of such a
// tile are 1.2 GB; twice as many rows would save another 0.3 % of a step.
enum { DT_LOGITS_TILE_CUDA = 1 << 28 };

struct dt_xent_args {
    int64_t vocab;
    struct dt_view logits;
    const int32_t *labels; // in [0, vocab) or DT_LABEL_IGNORED
    float scale;
    struct dt_view dlogits; // data NULL: not wanted; in fp32 it may be `logits` itself
    float *losses;          // each row's loss (0 where ignored), or NULL
    uint8_t *right;         // 1 where a row is right, else 0; or NULL
    struct dt_loss_sum *sum;
    void *workspace;
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_xent                                     \
    SIZE(M, logits.rows) SIZE(D, logits.cols)            \
    RANGE(V, vocab, 1, D)                                \
    STORAGE(T, dlogits.dtype)                            \
    ARRAY(IN,                     M, D, DT_F32, logits)  \
    ARRAY(IN,                     1, M, DT_I32, labels)  \
    ARRAY(OUT | OR_NULL,          M, D, T,      dlogits) \
    ARRAY(OUT | CACHED | OR_NULL, 1, M, DT_F32, losses)  \
    ARRAY(OUT | CACHED | OR_NULL, 1, M, DT_U8,  right)   \
    ARRAY(ADD | CACHED,           1, 4, DT_F64, sum)     \
    IN_PLACE(dlogits, logits)
// clang-format on
