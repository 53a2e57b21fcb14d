// Writes one shard from its first token to its last, without exposing HDF5.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_shard_writer;

// Creates (or replaces) `path` for exactly `count` tokens.
dt_status dt_shard_create(const char *path, dt_dtype type, int64_t count,
                          struct dt_shard_writer **writer);
// Appends n tokens.
dt_status dt_shard_append(struct dt_shard_writer *writer, const void *tokens, int64_t n);
// Marks the next token as the start of a document.
dt_status dt_shard_start_document(struct dt_shard_writer *writer);
// Writes checksums and, with `documents`, the attribute `bytes` and /doc_starts with its count and
// hash (h5_starts.h), closes and syncs. Always frees the writer.
dt_status dt_shard_finish(struct dt_shard_writer *writer, bool documents);
void dt_shard_abandon(struct dt_shard_writer *writer); // NULL is fine; leaves the incomplete file
// Fills rows [first, first + n) of a shard of pairs; ids and labels are [n, length].
typedef void (*dt_fill_rows)(void *context, int64_t first, int64_t n, int32_t *ids,
                             int32_t *labels);
// Writes a whole shard of pairs, /input_ids and /labels [rows, length] of `type` (DT_I8, DT_I16 or
// DT_I32), and syncs it.
dt_status dt_pairs_write(const char *path, dt_dtype type, int64_t rows, int64_t length,
                         dt_fill_rows fill, void *context);
// Attributes that are known only when all shards are written.
struct dt_shard_attributes {
    int64_t vocab_size;
    uint64_t tokenizer;        // tokenizer_xxh64; 0: none
    const uint8_t *complement; // [vocab_size] each token's complement; NULL: not DNA
};
#define DT_COMPLEMENT "complement"
// Adds the attributes to the dataset `name` of a finished shard and syncs it.
dt_status dt_shard_set_attributes(const char *path, const char *name,
                                  const struct dt_shard_attributes *attributes);
