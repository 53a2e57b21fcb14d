// What one slot keeps: the block of windows it stands in, as stored, read once; and the open shards
// that all slots of a loader share. Used by the loader's thread only.
#pragma once

#include "data/h5_shard.h"
#include "data/order.h"

enum { DT_OPEN_SHARDS = 64 };

// Shards open for reading, the least recently used closed first.
struct dt_shard_cache {
    const struct dt_dataset *dataset; // borrowed
    struct dt_shard_cache_place {
        int64_t shard; // meaningful where reader is there
        int64_t used;  // by the cache's clock
        struct dt_shard_reader *reader;
    } place[DT_OPEN_SHARDS];
    int64_t clock;
    bool *starts_checked; // [n_shards] all of /doc_starts, at the shard's first reading; owned
};
dt_status dt_shard_cache_open(const struct dt_dataset *dataset,
                              struct dt_shard_cache *cache); // from zeros
void dt_shard_cache_close(struct dt_shard_cache *cache);

// What a slot must know to turn stored tokens into rows of a batch.
struct dt_slot_rules {
    int64_t vocab_size;
    int64_t reset_token; // -1: none
    bool reset_after;
    bool verify;
    bool with_reset; // rows get a reset row
};

struct dt_slot {
    int64_t shard, first, windows; // what is here; windows 0: nothing
    void *buffer;                  // tokens as read; pairs: /input_ids, then /labels
    const void *tokens;            // [windows * T + 1] within buffer
    uint8_t *starts; // [windows * T] 1 where a document starts; NULL: rules without reset
};

// Bytes of a slot's buffer and of its starts for up to `windows` windows of any shard.
int64_t dt_slot_buffer_bytes(const struct dt_dataset *dataset, int64_t windows);
int64_t dt_slot_starts_bytes(const struct dt_dataset *dataset, int64_t windows);

// Reads windows [first, first + windows) of a shard unless they are here already.
dt_status dt_slot_read(struct dt_slot *slot, struct dt_shard_cache *cache,
                       const struct dt_slot_rules *rules, int64_t shard, int64_t first,
                       int64_t windows);
// One window that is here, as rows of T; `reset` may be NULL.
dt_status dt_slot_rows(const struct dt_slot *slot, const struct dt_dataset *dataset,
                       const struct dt_slot_rules *rules, int64_t window, int32_t *input_ids,
                       int32_t *labels, uint8_t *reset);
