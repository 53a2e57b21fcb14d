// The reader kinds of this build, one row each. A program with other kinds links its own table.
#include "data/reader.h"

extern const struct dt_reader_kind dt_tokens_reader, dt_pairs_reader, dt_synthetic_reader,
    dt_synthetic_frames_reader, dt_native_reader, dt_robomimic_reader, dt_minari_reader,
    dt_d4rl_reader, dt_groups_reader;

const struct dt_reader_kind *const dt_reader_kinds[] = {
    &dt_tokens_reader,    &dt_pairs_reader,
    &dt_synthetic_reader, &dt_synthetic_frames_reader,
    &dt_native_reader,    &dt_robomimic_reader,
    &dt_minari_reader,    &dt_d4rl_reader,
    &dt_groups_reader,    NULL,
};
