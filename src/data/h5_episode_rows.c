// Reads rows of all columns of a shard's episodes as floats, ids and bytes, checks every value, and
// writes windows of them into batches.
#include "base/finite.h"
#include "base/memory.h"
#include "data/h5_episodes.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE_BYTES = 1 << 18, SAMPLES = 16 };

// Parts of rows: frames [n, F] fp32 without the columns `split`, targets [n, W] fp32, ids [n,
// n_ids] i32, bytes (the columns `split`), weights [n, 1 + H] fp32.
enum { FRAMES, TARGETS, IDS, BYTES, WEIGHTS, PARTS };
struct rows {
    char *at[PARTS];                     // NULL: not wanted
    int64_t row[PARTS];                  // bytes of one row
    int64_t size;                        // bytes of all parts
    const struct dt_byte_columns *split; // NULL: none
    bool check;                          // every value
    bool statistics;                     // flags become missing numbers and stay unnormalised
};

// Lays out n rows of all columns by parts in `memory` of `size` bytes; NULL: only computes sizes.
static struct rows place_rows(const struct dt_frame_layout *layout,
                              const struct dt_byte_columns *split, int64_t n, char *memory)
{
    int64_t bytes = dt_bytes_before(split, layout->frame_width);
    struct rows rows = {.row = {[FRAMES] = (layout->frame_width - bytes) * (int64_t)sizeof(float),
                                [TARGETS] = layout->target_width * (int64_t)sizeof(float),
                                [IDS] = layout->n_ids * (int64_t)sizeof(int32_t),
                                [BYTES] = bytes,
                                [WEIGHTS] = layout->weight_width * (int64_t)sizeof(float)},
                        .split = split,
                        .check = true};
    for (int part = 0; part < PARTS; part++) {
        rows.at[part] = memory ? memory + rows.size : NULL;
        rows.size += dt_reader_align(n * rows.row[part]);
    }
    return rows;
}

// The episode of frame `number` of the shard, or of window `number`.
static int64_t find_episode(const struct dt_episodes *episodes, int64_t number, bool window)
{
    int64_t low = 0, high = episodes->n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        const struct dt_episode *at = &episodes->at[middle];
        if ((window ? at->window : at->first) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Names a row: "/data/demo_3/obs/a, row 17" or "/frames, row 2017 (row 17 of episode 3)".
static const char *name_row(const struct dt_episodes *episodes, int64_t column, int64_t number,
                            int64_t row, char *text, size_t size)
{
    const struct dt_episode *at = &episodes->at[number];
    const char *name = episodes->arrays[column].name;
    if (at->group)
        snprintf(text, size, "%s, row %" PRId64, name, row);
    else
        snprintf(text, size, "%s, row %" PRId64 " (row %" PRId64 " of episode %" PRId64 ")", name,
                 at->row + row, row, number);
    return text;
}

// So that the product of two weights is finite.
#define WEIGHT_MOST 1e18f

// Checks `rows` rows from row `row` of an episode on. NaN means a missing target.
static dt_status check_finite(const struct dt_reader *reader, int64_t column, int64_t number,
                              int64_t row, int64_t rows, const float *values, int64_t stride)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_column *c = &episodes->columns.at[column];
    const char *path = episodes->arrays[column].file->path; // of the shard or of a linked file
    float least = c->weight ? 0 : -FLT_MAX, most = c->weight ? WEIGHT_MOST : FLT_MAX;
    char where[DT_H5_PATH + 128];
    for (int64_t r = 0; r < rows; r++, values += stride) {
        int64_t n = c->end - c->first, j = dt_find_outside(values, n, least, most);
        while (j < n && c->target && isnan(values[j]))
            j += 1 + dt_find_outside(values + j + 1, n - j - 1, -FLT_MAX, FLT_MAX);
        if (j == n)
            continue;
        name_row(episodes, column, number, row + r, where, sizeof where);
        if (c->weight)
            return DT_FAIL(DT_USER, "store weights from 0 to 1e18",
                           "%s: %s: %g is not a weight (data.weights)", path, where, values[j]);
        return DT_FAIL(DT_USER, "repair or remove the episode",
                       "%s: %s, column %" PRId64 ": %g is not a finite float32", path, where,
                       c->first + j, values[j]);
    }
    return DT_OK;
}

// Reads rows of bytes, `stride` apart, directly from the file if they are contiguous there.
static dt_status read_bytes(const struct dt_h5_array *array, const struct dt_column *c,
                            int64_t first, int64_t rows, uint8_t *stored, uint8_t *to,
                            int64_t stride)
{
    int64_t width = array->shape[1], n = c->end - c->first;
    if (array->type != DT_U8)
        return DT_H5_REJECT(array, "do not change shards during training; start again",
                            "holds %s where it held bytes", dt_dtype_name(array->type));
    if (n == width && n == stride)
        return dt_h5_array_read(array, first, rows, to);
    DT_TRY(dt_h5_array_read(array, first, rows, stored));
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * stride, stored + r * width + c->first, (size_t)n);
    return DT_OK;
}

