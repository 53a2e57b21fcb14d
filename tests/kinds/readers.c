// dtrain's table of readers with one more reader.
#include "data/reader.h"

extern const struct dt_reader_kind samples_reader, dt_tokens_reader, dt_pairs_reader,
    dt_synthetic_reader;
const struct dt_reader_kind *const dt_reader_kinds[] = {
    &samples_reader, &dt_tokens_reader, &dt_pairs_reader, &dt_synthetic_reader, NULL};
