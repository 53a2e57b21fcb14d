// A shard is two or three datasets of an HDF5 file. Owns the rules of the two schemas (DESIGN:
// Data) and the checksums; what HDF5 is lies in h5_file.h.
#include "data/h5_shard.h"

#include "base/file.h"
#include "data/h5_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { STARTS_AT_ONCE = 1024 };

struct dt_shard_reader {
    struct dt_h5_file file;
    struct dt_h5_array tokens, hashes, doc_starts; // tokens
    struct dt_h5_array input_ids, labels;          // pairs
    int64_t hash_block;                            // bytes; 0: no hashes
    uint64_t *stored;                              // hashes of the blocks being read
    int64_t stored_room;
};

static dt_status check_one_dimension(const struct dt_h5_array *array)
{
    if (array->n_dims == 1)
        return DT_OK;
    return DT_FAIL(DT_USER, "make it one-dimensional", "%s: %s has %d dimensions, not 1",
                   array->file->path, array->name, array->n_dims);
}

static dt_status check_tokens(const struct dt_h5_array *tokens)
{
    DT_TRY(check_one_dimension(tokens));
    if (tokens->type == DT_U8 || tokens->type == DT_U16 || tokens->type == DT_U32)
        return DT_OK;
    return DT_FAIL(DT_USER, "store tokens as little-endian unsigned 8, 16 or 32-bit integers",
                   "%s: %s holds %s", tokens->file->path, tokens->name, tokens->type_text);
}

static dt_status check_hashes(const struct dt_shard_reader *reader)
{
    const struct dt_h5_array *hashes = &reader->hashes, *tokens = &reader->tokens;
    int64_t size = dt_dtype_size(tokens->type), bytes = tokens->shape[0] * size;
    int64_t block = reader->hash_block;
    DT_TRY(check_one_dimension(hashes));
    if (hashes->type != DT_U64)
        return DT_FAIL(DT_USER, "make the shard again with dtrain pack",
                       "%s: %s holds %s, not unsigned 64-bit integers", hashes->file->path,
                       hashes->name, hashes->type_text);
    if (block < size || block % size != 0 || block > DT_HASH_BLOCK_MAX)
        return DT_FAIL(DT_USER, "store the bytes that a checksum covers as attribute block_bytes",
                       "%s: block_bytes of %s is %" PRId64 ", not a multiple of %" PRId64
                       " up to %d",
                       hashes->file->path, hashes->name, block, size, DT_HASH_BLOCK_MAX);
    if (hashes->shape[0] != (bytes + block - 1) / block)
        return DT_FAIL(
            DT_USER, "make the shard again with dtrain pack",
            "%s: %s has %" PRId64 " checksums, %" PRId64 " bytes of tokens need %" PRId64,
            hashes->file->path, hashes->name, hashes->shape[0], bytes, (bytes + block - 1) / block);
    return DT_OK;
}

static dt_status open_hashes(struct dt_shard_reader *reader, struct dt_shard *shard)
{
    bool found;
    DT_TRY(dt_h5_array_open(&reader->file, "/tokens_xxh64", &reader->hashes, &found));
    if (!found)
        return DT_OK;
    DT_TRY(dt_h5_attribute(&reader->hashes, "block_bytes", &reader->hash_block, &found));
    if (!found)
        return DT_FAIL(DT_USER, "store the bytes that a checksum covers in it",
                       "%s: /tokens_xxh64 has no attribute block_bytes", reader->file.path);
    shard->hash_block = reader->hash_block;
    return check_hashes(reader);
}

static dt_status open_doc_starts(struct dt_shard_reader *reader, struct dt_shard *shard)
{
    const struct dt_h5_array *starts = &reader->doc_starts;
    DT_TRY(dt_h5_array_open(&reader->file, "/doc_starts", &reader->doc_starts, &shard->doc_starts));
    if (!shard->doc_starts)
        return DT_OK;
    DT_TRY(check_one_dimension(starts));
    if (starts->type != DT_U64)
        return DT_FAIL(DT_USER, "store offsets into /tokens as little-endian uint64",
                       "%s: %s holds %s", starts->file->path, starts->name, starts->type_text);
    return DT_OK;
}

