// Shared by reader kinds of tokens: the arrays of a batch, loops over stored tokens of any integer
// type, errors.
#pragma once

#include "data/reader.h"

// Rows: input_ids and labels i32, and reset u8 (1 where a document starts) if the data has
// documents.
enum { DT_TOKENS_IDS, DT_TOKENS_LABELS, DT_TOKENS_RESET };
bool dt_tokens_have_reset(const struct dt_dataset *dataset, const struct dt_read_rules *rules);
void dt_tokens_arrays(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                      struct dt_array_list *list);

static inline const void *dt_tokens_at(dt_dtype type, const void *tokens, int64_t i)
{
    return (const char *)tokens + i * dt_dtype_size(type);
}
// The largest of n tokens; a negative token counts as above 2^31. 0 if n is 0.
uint64_t dt_tokens_largest(dt_dtype type, const void *tokens, int64_t n);
// The first i < n with tokens[i] >= limit or negative; n if there is none.
int64_t dt_tokens_find(dt_dtype type, const void *tokens, int64_t n, int64_t limit);
// input_ids[i] = tokens[i], labels[i] = tokens[i + 1] for i < n. Returns the largest of the n + 1
// tokens.
uint64_t dt_tokens_widen(dt_dtype type, const void *tokens, int64_t n, int32_t *input_ids,
                         int32_t *labels);
// Marks where documents start among n tokens according to rules->reset_token. `before`: tokens[-1]
// exists; otherwise the caller sets starts[0].
void dt_tokens_mark_starts(const struct dt_read_rules *rules, dt_dtype type, const void *tokens,
                           int64_t n, bool before, uint8_t *starts);

// If rules->masking is on, replaces a window's labels, where it has labels, by its own tokens, and
// masks some of these.
void dt_tokens_mask(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                    const struct dt_block *block, int64_t window, void *const *rows);

// Reports a token outside the model's vocabulary; `where` is "/tokens at offset 7".
dt_status dt_tokens_fail(const struct dt_shard *shard, const char *where, int64_t token,
                         int64_t vocab_size);
// The limit of a shard's tokens: the attribute vocab_size, or the range of the type.
int64_t dt_tokens_limit(const struct dt_shard *shard);
dt_status dt_tokens_fail_verify(const char *path, const struct dt_shard *shard, const char *where,
                                int64_t value, bool label);

// For reading a token stream without windows.
extern const struct dt_reader_kind dt_tokens_reader;
// Bytes of a buffer that dt_tokens_read needs for `count` tokens of this shard.
int64_t dt_tokens_read_bytes(const struct dt_shard *shard, int64_t count);
// Reads tokens [first, first + count) in the stored type into `buffer`; *tokens points to the first
// of them. `verify`: compares all checksums that cover part of the range.
dt_status dt_tokens_read(struct dt_reader *reader, int64_t first, int64_t count, bool verify,
                         void *buffer, const void **tokens);
