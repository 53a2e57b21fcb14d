// Keeps shards open for reading, and closes the least recently used one first. Used by one thread
// at a time. A caller that opens a dataset repeatedly (statistics, then a loader; evaluations)
// keeps the cache, so that episodes are listed once.
#pragma once

#include "data/reader.h"

enum { DT_OPEN_SHARDS = 64 };

struct dt_shard_cache {
    const struct dt_dataset *dataset; // borrowed
    struct dt_shard_cache_place {
        int64_t shard; // valid if there is a reader
        int64_t used;  // last use, on the cache's clock
        struct dt_reader *reader;
    } place[DT_OPEN_SHARDS];
    int64_t clock;
    // [n_shards] stamps of the files whose data hash is known to be the dataset's, owned; at first
    // the files that it was computed from. On another host it may be another file with the same
    // data.
    struct dt_file_stamp *files;
    // [n_shards] whether each shard was checked as a whole: 0 no, 1 yes, 2 with checksums; owned
    uint8_t *checked;
};

dt_status dt_shard_cache_open(const struct dt_dataset *dataset, struct dt_shard_cache **cache);
void dt_shard_cache_close(struct dt_shard_cache *cache); // NULL is fine
// Closes the readers of files that were replaced or modified since they were opened; the next use
// compares them with the dataset again. A deleted file stays open.
void dt_shard_cache_refresh(struct dt_shard_cache *cache);
// The shard's reader, valid until the next call. Before its first use the shard is checked as a
// whole, with `verify` also against its checksums. DT_USER if the shard has changed: its
// fingerprint is compared whenever it is opened, its data hash if the file differs.
dt_status dt_shard_cache_get(struct dt_shard_cache *cache, int64_t shard, bool verify,
                             struct dt_reader **reader);