// The part of a row that has a column, and the column's position in it. Either all columns of a
// dataset are split off, or none.
static int part_of(const struct dt_column *c, const struct dt_byte_columns *split, int64_t *before)
{
    int64_t bytes = dt_bytes_before(split, c->at);
    *before = c->at;
    if (c->weight)
        return WEIGHTS;
    if (c->target || c->table > 0)
        return c->target ? TARGETS : IDS;
    bool is_split = dt_bytes_before(split, c->at + 1) > bytes;
    *before = is_split ? bytes : c->at - bytes;
    return is_split ? BYTES : FRAMES;
}

// Converts rows [row, row + n) of a column's dataset, given in `stored`, into rows of numbers
// `stride` apart.
static dt_status convert(const struct dt_reader *reader, int64_t column, int64_t number,
                         int64_t row, int64_t n, const void *stored, bool check, void *to,
                         int64_t stride)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_column *c = &episodes->columns.at[column];
    const struct dt_h5_array *array = &episodes->arrays[column];
    int64_t width = array->shape[1], columns = c->end - c->first, wrong;
    char where[DT_H5_PATH + 128], value[DT_INTEGER_TEXT];
    if (c->table == 0) {
        dt_columns_to_floats(array->type, stored, n, width, c->first, columns, to, stride);
        return check ? check_finite(reader, column, number, row, n, to, stride) : DT_OK;
    }
    int64_t bad = dt_columns_to_ids(array->type, stored, n, width, c->first, columns, c->table, to,
                                    stride, &wrong);
    if (bad < 0 || !check)
        return DT_OK;
    return DT_FAIL(DT_USER, "raise the N of :id*N in data.inputs, or correct the data",
                   "%s: %s: id %s is not in [0, %" PRId64 ")", array->file->path,
                   name_row(episodes, column, number, row + bad / columns, where, sizeof where),
                   dt_columns_integer_text(array->type, wrong, value), c->table);
}

// For rows [row, row + n) of an episode, writes missing values where a shift leaves the `limit`
// rows, and the flags.
static void write_missing(const struct dt_column *c, int64_t limit, int64_t row, int64_t n,
                          const struct rows *to, int part, int64_t before)
{
    int64_t flag = c->flag - dt_bytes_before(to->split, c->flag);
    for (int64_t s = c->from; s < c->to; s++) {
        int64_t place = (s - c->from) * c->step + before,
                flag_at = flag + (s - c->from) * c->flag_step;
        for (int64_t r = 0; r < n; r++) {
            bool there = row + r + s >= 0 && row + r + s < limit;
            char *values = to->at[part] ? to->at[part] + r * to->row[part] : NULL;
            for (int64_t j = place; values && !there && j < place + c->end - c->first; j++)
                if (part == IDS)
                    ((int32_t *)(void *)values)[j] = 0;
                else
                    ((float *)(void *)values)[j] = NAN;
            if (c->valid && to->at[FRAMES])
                ((float *)(void *)(to->at[FRAMES] + r * to->row[FRAMES]))[flag_at] =
                    to->statistics ? NAN : there;
        }
    }
}

