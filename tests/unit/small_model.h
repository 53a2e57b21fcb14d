// A model of awkward sizes with its table and random arrays, for tests of Hugging Face directories
// and checkpoints.
#pragma once

#include "base/rng.h"
#include "base/span.h"

#include "default_model.h"
#include "scratch.h"

struct small_model {
    struct dt_model_config config;
    struct dt_params params;
    float *weights, *m, *v;
    struct dt_span *all; // of their elements
};

static inline float *small_model_array(const struct dt_params *params, uint64_t seed)
{
    float *x = calloc((size_t)params->elements, sizeof *x);
    struct dt_philox rng = dt_philox_init(seed, 0, 0);
    for (int i = 0; i < params->n; i++)
        for (int64_t j = 0; j < params->rows[i].file_count; j++)
            x[params->rows[i].offset + j] = dt_philox_normal(&rng);
    return x;
}

// d_model 12, vocabulary 37 padded to 40, one layer, K 3, N 5.
static inline struct small_model small_model_make(bool tied)
{
    struct small_model model = {.config = default_model("", 12, 37)};
    struct dt_model_config *c = &model.config;
    c->n_layer = 1;
    WHOLE_OF(*c, d_state) = 5, WHOLE_OF(*c, d_conv) = 3, WHOLE_OF(*c, expand) = 3,
                 c->norm_eps = 1.25e-6;
    c->tie_embeddings = tied;
    CHECK_OK(dt_model_config_check(&model.config));
    CHECK_OK(dt_model_list(&model.config, &model.params, NULL));
    model.weights = small_model_array(&model.params, 1);
    model.m = small_model_array(&model.params, 2);
    model.v = small_model_array(&model.params, 3);
    for (int64_t i = 0; i < model.params.elements; i++)
        model.v[i] *= model.v[i];
    model.all = malloc(sizeof *model.all);
    *model.all = (struct dt_span){0, model.params.elements};
    return model;
}

static inline void small_model_free(struct small_model *model)
{
    free(model->weights);
    free(model->m);
    free(model->v);
    free(model->all);
    dt_params_free(&model->params);
}
