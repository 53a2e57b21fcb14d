// A reader for shards of floats: /samples [n, SAMPLE_WIDTH] and /wanted [n, TARGET_WIDTH], both
// 32-bit floats, one row per position. Windows follow each other. The loss ignores targets that are
// NaN.
#include "samples.h"

#include "data/h5_reader.h"

#include <math.h>

enum { SAMPLES, TARGETS, ARRAYS };
static const int width[ARRAYS] = {SAMPLE_WIDTH, TARGET_WIDTH};

static dt_status open_samples(struct dt_reader *reader, const struct dt_scan_rules *rules,
                              struct dt_shard *shard)
{
    int64_t seq_len = rules->seq_len;
    for (int i = 0; i < ARRAYS; i++) {
        const struct dt_h5_array *array = &reader->arrays[i];
        if (array->type != DT_F32 || array->n_dims != 2 || array->shape[1] != width[i] ||
            array->shape[0] != reader->arrays[SAMPLES].shape[0])
            return DT_FAIL(DT_USER, "store 32-bit floats, a row a position",
                           "%s: %s is not [n, %d]", reader->file.path, array->name, width[i]);
    }
    shard->type = DT_F32;
    shard->count = reader->arrays[SAMPLES].shape[0];
    shard->stride = seq_len;
    shard->windows = seq_len > 0 ? shard->count / seq_len : 0;
    shard->row = 1;
    shard->width = SAMPLE_WIDTH;
    return DT_OK;
}

static dt_status fingerprint(struct dt_reader *reader, struct dt_shard *shard)
{
    DT_TRY(dt_reader_hash(reader, &reader->arrays[SAMPLES], 0, 1, &shard->first_hash));
    return dt_reader_hash(reader, &reader->arrays[TARGETS], shard->count - 1, 1, &shard->last_hash);
}

static void list_arrays(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                        struct dt_array_list *list)
{
    (void)dataset, (void)rules;
    dt_array_list_add(list, "samples", DT_F32, SAMPLE_WIDTH, false);
    list->arrays[dt_array_list_add(list, "targets", DT_F32, TARGET_WIDTH, false)].pad = NAN;
}

static int64_t block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                           const struct dt_shard *shard, int64_t windows)
{
    (void)rules, (void)shard;
    return windows * dataset->rules.seq_len * (SAMPLE_WIDTH + TARGET_WIDTH) *
           (int64_t)sizeof(float);
}

// In memory a block is its samples, then its targets.
static dt_status read_block(struct dt_reader *reader, const struct dt_dataset *dataset,
                            const struct dt_read_rules *rules, struct dt_block *block)
{
    (void)rules;
    int64_t T = dataset->rules.seq_len, n = block->windows * T;
    float *values = (float *)(void *)block->memory;
    block->data = values;
    DT_TRY(dt_h5_array_read(&reader->arrays[SAMPLES], block->first * T, n, values));
    return dt_h5_array_read(&reader->arrays[TARGETS], block->first * T, n,
                            values + n * SAMPLE_WIDTH);
}

static dt_status write_window(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    (void)rules;
    int64_t T = dataset->rules.seq_len, at = (window - block->first) * T;
    const float *samples = block->data, *targets = samples + block->windows * T * SAMPLE_WIDTH;
    memcpy(rows[SAMPLES], samples + at * SAMPLE_WIDTH, (size_t)T * SAMPLE_WIDTH * sizeof *samples);
    memcpy(rows[TARGETS], targets + at * TARGET_WIDTH, (size_t)T * TARGET_WIDTH * sizeof *targets);
    return DT_OK;
}

const struct dt_reader_kind samples_reader = {
    .name = "samples",
    .unit = "positions",
    .datasets = {"/samples", "/wanted"},
    .open = open_samples,
    .fingerprint = fingerprint,
    .arrays = list_arrays,
    .block_bytes = block_bytes,
    .read = read_block,
    .write = write_window,
};
