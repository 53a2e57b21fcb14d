// Reads /doc_starts, the ascending offsets into /tokens at which documents start. dtrain pack
// stores their number and hash as attributes of /tokens; without these only order and range are
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
    uint64_t hash; // stored; 0 without the attributes
};

// DT_USER: wrong type, or missing or of another length than the attributes say.
dt_status dt_h5_starts_open(const struct dt_h5_file *file, const struct dt_h5_array *tokens,
                            struct dt_h5_starts *starts);
// marks[p - first] = 1 if a document starts at p, else 0, for p in [first, first + count).
dt_status dt_h5_starts_mark(const struct dt_h5_starts *starts, int64_t first, int64_t count,
                            uint8_t *marks);
// lengths[p - first] = tokens of the document that contains token p, for p in [first, first +
// count): from the last entry <= p, or the shard's start, to the next entry, or the shard's end.
dt_status dt_h5_starts_lengths(const struct dt_h5_starts *starts, int64_t first, int64_t count,
                               int64_t *lengths);
// Reads all entries and checks that they ascend within /tokens and, with `hash`, match the hash.
dt_status dt_h5_starts_check(const struct dt_h5_starts *starts, bool hash);
