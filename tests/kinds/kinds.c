// dtrain's table of kinds with one more of each, put first: what a configuration without kinds
// gets.
#include "model/kinds.h"

extern const struct dt_stem_kind frames_stem, dt_tokens_stem;
const struct dt_kind *const dt_stem_kinds[] = {&frames_stem.kind, &dt_tokens_stem.kind, NULL};

extern const struct dt_block_kind dense_block, dt_mamba_block;
const struct dt_kind *const dt_block_kinds[] = {&dense_block.kind, &dt_mamba_block.kind, NULL};

extern const struct dt_head_kind squares_head, dt_lm_head;
const struct dt_kind *const dt_head_kinds[] = {&squares_head.kind, &dt_lm_head.kind, NULL};
