// A model whose elements are what counts: one small layer and a vocabulary of any size.
#pragma once

#include "model/model.h"

#include "test.h"

static inline struct dt_model *one_layer(const struct dt_backend *backend, int64_t d_model,
                                         int64_t vocab_size)
{
    const struct dt_model_config config = {.d_model = d_model,
                                           .n_layer = 1,
                                           .vocab_size = vocab_size,
                                           .d_state = 2,
                                           .d_conv = 2,
                                           .expand = 1,
                                           .norm_eps = 1e-5,
                                           .tie_embeddings = true,
                                           .pad_vocab_multiple = 8};
    struct dt_model *model = NULL;
    CHECK_OK(dt_model_create(backend, &config,
                             &(struct dt_model_shape){.sequences = 1, .length = 1}, &model));
    return model;
}
