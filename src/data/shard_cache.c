// Keeps shards open while they are read, and reopens them with the necessary checks.
#include "data/shard_cache.h"

#include "base/memory.h"

#include <inttypes.h>
#include <string.h>

dt_status dt_shard_cache_open(const struct dt_dataset *dataset, struct dt_shard_cache **out)
{
    struct dt_shard_cache *cache;
    int64_t n = dataset->n_shards;
    dt_status status;
    *out = NULL;
    DT_TRY(DT_NEW(&cache, 1, "%" PRId64 " shards", n));
    cache->dataset = dataset;
    DT_TRY_GOTO(status, fail, DT_NEW(&cache->checked, n, "%" PRId64 " shards", n));
    DT_TRY_GOTO(status, fail, DT_NEW(&cache->files, n, "%" PRId64 " shards", n));
    for (int64_t i = 0; i < n; i++)
        cache->files[i] = dataset->shards[i].file;
    *out = cache;
    return DT_OK;
fail:
    dt_shard_cache_close(cache);
    return status;
}

void dt_shard_cache_close(struct dt_shard_cache *cache)
{
    if (!cache)
        return;
    for (int i = 0; i < DT_OPEN_SHARDS; i++)
        dt_reader_close(cache->place[i].reader);
    free(cache->checked);
    free(cache->files);
    free(cache);
}

// Detects a shard that was replaced since its metadata was read, which would silently change the
// order.
static dt_status check_unchanged(const struct dt_shard *then, const struct dt_shard *now)
{
    if (then->kind == now->kind && then->type == now->type && then->count == now->count &&
        then->row == now->row && then->width == now->width && then->windows == now->windows &&
        memcmp(&then->layout, &now->layout, sizeof then->layout) == 0 &&
        memcmp(&then->bytes, &now->bytes, sizeof then->bytes) == 0 &&
        then->hash_block == now->hash_block && then->doc_starts == now->doc_starts &&
        then->first_hash == now->first_hash && then->last_hash == now->last_hash &&
        then->data_hash == now->data_hash)
        return DT_OK;
    return DT_FAIL(DT_USER, "do not change shards during training; start again",
                   "%s has changed since the start (%" PRId64 " bytes then, %" PRId64 " now)",
                   then->path, then->file_bytes, now->file_bytes);
}

static bool is_same_file(struct dt_file_stamp a, struct dt_file_stamp b)
{
    return a.bytes == b.bytes && a.inode == b.inode && a.changed_ns == b.changed_ns;
}

void dt_shard_cache_refresh(struct dt_shard_cache *cache)
{
    for (int i = 0; i < DT_OPEN_SHARDS; i++) {
        struct dt_shard_cache_place *place = &cache->place[i];
        struct stat now;
        if (!place->reader || stat(cache->dataset->shards[place->shard].path, &now) != 0 ||
            is_same_file(cache->files[place->shard], dt_file_stamp(&now)))
            continue;
        dt_reader_close(place->reader);
        place->reader = NULL;
    }
}

// Opens a shard. Rehashes its data only if they may have changed.
static dt_status open_shard(struct dt_shard_cache *cache, int64_t shard, struct dt_reader **reader)
{
    const struct dt_shard *known = &cache->dataset->shards[shard];
    struct dt_shard now = {.before = known->before};
    dt_status status;
    DT_TRY(dt_reader_open(known->path, &cache->dataset->rules, &now, reader));
    bool same = is_same_file(cache->files[shard], now.file);
    DT_TRY_GOTO(status, fail, dt_reader_fingerprint(*reader, &now));
    now.data_hash = known->data_hash;
    if (!same)
        DT_TRY_GOTO(status, fail,
                    dt_reader_hash_data(*reader, &now, dt_dataset_hash_bytes(cache->dataset)));
    DT_TRY_GOTO(status, fail, check_unchanged(known, &now));
    if (!same)
        cache->checked[shard] = 0;
    cache->files[shard] = now.file;
    return DT_OK;
fail:
    dt_reader_close(*reader);
    *reader = NULL;
    return status;
}

dt_status dt_shard_cache_get(struct dt_shard_cache *cache, int64_t shard, bool verify,
                             struct dt_reader **reader)
{
    const struct dt_shard *known = &cache->dataset->shards[shard];
    struct dt_shard_cache_place *place = &cache->place[0], *oldest = place;
    struct dt_shard_cache_place *end = place + DT_OPEN_SHARDS;
    for (; place < end && !(place->reader && place->shard == shard); place++)
        oldest = place->used < oldest->used ? place : oldest;
    place = place < end ? place : oldest;
    place->used = ++cache->clock;
    if (!place->reader || place->shard != shard) {
        dt_reader_close(place->reader);
        place->reader = NULL;
        place->shard = shard;
        DT_TRY(open_shard(cache, shard, &place->reader));
    }
    *reader = place->reader;
    uint8_t *checked = &cache->checked[shard], wanted = verify ? 2 : 1;
    if (known->kind->check && *checked < wanted)
        DT_TRY(known->kind->check(*reader, verify));
    *checked = *checked > wanted ? *checked : wanted;
    return DT_OK;
}
