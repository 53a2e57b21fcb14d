// Reading a shard from end to end, to find out whether training could trip over it.
#include "base/clock.h"
#include "base/log.h"
#include "data/batch.h"
#include "data/h5_shard.h"
#include "data/pack.h"
#include "data/tokens.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECE_BYTES = 1 << 22 };

struct check {
    const char *path;
    const struct dt_shard *shard;
    struct dt_shard_reader *reader;
    bool progress;
    double drawn;
    int64_t at_once; // tokens or rows
    void *buffer;
};

static void draw_progress(struct check *check, int64_t done)
{
    char line[256];
    double now = dt_seconds();
    if (!check->progress || now - check->drawn < 0.1)
        return;
    check->drawn = now;
    snprintf(line, sizeof line, "checking %3.0f %%  %s",
             100.0 * (double)done / (double)check->shard->count, check->path);
    dt_log_live(line);
}

// Tokens are below this: the attribute vocab_size, or all that `type` can hold where there is none.
static int64_t token_limit(const struct dt_shard *shard)
{
    if (shard->vocab_size > 0)
        return shard->vocab_size;
    return shard->type == DT_I32 ? (int64_t)INT32_MAX + 1 : (int64_t)UINT32_MAX + 1;
}

static dt_status fail_value(const struct check *check, const char *where, int64_t value, bool label)
{
    int64_t vocab_size = check->shard->vocab_size;
    char attribute[48] = "there is no attribute vocab_size";
    if (vocab_size > 0)
        snprintf(attribute, sizeof attribute, "the attribute vocab_size is %" PRId64, vocab_size);
    return DT_FAIL(DT_USER, "make the shard again, or correct its attribute vocab_size",
                   "%s: %s is %" PRId64 "; %s is from 0 to %" PRId64 "%s (%s)", check->path, where,
                   value, label ? "a label" : "a token", token_limit(check->shard) - 1,
                   label ? ", or -100 for none" : "", attribute);
}

static dt_status check_tokens(const struct check *check, int64_t first, int64_t n)
{
    const struct dt_shard *shard = check->shard;
    const void *tokens = NULL;
    char where[64];
    DT_TRY(dt_shard_verify_tokens(check->reader, first, n, check->buffer, &tokens));
    int64_t limit = token_limit(shard);
    if (dt_tokens_largest(shard->type, tokens, n) < limit)
        return DT_OK;
    int64_t i = dt_tokens_find(shard->type, tokens, n, limit);
    snprintf(where, sizeof where, "/tokens at offset %" PRId64, first + i);
    return fail_value(check, where, dt_tokens_get(shard->type, tokens, i), false);
}

static dt_status fail_pair(const struct check *check, bool label, int64_t row, int64_t column,
                           int64_t value)
{
    char where[96];
    snprintf(where, sizeof where, "%s at row %" PRId64 ", column %" PRId64,
             label ? "/labels" : "/input_ids", row, column);
    return fail_value(check, where, value, label);
}

static dt_status check_pairs(const struct check *check, int64_t first, int64_t n)
{
    int64_t T = check->shard->row, limit = token_limit(check->shard);
    int32_t *ids = check->buffer, *labels = ids + n * T;
    DT_TRY(dt_shard_read_pairs(check->reader, first, n, ids, labels));
    for (int64_t i = 0; i < n * T; i++) {
        if (ids[i] < 0 || ids[i] >= limit)
            return fail_pair(check, false, first + i / T, i % T, ids[i]);
        if ((labels[i] < 0 && labels[i] != DT_IGNORED) || labels[i] >= limit)
            return fail_pair(check, true, first + i / T, i % T, labels[i]);
    }
    return DT_OK;
}

static dt_status check_all(struct check *check)
{
    const struct dt_shard *shard = check->shard;
    bool pairs = shard->schema == DT_SCHEMA_PAIRS;
    int64_t each = shard->row * dt_dtype_size(shard->type);
    check->at_once = PIECE_BYTES > each ? PIECE_BYTES / each : 1;
    check->buffer = malloc((size_t)(2 * check->at_once * each + 2 * shard->hash_block));
    if (!check->buffer)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for rows of %" PRId64 " bytes", each);
    for (int64_t first = 0; first < shard->count; first += check->at_once) {
        int64_t left = shard->count - first, n = left < check->at_once ? left : check->at_once;
        DT_TRY(pairs ? check_pairs(check, first, n) : check_tokens(check, first, n));
        draw_progress(check, first);
    }
    return shard->doc_starts ? dt_shard_check_starts(check->reader, true) : DT_OK;
}

dt_status dt_verify_shard(const char *path, bool progress, struct dt_shard *shard)
{
    struct check check = {.path = path, .shard = shard, .progress = progress};
    DT_TRY(dt_shard_open(path, 0, 0, shard, &check.reader));
    dt_status status = check_all(&check);
    dt_log_live(NULL);
    free(check.buffer);
    dt_shard_close(check.reader);
    return status;
}
