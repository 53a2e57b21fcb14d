// The files of a run's tokenizer, as written by save_pretrained of transformers. Every checkpoint
// has a copy, so that AutoTokenizer loads it.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum { DT_TOKENIZER_FILES = 9 };

struct dt_manifest;

struct dt_tokenizer {
    int n; // files; 0: no tokenizer
    struct dt_tokenizer_file {
        const char *name; // a literal
        char *data;
        int64_t size;
    } files[DT_TOKENIZER_FILES];
    uint64_t hash; // xxh64 of tokenizer.json, which shards have as the attribute tokenizer_xxh64
    // Ids of the special tokens in tokenizer_config.json or special_tokens_map.json; -1: none.
    int64_t bos, eos, pad;
};

// Whether the folder has a tokenizer.json.
bool dt_tokenizer_exists(const char *folder);
// Reads the files. DT_USER: tokenizer.json is missing, invalid JSON or lacks a special token.
dt_status dt_tokenizer_read(const char *folder, struct dt_tokenizer *tokenizer);
void dt_tokenizer_free(struct dt_tokenizer *tokenizer); // zeros are fine
// Writes copies and lists them.
dt_status dt_tokenizer_write(const struct dt_tokenizer *tokenizer, struct dt_manifest *manifest,
                             const char *folder);
