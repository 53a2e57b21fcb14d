// The reader kind of token streams reads /tokens, one dimension of integers of any type, with
// optional checksums (h5_hashes.h) and document starts (h5_starts.h). A shard is one segment; n
// tokens give (n - 1) / T windows of T + 1 tokens, where the last token of a window is the first of
// the next. With rules->whole they give ceil(n / T) windows; in the last one ids after the end are
// 0, and labels from the last token on are ignored.
#include "data/tokens.h"

#include "base/memory.h"
#include "base/rng.h"
#include "data/columns.h"
#include "data/h5_chunks.h"
#include "data/h5_hashes.h"
#include "data/h5_pack.h"
#include "data/h5_reader.h"
#include "data/h5_starts.h"

#include <inttypes.h>
#include <string.h>

enum { STRAND = 256 }; // tokens in a table of complements

struct stream {
    struct dt_h5_hashes hashes[DT_H5_HASH_KINDS];
    struct dt_h5_starts starts;
    uint8_t complement[STRAND]; // for DNA: the token on the other strand
};

// Reads the attribute complement, which has the complement of each token below vocab_size.
static dt_status open_complement(struct dt_reader *reader, bool needed, uint8_t *complement)
{
    const struct dt_h5_array *tokens = &reader->arrays[0];
    struct dt_h5_array array;
    bool found, good;
    DT_TRY(dt_h5_attribute_open(&reader->file, "/tokens/@" DT_COMPLEMENT, &array, &found));
    int64_t n = array.shape[1];
    dt_status status = DT_OK;
    good = found && array.type == DT_U8 && tokens->type == DT_U8 && n <= STRAND;
    for (int i = 0; i < STRAND; i++)
        complement[i] = (uint8_t)i;
    if (good)
        status = dt_h5_array_read(&array, 0, 1, complement);
    for (int64_t i = 0; good && i < n; i++)
        good = complement[i] < n && complement[complement[i]] == i;
    dt_h5_array_close(&array);
    DT_TRY(status);
    if (good || !(found || needed))
        return DT_OK;
    return DT_H5_REJECT(tokens, "pack DNA with dtrain pack --format fasta",
                        found ? "has an attribute complement that does not pair the tokens"
                              : "has no attribute complement, which data.reverse_complement needs");
}

static dt_status open_tokens(struct dt_reader *reader, const struct dt_scan_rules *rules,
                             struct dt_shard *shard)
{
    int64_t seq_len = rules->seq_len;
    const struct dt_h5_array *tokens = &reader->arrays[0];
    DT_TRY(dt_h5_check_vector(tokens));
    if (!dt_columns_is_integer(tokens->type))
        return DT_H5_REJECT(tokens, "store tokens as little-endian integers", "holds %s",
                            tokens->type_text);
    struct stream *stream;
    DT_TRY(DT_NEW(&stream, 1, "reading %s", reader->file.path));
    reader->own = stream;
    shard->type = tokens->type;
    shard->count = tokens->shape[0];
    shard->stride = seq_len;
    shard->windows =
        seq_len > 0 && shard->count > 0 ? (shard->count - 1) / seq_len + (rules->whole ? 1 : 0) : 0;
    for (int i = 0; i < DT_H5_HASH_KINDS; i++) {
        struct dt_h5_hashes *hashes = &stream->hashes[i];
        DT_TRY(dt_h5_hashes_open(&reader->file, &dt_h5_hash_kinds[i], tokens, hashes));
        shard->hash_block = dt_max_i64(shard->hash_block, hashes->block);
    }
    DT_TRY(dt_h5_starts_open(&reader->file, tokens, &stream->starts));
    DT_TRY(open_complement(reader, rules->reverse_complement, stream->complement));
    shard->doc_starts = stream->starts.found;
    dt_h5_chunks_note(tokens, shard);
    return DT_OK;
}