static dt_status check_vocab(const struct dt_h5_array *array, int64_t vocab_size,
                             struct dt_shard *shard)
{
    bool found;
    DT_TRY(dt_h5_attribute(array, "vocab_size", &shard->vocab_size, &found));
    if (!found || vocab_size == 0 || shard->vocab_size <= vocab_size)
        return DT_OK;
    return DT_FAIL(DT_USER, "set model.vocab_size to the shards' vocab_size or more",
                   "%s: its vocab_size is %" PRId64 ", the model's is %" PRId64, array->file->path,
                   shard->vocab_size, vocab_size);
}

static dt_status open_tokens(struct dt_shard_reader *reader, int64_t seq_len, int64_t vocab_size,
                             struct dt_shard *shard)
{
    const struct dt_h5_array *tokens = &reader->tokens;
    DT_TRY(check_tokens(tokens));
    shard->schema = DT_SCHEMA_TOKENS;
    shard->type = tokens->type;
    shard->count = tokens->shape[0];
    shard->row = 1;
    shard->windows = seq_len > 0 && shard->count > 0 ? (shard->count - 1) / seq_len : 0;
    shard->plain = !tokens->filtered;
    DT_TRY(check_vocab(tokens, vocab_size, shard));
    DT_TRY(open_hashes(reader, shard));
    return open_doc_starts(reader, shard);
}

static dt_status check_pair(const struct dt_h5_array *array)
{
    if (array->n_dims != 2)
        return DT_FAIL(DT_USER, "make it two-dimensional, [n, seq_len]",
                       "%s: %s has %d dimensions, not 2", array->file->path, array->name,
                       array->n_dims);
    if (array->type != DT_I32)
        return DT_FAIL(DT_USER, "store it as little-endian signed 32-bit integers",
                       "%s: %s holds %s", array->file->path, array->name, array->type_text);
    return DT_OK;
}

static dt_status check_pair_shapes(const struct dt_shard_reader *reader, int64_t seq_len)
{
    const int64_t *ids = reader->input_ids.shape, *labels = reader->labels.shape;
    if (ids[0] != labels[0] || ids[1] != labels[1])
        return DT_FAIL(DT_USER, "give every row of /input_ids its row of /labels",
                       "%s: /input_ids is [%" PRId64 ", %" PRId64 "], /labels is [%" PRId64
                       ", %" PRId64 "]",
                       reader->file.path, ids[0], ids[1], labels[0], labels[1]);
    if (ids[1] < 1 || (seq_len > 0 && ids[1] != seq_len))
        return DT_FAIL(DT_USER, "set data.seq_len to the length of the rows",
                       "%s: rows are %" PRId64 " tokens long, data.seq_len is %" PRId64,
                       reader->file.path, ids[1], seq_len);
    return DT_OK;
}

static dt_status open_pairs(struct dt_shard_reader *reader, int64_t seq_len, int64_t vocab_size,
                            struct dt_shard *shard)
{
    DT_TRY(check_pair(&reader->input_ids));
    DT_TRY(check_pair(&reader->labels));
    DT_TRY(check_pair_shapes(reader, seq_len));
    shard->schema = DT_SCHEMA_PAIRS;
    shard->type = DT_I32;
    shard->count = shard->windows = reader->input_ids.shape[0];
    shard->row = reader->input_ids.shape[1];
    shard->plain = !reader->input_ids.filtered && !reader->labels.filtered;
    return check_vocab(&reader->input_ids, vocab_size, shard);
}

static dt_status open_schema(struct dt_shard_reader *reader, int64_t seq_len, int64_t vocab_size,
                             struct dt_shard *shard)
{
    bool tokens, ids, labels;
    DT_TRY(dt_h5_array_open(&reader->file, "/tokens", &reader->tokens, &tokens));
    DT_TRY(dt_h5_array_open(&reader->file, "/input_ids", &reader->input_ids, &ids));
    DT_TRY(dt_h5_array_open(&reader->file, "/labels", &reader->labels, &labels));
    if (tokens && (ids || labels))
        return DT_FAIL(DT_USER, "keep one of the two, or split them into two files",
                       "%s has both /tokens and %s", reader->file.path,
                       ids ? "/input_ids" : "/labels");
    if (tokens)
        return open_tokens(reader, seq_len, vocab_size, shard);
    if (ids && labels)
        return open_pairs(reader, seq_len, vocab_size, shard);
    return DT_FAIL(DT_USER, "a shard holds /tokens, or /input_ids and /labels", "%s has %s",
                   reader->file.path,
                   ids      ? "/input_ids without /labels"
                   : labels ? "/labels without /input_ids"
                            : "neither /tokens nor /input_ids");
}