// Reads a column of the open episode's rows [row, row + n).
static dt_status read_column(struct dt_reader *reader, int64_t column, int64_t number, int64_t row,
                             int64_t n, const struct rows *to)
{
    struct dt_episodes *episodes = reader->own;
    const struct dt_column *c = &episodes->columns.at[column];
    const struct dt_h5_array *array = &episodes->arrays[column];
    int64_t bytes = array->shape[1] * dt_dtype_size(array->type),
            at_once = bytes < PIECE_BYTES ? PIECE_BYTES / bytes : 1;
    int64_t base = episodes->at[number].row, before;
    int64_t limit = dt_episodes_rows(episodes, number, c), some;
    int64_t first = dt_max_i64(row + c->from, 0), end = dt_min_i64(row + n + c->to - 1, limit);
    int part = part_of(c, to->split, &before);
    int64_t stride = to->row[part] / (int64_t)sizeof(float); // in numbers, not bytes
    char *stored;
    if (dt_column_is_shifted(c) || c->valid)
        write_missing(c, limit, row, n, to, part, before);
    if (!to->at[part] || first >= end)
        return DT_OK;
    at_once = dt_min_i64(at_once, end - first);
    DT_TRY(dt_reader_scratch(reader, at_once * bytes, (void **)&stored));
    for (; first < end; first += some) {
        some = dt_min_i64(end - first, at_once);
        if (part == BYTES) {
            char *rows = to->at[part] + (first - row) * to->row[part] + before;
            DT_TRY(read_bytes(array, c, base + first, some, (uint8_t *)stored, (uint8_t *)rows,
                              to->row[part]));
            continue;
        }
        DT_TRY(dt_h5_array_read(array, base + first, some, stored));
        for (int64_t s = c->from; s < c->to; s++) {
            int64_t at = dt_max_i64(first - s, row),
                    rows = dt_min_i64(first + some - s, row + n) - at;
            int64_t place = (s - c->from) * c->step + before;
            if (rows > 0)
                DT_TRY(convert(reader, column, number, at + s, rows,
                               stored + (at + s - first) * bytes, to->check,
                               (float *)(void *)(to->at[part] + (at - row) * to->row[part]) + place,
                               stride));
        }
    }
    return DT_OK;
}

// The head of column j of the targets, or NULL.
static const struct dt_target *target_of(const struct dt_scan_rules *rules, int64_t j)
{
    int64_t end = 0;
    for (int i = 0; i < rules->n_targets; i++) {
        end += rules->target[i].width;
        if (j < end)
            return &rules->target[i];
    }
    return NULL;
}

// Checks the targets of heads with classes: each is a class, or missing (NaN or DT_IGNORED).
static dt_status check_classes(struct dt_reader *reader, int64_t number, int64_t row, int64_t n,
                               float *targets)
{
    const struct dt_episodes *episodes = reader->own;
    int64_t W = episodes->layout.target_width;
    for (int64_t i = 0; i < episodes->columns.n; i++) {
        const struct dt_column *c = &episodes->columns.at[i];
        int64_t columns = c->end - c->first, all = c->target ? (c->to - c->from) * columns : 0;
        for (int64_t k = 0; k < all; k++) {
            int64_t s = k / columns, j = c->at + s * c->step + k % columns;
            const struct dt_target *target = target_of(&episodes->rules, j);
            for (int64_t r = 0; target && target->classes > 0 && r < n; r++) {
                float *value = &targets[r * W + j];
                char where[DT_H5_PATH + 128];
                if (*value == DT_IGNORED)
                    *value = NAN;
                if (isnan(*value) ||
                    (*value >= 0 && *value < (float)target->classes && *value == floorf(*value)))
                    continue;
                return DT_FAIL(
                    DT_USER, "correct the data, or the head in model.heads",
                    "%s: %s, column %" PRId64 ": %g is not a whole number in [0, %" PRId64
                    ") for the head %s, nor -100 (no target)",
                    episodes->arrays[i].file->path,
                    name_row(episodes, i, number, row + r + c->from + s, where, sizeof where),
                    c->first + k % columns, *value, target->classes, target->name);
            }
        }
    }
    return DT_OK;
}

