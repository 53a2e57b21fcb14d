// Reading blocks of windows and widening them into int32 rows, with the checks that need the data
// itself: vocabulary, labels, document starts.
#include "data/slot.h"

#include "data/batch.h"
#include "data/tokens.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dt_status dt_shard_cache_open(const struct dt_dataset *dataset, struct dt_shard_cache *cache)
{
    cache->dataset = dataset;
    cache->starts_checked = calloc((size_t)dataset->n_shards, sizeof *cache->starts_checked);
    if (!cache->starts_checked)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " shards", dataset->n_shards);
    return DT_OK;
}

void dt_shard_cache_close(struct dt_shard_cache *cache)
{
    free(cache->starts_checked);
    for (int i = 0; i < DT_OPEN_SHARDS; i++)
        dt_shard_close(cache->place[i].reader);
}

// A shard may have been replaced since its metadata was taken: the order would silently change.
static dt_status check_unchanged(const struct dt_shard *then, const struct dt_shard *now)
{
    if (then->schema == now->schema && then->type == now->type && then->count == now->count &&
        then->row == now->row && then->hash_block == now->hash_block &&
        then->doc_starts == now->doc_starts && then->first_hash == now->first_hash &&
        then->last_hash == now->last_hash)
        return DT_OK;
    return DT_FAIL(DT_USER, "leave shards alone while they are trained on; start again",
                   "%s has changed since the start (%" PRId64 " bytes then, %" PRId64 " now)",
                   then->path, then->file_bytes, now->file_bytes);
}

static struct dt_shard_cache_place *find_place(struct dt_shard_cache *cache, int64_t shard)
{
    struct dt_shard_cache_place *oldest = &cache->place[0];
    for (int i = 0; i < DT_OPEN_SHARDS; i++) {
        struct dt_shard_cache_place *place = &cache->place[i];
        if (place->reader && place->shard == shard)
            return place;
        if (place->used < oldest->used)
            oldest = place;
    }
    return oldest;
}

static dt_status open_shard(struct dt_shard_cache *cache, int64_t shard,
                            struct dt_shard_reader **reader)
{
    const struct dt_shard *known = &cache->dataset->shards[shard];
    struct dt_shard_cache_place *place = find_place(cache, shard);
    place->used = ++cache->clock;
    if (!place->reader || place->shard != shard) {
        struct dt_shard now;
        dt_shard_close(place->reader);
        place->reader = NULL;
        DT_TRY(dt_shard_open(known->path, cache->dataset->seq_len, 0, &now, &place->reader));
        place->shard = shard;
        DT_TRY(dt_shard_fingerprint(place->reader, &now));
        DT_TRY(check_unchanged(known, &now));
    }
    *reader = place->reader;
    return DT_OK;
}

// Reading them is a few thousandths of reading the tokens, and is not repeated when the shard is
// opened again.
static dt_status check_starts(struct dt_shard_cache *cache, const struct dt_slot_rules *rules,
                              int64_t shard, struct dt_shard_reader *reader)
{
    if (cache->starts_checked[shard] || !cache->dataset->shards[shard].doc_starts)
        return DT_OK;
    DT_TRY(dt_shard_check_starts(reader, rules->verify));
    cache->starts_checked[shard] = true;
    return DT_OK;
}

int64_t dt_slot_buffer_bytes(const struct dt_dataset *dataset, int64_t windows)
{
    int64_t most = 0;
    for (int64_t i = 0; i < dataset->n_shards; i++) {
        const struct dt_shard *shard = &dataset->shards[i];
        int64_t n = shard->windows < windows ? shard->windows : windows, bytes;
        if (shard->schema == DT_SCHEMA_PAIRS)
            bytes = 2 * n * shard->row * dt_dtype_size(DT_I32);
        else // a token before (it may end a document), a label behind
            bytes = dt_shard_read_bytes(shard, n * dataset->seq_len + 2);
        most = bytes > most ? bytes : most;
    }
    return dataset->schema == DT_SCHEMA_SYNTHETIC ? 0 : most;
}

int64_t dt_slot_starts_bytes(const struct dt_dataset *dataset, int64_t windows)
{
    int64_t most = 0;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        most = dataset->shards[i].windows > most ? dataset->shards[i].windows : most;
    return (most < windows ? most : windows) * dataset->seq_len;
}

// Marks where documents start among n tokens. `before` says that tokens[-1] is there; where it is
// not, the caller knows what starts[0] is.
static void mark_starts(const struct dt_slot_rules *rules, dt_dtype type, const void *tokens,
                        int64_t n, bool before, uint8_t *starts)
{
    if (rules->reset_token < 0) {
        memset(starts, 0, (size_t)n);
    } else if (!rules->reset_after) {
        dt_tokens_mark(type, tokens, n, rules->reset_token, starts);
    } else if (before) {
        dt_tokens_mark(type, dt_tokens_at(type, tokens, -1), n, rules->reset_token, starts);
    } else {
        dt_tokens_mark(type, tokens, n - 1, rules->reset_token, starts + 1);
    }
}

static dt_status read_tokens(struct dt_slot *slot, struct dt_shard_reader *reader,
                             const struct dt_shard *shard, const struct dt_slot_rules *rules,
                             int64_t T)
{
    int64_t from = slot->first * T, n = slot->windows * T, before = from > 0;
    const void *tokens;
    DT_TRY(dt_shard_read_tokens(reader, from - before, before + n + 1, rules->verify, slot->buffer,
                                &tokens));
    slot->tokens = dt_tokens_at(shard->type, tokens, before);
    if (!slot->starts)
        return DT_OK;
    if (shard->doc_starts)
        DT_TRY(dt_shard_read_starts(reader, from, n, slot->starts));
    else
        mark_starts(rules, shard->type, slot->tokens, n, before, slot->starts);
    if (slot->first == 0)
        slot->starts[0] = 1; // a segment starts with a document
    return DT_OK;
}