dt_status dt_shard_open(const char *path, int64_t seq_len, int64_t vocab_size,
                        struct dt_shard *shard, struct dt_shard_reader **reader)
{
    struct dt_shard_reader *r = calloc(1, sizeof *r);
    *reader = NULL;
    if (!r)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to open %s", path);
    *shard = (struct dt_shard){.path = shard->path};
    dt_h5_enter();
    dt_status status = dt_h5_open(path, &r->file);
    if (status == DT_OK)
        status = open_schema(r, seq_len, vocab_size, shard);
    dt_h5_leave();
    shard->file_bytes = r->file.bytes;
    if (status != DT_OK) {
        dt_shard_close(r);
        return dt_error_push(status, __FILE__, __LINE__, __func__, NULL);
    }
    *reader = r;
    return DT_OK;
}

void dt_shard_close(struct dt_shard_reader *reader)
{
    if (!reader)
        return;
    struct dt_h5_array *arrays[] = {&reader->tokens, &reader->hashes, &reader->doc_starts,
                                    &reader->input_ids, &reader->labels};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        dt_h5_array_close(arrays[i]);
    dt_h5_enter();
    dt_h5_close(&reader->file);
    dt_h5_leave();
    free(reader->stored);
    free(reader);
}

static dt_status load_hashes(struct dt_shard_reader *reader, int64_t first, int64_t count)
{
    if (count > reader->stored_room) {
        uint64_t *stored = realloc(reader->stored, (size_t)count * sizeof *stored);
        if (!stored)
            return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " checksums", count);
        reader->stored = stored;
        reader->stored_room = count;
    }
    return dt_h5_array_read(&reader->hashes, first, count, reader->stored);
}

// `data` is bytes [start, end) of /tokens, both at borders of blocks or at the end of all.
static dt_status verify_blocks(struct dt_shard_reader *reader, const char *data, int64_t start,
                               int64_t end)
{
    int64_t size = reader->hash_block, first = start / size, n = (end - start + size - 1) / size;
    DT_TRY(load_hashes(reader, first, n));
    for (int64_t i = 0; i < n; i++) {
        int64_t at = start + i * size, length = size < end - at ? size : end - at;
        uint64_t hash = XXH64(data + i * size, (size_t)length, 0);
        if (hash != reader->stored[i])
            return DT_FAIL(
                DT_USER, "the shard is damaged: copy it again from its source, or pack it again",
                "%s: checksum mismatch in /tokens, block %" PRId64 " (bytes %" PRId64 " to %" PRId64
                "): stored %016" PRIx64 ", found %016" PRIx64,
                reader->file.path, first + i, at, at + length - 1, reader->stored[i], hash);
    }
    return DT_OK;
}

int64_t dt_shard_read_bytes(const struct dt_shard *shard, int64_t count)
{
    return count * dt_dtype_size(shard->type) + 2 * shard->hash_block;
}

dt_status dt_shard_read_tokens(struct dt_shard_reader *reader, int64_t first, int64_t count,
                               bool verify, void *buffer, const void **tokens)
{
    int64_t size = dt_dtype_size(reader->tokens.type), total = reader->tokens.shape[0] * size;
    int64_t from = first * size, start = from, end = from + count * size;
    bool check = verify && reader->hash_block > 0 && count > 0;
    if (check) {
        start -= start % reader->hash_block;
        end += (reader->hash_block - end % reader->hash_block) % reader->hash_block;
        end = end < total ? end : total;
    }
    DT_TRY(dt_h5_array_read(&reader->tokens, start / size, (end - start) / size, buffer));
    *tokens = (char *)buffer + (from - start);
    if (check)
        DT_TRY(verify_blocks(reader, buffer, start, end));
    return DT_OK;
}

dt_status dt_shard_read_pairs(struct dt_shard_reader *reader, int64_t first, int64_t count,
                              int32_t *input_ids, int32_t *labels)
{
    DT_TRY(dt_h5_array_read(&reader->input_ids, first, count, input_ids));
    return dt_h5_array_read(&reader->labels, first, count, labels);
}

