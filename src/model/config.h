// The architecture of a model: its sizes, and the checks that they must pass.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_recompute {
    DT_RECOMPUTE_NONE,  // keep all that backward needs
    DT_RECOMPUTE_SCAN,  // keep in_proj's output; make convolution, projections and scan again
    DT_RECOMPUTE_BLOCK, // keep the residual stream at block borders only
};

enum { DT_KIND_TEXT = 64, DT_LAYERS_TEXT = 512 }; // bytes

struct dt_model_config {
    char stem[DT_KIND_TEXT], head[DT_KIND_TEXT]; // kinds; "": the first in model/kinds.c
    char layers[DT_LAYERS_TEXT]; // "mamba*24", "a*7 b a*8"; "": n_layer of the first kind
    int64_t d_model, n_layer, vocab_size;
    int64_t d_state, d_conv, expand, dt_rank; // dt_rank 0: ceil(d_model / 16)
    double norm_eps;
    bool tie_embeddings;
    int64_t pad_vocab_multiple;
    enum dt_recompute recompute;
    enum dt_dtype storage; // DT_F32 or DT_BF16
};

// Fills derived values (dt_rank, n_layer of layers) and checks kinds and ranges: DT_USER naming the
// key of the [model] section.
dt_status dt_model_config_check(struct dt_model_config *config);
static inline int64_t dt_model_inner(const struct dt_model_config *c) // E
{
    return c->expand * c->d_model;
}
int64_t dt_model_padded_vocab(const struct dt_model_config *config);
