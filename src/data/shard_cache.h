// Keeps shards open for reading, and closes the least recently used one first. One thread at a time
// uses a cache. Whoever opens a dataset twice in a row (statistics, then a loader; one evaluation
// after another) keeps the cache between, so that no shard's episodes are listed again.
#pragma once

#include "data/reader.h"

enum { DT_OPEN_SHARDS = 64 };

struct dt_shard_cache {
    const struct dt_dataset *dataset; // borrowed
    struct dt_shard_cache_place {
        int64_t shard; // meaningful with a reader
        int64_t used;  // by the cache's clock
        struct dt_reader *reader;
    } place[DT_OPEN_SHARDS];
    int64_t clock;
    // [n_shards] the files whose data hash is the dataset's, owned: at first those that it was
    // computed of. On another host that may be another file, of the same data.
    struct dt_file_stamp *files;
    // [n_shards] how each was checked as a whole: 0 not yet, 1, or 2 with its checksums; owned
    uint8_t *checked;
};

dt_status dt_shard_cache_open(const struct dt_dataset *dataset, struct dt_shard_cache **cache);
void dt_shard_cache_close(struct dt_shard_cache *cache); // NULL is fine
// Closes the readers of files that were replaced or written to since they were opened. The next use
// then compares them with the dataset. A file that is gone stays open.
void dt_shard_cache_refresh(struct dt_shard_cache *cache);
// The shard's reader, valid until the next call. It is checked as a whole before its first use,
// with `verify` against its checksums too. A shard that is not what the dataset knows is DT_USER:
// its fingerprint is compared whenever it is opened, its data hash if its file is another one.
dt_status dt_shard_cache_get(struct dt_shard_cache *cache, int64_t shard, bool verify,
                             struct dt_reader **reader);
