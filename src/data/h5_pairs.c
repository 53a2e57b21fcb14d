// The reader kind of pairs reads /input_ids and /labels, both [n, T] integers. A row is a segment
// and a window or, if state is carried, several successive windows of seq_len tokens. The loss
// ignores the label -100.
#include "base/memory.h"
#include "data/columns.h"
#include "data/h5_chunks.h"
#include "data/h5_reader.h"
#include "data/tokens.h"

#include <inttypes.h>

enum { IDS, LABELS, PAIR };

// A row of `pieces` windows is read as that many rows; contiguous datasets are read by offset.
struct pairs {
    int64_t pieces;
};

static dt_status cut_rows(struct dt_reader *reader, int64_t seq_len)
{
    for (int i = 0; i < PAIR; i++) {
        struct dt_h5_array *array = &reader->arrays[i];
        if (array->offset < 0)
            return DT_H5_REJECT(array, "store it contiguously, neither chunked nor compressed",
                                "has rows of several windows");
        array->shape[0] *= array->shape[1] / seq_len;
        array->shape[1] = seq_len;
    }
    return DT_OK;
}

static dt_status open_pairs(struct dt_reader *reader, const struct dt_scan_rules *rules,
                            struct dt_shard *shard)
{
    int64_t seq_len = rules->seq_len;
    const char *path = reader->file.path;
    const int64_t *ids = reader->arrays[IDS].shape, *labels = reader->arrays[LABELS].shape;
    for (int i = 0; i < PAIR; i++) {
        const struct dt_h5_array *array = &reader->arrays[i];
        if (array->n_dims != 2)
            return DT_H5_REJECT(array, "make it two-dimensional, [n, seq_len]",
                                "has %d dimensions, not 2", array->n_dims);
        if (!dt_columns_is_integer(array->type))
            return DT_H5_REJECT(array, "store it as little-endian integers", "holds %s",
                                array->type_text);
        shard->types |= 1u << array->type;
        dt_h5_chunks_note(array, shard);
    }
    if (ids[0] != labels[0] || ids[1] != labels[1])
        return DT_FAIL(DT_USER, "make the shapes of /input_ids and /labels equal",
                       "%s: /input_ids is [%" PRId64 ", %" PRId64 "], /labels is [%" PRId64
                       ", %" PRId64 "]",
                       path, ids[0], ids[1], labels[0], labels[1]);
    bool carries = rules->carry || rules->whole; // the state, from each piece of a row to the next
    bool cut = carries && seq_len > 0 && ids[1] > seq_len && ids[1] % seq_len == 0;
    if (ids[1] < 1 || (seq_len > 0 && ids[1] != seq_len && !cut))
        return DT_FAIL(DT_USER,
                       carries ? "set data.seq_len to the length of the rows, or a divisor"
                               : "set data.seq_len to the length of the rows",
                       "%s: rows are %" PRId64 " tokens long, data.seq_len is %" PRId64, path,
                       ids[1], seq_len);
    struct pairs *own;
    DT_TRY(DT_NEW(&own, 1, "a reader of %s", path));
    reader->own = own;
    own->pieces = cut ? ids[1] / seq_len : 1;
    if (cut)
        DT_TRY(cut_rows(reader, seq_len));
    shard->type = DT_I32;
    shard->count = shard->windows = ids[0];
    shard->stride = 1;
    shard->row = ids[1];
    return DT_OK;
}

static dt_status fingerprint(struct dt_reader *reader, struct dt_shard *shard)
{
    DT_TRY(dt_reader_hash(reader, &reader->arrays[IDS], 0, 1, &shard->first_hash));
    return dt_reader_hash(reader, &reader->arrays[LABELS], shard->count - 1, 1, &shard->last_hash);
}

static dt_status hash_pairs(struct dt_reader *reader, const struct dt_shard *shard, int64_t bytes,
                            uint64_t *hash)
{
    (void)shard;
    for (int which = 0; which < PAIR; which++)
        DT_TRY(dt_reader_hash_array(reader, &reader->arrays[which], bytes / PAIR, hash));
    return DT_OK;
}

// The first of n values that is not in [0, limit) nor, for labels, DT_IGNORED; n if there is none.
static int64_t find_outside(int which, const int32_t *values, int64_t n, int64_t limit)
{
    int32_t ignored = which == LABELS ? DT_IGNORED : 0;
    for (int64_t i = 0; i < n; i++)
        if ((values[i] < 0 || values[i] >= limit) && values[i] != ignored)
            return i;
    return n;
}

static const char *place(int which, int64_t row, int64_t column, char *text, size_t size)
{
    snprintf(text, size, "%s at row %" PRId64 ", column %" PRId64,
             which == LABELS ? "/labels" : "/input_ids", row, column);
    return text;
}

