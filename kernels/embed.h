// Token embedding, the stem.
//   forward:  out[r, :] = table[ids[r], :]          as fp32: it opens the residual stream
//   backward: dtable[v, :] (+)= Σ_{r: ids[r] = v} dout[r, :]      in order of r, no atomics
// ids are in [0, vocab): the loader has checked them.
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_embed_forward_args {
    int64_t rows, width, vocab;
    enum dt_dtype dtype; // of table
    const int32_t *ids;  // [rows], in
    const void *table;   // [vocab, width] storage, in
    float *out;          // [rows, width] fp32, =
};

struct dt_embed_backward_args {
    int64_t rows, width, vocab;
    const int32_t *ids; // [rows], in
    const float *dout;  // [rows, width] fp32, in
    float *dtable;      // [vocab, width] fp32, = (0 where no row has the token), accumulate: +=
    bool accumulate;
    void *workspace; // ids sorted by token, stable
    int64_t workspace_bytes;
};
