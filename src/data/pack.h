// Writing shards: text files or folders -> byte tokens (u8, vocabulary 256), raw little-endian
// u8/u16/u32 files -> tokens. Each shard holds /tokens (contiguous, unfiltered, attribute
// vocab_size), /tokens_xxh64 (uint64 a block of block_bytes, an attribute, 16 KiB) and, for text,
// /doc_starts (a document a file). A shard is written under a temporary name and renamed when
// whole.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_pack_format { DT_PACK_TEXT, DT_PACK_U8, DT_PACK_U16, DT_PACK_U32 };

struct dt_pack_config {
    enum dt_pack_format format;
    const char *const *
        inputs; // files and folders (walked in bytewise order, hidden and binary files passed over)
    int n_inputs;
    const char *output;  // folder: train-00000.h5 …, val-00000.h5 …
    int64_t shard_bytes; // tokens of one shard, in bytes
    double
        val_fraction;   // of the files (text) or of the tokens' tail (raw); 0: no validation shards
    int64_t vocab_size; // 0: 256 for text and u8; required to exceed every token otherwise (0:
                        // largest token + 1)
    uint64_t seed;      // of the split by file
    bool progress;      // a live line
};

struct dt_pack_result {
    int64_t files, train_tokens, val_tokens, train_shards, val_shards;
};

dt_status dt_pack(const struct dt_pack_config *config, struct dt_pack_result *result);
// Reads a shard whole: structure, hashes, largest token against vocab_size. For `dtrain verify`.
dt_status dt_verify_shard(const char *path, bool progress, int64_t *tokens);
