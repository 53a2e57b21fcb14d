// Reads windows of episodes into blocks, and writes them from there into batches. A block's memory
// holds a struct window for each, then all rows from the first window's first to the last one's
// last.
#include "data/h5_episodes.h"

#include <string.h>

struct window {
    int64_t row; // in the block
    int32_t n;   // frames
    bool starts; // an episode
};

void dt_episodes_arrays(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                        struct dt_array_list *list)
{
    const struct dt_frame_layout *layout = &dataset->layout;
    int64_t bytes = dt_bytes_before(&rules->bytes, layout->frame_width);
    if (layout->frame_width > bytes)
        dt_array_list_add(list, "frames", rules->frames_type, layout->frame_width - bytes, false);
    if (bytes > 0)
        dt_array_list_add(list, "bytes", DT_U8, bytes, false);
    if (layout->n_ids > 0)
        dt_array_list_add(list, "ids", DT_I32, layout->n_ids, false);
    dt_array_list_add(list, "targets", DT_F32, layout->target_width, false);
    dt_array_list_add(list, "mask", DT_U8, 1, false);
    if (rules->carry)
        dt_array_list_add(list, "reset", DT_U8, 1, true);
}

int64_t dt_episodes_block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                                const struct dt_shard *shard, int64_t windows)
{
    // From one window's start to the next are at most `stride` rows or, at the end of an episode,
    // seq_len.
    int64_t rows;
    if (__builtin_mul_overflow(windows, dt_max_i64(shard->stride, dataset->rules.seq_len), &rows))
        rows = shard->count;
    return dt_reader_align(windows * (int64_t)sizeof(struct window)) +
           dt_episode_rows_in(&dataset->layout, &rules->bytes, dt_min_i64(rows, shard->count), NULL)
               .size;
}

dt_status dt_episodes_read(struct dt_reader *reader, const struct dt_dataset *dataset,
                           const struct dt_read_rules *rules, struct dt_block *block)
{
    struct dt_episodes *episodes = reader->own;
    struct window *windows = (struct window *)(void *)block->memory;
    int64_t T = dataset->rules.seq_len, first = -1, end = 0;
    int64_t e = dt_episodes_find(episodes, block->first, true);
    for (int64_t i = 0; i < block->windows; i++) {
        int64_t window = block->first + i;
        while (window >= episodes->at[e + 1].window)
            e++;
        const struct dt_episode *at = &episodes->at[e];
        int64_t row = at->first + (window - at->window) * episodes->rules.stride;
        int64_t n = dt_min_i64(at[1].first - row, T);
        if (first < 0)
            first = row;
        end = dt_max_i64(row + n, end);
        windows[i] = (struct window){row - first, (int32_t)n, window == at->window};
    }
    char *values = block->memory + dt_reader_align(block->windows * (int64_t)sizeof(struct window));
    block->data = windows;
    block->rows = end - first;
    return dt_episode_rows_read(
        reader, first, end - first,
        dt_episode_rows_in(&dataset->layout, &rules->bytes, end - first, values));
}

// Writes n rows of frames, normalised where the rules have a mean, in the rules' type.
static void write_frames(const struct dt_read_rules *rules, int64_t F, int64_t n,
                         const float *restrict from, void *to)
{
    float *restrict floats = to;
    dt_bf16 *restrict halves = to;
    const float *restrict mean = rules->mean, *restrict deviation = rules->deviation;
    if (!mean && rules->frames_type == DT_F32)
        memcpy(floats, from, (size_t)(n * F) * sizeof *from);
    else if (!mean)
        for (int64_t i = 0; i < n * F; i++)
            halves[i] = dt_f32_to_bf16(from[i]);
    else if (rules->frames_type == DT_F32)
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < F; i++)
                floats[t * F + i] = (from[t * F + i] - mean[i]) / deviation[i];
    else
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < F; i++)
                halves[t * F + i] = dt_f32_to_bf16((from[t * F + i] - mean[i]) / deviation[i]);
}

dt_status dt_episodes_write(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                            const struct dt_block *block, int64_t window, void *const *rows)
{
    static const char *const names[DT_ROWS_PARTS] = {"frames", "targets", "ids", "bytes"};
    const struct window *w = (const struct window *)block->data + (window - block->first);
    struct dt_array_list list = {0};
    struct dt_episode_rows from =
        dt_episode_rows_in(&dataset->layout, &rules->bytes, block->rows,
                           block->memory + dt_reader_align(block->windows * (int64_t)sizeof *w));
    dt_episodes_arrays(dataset, rules, &list);
    if (w->n < dataset->rules.seq_len)
        dt_episodes_pad(dataset, rules, rows);
    for (int part = 0; part < DT_ROWS_PARTS; part++) {
        const char *values = from.at[part] + w->row * from.row[part];
        int i = dt_array_list_find(&list, names[part]);
        if (i >= 0 && part == DT_ROWS_FRAMES)
            write_frames(rules, from.row[part] / (int64_t)sizeof(float), w->n,
                         (const float *)(const void *)values, rows[i]);
        else if (i >= 0)
            memcpy(rows[i], values, (size_t)(w->n * from.row[part]));
    }
    memset(rows[dt_array_list_find(&list, "mask")], 1, (size_t)w->n);
    int reset = dt_array_list_find(&list, "reset");
    if (reset >= 0) {
        memset(rows[reset], 0, (size_t)dataset->rules.seq_len);
        *(uint8_t *)rows[reset] = w->starts;
    }
    return DT_OK;
}

void dt_episodes_pad(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                     void *const *rows)
{
    struct dt_array_list list = {0};
    dt_episodes_arrays(dataset, rules, &list);
    for (int i = 0; i < list.n; i++)
        memset(rows[i], 0, (size_t)dt_array_bytes(&list.arrays[i], dataset->rules.seq_len));
}
