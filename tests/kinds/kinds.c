// dtrain's table of kinds with one more of each. The added kinds come first, so they are the
// defaults.
#include "model/kinds.h"

#include "model/hf_types.h"

extern const struct dt_stem_kind samples_stem, dt_tokens_stem, dt_frames_stem;
const struct dt_kind *const dt_stem_kinds[] = {&samples_stem.kind, &dt_tokens_stem.kind,
                                               &dt_frames_stem.kind, NULL};

extern const struct dt_block_kind dense_block, dt_mamba_block, gain_block, leak_block;
const struct dt_kind *const dt_block_kinds[] = {&dense_block.kind, &dt_mamba_block.kind,
                                                &gain_block.kind, &leak_block.kind, NULL};

extern const struct dt_head_kind squares_head, dt_lm_head, dt_policy_head;
const struct dt_kind *const dt_head_kinds[] = {&squares_head.kind, &dt_lm_head.kind,
                                               &dt_policy_head.kind, NULL};

extern const struct dt_hf_type dt_hf_mamba, gain_type;
const struct dt_hf_type *const dt_hf_types[] = {&dt_hf_mamba, &gain_type, NULL};
