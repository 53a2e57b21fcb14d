// Hugging Face directories: config.json (MambaForCausalLM) and model.safetensors, or sharded files by
// model.safetensors.index.json. Names and shapes as in the parameter table; official names
// (backbone.embedding.weight) are taken too.
#pragma once

#include "model/model.h"

// Reads config.json into the architecture fields of `config` (d_model, n_layer, vocab_size, d_state, d_conv,
// expand, dt_rank, norm_eps, tie_embeddings); others stay. What this program cannot train (use_bias true, no conv
// bias, hidden_act other than silu, another model_type) is DT_USER naming file and field.
dt_status dt_hf_read_config(const char *dir, struct dt_model_config *config);
dt_status dt_hf_write_config(const char *path, const struct dt_model_config *config);
// All rows of the table into flat fp32 `weights` (host memory; padding 0). A tensor that lacks, or has another
// shape, is DT_USER naming file, tensor, both shapes; a tied model ignores lm_head.weight but checks its shape;
// tensors the table does not know are an error too. A vocabulary in the file larger than vocab_size (padded by
// its writer) is an error that says so.
dt_status dt_hf_read_weights(const char *dir, const struct dt_params *params, bool tied, float *weights);
// Writes model.safetensors (fp32, __metadata__ format pt) from flat `weights` (host memory); gives size and hash.
dt_status dt_hf_write_weights(const char *path, const struct dt_params *params, const float *weights,
                              int64_t *size, uint64_t *hash);
