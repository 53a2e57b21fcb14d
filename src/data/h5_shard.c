// A shard is two to four datasets of an HDF5 file. Owns the rules of the two schemas; checksums are
// in h5_hashes.h, document starts in h5_starts.h, what HDF5 is in h5_file.h.
#include "data/h5_shard.h"

#include "data/h5_hashes.h"
#include "data/h5_starts.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

struct dt_shard_reader {
    struct dt_h5_file file;
    struct dt_h5_array tokens; // tokens: with checksums and documents
    struct dt_h5_hashes hashes[DT_H5_HASH_KINDS];
    struct dt_h5_starts starts;
    struct dt_h5_array input_ids, labels; // pairs
};

static dt_status check_tokens(const struct dt_h5_array *tokens)
{
    DT_TRY(dt_h5_check_vector(tokens));
    if (tokens->type == DT_U8 || tokens->type == DT_U16 || tokens->type == DT_U32)
        return DT_OK;
    return DT_FAIL(DT_USER, "store tokens as little-endian unsigned 8, 16 or 32-bit integers",
                   "%s: %s holds %s", tokens->file->path, tokens->name, tokens->type_text);
}

// The checksums that training compares with; NULL: the shard has none.
static struct dt_h5_hashes *used_hashes(struct dt_shard_reader *reader)
{
    for (int i = 0; i < DT_H5_HASH_KINDS; i++)
        if (reader->hashes[i].block > 0)
            return &reader->hashes[i];
    return NULL;
}

static dt_status open_hashes(struct dt_shard_reader *reader, struct dt_shard *shard)
{
    for (int i = 0; i < DT_H5_HASH_KINDS; i++) {
        struct dt_h5_hashes *hashes = &reader->hashes[i];
        DT_TRY(dt_h5_hashes_open(&reader->file, &dt_h5_hash_kinds[i], &reader->tokens, hashes));
        if (hashes->block > shard->hash_block)
            shard->hash_block = hashes->block;
    }
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
    DT_TRY(dt_h5_starts_open(&reader->file, tokens, &reader->starts));
    shard->doc_starts = reader->starts.found;
    return DT_OK;
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
    dt_h5_array_close(&reader->tokens);
    for (int i = 0; i < DT_H5_HASH_KINDS; i++)
        dt_h5_hashes_close(&reader->hashes[i]);
    dt_h5_array_close(&reader->starts.array);
    dt_h5_array_close(&reader->input_ids);
    dt_h5_array_close(&reader->labels);
    dt_h5_enter();
    dt_h5_close(&reader->file);
    dt_h5_leave();
    free(reader);
}

int64_t dt_shard_read_bytes(const struct dt_shard *shard, int64_t count)
{
    return count * dt_dtype_size(shard->type) + 2 * shard->hash_block;
}

// `hashes` NULL: nothing is checked.
static dt_status read_tokens(struct dt_shard_reader *reader, struct dt_h5_hashes *hashes,
                             int64_t first, int64_t count, char *buffer, const void **tokens)
{
    int64_t size = dt_dtype_size(reader->tokens.type), total = reader->tokens.shape[0] * size;
    int64_t from = first * size, start = from, end = from + count * size;
    *tokens = buffer;
    if (!hashes || count == 0)
        return dt_h5_array_read(&reader->tokens, first, count, buffer);
    start -= start % hashes->block;
    end += (hashes->block - end % hashes->block) % hashes->block;
    end = end < total ? end : total;
    *tokens = buffer + (from - start);
    DT_TRY(dt_h5_array_read(&reader->tokens, start / size, (end - start) / size, buffer));
    return dt_h5_hashes_check(hashes, buffer, start, end);
}

dt_status dt_shard_read_tokens(struct dt_shard_reader *reader, int64_t first, int64_t count,
                               bool verify, void *buffer, const void **tokens)
{
    return read_tokens(reader, verify ? used_hashes(reader) : NULL, first, count, buffer, tokens);
}

dt_status dt_shard_verify_tokens(struct dt_shard_reader *reader, int64_t first, int64_t count,
                                 void *buffer, const void **tokens)
{
    struct dt_h5_hashes *used = used_hashes(reader);
    for (int i = 0; i < DT_H5_HASH_KINDS; i++)
        if (reader->hashes[i].block > 0 && &reader->hashes[i] != used)
            DT_TRY(read_tokens(reader, &reader->hashes[i], first, count, buffer, tokens));
    return read_tokens(reader, used, first, count, buffer, tokens);
}

dt_status dt_shard_read_pairs(struct dt_shard_reader *reader, int64_t first, int64_t count,
                              int32_t *input_ids, int32_t *labels)
{
    DT_TRY(dt_h5_array_read(&reader->input_ids, first, count, input_ids));
    return dt_h5_array_read(&reader->labels, first, count, labels);
}

dt_status dt_shard_read_starts(struct dt_shard_reader *reader, int64_t first, int64_t count,
                               uint8_t *starts)
{
    return dt_h5_starts_mark(&reader->starts, first, count, starts);
}

dt_status dt_shard_check_starts(struct dt_shard_reader *reader, bool verify)
{
    return dt_h5_starts_check(&reader->starts, verify);
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
    const struct dt_h5_hashes *hashes = used_hashes(reader);
    if (hashes) {
        int64_t last = hashes->array.shape[0] - 1;
        DT_TRY(dt_h5_array_read(&hashes->array, 0, 1, &shard->first_hash));
        return dt_h5_array_read(&hashes->array, last, 1, &shard->last_hash);
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
    if (shard->schema == DT_SCHEMA_TOKENS) {
        DT_TRY(fingerprint_tokens(reader, shard));
        shard->last_hash ^= reader->starts.hash;
        return DT_OK;
    }
    DT_TRY(hash_rows(&reader->input_ids, 0, 1, &shard->first_hash));
    return hash_rows(&reader->labels, shard->count - 1, 1, &shard->last_hash);
}
