// The reader of token streams, for reading one without windows.
#pragma once

#include "data/reader.h"

extern const struct dt_reader_kind dt_tokens_reader;

// Bytes of a buffer that dt_tokens_read needs for `count` tokens of this shard.
int64_t dt_tokens_read_bytes(const struct dt_shard *shard, int64_t count);
// Tokens [first, first + count), in the stored type, into `buffer`; *tokens points to the first of
// them in it. `verify`: all checksums that cover part of the read are compared.
dt_status dt_tokens_read(struct dt_reader *reader, int64_t first, int64_t count, bool verify,
                         void *buffer, const void **tokens);