// Reads frames [first, first + n) of the shard.
static dt_status read_rows(struct dt_reader *reader, int64_t first, int64_t n, struct rows to)
{
    struct dt_episodes *episodes = reader->own;
    for (int64_t e = find_episode(episodes, first, false), some; n > 0; e++, n -= some) {
        const struct dt_episode *at = &episodes->at[e];
        int64_t row = first - at->first;
        some = dt_min_i64(at[1].first - first, n);
        float *weights = (float *)(void *)to.at[WEIGHTS];
        int64_t H = to.at[WEIGHTS] ? episodes->layout.weight_width : 0;
        DT_TRY(dt_episodes_switch(reader, e));
        for (int64_t i = 0; i < some * H; i++)
            weights[i] = 1;
        for (int64_t i = 0; i < episodes->columns.n; i++)
            DT_TRY(read_column(reader, i, e, row, some, &to));
        for (int64_t i = 0; i < some * H; i += H)
            for (int64_t k = 1; k < H; k++) // column 0 weighs all heads
                weights[i + k] *= weights[i];
        if (to.check && to.at[TARGETS])
            DT_TRY(check_classes(reader, e, row, some, (float *)(void *)to.at[TARGETS]));
        for (int part = 0; part < PARTS; part++)
            to.at[part] += to.at[part] ? some * to.row[part] : 0;
        first += some;
    }
    return DT_OK;
}

dt_status dt_episodes_numbers(struct dt_reader *reader, enum dt_numbers which, int64_t first,
                              int64_t n, float *numbers)
{
    const struct dt_episodes *episodes = reader->own;
    struct rows to = place_rows(&episodes->layout, NULL, n, NULL);
    to.statistics = true;
    const int parts[] = {[DT_NUMBERS_FRAMES] = FRAMES,
                         [DT_NUMBERS_TARGETS] = TARGETS,
                         [DT_NUMBERS_WEIGHTS] = WEIGHTS};
    to.at[parts[which]] = (char *)numbers;
    if (which == DT_NUMBERS_TARGETS && to.row[IDS] > 0)
        DT_TRY(DT_NEW_BYTES(&to.at[IDS], n * to.row[IDS], "ids of %" PRId64 " frames", n));
    char *ids = to.at[IDS];
    dt_status status = read_rows(reader, first, n, to);
    free(ids);
    return status;
}

dt_status dt_episodes_verify(struct dt_reader *reader, struct dt_shard *shard, int64_t first,
                             int64_t n)
{
    char *memory;
    DT_TRY(DT_NEW(&memory, place_rows(&shard->layout, NULL, n, NULL).size,
                  "%" PRId64 " frames of %s", n, reader->file.path));
    struct rows rows = place_rows(&shard->layout, NULL, n, memory);
    dt_status status = read_rows(reader, first, n, rows);
    const float *targets = (const float *)(const void *)rows.at[TARGETS];
    for (int64_t r = 0, W = shard->layout.target_width; r < n && status == DT_OK; r++) {
        bool missing = false;
        for (int64_t j = 0; j < W; j++)
            missing |= isnan(targets[r * W + j]);
        shard->unlabeled += missing;
    }
    free(memory);
    return status;
}

