// Softmax cross-entropy over a tile of logits: loss and, if asked, the gradient.
//   lse_r = log Σ_{v < vocab} exp(logits[r, v]);   loss_r = lse_r - logits[r, labels[r]]
//   dlogits[r, v] = scale · (exp(logits[r, v] - lse_r) - [v = labels[r]])
// A row with label -100 is ignored: no loss, not counted, gradient 0. Columns vocab … width-1 pad
// the vocabulary: they are never read as logits, and their gradient is 0. Softmax and loss are
// fp32, sums double.
#pragma once

#include "base/dtype.h"
#include "kernels/loss_sum.h"

#include <stdint.h>

enum { DT_LABEL_IGNORED = -100 };

// About as many logits suit a tile: on a CPU what its caches hold …
enum { DT_LOGITS_TILE_CPU = 1 << 20 };
// … on a GPU what makes little of the head's gradient, which each tile reads and writes: with
// 50,280 x 768 weights 309 MB, 72 us on an H200; the products of 128 rows take half of that, those
// of 4096 sixteen times as long. Logits and gradients of such a tile are 1.2 GB; twice as many rows
// would save another 0.3 % of a step.
enum { DT_LOGITS_TILE_CUDA = 1 << 28 };

struct dt_xent_args {
    int64_t rows, vocab, width;
    const float *logits; // [rows, width] fp32, in
    int64_t logits_stride;
    const int32_t *labels; // [rows]: in [0, vocab) or DT_LABEL_IGNORED
    float scale;
    enum dt_dtype dtype; // storage: of dlogits
    void *dlogits;       // [rows, width] storage, =, or NULL; in fp32 it may be `logits` itself
    int64_t dlogits_stride;
    float *losses;           // [rows] fp32, = each row's loss (0 where ignored), or NULL
    struct dt_loss_sum *sum; // +=
    void *workspace;
    int64_t workspace_bytes;
};
