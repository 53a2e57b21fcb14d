// A model for tests that need a number of elements and nothing else: one small layer and a
// vocabulary of any size.
#pragma once

#include "default_model.h"
#include "test.h"

static inline struct dt_model *one_layer(const struct dt_backend *backend, int64_t d_model,
                                         int64_t vocab_size)
{
    struct dt_model_config config = default_model("", d_model, vocab_size);
    config.n_layer = WHOLE_OF(config, expand) = 1;
    WHOLE_OF(config, d_state) = WHOLE_OF(config, d_conv) = 2;
    struct dt_model *model = NULL;
    CHECK_OK(dt_model_create(backend, &config,
                             &(struct dt_model_shape){.sequences = 1, .length = 1}, &model));
    return model;
}
