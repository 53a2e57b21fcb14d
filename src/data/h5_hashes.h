// Compares /tokens with stored checksums. A separate dataset holds one checksum for each block of
// bytes.
#pragma once

#include "data/h5_file.h"

enum {
    DT_HASH_BLOCK = 16384,       // bytes per checksum in shards written by dtrain
    DT_HASH_BLOCK_MAX = 1 << 24, // the largest accepted, since reads are widened to whole blocks
};

// A kind is a hash function and the dataset with its values. Training checks the first kind that a
// shard has; dtrain writes dt_h5_hash_kinds[0].
enum { DT_H5_HASH_KINDS = 2 };
#define DT_H5_HASH_BLOCK "block_bytes" // attribute of the dataset: bytes that a checksum covers
extern const struct dt_h5_hash_kind {
    const char *dataset;
    uint64_t (*hash)(const void *data, size_t bytes); // seed 0
} dt_h5_hash_kinds[DT_H5_HASH_KINDS];

struct dt_h5_hashes {
    const struct dt_h5_hash_kind *kind;
    struct dt_h5_array array;
    int64_t block;    // bytes per checksum; 0: the shard has none of this kind
    uint64_t *stored; // [room] checksums [first, first + count)
    int64_t room, first, count;
};

// Opens the dataset of `kind` if the file has it. DT_USER: its checksums do not cover all of
// `tokens`.
dt_status dt_h5_hashes_open(const struct dt_h5_file *file, const struct dt_h5_hash_kind *kind,
                            const struct dt_h5_array *tokens, struct dt_h5_hashes *hashes);
void dt_h5_hashes_close(struct dt_h5_hashes *hashes); // zeros are fine
// Compares `data`, bytes [start, end) of /tokens, with their checksums. start is a multiple of the
// block, end too or the end of the dataset.
dt_status dt_h5_hashes_check(struct dt_h5_hashes *hashes, const char *data, int64_t start,
                             int64_t end);
