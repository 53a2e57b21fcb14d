// Reading one shard: opened and checked from metadata, then rows by number. Callers see elements
// and bytes, never the library. Not thread-safe for one reader; several readers in several threads
// are fine.
#pragma once

#include "data/dataset.h"

enum {
    DT_HASH_BLOCK = 16384,       // bytes a checksum covers in shards that dtrain writes
    DT_HASH_BLOCK_MAX = 1 << 24, // the most that is accepted: a read is widened to whole blocks
};

struct dt_shard_reader;

// Opens `path` (borrowed) and checks all that metadata can tell. seq_len 0: any (then no windows
// are counted); vocab_size 0: any. Fills all of *shard but its path. DT_USER says what is wrong.
dt_status dt_shard_open(const char *path, int64_t seq_len, int64_t vocab_size,
                        struct dt_shard *shard, struct dt_shard_reader **reader);
void dt_shard_close(struct dt_shard_reader *reader); // NULL is fine
// Computes shard->first_hash and last_hash (DT_SCHEMA_TOKENS, DT_SCHEMA_PAIRS): reads a little
// data.
dt_status dt_shard_fingerprint(struct dt_shard_reader *reader, struct dt_shard *shard);

// Bytes of a buffer that dt_shard_read_tokens needs for `count` tokens of this shard.
int64_t dt_shard_read_bytes(const struct dt_shard *shard, int64_t count);
// Tokens [first, first + count), in the stored type, into `buffer`; *tokens points to the first of
// them in it. `verify`: the checksums of all blocks that are touched are checked.
dt_status dt_shard_read_tokens(struct dt_shard_reader *reader, int64_t first, int64_t count,
                               bool verify, void *buffer, const void **tokens);
// The same with all checksums that the shard has, of either kind: a read for each.
dt_status dt_shard_verify_tokens(struct dt_shard_reader *reader, int64_t first, int64_t count,
                                 void *buffer, const void **tokens);
// Rows [first, first + count) of /input_ids and /labels, each [count, T].
dt_status dt_shard_read_pairs(struct dt_shard_reader *reader, int64_t first, int64_t count,
                              int32_t *input_ids, int32_t *labels);
// starts[p - first] = 1 for each p in [first, first + count) that /doc_starts holds, else 0.
dt_status dt_shard_read_starts(struct dt_shard_reader *reader, int64_t first, int64_t count,
                               uint8_t *starts);
// All of /doc_starts, which the shard has: ascending, each within /tokens; `verify`: and of the
// hash that the shard states, if it does.
dt_status dt_shard_check_starts(struct dt_shard_reader *reader, bool verify);
