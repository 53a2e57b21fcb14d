// Hugging Face directories: config.json (MambaForCausalLM) and model.safetensors, or sharded files
// by model.safetensors.index.json. Names and shapes as in the parameter table; the official name of
// the embedding (backbone.embedding.weight) is taken too.
#pragma once

#include "model/model.h"

// Reads config.json into the architecture fields of `config` (d_model, n_layer, vocab_size,
// d_state, d_conv, expand, dt_rank, norm_eps, tie_embeddings); others stay. What this program
// cannot train (use_bias true, no conv bias, hidden_act other than silu, another model_type) is
// DT_USER naming file and field.
dt_status dt_hf_read_config(const char *dir, struct dt_model_config *config);
// The text of a config.json (malloc), and the same written to `path` atomically.
dt_status dt_hf_config_text(const struct dt_model_config *config, char **text);
dt_status dt_hf_write_config(const char *path, const struct dt_model_config *config);
// All rows of the table into flat fp32 `weights` (host memory; padding 0). All that is wrong is one
// DT_USER error naming file, tensor and both shapes: tensors that lack, have another shape, or are
// unknown to the table. A tied model ignores lm_head.weight but checks its shape. More rows of
// vocabulary than vocab_size (padded by the file's writer) are an error that says so; so is a value
// that is not finite.
dt_status dt_hf_read_weights(const char *dir, const struct dt_params *params, bool tied,
                             float *weights);
// Writes model.safetensors (fp32, __metadata__ format pt) from flat `weights` (host memory),
// synced; gives size and xxh64 of the file (each may be NULL). A failure leaves no file.
dt_status dt_hf_write_weights(const char *path, const struct dt_params *params,
                              const float *weights, int64_t *size, uint64_t *hash);