// Rows stand alone: no token stands before the first of a row.
static dt_status read_pairs(struct dt_slot *slot, struct dt_shard_reader *reader,
                            const struct dt_slot_rules *rules, int64_t T)
{
    int32_t *ids = slot->buffer;
    DT_TRY(dt_shard_read_pairs(reader, slot->first, slot->windows, ids, ids + slot->windows * T));
    slot->tokens = ids;
    for (int64_t i = 0; slot->starts && i < slot->windows; i++) {
        mark_starts(rules, DT_I32, ids + i * T, T, false, slot->starts + i * T);
        slot->starts[i * T] = 1;
    }
    return DT_OK;
}

dt_status dt_slot_read(struct dt_slot *slot, struct dt_shard_cache *cache,
                       const struct dt_slot_rules *rules, int64_t shard, int64_t first,
                       int64_t windows)
{
    const struct dt_shard *known = &cache->dataset->shards[shard];
    struct dt_shard_reader *reader = NULL;
    if (slot->windows > 0 && slot->shard == shard && slot->first == first &&
        slot->windows == windows)
        return DT_OK;
    slot->windows = 0;
    DT_TRY(open_shard(cache, shard, &reader));
    DT_TRY(check_starts(cache, rules, shard, reader));
    slot->shard = shard;
    slot->first = first;
    slot->windows = windows;
    dt_status status = known->schema == DT_SCHEMA_PAIRS
                           ? read_pairs(slot, reader, rules, cache->dataset->seq_len)
                           : read_tokens(slot, reader, known, rules, cache->dataset->seq_len);
    if (status != DT_OK)
        slot->windows = 0;
    return status;
}

static dt_status fail_token(const struct dt_shard *shard, const char *name, int64_t row,
                            int64_t offset, int64_t token, int64_t vocab_size)
{
    char where[64];
    if (shard->schema == DT_SCHEMA_PAIRS)
        snprintf(where, sizeof where, "row %" PRId64 ", column %" PRId64, row, offset);
    else
        snprintf(where, sizeof where, "offset %" PRId64, offset);
    return DT_FAIL(DT_USER, "set model.vocab_size above the largest token, or mend the shard",
                   "%s: %s at %s is %" PRId64 ", outside the vocabulary of %" PRId64, shard->path,
                   name, where, token, vocab_size);
}

static dt_status rows_of_tokens(const struct dt_slot *slot, const struct dt_shard *shard,
                                const struct dt_slot_rules *rules, int64_t window, int64_t T,
                                int32_t *input_ids, int32_t *labels)
{
    const void *tokens = dt_tokens_at(shard->type, slot->tokens, (window - slot->first) * T);
    int64_t largest = dt_tokens_widen(shard->type, tokens, T, input_ids, labels);
    if (largest < rules->vocab_size)
        return DT_OK;
    int64_t i = dt_tokens_find(shard->type, tokens, T + 1, rules->vocab_size);
    return fail_token(shard, "/tokens", 0, window * T + i, dt_tokens_get(shard->type, tokens, i),
                      rules->vocab_size);
}

// The first of n values that is neither in [0, vocab_size) nor `ignored`; n where there is none.
static int64_t find_outside(const int32_t *values, int64_t n, int64_t vocab_size, int32_t ignored)
{
    for (int64_t i = 0; i < n; i++)
        if ((values[i] < 0 || values[i] >= vocab_size) && values[i] != ignored)
            return i;
    return n;
}

static dt_status rows_of_pairs(const struct dt_slot *slot, const struct dt_shard *shard,
                               const struct dt_slot_rules *rules, int64_t window, int64_t T,
                               int32_t *input_ids, int32_t *labels)
{
    const int32_t *ids = (const int32_t *)slot->tokens + (window - slot->first) * T;
    const int32_t *targets = ids + slot->windows * T;
    int64_t bad_id = find_outside(ids, T, rules->vocab_size, 0);
    int64_t bad_label = find_outside(targets, T, rules->vocab_size, DT_IGNORED);
    if (bad_id < T)
        return fail_token(shard, "/input_ids", window, bad_id, ids[bad_id], rules->vocab_size);
    if (bad_label < T)
        return fail_token(shard, "/labels", window, bad_label, targets[bad_label],
                          rules->vocab_size);
    memcpy(input_ids, ids, (size_t)T * sizeof *ids);
    memcpy(labels, targets, (size_t)T * sizeof *targets);
    return DT_OK;
}

dt_status dt_slot_rows(const struct dt_slot *slot, const struct dt_dataset *dataset,
                       const struct dt_slot_rules *rules, int64_t window, int32_t *input_ids,
                       int32_t *labels, uint8_t *reset)
{
    const struct dt_shard *shard = &dataset->shards[slot->shard];
    int64_t T = dataset->seq_len;
    if (reset)
        memcpy(reset, slot->starts + (window - slot->first) * T, (size_t)T);
    if (shard->schema == DT_SCHEMA_PAIRS)
        return rows_of_pairs(slot, shard, rules, window, T, input_ids, labels);
    return rows_of_tokens(slot, shard, rules, window, T, input_ids, labels);
}