static void close_tokens(struct dt_reader *reader)
{
    struct stream *stream = reader->own;
    for (int i = 0; i < DT_H5_HASH_KINDS; i++)
        dt_h5_hashes_close(&stream->hashes[i]);
    dt_h5_array_close(&stream->starts.array);
}

// The checksums that training checks; NULL: none.
static struct dt_h5_hashes *used_hashes(struct dt_reader *reader)
{
    struct stream *stream = reader->own;
    for (int i = 0; i < DT_H5_HASH_KINDS; i++)
        if (stream->hashes[i].block > 0)
            return &stream->hashes[i];
    return NULL;
}

static dt_status fingerprint(struct dt_reader *reader, struct dt_shard *shard)
{
    const struct stream *stream = reader->own;
    const struct dt_h5_array *tokens = &reader->arrays[0];
    const struct dt_h5_hashes *hashes = used_hashes(reader);
    int64_t n = shard->count, block = DT_HASH_BLOCK / dt_dtype_size(shard->type);
    int64_t last = (n - 1) / block * block;
    if (hashes) {
        DT_TRY(dt_h5_array_read(&hashes->array, 0, 1, &shard->first_hash));
        DT_TRY(dt_h5_array_read(&hashes->array, hashes->array.shape[0] - 1, 1, &shard->last_hash));
    } else {
        DT_TRY(dt_reader_hash(reader, tokens, 0, dt_min_i64(n, block), &shard->first_hash));
        DT_TRY(dt_reader_hash(reader, tokens, last, n - last, &shard->last_hash));
    }
    shard->last_hash ^= stream->starts.hash;
    return DT_OK;
}

// Hashes the stored checksums instead of the tokens, and the hash of /doc_starts if it has one.
static dt_status hash_tokens(struct dt_reader *reader, const struct dt_shard *shard, int64_t bytes,
                             uint64_t *hash)
{
    const struct stream *stream = reader->own;
    const struct dt_h5_starts *starts = &stream->starts;
    const struct dt_h5_hashes *hashes = used_hashes(reader);
    (void)shard;
    DT_TRY(dt_reader_hash_array(reader, hashes ? &hashes->array : &reader->arrays[0], bytes, hash));
    *hash ^= starts->hash;
    return starts->found && !starts->stamped && starts->array.shape[0] > 0
               ? dt_reader_hash_array(reader, &starts->array, bytes, hash)
               : DT_OK;
}

int64_t dt_tokens_read_bytes(const struct dt_shard *shard, int64_t count)
{
    return count * dt_dtype_size(shard->type) + 2 * shard->hash_block;
}

// Reads whole checksum blocks and checks them; `hashes` NULL: reads without a check.
static dt_status read_checked(struct dt_reader *reader, struct dt_h5_hashes *hashes, int64_t first,
                              int64_t count, char *buffer, const void **tokens)
{
    const struct dt_h5_array *array = &reader->arrays[0];
    int64_t size = dt_dtype_size(array->type), total = array->shape[0] * size;
    int64_t from = first * size, start = from, end = from + count * size;
    *tokens = buffer;
    if (!hashes || count == 0)
        return dt_h5_array_read(array, first, count, buffer);
    start -= start % hashes->block;
    end = dt_min_i64(dt_round_up(end, hashes->block), total);
    *tokens = buffer + (from - start);
    DT_TRY(dt_h5_array_read(array, start / size, (end - start) / size, buffer));
    return dt_h5_hashes_check(hashes, buffer, start, end);
}

dt_status dt_tokens_read(struct dt_reader *reader, int64_t first, int64_t count, bool verify,
                         void *buffer, const void **tokens)
{
    return read_checked(reader, verify ? used_hashes(reader) : NULL, first, count, buffer, tokens);
}

// Checks /doc_starts, in a few thousandths of the time of reading the tokens.
static dt_status check_starts(struct dt_reader *reader, bool verify)
{
    const struct stream *stream = reader->own;
    return stream->starts.found ? dt_h5_starts_check(&stream->starts, verify) : DT_OK;
}

