// A model's default configuration, for tests that change a few keys.
#pragma once

#include "model/model.h"

#include <stdio.h>

// The value of the field `name`, which belongs to a kind of block.
#define WHOLE_OF(config, name) (*(int64_t *)dt_model_field(&(config), #name))
#define REAL_OF(config, name)  (*(double *)dt_model_field(&(config), #name))
#define FLAG_OF(config, name)  (*(bool *)dt_model_field(&(config), #name))

static inline struct dt_model_config default_model(const char *layers, int64_t d_model,
                                                   int64_t vocab_size)
{
    struct dt_model_config config = {0};
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        dt_config_set_default(key, &config);
    snprintf(config.layers, sizeof config.layers, "%s", layers);
    config.d_model = d_model;
    config.vocab_size = vocab_size;
    return config;
}