// The index of the first entry of /doc_starts at or above `position`.
static dt_status find_start(const struct dt_h5_array *starts, int64_t position, int64_t *index)
{
    int64_t low = 0, high = starts->shape[0];
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        uint64_t value;
        DT_TRY(dt_h5_array_read(starts, middle, 1, &value));
        if (value < (uint64_t)position)
            low = middle + 1;
        else
            high = middle;
    }
    *index = low;
    return DT_OK;
}

static dt_status fail_starts(const struct dt_shard_reader *reader, int64_t index, uint64_t value)
{
    return DT_FAIL(DT_USER, "store ascending offsets into /tokens, each below its length",
                   "%s: /doc_starts[%" PRId64 "] is %" PRIu64
                   ", not above the one before it or not below %" PRId64,
                   reader->file.path, index, value, reader->tokens.shape[0]);
}

// Goes through /doc_starts from `index` on, all of it above `last`, until `end` or its own; marks
// what it meets from `first` on, where `starts` is not NULL.
static dt_status walk_starts(const struct dt_shard_reader *reader, int64_t index, int64_t first,
                             int64_t end, uint8_t *starts)
{
    const struct dt_h5_array *array = &reader->doc_starts;
    uint64_t values[STARTS_AT_ONCE];
    int64_t last = first - 1, n;
    for (; index < array->shape[0]; index += n) {
        n = array->shape[0] - index < STARTS_AT_ONCE ? array->shape[0] - index : STARTS_AT_ONCE;
        DT_TRY(dt_h5_array_read(array, index, n, values));
        for (int64_t i = 0; i < n; i++) {
            if (values[i] >= (uint64_t)reader->tokens.shape[0] || (int64_t)values[i] <= last)
                return fail_starts(reader, index + i, values[i]);
            last = (int64_t)values[i];
            if (last >= end)
                return DT_OK;
            if (starts)
                starts[last - first] = 1;
        }
    }
    return DT_OK;
}

dt_status dt_shard_read_starts(struct dt_shard_reader *reader, int64_t first, int64_t count,
                               uint8_t *starts)
{
    int64_t index = 0;
    memset(starts, 0, (size_t)count);
    DT_TRY(find_start(&reader->doc_starts, first, &index));
    return walk_starts(reader, index, first, first + count, starts);
}

dt_status dt_shard_check_starts(struct dt_shard_reader *reader)
{
    return walk_starts(reader, 0, 0, INT64_MAX, NULL);
}

static dt_status hash_rows(const struct dt_h5_array *array, int64_t first, int64_t count,
                           uint64_t *hash)
{
    int64_t bytes = count * array->shape[1] * dt_dtype_size(array->type);
    void *rows = malloc((size_t)bytes);
    if (!rows)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " bytes", bytes);
    dt_status status = dt_h5_array_read(array, first, count, rows);
    if (status == DT_OK)
        *hash = XXH64(rows, (size_t)bytes, 0);
    free(rows);
    return status;
}

static dt_status fingerprint_tokens(struct dt_shard_reader *reader, struct dt_shard *shard)
{
    if (shard->hash_block > 0) {
        DT_TRY(dt_h5_array_read(&reader->hashes, 0, 1, &shard->first_hash));
        return dt_h5_array_read(&reader->hashes, reader->hashes.shape[0] - 1, 1, &shard->last_hash);
    }
    int64_t n = shard->count, block = DT_HASH_BLOCK / dt_dtype_size(shard->type);
    int64_t last = (n - 1) / block * block;
    DT_TRY(hash_rows(&reader->tokens, 0, n < block ? n : block, &shard->first_hash));
    return hash_rows(&reader->tokens, last, n - last, &shard->last_hash);
}

dt_status dt_shard_fingerprint(struct dt_shard_reader *reader, struct dt_shard *shard)
{
    if (shard->count == 0)
        return DT_OK;
    if (shard->schema == DT_SCHEMA_TOKENS)
        return fingerprint_tokens(reader, shard);
    DT_TRY(hash_rows(&reader->input_ids, 0, 1, &shard->first_hash));
    return hash_rows(&reader->labels, shard->count - 1, 1, &shard->last_hash);
}
