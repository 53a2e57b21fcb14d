// Embedding of tokens, or of one column of ids.
//   forward:  out[r, :] (+)= table[ids[r], :]       as fp32: it opens the residual stream
//   backward: dtable[v, :] (+)= Σ_{r: ids[r] = v} dout[r, :]
// A token's rows are added in order of r in runs of DT_EMBED_RUN, then the runs' sums in their
// order, then, with accumulate, what dtable held: the result for a token depends on that token's
// rows alone. ids are in [0, vocab): the loader has checked them.
#pragma once

#include "base/view.h"

#include <stdbool.h>

// A token that fills a batch is added by as many threads as it has runs. Run sums and sums of runs
// are about as long where a token has 16,384 rows.
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
    void *workspace; // ids sorted by token, stable; sums of runs
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