// Hashes the values that training reads, independent of storage; columns that no key names may
// change. Episodes have no separate checksums: reading the fletcher32 of a chunk means reading the
// chunk.
dt_status dt_episodes_hash(struct dt_reader *reader, const struct dt_shard *shard, int64_t bytes,
                           uint64_t *hash)
{
    struct rows rows = place_rows(&shard->layout, &shard->bytes, 0, NULL);
    int64_t row = 0, n;
    for (int part = 0; part < PARTS; part++)
        row += rows.row[part];
    struct dt_hash_plan plan = dt_hash_plan(shard->count, row, bytes);
    rows = place_rows(&shard->layout, &shard->bytes, plan.rows, NULL);
    char *memory; // zeroed, because after an invalid id the rest is not written
    dt_status status =
        DT_NEW(&memory, rows.size, "a checksum of the rows of %s", reader->file.path);
    rows = place_rows(&shard->layout, &shard->bytes, plan.rows, memory);
    rows.check = false;
    for (int64_t i = 0; i < plan.n && status == DT_OK; i++) {
        int64_t first = dt_hash_piece(&plan, i, &n);
        status = read_rows(reader, first, n, rows);
        for (int part = 0; part < PARTS && status == DT_OK; part++) {
            if (part == WEIGHTS && rows.row[part] == 0)
                continue; // compatible with hashes from before there were weights
            *hash = XXH64(rows.at[part], (size_t)(n * rows.row[part]), *hash);
        }
        dt_file_progress();
    }
    free(memory);
    return status;
}

// The fingerprint covers the list of episodes and rows spread over the shard.
dt_status dt_episodes_fingerprint(struct dt_reader *reader, struct dt_shard *shard)
{
    struct dt_episodes *episodes = reader->own;
    int64_t bytes = place_rows(&shard->layout, NULL, SAMPLES, NULL).size;
    char *memory;
    dt_status status = DT_OK;
    DT_TRY(DT_NEW(&memory, bytes, "a checksum of the rows of %s", reader->file.path));
    shard->first_hash = shard->layout.columns;
    for (int64_t i = 0; i < episodes->n; i++) {
        const struct dt_episode *at = &episodes->at[i];
        shard->first_hash = XXH64(&at[1].first, sizeof at[1].first, shard->first_hash);
        if (at->group)
            shard->first_hash = XXH64(at->group, strlen(at->group), shard->first_hash);
    }
    struct rows rows = place_rows(&shard->layout, NULL, SAMPLES, memory);
    rows.check = false;
    for (int64_t i = 0; i < SAMPLES && status == DT_OK; i++) {
        status = read_rows(reader, (shard->count - 1) * i / (SAMPLES - 1), 1, rows);
        for (int part = 0; part < PARTS; part++)
            rows.at[part] += rows.row[part];
    }
    shard->last_hash = XXH64(memory, (size_t)bytes, 0);
    free(memory);
    return status;
}

bool dt_episodes_segment(struct dt_reader *reader, const struct dt_shard *shard, int64_t number,
                         struct dt_segment *segment)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_episode *at = &episodes->at[number];
    (void)shard;
    if (number >= episodes->n)
        return false;
    int64_t count = at[1].first - at->first;
    *segment = (struct dt_segment){.group = at->group,
                                   .first = at->row,
                                   .count = count,
                                   .rows = at->group ? count : reader->arrays[0].shape[0],
                                   .window = at->window};
    return true;
}

void dt_episodes_place(struct dt_reader *reader, int64_t window, char *text, size_t size)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_episode *at = &episodes->at[find_episode(episodes, window, true)];
    int64_t row = (window - at->window) * episodes->rules.stride;
    if (at->group)
        snprintf(text, size, "%s:%" PRId64, at->group, row);
    else
        snprintf(text, size, "%" PRId64, at->row + row);
}

// Windows. A block's memory has a struct window for each, then all rows from the first window's
// first to the last window's last.

struct window {
    int64_t row; // first row in the block
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
    if (layout->target_width > 0)
        dt_array_list_add(list, "targets", DT_F32, layout->target_width, false);
    if (layout->weight_width > 0)
        dt_array_list_add(list, "weights", DT_F32, layout->weight_width, false);
    dt_array_list_add(list, "mask", DT_U8, 1, false);
    if (rules->carry)
        dt_array_list_add(list, "reset", DT_U8, 1, true);
}

