// Embedding of tokens, or of one column of ids.
//   forward:  out[r, :] (+)= table[ids[r], :]       as fp32: it opens the residual stream
//   backward: dtable[v, :] (+)= Σ_{r: ids[r] = v} dout[r, :]
// A token's rows are summed in order of r in runs of DT_EMBED_RUN; then the runs' sums are added in
// order and, with accumulate, the old dtable. So the result for a token depends on that token's
// rows only. The loader has checked that ids are in [0, vocab).
#pragma once

#include "base/view.h"

#include <stdbool.h>

// One thread sums one run, so even a token that fills a batch is summed in parallel. With 16,384
// rows of a token, summing a run and adding up the runs take about the same time.
enum { DT_EMBED_RUN = 128 };

struct dt_embed_forward_args {
    struct dt_view ids;   // a column
    struct dt_view table; // of the vocabulary
    float *out;
    bool accumulate;
};

struct dt_embed_backward_args {
    int64_t width, vocab;
    struct dt_view ids; // a column
    const float *dout;
    float *dtable; // =: 0 where no row has the token
    bool accumulate;
    void *workspace; // ids in a stable sort by token; sums of runs
    int64_t workspace_bytes;
};

// clang-format off
#define DT_ROWS_embed_forward                                 \
    SIZE(M, ids.rows) SIZE(V, table.rows) SIZE(D, table.cols) \
    STORAGE(T, table.dtype)                                   \
    ARRAY(IN,          M, 1, DT_I32, ids)                     \
    ARRAY(IN | CACHED, V, D, T,      table)                   \
    ARRAY(SUM,         M, D, DT_F32, out)
#define DT_ROWS_embed_backward                      \
    SIZE(M, ids.rows) SIZE(V, vocab) SIZE(D, width) \
    ARRAY(IN,  M, 1, DT_I32, ids)                   \
    ARRAY(IN,  M, D, DT_F32, dout)                  \
    ARRAY(SUM, V, D, DT_F32, dtable)
// clang-format on
