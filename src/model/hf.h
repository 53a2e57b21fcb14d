// Reads and writes Hugging Face directories: config.json and model.safetensors, or sharded files
// listed in model.safetensors.index.json. Names and shapes are those of the parameter table, or of
// its slices (model/params.h: dt_param_slice); official names (backbone.embedding.weight) and those
// that transformers gives to some types (model.layers.0 …) are read too.
#pragma once

#include "model/model.h"

// Reads config.json, of transformers or of state-spaces/mamba, into the architecture of `config`
// (fields with a name there: model/config.h); the others stay. What this program cannot train
// (use_bias true, no conv bias, hidden_act other than silu, an unknown model_type or kind) is
// DT_USER naming file and field.
dt_status dt_hf_read_config(const char *dir, struct dt_model_config *config);
// Which model type such a model is written as, and what of [model] would make it one that
// transformers has: "dtrain; it would be nemotron_h, which transformers loads, with model.rope_base
// = 0".
dt_status dt_hf_type_text(const struct dt_model_config *config, char *text, size_t size);
// The text of a config.json (malloc).
dt_status dt_hf_config_text(const struct dt_model_config *config, char **text);
// The same as state-spaces/mamba has it; DT_USER where it has no such models.
dt_status dt_hf_official_text(const struct dt_model_config *config, char **text);
// All rows of the table into flat fp32 `weights` (host memory; padding 0). Everything that is wrong
// is one DT_USER error naming file, tensor and both shapes: tensors that are missing, have another
// shape, or are not in the table. A tied model ignores lm_head.weight but checks its shape. More
// rows of vocabulary than vocab_size (padded by the file's writer) are an error that says so; so is
// a value that is not finite. ema: the moving average of the weights (optim.ema) that a checkpoint
// has beside them, in DT_HF_EMA.
#define DT_HF_EMA "ema.safetensors"
dt_status dt_hf_read_weights(const char *dir, bool ema, const struct dt_params *params, bool tied,
                             float *weights);
// The checks of dt_hf_read_weights but for the values, from the headers of the files alone: a
// config.json that claims more than they hold is refused before anything has its size. *type, which
// may be NULL: what the weights were stored for, int8 where any tensor is, else fp32 where any is,
// else bf16 (fp16 counts as bf16).
dt_status dt_hf_check_weights(const char *dir, bool ema, const struct dt_model_config *config,
                              enum dt_dtype *type);
// Writes such a file (fp32, __metadata__ format pt) from flat `weights` (host memory),
// synced; gives size and xxh64 of the file (each may be NULL). A failure leaves no file.
dt_status dt_hf_write_weights(const char *path, const struct dt_params *params,
                              const float *weights, int64_t *size, uint64_t *hash);
// How dtrain export writes weights.
struct dt_hf_format {
    enum dt_dtype type;         // DT_F32; DT_BF16: rounded to it
    const struct dt_int8 *int8; // [rows]: linear layers in int8 where it has them, tensors of I8
                                // with scales [out] as NAME_scale; NULL: none
    bool official;              // with the names of state-spaces/mamba
    int64_t file_bytes;         // the most data of a file, and an index of several; 0: one file
};
// Writes model.safetensors, or several files and their index, into the directory.
dt_status dt_hf_write(const char *dir, const struct dt_params *params, const float *weights,
                      const struct dt_hf_format *format);