// Checks the checksums of all kinds that the shard has, with one read per kind.
static dt_status verify_tokens(struct dt_reader *reader, struct dt_shard *shard, int64_t first,
                               int64_t n)
{
    struct stream *stream = reader->own;
    struct dt_h5_hashes *used = used_hashes(reader);
    const void *tokens;
    char *buffer, where[64];
    DT_TRY(dt_reader_scratch(reader, dt_tokens_read_bytes(shard, n), &buffer));
    for (int i = 0; i < DT_H5_HASH_KINDS; i++)
        if (stream->hashes[i].block > 0 && &stream->hashes[i] != used)
            DT_TRY(read_checked(reader, &stream->hashes[i], first, n, buffer, &tokens));
    DT_TRY(read_checked(reader, used, first, n, buffer, &tokens));
    int64_t limit = dt_tokens_limit(shard);
    if (dt_tokens_largest(shard->type, tokens, n) < (uint64_t)limit)
        return DT_OK;
    int64_t i = dt_tokens_find(shard->type, tokens, n, limit);
    snprintf(where, sizeof where, "/tokens at offset %" PRId64, first + i);
    return dt_tokens_fail_verify(reader->file.path, shard, where,
                                 dt_columns_integer(shard->type, tokens, i), false);
}

static bool segment(struct dt_reader *reader, const struct dt_shard *shard, int64_t number,
                    struct dt_segment *segment)
{
    (void)reader;
    *segment = (struct dt_segment){.count = shard->count, .rows = shard->count, .label = 1};
    return number == 0;
}

static dt_status documents(struct dt_reader *reader, const struct dt_shard *shard, int64_t window,
                           int64_t *lengths)
{
    const struct stream *stream = reader->own;
    int64_t T = shard->stride, from = window * T, n = dt_min_i64(T, shard->count - from);
    memset(lengths + n, 0, (size_t)(T - n) * sizeof *lengths);
    return dt_h5_starts_lengths(&stream->starts, from, n, lengths);
}

// Bytes for document starts of n positions and of the one after them.
static int64_t marks_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           int64_t n)
{
    return dt_tokens_have_reset(dataset, rules) ? dt_reader_align(n + 1) : 0;
}

static int64_t strand_bytes(const struct dt_read_rules *rules)
{
    return rules->reverse_complement ? STRAND : 0;
}

// A block has the complements, if windows of the other strand are read, document starts, if batches
// have them, then tokens as stored.
static int64_t block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           const struct dt_shard *shard, int64_t windows)
{
    int64_t n = windows * dataset->rules.seq_len;
    // Includes a token before (it may end a document) and a label after.
    int64_t bytes = dt_tokens_read_bytes(shard, n + 2);
    return bytes + strand_bytes(rules) + marks_bytes(dataset, rules, n);
}

static dt_status read_tokens(struct dt_reader *reader, const struct dt_dataset *dataset,
                             const struct dt_read_rules *rules, struct dt_block *block)
{
    const struct stream *stream = reader->own;
    const struct dt_shard *shard = &dataset->shards[block->shard];
    int64_t T = dataset->rules.seq_len, from = block->first * T;
    int64_t before = from > 0, n = dt_min_i64(block->windows * T, shard->count - from);
    int64_t after = from + n < shard->count; // a label
    int64_t marks = marks_bytes(dataset, rules, block->windows * T), strand = strand_bytes(rules);
    uint8_t *starts = (uint8_t *)block->memory + strand;
    const void *tokens;
    DT_TRY(dt_tokens_read(reader, from - before, before + n + after, rules->verify,
                          block->memory + strand + marks, &tokens));
    block->data = dt_tokens_at(shard->type, tokens, before);
    memcpy(block->memory, stream->complement, (size_t)strand);
    if (marks == 0)
        return DT_OK;
    memset(starts, 0, (size_t)marks);
    if (n < block->windows * T)
        starts[n] = 1; // what follows the shard's end is not part of its last document
    if (shard->doc_starts)
        DT_TRY(dt_h5_starts_mark(&stream->starts, from, n + after, starts));
    else
        dt_tokens_mark_starts(rules, shard->type, block->data, n + after, before, starts);
    if (block->first == 0)
        starts[0] = 1; // a segment starts with a document
    return DT_OK;
}

