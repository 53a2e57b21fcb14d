// Reads and writes Hugging Face directories: config.json and model.safetensors, or sharded files
// listed in model.safetensors.index.json. Names and shapes follow the parameter table or its slices
// (model/params.h: dt_param_slice); official names (backbone.embedding.weight) and the names of
// some transformers types (model.layers.0 …) are read too.
#pragma once

#include "model/model.h"

// Reads config.json, of transformers or of state-spaces/mamba, into the architecture fields of
// `config` (model/config.h); other fields are unchanged. DT_USER, naming file and field, if this
// program cannot train the model (use_bias true, no conv bias, hidden_act other than silu, an
// unknown model_type or kind).
dt_status dt_hf_read_config(const char *dir, struct dt_model_config *config);
// The model type that such a model is written as, and which change of [model] would give a type of
// transformers: "dtrain; it would be nemotron_h, which transformers loads, with model.rope_base =
// 0".
dt_status dt_hf_type_text(const struct dt_model_config *config, char *text, size_t size);
// The text of a config.json; caller frees.
dt_status dt_hf_config_text(const struct dt_model_config *config, char **text);
// The text in the format of state-spaces/mamba; DT_USER if that has no such models.
dt_status dt_hf_official_text(const struct dt_model_config *config, char **text);
// Reads all rows of the table into flat fp32 `weights` (host memory; padding 0). One DT_USER error
// lists all problems with file, tensor and both shapes: tensors that are missing, have another
// shape, or are not in the table. Other errors are a vocabulary with more rows than vocab_size
// (padded by the file's writer) and values that are not finite. A tied model ignores lm_head.weight
// but checks its shape. ema: reads the moving average of the weights (optim.ema) in a checkpoint's
// DT_HF_EMA.
#define DT_HF_EMA "ema.safetensors"
dt_status dt_hf_read_weights(const char *dir, bool ema, const struct dt_params *params, bool tied,
                             float *weights);
// Makes the checks of dt_hf_read_weights, except of values, from the files' headers alone, so that
// a wrong config.json is refused before anything is allocated by its sizes. *type (may be NULL):
// int8 if any tensor is int8, else fp32 if any is fp32, else bf16 (also for fp16).
dt_status dt_hf_check_weights(const char *dir, bool ema, const struct dt_model_config *config,
                              enum dt_dtype *type);
// Writes and syncs such a file (fp32, __metadata__ format pt) from flat `weights` (host memory);
// returns size and xxh64 of the file (each may be NULL). Leaves no file on failure.
dt_status dt_hf_write_weights(const char *path, const struct dt_params *params,
                              const float *weights, int64_t *size, uint64_t *hash);
// How dtrain export writes weights.
struct dt_hf_format {
    enum dt_dtype type;         // DT_F32, or DT_BF16 with rounding
    const struct dt_int8 *int8; // [rows]: int8 linear layers, as I8 with scales [out] in
                                // NAME_scale; NULL: none
    bool official;              // with the names of state-spaces/mamba
    int64_t file_bytes;         // the most data per file, with an index; 0: one file
};
// Writes model.safetensors, or several files and their index, into the directory.
dt_status dt_hf_write(const char *dir, const struct dt_params *params, const float *weights,
                      const struct dt_hf_format *format);
