// The kinds and model types of this build, one row each. A program with other kinds links its own
// table.
#include "model/kinds.h"

#include "model/hf_types.h"

extern const struct dt_stem_kind dt_tokens_stem, dt_frames_stem;
const struct dt_kind *const dt_stem_kinds[] = {&dt_tokens_stem.kind, &dt_frames_stem.kind, NULL};

extern const struct dt_block_kind dt_mamba_block, dt_mamba2_block, dt_attention_block, dt_mlp_block,
    dt_gru_block, dt_lstm_block;
const struct dt_kind *const dt_block_kinds[] = {&dt_mamba_block.kind,
                                                &dt_mamba2_block.kind,
                                                &dt_attention_block.kind,
                                                &dt_mlp_block.kind,
                                                &dt_gru_block.kind,
                                                &dt_lstm_block.kind,
                                                NULL};

extern const struct dt_head_kind dt_lm_head, dt_mlm_head, dt_policy_head;
const struct dt_kind *const dt_head_kinds[] = {&dt_lm_head.kind, &dt_mlm_head.kind,
                                               &dt_policy_head.kind, NULL};

extern const struct dt_hf_type dt_hf_mamba, dt_hf_falcon_mamba, dt_hf_mamba2, dt_hf_nemotron_h;
const struct dt_hf_type *const dt_hf_types[] = {&dt_hf_mamba, &dt_hf_falcon_mamba, &dt_hf_mamba2,
                                                &dt_hf_nemotron_h, NULL};
