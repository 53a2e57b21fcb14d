// Reads /doc_starts, the ascending offsets into /tokens at which documents start. dtrain pack
// writes their number and hash as two attributes of /tokens; without these only order and range are
// checked.
#pragma once

#include "data/h5_file.h"

#define DT_STARTS_COUNT "doc_starts_count" // attribute: entries of /doc_starts
#define DT_STARTS_HASH  "doc_starts_xxh3"  // attribute: XXH3 (64 bits) of its bytes, u64

struct dt_h5_starts {
    struct dt_h5_array array;
    int64_t n_tokens;
    bool found;
    bool stamped;  // has both attributes
    uint64_t hash; // as stored; 0 without the attributes
};

// DT_USER: of the wrong type, missing or of another length than the attributes say.
dt_status dt_h5_starts_open(const struct dt_h5_file *file, const struct dt_h5_array *tokens,
                            struct dt_h5_starts *starts);
// marks[p - first] = 1 for each p in [first, first + count) that is an entry, else 0.
dt_status dt_h5_starts_mark(const struct dt_h5_starts *starts, int64_t first, int64_t count,
                            uint8_t *marks);
// lengths[p - first] = tokens of the document that token p in [first, first + count) is in: from
// the last entry up to p, or the shard's start, to the next one, or its end.
dt_status dt_h5_starts_lengths(const struct dt_h5_starts *starts, int64_t first, int64_t count,
                               int64_t *lengths);
// Reads all of them and checks that they ascend within /tokens and, with `hash`, match the hash.
dt_status dt_h5_starts_check(const struct dt_h5_starts *starts, bool hash);
