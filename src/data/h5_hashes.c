// Opens the checksums of a shard and compares bytes with them. XXH3 takes a fraction of the time of
// a read from the page cache; xxh64, in older shards, takes longer than the read.
#include "data/h5_hashes.h"

#include "base/memory.h"
#include "base/round.h"
#include "data/xxh3.h"

#include <inttypes.h>
#include <xxhash.h>

enum { PAGE = 512 }; // checksums in 4 KiB

static uint64_t hash_xxh64(const void *data, size_t bytes)
{
    return XXH64(data, bytes, 0);
}

const struct dt_h5_hash_kind dt_h5_hash_kinds[DT_H5_HASH_KINDS] = {
    {"/tokens_xxh3", dt_xxh3},
    {"/tokens_xxh64", hash_xxh64},
};

dt_status dt_h5_hashes_open(const struct dt_h5_file *file, const struct dt_h5_hash_kind *kind,
                            const struct dt_h5_array *tokens, struct dt_h5_hashes *hashes)
{
    bool found;
    *hashes = (struct dt_h5_hashes){.kind = kind};
    DT_TRY(dt_h5_array_open(file, kind->dataset, &hashes->array, &found));
    if (!found)
        return DT_OK;
    DT_TRY(dt_h5_attribute(&hashes->array, DT_H5_HASH_BLOCK, &hashes->block, &found));
    if (!found)
        return DT_FAIL(DT_USER, "store the number of bytes that a checksum covers in it",
                       "%s: %s has no attribute %s", file->path, kind->dataset, DT_H5_HASH_BLOCK);
    static const char pack_again[] = "create the shard again with dtrain pack";
    const struct dt_h5_array *array = &hashes->array;
    int64_t size = dt_dtype_size(tokens->type), bytes = tokens->shape[0] * size;
    int64_t block = hashes->block;
    DT_TRY(dt_h5_check_vector(array));
    if (array->type != DT_U64)
        return DT_H5_REJECT(array, pack_again, "holds %s, not unsigned 64-bit integers",
                            array->type_text);
    if (block < size || block % size != 0 || block > DT_HASH_BLOCK_MAX)
        return DT_FAIL(
            DT_USER, "store the number of bytes that a checksum covers as attribute block_bytes",
            "%s: block_bytes of %s is %" PRId64 ", not a multiple of %" PRId64 " up to %d",
            file->path, array->name, block, size, DT_HASH_BLOCK_MAX);
    if (array->shape[0] != dt_ceil_div(bytes, block))
        return DT_H5_REJECT(array, pack_again,
                            "has %" PRId64 " checksums, %" PRId64 " bytes of tokens need %" PRId64,
                            array->shape[0], bytes, dt_ceil_div(bytes, block));
    return DT_OK;
}

void dt_h5_hashes_close(struct dt_h5_hashes *hashes)
{
    dt_h5_array_close(&hashes->array);
    free(hashes->stored);
    hashes->stored = NULL;
}

// Loads checksums [first, first + count), and the rest of a page for the next sequential read.
static dt_status load(struct dt_h5_hashes *hashes, int64_t first, int64_t count)
{
    if (first >= hashes->first && first + count <= hashes->first + hashes->count)
        return DT_OK;
    count = dt_max_i64(count, dt_min_i64(hashes->array.shape[0] - first, PAGE));
    hashes->count = 0; // until they are read
    DT_TRY(DT_ROOM(&hashes->stored, &hashes->room, count, NULL, "%" PRId64 " checksums", count));
    DT_TRY(dt_h5_array_read(&hashes->array, first, count, hashes->stored));
    hashes->first = first;
    hashes->count = count;
    return DT_OK;
}

dt_status dt_h5_hashes_check(struct dt_h5_hashes *hashes, const char *data, int64_t start,
                             int64_t end)
{
    int64_t size = hashes->block, first = start / size, n = (end - start + size - 1) / size;
    int64_t bad = n;
    uint64_t found = 0;
    DT_TRY(load(hashes, first, n));
    const uint64_t *stored = hashes->stored + (first - hashes->first);
    for (int64_t i = n - 1; i >= 0; i--) { // backwards: the end is still cached
        int64_t left = end - start - i * size, length = size < left ? size : left;
        uint64_t hash = hashes->kind->hash(data + i * size, (size_t)length);
        if (hash != stored[i]) {
            bad = i;
            found = hash;
        }
    }
    if (bad == n)
        return DT_OK;
    int64_t at = start + bad * size, last = (end - at < size ? end : at + size) - 1;
    return DT_FAIL(DT_USER, "the shard is damaged: copy it again from its source, or pack it again",
                   "%s: checksum mismatch in /tokens, block %" PRId64 " (bytes %" PRId64
                   " to %" PRId64 "): %s has %016" PRIx64 ", found %016" PRIx64,
                   hashes->array.file->path, first + bad, at, last, hashes->kind->dataset,
                   stored[bad], found);
}
