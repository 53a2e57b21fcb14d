// A dataset: the shards of a glob with their metadata, known to every rank.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

// One shard's metadata: read on rank 0 without reading data (except for the fingerprint).
struct dt_shard {
    char *path;
    int64_t file_bytes;
    const struct dt_reader_kind *kind; // reader.h
    dt_dtype type;                     // as stored
    int64_t count;                     // of the kind's units: tokens, rows
    int64_t windows;                   // of seq_len; 0: skipped
    int64_t stride;     // units from a window's start to the next one's: T of a stream, 1 of rows
    int64_t row;        // positions per unit: 1 of tokens, T of rows
    int64_t width;      // elements per position
    int64_t vocab_size; // attribute; 0 where absent
    int64_t hash_block; // bytes that a stored checksum covers, the most of its kinds; 0: none
    // Fingerprint. Tokens: the first and last checksum (xxh64 of 16 KiB, computed, where there are
    // none), the last one combined by exclusive or with the stored hash of /doc_starts; pairs:
    // xxh64 of the first row of /input_ids and of the last of /labels.
    uint64_t first_hash, last_hash;
    bool doc_starts; // has /doc_starts
};

struct dt_dataset {
    const struct dt_reader_kind *kind; // of all shards
    int64_t seq_len;
    int64_t n_shards;
    struct dt_shard *shards; // sorted bytewise by path
    int64_t windows;         // of all shards
    int64_t tokens;          // positions of all shards
    bool doc_starts;         // some shard has /doc_starts
};

// Rank 0: expands `glob` (several may be separated by commas; a file that two of them match counts
// once; a reader kind's source such as "synthetic:random" is a shard by itself), opens and checks
// every shard (exists, HDF5, not truncated, schema, type, rank, sizes of its datasets, vocab_size
// attribute against `vocab_size` when that is > 0, hash dataset's size and type). All wrong shards
// are named in one DT_USER error (the first 20; DT_MACHINE where one could not be read). A shard
// without a window is skipped with a warning.
dt_status dt_dataset_scan(const char *glob, int64_t seq_len, int64_t vocab_size,
                          struct dt_dataset **dataset);
void dt_dataset_free(struct dt_dataset *dataset); // NULL is fine
// To and from bytes (malloc), for the broadcast to the other ranks.
dt_status dt_dataset_pack(const struct dt_dataset *dataset, void **bytes, int64_t *size);
dt_status dt_dataset_unpack(const void *bytes, int64_t size, struct dt_dataset **dataset);

const char *dt_dataset_hdf5_version(void); // of the library at run time, "1.10.8"
