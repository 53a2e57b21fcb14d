// Writes shards: text files or folders become byte tokens (u8, vocabulary 256), raw little-endian
// u8/u16/u32 files become tokens, FASTA files (also .gz) become bases (u8, vocabulary 12, attribute
// complement). Each shard holds /tokens (contiguous, unfiltered, attribute vocab_size),
// /tokens_xxh3 (uint64 per block of block_bytes, an attribute, 16 KiB) and /doc_starts, except for
// raw tokens (a document is a text file or a sequence). All shards are written under temporary
// names and renamed when the last is complete: a failure leaves no new file and does not change old
// shards. A synthetic task becomes pairs: /input_ids and /labels, rows in place of tokens.
#pragma once

#include "data/dataset.h"
#include "data/tasks.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_pack_format { DT_PACK_TEXT, DT_PACK_U8, DT_PACK_U16, DT_PACK_U32, DT_PACK_FASTA };

struct dt_pack_config {
    const struct dt_task *task; // NULL: files. A task uses `shape` and `rows`, but no inputs.
    struct dt_task_shape shape;
    int64_t rows; // of training and validation together
    enum dt_pack_format format;
    // Files and folders. Folders are walked in bytewise order; hidden files, links to folders and,
    // for text, binary files (a zero byte in the first 8 KiB) are skipped.
    const char *const *inputs;
    int n_inputs;
    const char *output;  // folder: train-00000.h5 …, val-00000.h5 …
    int64_t shard_bytes; // the most bytes of tokens in a shard; shards of a side have equal sizes
    // Share for validation; 0: none. Two or more text files are split by file, at least one on each
    // side; otherwise validation gets the tail of the tokens.
    double val_fraction;
    int64_t vocab_size; // above every token. 0: 256 for text and u8, else largest token + 1
    uint64_t tokenizer; // attribute tokenizer_xxh64 of the shards; 0: none
    uint64_t seed;      // for the split by file
    // FASTA.
    const char *bed; // a BED file, whose intervals are packed instead of whole sequences; or NULL
    int64_t max_n;   // longer runs of N are omitted and end a document
    bool mask;       // lower-case letters become N
    bool force;      // replace shards in `output`, otherwise an error
    bool progress;   // show a live line
};

struct dt_pack_result {
    int64_t files, vocab_size;
    int64_t train_tokens, val_tokens; // tokens or rows
    int64_t train_shards, val_shards;
};

dt_status dt_pack(const struct dt_pack_config *config, struct dt_pack_result *result);

// Reads and checks a whole shard for `dtrain verify`: structure, checksums, document starts, all
// tokens against the attribute vocab_size if present, and the rules (may be NULL). Fills *shard
// except for its path and `before`.
dt_status dt_verify_shard(const char *path, const struct dt_scan_rules *rules, bool progress,
                          struct dt_shard *shard);
