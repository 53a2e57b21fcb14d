// A Hugging Face directory that holds a small model with random weights, and the outputs of its
// training forward pass, which steps are compared with.
#pragma once

#include "base/rng.h"
#include "model/hf.h"
#include "model/model.h"

#include "default_model.h"
#include "scratch.h"

struct model_folder {
    struct dt_model_config config;
    char path[DT_PATH];
    struct dt_params params;
    float *weights;
};

// A configuration with awkward widths, which are not multiples of a vector register. `layers` names
// the kinds of blocks; `heads` "" makes a language model.
static inline struct dt_model_config small_config(const char *layers, const char *heads)
{
    struct dt_model_config config = default_model(layers, 40, heads[0] ? 0 : 37);
    WHOLE_OF(config, d_state) = 5;
    WHOLE_OF(config, head_dim) = 20;
    WHOLE_OF(config, attn_window) = 30; // shorter than the sequences
    if (heads[0]) {
        config.frame_size = 19;
        snprintf(config.ids, sizeof config.ids, "7 9");
    }
    snprintf(config.heads, sizeof config.heads, "%s", heads);
    return config;
}

static inline void write_model(struct model_folder *folder, const char *name)
{
    char path[DT_PATH], *text;
    CHECK_OK(dt_model_config_check(&folder->config));
    CHECK_OK(dt_model_list(&folder->config, &folder->params, NULL));
    folder->weights = calloc((size_t)folder->params.elements, sizeof *folder->weights);
    dt_params_init(&folder->params, 7, folder->weights);
    static const char *const normalised[][2] = {{"stem.mean", "stem.deviation"},
                                                {"heads.mean", "heads.deviation"}};
    for (int k = 0; k < 2; k++) {
        const struct dt_param *mean = dt_params_find(&folder->params, normalised[k][0]),
                              *deviation = dt_params_find(&folder->params, normalised[k][1]);
        for (int64_t i = 0; mean && i < mean->count; i++) {
            folder->weights[mean->offset + i] = 0.01f * (float)i;
            folder->weights[deviation->offset + i] = 0.5f + 0.1f * (float)i;
        }
    }
    snprintf(folder->path, sizeof folder->path, "%s", in_scratch("%s", name));
    CHECK_OK(dt_make_dirs(folder->path));
    CHECK_OK(dt_hf_config_text(&folder->config, &text));
    CHECK_OK(dt_path(path, "%s/config.json", folder->path));
    put_text(path, text);
    free(text);
    CHECK_OK(dt_path(path, "%s/model.safetensors", folder->path));
    CHECK_OK(dt_hf_write_weights(path, &folder->params, folder->weights, NULL, NULL));
}

static inline void free_model(struct model_folder *folder)
{
    dt_params_free(&folder->params);
    free(folder->weights);
}
