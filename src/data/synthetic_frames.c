// Synthetic frames, for benchmarks: uniform numbers and random targets from Philox, a pure function
// of seed and window. The rules say how wide a frame is, and what the heads learn from.
#include "base/rng.h"
#include "data/h5_episodes.h"

enum { WINDOWS = 1 << 20, STREAM = -2 }; // no epoch of the order has that number

static dt_status open_synthetic(struct dt_reader *reader, const struct dt_scan_rules *rules,
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

static void write_targets(const struct dt_scan_rules *rules, struct dt_philox *rng, float *to)
{
    for (int i = 0; i < rules->n_targets; i++)
        for (int64_t k = 0; k < rules->target[i].width; k++) {
            int64_t classes = rules->target[i].classes;
            *to++ = classes > 0 ? (float)dt_philox_below(rng, (uint64_t)classes)
                                : dt_philox_normal(rng);
        }
}

static void write_frames(const struct dt_frame_layout *layout, int64_t n, struct dt_philox *rng,
                         enum dt_dtype type, void *to)
{
    for (int64_t i = 0; i < n * layout->frame_width; i++) {
        float x = 3.4641016f * (dt_philox_uniform(rng) - 0.5f); // deviation 1
        if (type == DT_BF16)
            ((dt_bf16 *)to)[i] = dt_f32_to_bf16(x);
        else
            ((float *)to)[i] = x;
    }
}

// The numbers are normalised as they are.
static dt_status write_window(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                              const struct dt_block *block, int64_t window, void *const *rows)
{
    int64_t T = dataset->rules.seq_len;
    struct dt_philox rng = dt_philox_init(rules->seed, (uint32_t)STREAM, (uint64_t)window);
    (void)block;
    write_frames(&dataset->layout, T, &rng, rules->frames_type, rows[0]);
    for (int64_t t = 0; t < T; t++)
        write_targets(&dataset->rules, &rng, (float *)rows[1] + t * dataset->layout.target_width);
    memset(rows[2], 1, (size_t)T);
    if (rules->carry) { // all windows are one episode
        memset(rows[3], 0, (size_t)T);
        *(uint8_t *)rows[3] = window == 0;
    }
    return DT_OK;
}

static dt_status read_frames(struct dt_reader *reader, int64_t first, int64_t n, float *frames)
{
    (void)reader;
    (void)first;
    (void)n;
    (void)frames;
    return DT_FAIL(DT_USER, "set data.normalize = false", "synthetic frames have no statistics");
}

const struct dt_reader_kind dt_synthetic_frames_reader = {
    .name = "synthetic_frames",
    .unit = "frames",
    .source = "synthetic:frames",
    .open = open_synthetic,
    .arrays = dt_episodes_arrays,
    .write = write_window,
    .pad = dt_episodes_pad,
    .frames = read_frames,
};
