// Synthetic data for benchmarks, a pure function of seed and window by Philox: one kind draws
// uniform tokens, one draws uniform frames and random targets of the widths in the rules.
#include "base/rng.h"
#include "data/h5_episodes.h"
#include "data/tokens.h"

enum { WINDOWS = 1 << 20 };
enum { TOKENS = -1, FRAMES = -2 }; // Philox streams; no epoch of the order has a negative number

static struct dt_philox draws_of(const struct dt_read_rules *rules, int stream, int64_t window)
{
    return dt_philox_init(rules->seed, (uint32_t)stream, (uint64_t)window);
}

// All windows are one segment.
static void write_reset(void *reset, int64_t T, int64_t window)
{
    memset(reset, 0, (size_t)T);
    *(uint8_t *)reset = window == 0;
}

static dt_status open_tokens(struct dt_reader *reader, const struct dt_scan_rules *rules,
                             struct dt_shard *shard)
{
    (void)reader;
    shard->type = DT_U32;
    shard->windows = WINDOWS;
    shard->stride = rules->seq_len;
    shard->count = WINDOWS * rules->seq_len + 1;
    return DT_OK;
}

static dt_status write_tokens(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    struct dt_philox rng = draws_of(rules, TOKENS, window);
    int32_t *ids = rows[DT_TOKENS_IDS], *labels = rows[DT_TOKENS_LABELS];
    int64_t T = dataset->rules.seq_len;
    for (int64_t t = 0; t <= T; t++) {
        uint64_t draw = dt_philox_u32(&rng) * (uint64_t)rules->vocab_size;
        int32_t token = (int32_t)(draw >> 32);
        if (t < T)
            ids[t] = token;
        if (t > 0)
            labels[t - 1] = token;
    }
    if (rows[DT_TOKENS_RESET])
        write_reset(rows[DT_TOKENS_RESET], T, window);
    dt_tokens_mask(dataset, rules, block, window, rows);
    return DT_OK;
}

const struct dt_reader_kind dt_synthetic_reader = {
    .name = "synthetic",
    .unit = "tokens",
    .source = "synthetic:random",
    .open = open_tokens,
    .arrays = dt_tokens_arrays,
    .write = write_tokens,
};

static dt_status open_frames(struct dt_reader *reader, const struct dt_scan_rules *rules,
                             struct dt_shard *shard)
{
    (void)reader;
    if (rules->frame_width < 1 || rules->n_targets < 1)
        return DT_FAIL(DT_USER, "set model.heads and model.frame_size",
                       "synthetic:frames needs a policy and the size of its frames");
    shard->type = DT_F32;
    shard->windows = WINDOWS;
    shard->stride = rules->seq_len;
    shard->count = WINDOWS * rules->seq_len;
    shard->episodes = 1;
    shard->layout.frame_width = rules->frame_width;
    for (int i = 0; i < rules->n_targets; i++)
        shard->layout.target_width += rules->target[i].width;
    return DT_OK;
}

// The numbers are already normalised: their deviation is 1.
static dt_status write_frames(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    const struct dt_scan_rules *scan = &dataset->rules;
    int64_t T = scan->seq_len, n = T * dataset->layout.frame_width;
    struct dt_philox rng = draws_of(rules, FRAMES, window);
    float *floats = rows[0], *targets = rows[1];
    dt_bf16 *halves = rows[0];
    (void)block;
    for (int64_t i = 0; i < n; i++) {
        float x = 3.4641016f * (dt_philox_uniform(&rng) - 0.5f);
        if (rules->frames_type == DT_BF16)
            halves[i] = dt_f32_to_bf16(x);
        else
            floats[i] = x;
    }
    for (int64_t t = 0; t < T; t++)
        for (int i = 0; i < scan->n_targets; i++)
            for (int64_t k = 0; k < scan->target[i].width; k++) {
                int64_t classes = scan->target[i].classes;
                *targets++ = classes > 0 ? (float)dt_philox_below(&rng, (uint64_t)classes)
                                         : dt_philox_normal(&rng);
            }
    memset(rows[2], 1, (size_t)T);
    if (rules->carry)
        write_reset(rows[3], T, window);
    return DT_OK;
}

static dt_status read_numbers(struct dt_reader *reader, enum dt_numbers which, int64_t first,
                              int64_t n, float *numbers)
{
    (void)reader, (void)which, (void)first, (void)n, (void)numbers;
    return DT_FAIL(DT_USER, "set data.normalize = false", "synthetic frames have no statistics");
}

const struct dt_reader_kind dt_synthetic_frames_reader = {
    .name = "synthetic_frames",
    .unit = "frames",
    .source = "synthetic:frames",
    .open = open_frames,
    .arrays = dt_episodes_arrays,
    .write = write_frames,
    .numbers = read_numbers,
};