// Reads rows as int32; `stored` has room for the same number of 64-bit values.
static dt_status read_rows(struct dt_reader *reader, int which, int64_t first, int64_t n,
                           void *stored, int32_t *values)
{
    const struct dt_h5_array *array = &reader->arrays[which];
    int64_t T = array->shape[1];
    char where[96], text[DT_INTEGER_TEXT];
    if (array->type == DT_I32)
        return dt_h5_array_read(array, first, n, values);
    DT_TRY(dt_h5_array_read(array, first, n, stored));
    for (int64_t i = 0; i < n * T; i++) {
        int64_t value = dt_columns_integer(array->type, stored, i);
        if (value < (array->type == DT_U64 ? 0 : INT32_MIN) || value > INT32_MAX)
            return DT_FAIL(DT_USER, "create the shard again",
                           "%s: %s is %s, which no vocabulary has", array->file->path,
                           place(which, first + i / T, i % T, where, sizeof where),
                           dt_columns_integer_text(array->type, value, text));
        values[i] = (int32_t)value;
    }
    return DT_OK;
}

static dt_status verify_pairs(struct dt_reader *reader, struct dt_shard *shard, int64_t first,
                              int64_t n)
{
    int64_t T = shard->row;
    int64_t *stored;
    char where[96];
    DT_TRY(dt_reader_scratch(reader, 2 * n * T * (int64_t)sizeof *stored, &stored));
    int32_t *values = (int32_t *)(stored + n * T);
    for (int which = 0; which < PAIR; which++) {
        DT_TRY(read_rows(reader, which, first, n, stored, values));
        int64_t bad = find_outside(which, values, n * T, dt_tokens_limit(shard));
        if (bad < n * T)
            return dt_tokens_fail_verify(
                reader->file.path, shard,
                place(which, first + bad / T, bad % T, where, sizeof where), values[bad],
                which == LABELS);
    }
    return DT_OK;
}

static int64_t pieces_of(const struct dt_reader *reader)
{
    return ((const struct pairs *)reader->own)->pieces;
}

// Each row is a segment.
static bool segment(struct dt_reader *reader, const struct dt_shard *shard, int64_t number,
                    struct dt_segment *segment)
{
    int64_t pieces = pieces_of(reader);
    *segment = (struct dt_segment){
        .first = number * pieces, .count = pieces, .rows = shard->count, .window = number * pieces};
    return number < shard->count / pieces;
}

// A block has its document starts, if batches have them, then ids, then labels.
static int64_t block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           const struct dt_shard *shard, int64_t windows)
{
    int64_t n = windows * shard->row;
    return PAIR * n * dt_dtype_size(DT_I32) +
           (dt_tokens_have_reset(dataset, rules) ? dt_reader_align(n) : 0);
}

static dt_status read_pairs(struct dt_reader *reader, const struct dt_dataset *dataset,
                            const struct dt_read_rules *rules, struct dt_block *block)
{
    int64_t T = dataset->rules.seq_len, n = block->windows * T;
    bool reset = dt_tokens_have_reset(dataset, rules);
    uint8_t *starts = (uint8_t *)block->memory;
    int32_t *values = (int32_t *)(void *)(block->memory + (reset ? dt_reader_align(n) : 0));
    int64_t *stored;
    block->data = values;
    DT_TRY(dt_reader_scratch(reader, n * (int64_t)sizeof *stored, &stored));
    for (int which = 0; which < PAIR; which++)
        DT_TRY(read_rows(reader, which, block->first, block->windows, stored, values + which * n));
    if (reset && rules->reset_after && pieces_of(reader) > 1)
        return DT_FAIL(DT_USER, "use data.reset_token alone, or data.seq_len as long as the rows",
                       "%s: data.reset_after does not look beyond windows, and rows are cut into "
                       "several",
                       reader->file.path);
    for (int64_t i = 0; reset && i < n; i += T) {
        bool begins = (block->first + i / T) % pieces_of(reader) == 0;
        dt_tokens_mark_starts(rules, DT_I32, values + i, T, !begins, starts + i);
        if (begins)
            starts[i] = 1; // no token precedes the first of a row
    }
    return DT_OK;
}

static dt_status write_window(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    int64_t T = dataset->rules.seq_len, at = (window - block->first) * T;
    char where[96];
    for (int which = 0; which < PAIR; which++) {
        const int32_t *values = (const int32_t *)block->data + which * block->windows * T + at;
        int64_t bad = find_outside(which, values, T, rules->vocab_size);
        if (bad < T)
            return dt_tokens_fail(&dataset->shards[block->shard],
                                  place(which, window, bad, where, sizeof where), values[bad],
                                  rules->vocab_size);
        memcpy(rows[which == LABELS ? DT_TOKENS_LABELS : DT_TOKENS_IDS], values,
               (size_t)T * sizeof *values);
    }
    if (rows[DT_TOKENS_RESET])
        memcpy(rows[DT_TOKENS_RESET], block->memory + at, (size_t)T);
    dt_tokens_mask(dataset, rules, block, window, rows);
    return DT_OK;
}

const struct dt_reader_kind dt_pairs_reader = {
    .name = "pairs",
    .unit = "rows",
    .datasets = {"/input_ids", "/labels"},
    .open = open_pairs,
    .fingerprint = fingerprint,
    .hash = hash_pairs,
    .verify = verify_pairs,
    .segment = segment,
    .arrays = dt_tokens_arrays,
    .block_bytes = block_bytes,
    .read = read_pairs,
    .write = write_window,
};