// Turns a window into that of the other strand: the complements of its T + 1 tokens in reverse
// order. marks[p], p <= T: a document starts at token p, and so ends there on the other strand.
static void reverse_complement(const uint8_t *complement, int64_t T, const uint8_t *marks,
                               int32_t *ids, int32_t *labels, uint8_t *reset)
{
    int32_t last = labels[T - 1];
    for (int64_t t = 0; t < T; t++)
        labels[t] = complement[ids[T - 1 - t]];
    memmove(ids + 1, labels, (size_t)(T - 1) * sizeof *ids);
    ids[0] = complement[last];
    for (int64_t t = 0; reset && t < T; t++)
        reset[t] = t > 0 && marks[T + 1 - t];
}

// The choice depends only on seed, epoch, shard and window.
static bool is_reversed(const struct dt_read_rules *rules, const struct dt_block *block,
                        int64_t window)
{
    if (!rules->reverse_complement)
        return false;
    struct dt_philox rng =
        dt_philox_init(rules->seed, (uint32_t)block->epoch,
                       UINT64_C(1) << 63 | (uint64_t)block->shard << 40 | (uint64_t)window);
    return dt_philox_u32(&rng) & 1;
}

static dt_status write_window(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    const struct dt_shard *shard = &dataset->shards[block->shard];
    int64_t T = dataset->rules.seq_len, at = (window - block->first) * T;
    const void *tokens = dt_tokens_at(shard->type, block->data, at);
    char where[64];
    const uint8_t *marks = (const uint8_t *)block->memory + strand_bytes(rules) + at;
    if (rows[DT_TOKENS_RESET])
        memcpy(rows[DT_TOKENS_RESET], marks, (size_t)T);
    int32_t *ids = rows[DT_TOKENS_IDS], *labels = rows[DT_TOKENS_LABELS];
    int64_t n = dt_min_i64(T, shard->count - 1 - window * T); // tokens with a label
    uint64_t largest = dt_tokens_widen(shard->type, tokens, n, ids, labels);
    for (int64_t i = n; i < T; i++) {
        ids[i] = i == n ? (int32_t)dt_columns_integer(shard->type, tokens, n) : 0;
        labels[i] = rules->masking.on && i == n ? ids[i] : DT_IGNORED;
    }
    if (largest < (uint64_t)rules->vocab_size) {
        if (is_reversed(rules, block, window))
            reverse_complement((const uint8_t *)block->memory, T, marks, ids, labels,
                               rows[DT_TOKENS_RESET]);
        dt_tokens_mask(dataset, rules, block, window, rows);
        return DT_OK;
    }
    int64_t i = dt_tokens_find(shard->type, tokens, n + 1, rules->vocab_size);
    snprintf(where, sizeof where, "/tokens at offset %" PRId64, window * T + i);
    return dt_tokens_fail(shard, where, dt_columns_integer(shard->type, tokens, i),
                          rules->vocab_size);
}

const struct dt_reader_kind dt_tokens_reader = {
    .name = "tokens",
    .unit = "tokens",
    .strands = true,
    .datasets = {"/tokens"},
    .open = open_tokens,
    .close = close_tokens,
    .fingerprint = fingerprint,
    .hash = hash_tokens,
    .check = check_starts,
    .verify = verify_tokens,
    .segment = segment,
    .documents = documents,
    .arrays = dt_tokens_arrays,
    .block_bytes = block_bytes,
    .read = read_tokens,
    .write = write_window,
};