int64_t dt_episodes_block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                                const struct dt_shard *shard, int64_t windows)
{
    // Successive windows start at most `stride` rows apart or, at the end of an episode, seq_len.
    int64_t rows;
    if (__builtin_mul_overflow(windows, dt_max_i64(shard->stride, dataset->rules.seq_len), &rows))
        rows = shard->count;
    return dt_reader_align(windows * (int64_t)sizeof(struct window)) +
           place_rows(&dataset->layout, &rules->bytes, dt_min_i64(rows, shard->count), NULL).size;
}

dt_status dt_episodes_read(struct dt_reader *reader, const struct dt_dataset *dataset,
                           const struct dt_read_rules *rules, struct dt_block *block)
{
    struct dt_episodes *episodes = reader->own;
    struct window *windows = (struct window *)(void *)block->memory;
    int64_t T = dataset->rules.seq_len, first = -1, end = 0;
    int64_t e = find_episode(episodes, block->first, true);
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
    return read_rows(reader, first, end - first,
                     place_rows(&dataset->layout, &rules->bytes, end - first, values));
}

// In frames as stored, which the model normalises, missing numbers become the column's mean.
static void fill_missing(const struct dt_read_rules *rules, int64_t F, int64_t n, float *frames)
{
    int64_t column = 0, range = 0; // the column of j
    for (int64_t j = 0; j < F; j++, column++) {
        for (; range < rules->bytes.n && column == rules->bytes.at[range].first; range++)
            column = rules->bytes.at[range].end;
        for (int64_t t = 0; t < n; t++)
            if (isnan(frames[t * F + j]))
                frames[t * F + j] = rules->missing ? rules->missing[column] : 0;
    }
}

static inline float normalised(float x, float mean, float deviation)
{
    return x == x ? (x - mean) / deviation : 0; // NaN: missing
}

// Writes n rows of frames, normalised where the rules have a mean, in the rules' type.
static void write_frames(const struct dt_read_rules *rules, int64_t F, int64_t n,
                         const float *restrict from, bool shifted, void *to)
{
    float *restrict floats = to;
    dt_bf16 *restrict halves = to;
    const float *restrict mean = rules->mean, *restrict deviation = rules->deviation;
    if (!mean && rules->frames_type == DT_F32) {
        memcpy(floats, from, (size_t)(n * F) * sizeof *from);
        if (shifted)
            fill_missing(rules, F, n, floats);
    } else if (!mean) {
        for (int64_t i = 0; i < n * F; i++)
            halves[i] = dt_f32_to_bf16(normalised(from[i], 0, 1));
    } else if (rules->frames_type == DT_F32) {
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < F; i++)
                floats[t * F + i] = normalised(from[t * F + i], mean[i], deviation[i]);
    } else {
        for (int64_t t = 0; t < n; t++)
            for (int64_t i = 0; i < F; i++)
                halves[t * F + i] =
                    dt_f32_to_bf16(normalised(from[t * F + i], mean[i], deviation[i]));
    }
}

dt_status dt_episodes_write(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                            const struct dt_block *block, int64_t window, void *const *rows)
{
    static const char *const names[PARTS] = {"frames", "targets", "ids", "bytes", "weights"};
    const struct window *w = (const struct window *)block->data + (window - block->first);
    struct dt_array_list list = {0};
    struct rows from =
        place_rows(&dataset->layout, &rules->bytes, block->rows,
                   block->memory + dt_reader_align(block->windows * (int64_t)sizeof *w));
    dt_episodes_arrays(dataset, rules, &list);
    for (int i = 0; w->n < dataset->rules.seq_len && i < list.n; i++)
        memset(rows[i], 0, (size_t)dt_array_bytes(&list.arrays[i], dataset->rules.seq_len));
    for (int part = 0; part < PARTS; part++) {
        const char *values = from.at[part] + w->row * from.row[part];
        int i = dt_array_list_find(&list, names[part]);
        if (i >= 0 && part == FRAMES)
            write_frames(rules, from.row[part] / (int64_t)sizeof(float), w->n,
                         (const float *)(const void *)values, dataset->layout.shifted, rows[i]);
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
