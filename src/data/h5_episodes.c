// Opens a shard of episodes: lists them by the kind's schema, opens and checks their datasets, and
// counts rows and windows. Only metadata is read.
#include "data/h5_episodes.h"

#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"
#include "data/h5_chunks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// Adding episodes.

dt_status dt_episodes_add_start(struct dt_episodes *episodes, int64_t first)
{
    DT_TRY(dt_list_grow(&episodes->at, episodes->n, sizeof *episodes->at));
    episodes->at[episodes->n++] = (struct dt_episode){.row = first};
    return DT_OK;
}

static dt_status open_other(const struct dt_reader *reader, struct dt_episodes *episodes,
                            const char *path, const struct dt_h5_file **file)
{
    struct dt_other_file *other = NULL;
    for (int64_t i = 0; i < episodes->n_others; i++)
        if (strcmp(episodes->others[i]->path, path) == 0)
            other = episodes->others[i];
    if (!other) {
        DT_TRY(dt_list_grow(&episodes->others, episodes->n_others, sizeof other));
        DT_TRY(DT_NEW(&other, 1, "reading %s", path));
        snprintf(other->path, sizeof other->path, "%s", path);
        dt_status status = dt_h5_open(other->path, &other->file);
        if (status != DT_OK) {
            free(other);
            return dt_error_push(status, __FILE__, __LINE__, __func__, "following a link of %s",
                                 reader->file.path);
        }
        other->file.time_axis = reader->file.time_axis;
        episodes->others[episodes->n_others++] = other;
    }
    *file = &other->file;
    return DT_OK;
}

// Follows a group that is a link to a group in another file of the same folder, which must not be a
// link again.
static dt_status follow_group(const struct dt_reader *reader, struct dt_episodes *episodes,
                              struct dt_episode *at)
{
    char path[DT_PATH], inner[DT_H5_PATH];
    enum dt_h5_node node;
    uint64_t address;
    bool external;
    DT_TRY(dt_h5_external(&reader->file, at->group, path, inner, &external));
    if (!external)
        return DT_OK;
    DT_TRY(open_other(reader, episodes, path, &at->file));
    DT_TRY(dt_h5_find(at->file, inner, &node, &address));
    if (node != DT_H5_GROUP)
        return DT_FAIL(DT_USER, "correct the link, or copy the episode into the shard",
                       "%s: %s is a link to %s of %s, which is no group", reader->file.path,
                       at->group, inner, path);
    return dt_memory_text(&at->inner, "%s", inner);
}

dt_status dt_episodes_add_group(const struct dt_reader *reader, struct dt_episodes *episodes,
                                const char *group)
{
    DT_TRY(dt_episodes_add_start(episodes, 0));
    struct dt_episode *at = &episodes->at[episodes->n - 1];
    DT_TRY(dt_memory_text(&at->group, "%s", group));
    return follow_group(reader, episodes, at);
}

// Opening datasets.

static void close_arrays(struct dt_episodes *episodes)
{
    for (int64_t i = 0; episodes->arrays && i < episodes->columns.n; i++)
        dt_h5_array_close(&episodes->arrays[i]);
    episodes->open = -1;
}

static dt_status check_array(const struct dt_h5_array *array, const struct dt_column *column)
{
    int64_t width = array->shape[1], end = column->end < 0 ? width : column->end;
    if (array->type == DT_DTYPE_COUNT)
        return DT_H5_REJECT(array,
                            "store little-endian integers, booleans or floats of 16 to 64 bits, "
                            "one row per frame, or name other datasets",
                            "holds %s", array->type_text);
    if (width < 1)
        return DT_H5_REJECT(array, "store at least one number per frame", "has no columns");
    if (end > width)
        return DT_H5_REJECT(array, "columns are counted from 0",
                            "has %" PRId64 " columns; there is no column %" PRId64, width, end - 1);
    if (column->weight && end - column->first != 1)
        return DT_H5_REJECT(array, "name one column, PATH[i]",
                            "has %" PRId64 " columns; a weight (data.weights) is one number",
                            width);
    if (column->table > 0 && !dt_columns_is_integer(array->type))
        return DT_H5_REJECT(array, "only integers can be ids",
                            "holds %s; data.inputs says :id*%" PRId64, array->type_text,
                            column->table);
    return DT_OK;
}

// Opens and checks a column's dataset or attribute. A single value or row applies to every frame,
// unless it is the extra row of an episode's longer dataset.
static dt_status open_array(const struct dt_h5_file *file, const struct dt_column *column,
                            const char *full, struct dt_h5_array *array)
{
    bool found;
    if (column->attribute)
        DT_TRY(dt_h5_attribute_open(file, full, array, &found));
    else
        DT_TRY(dt_h5_array_open(file, full, array, &found));
    if (!found)
        return dt_episodes_missing(file, dt_episodes_key(column), full);
    array->constant |= array->n_dims == 0 || (array->shape[0] == 1 && !column->longer);
    return check_array(array, column);
}

dt_status dt_episodes_switch(struct dt_reader *reader, int64_t number)
{
    struct dt_episodes *episodes = reader->own;
    const struct dt_episode *at = &episodes->at[number];
    if (episodes->open == number || (episodes->open >= 0 && !at->group))
        return DT_OK;
    close_arrays(episodes);
    dt_status status = DT_OK;
    dt_h5_enter(reader->file.path);
    for (int64_t i = 0, n = episodes->columns.n; i < n && status == DT_OK; i++) {
        const struct dt_column *column = &episodes->columns.at[i];
        struct dt_h5_array *array = &episodes->arrays[i];
        char *full = episodes->paths[i];
        const struct dt_episode_place *place =
            episodes->places ? &episodes->places[number * n + i] : NULL;
        DT_TRY_GOTO(status, out, dt_episodes_path(reader, at, column->path, full));
        if (place && place->offset > 0) {
            *array = (struct dt_h5_array){.file = dt_episodes_file(reader, at),
                                          .name = full,
                                          .id = -1,
                                          .type = place->type,
                                          .shape = {place->rows, column->width},
                                          .outer = place->outer,
                                          .constant = place->constant,
                                          .offset = place->offset};
            continue;
        }
        status = open_array(dt_episodes_file(reader, at), column, full, array);
    }
    if (status == DT_OK)
        episodes->open = number;
out:
    dt_h5_leave();
    return status;
}

int64_t dt_episodes_rows(const struct dt_episodes *episodes, int64_t number,
                         const struct dt_column *column)
{
    const struct dt_episode *at = &episodes->at[number];
    return at[1].first - at->first + column->longer;
}

// Counts the frames of the open episode; all its datasets must agree, and their widths with those
// of other episodes. An episode with only constants has one frame.
static dt_status count_rows(const struct dt_reader *reader, int64_t *rows)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_h5_array *first = NULL;
    *rows = 1;
    for (int64_t i = 0; i < episodes->columns.n; i++) {
        const struct dt_column *column = &episodes->columns.at[i];
        const struct dt_h5_array *array = &episodes->arrays[i];
        int64_t n = array->shape[0] - (column->longer && array->shape[0] > 0);
        if (!first && !array->constant) {
            first = array;
            *rows = n;
        }
        bool axis = array->n_dims > 1 || (first && first->n_dims > 1);
        if (n != *rows && !array->constant)
            return DT_H5_REJECT(
                array,
                !axis                    ? "make all datasets of an episode equally long"
                : array->file->time_axis ? "make all datasets of an episode equally long; where "
                                           "time is the first dimension, set data.time_axis = 0"
                                         : "make all datasets of an episode equally long; where "
                                           "time is the second dimension, set data.time_axis = 1",
                "has %" PRId64 " rows, %s has %" PRId64 "%s", array->shape[0], first->name,
                first->shape[0],
                reader->kind->schema->longer[0] ? " (observations have one more than actions)"
                                                : "");
        if (array->shape[1] != column->width)
            return DT_H5_REJECT(array, "make a dataset equally wide in all episodes",
                                "has %" PRId64 " columns, in the first episode %" PRId64,
                                array->shape[1], column->width);
    }
    return DT_OK;
}

// Whether the rules select episode `number` of the dataset. One of every 1 / val_fraction
// successive episodes is held out, independent of the number of ranks and of later files.
static bool is_wanted(const struct dt_scan_rules *rules, int64_t number)
{
    enum { STREAM = -3 }; // of Philox; others are used by the order and synthetic data
    if (rules->val_fraction == 0)
        return true;
    int64_t share = dt_max_i64((int64_t)(rules->val_fraction * 0x1p32 + 0.5), 1);
    int64_t stretch = (number * share) >> 32, first = dt_ceil_div(stretch << 32, share);
    struct dt_philox rng = dt_philox_init(rules->seed, (uint32_t)STREAM, (uint64_t)stretch);
    int64_t n = dt_ceil_div((stretch + 1) << 32, share) - first;
    bool held_out = number == first + (int64_t)dt_philox_below(&rng, (uint64_t)n);
    return held_out == rules->held_out;
}

// Counts the frames of the selected episodes, from each episode's rows or from starts, and drops
// other episodes and empty ones.
static dt_status count_frames(struct dt_reader *reader, int64_t before)
{
    struct dt_episodes *episodes = reader->own;
    const struct dt_h5_array *known = &reader->arrays[0];
    bool shared = !episodes->at[0].group;
    int64_t total = 0, rows = 0, kept = 0, n = episodes->n, columns = episodes->columns.n;
    double next = 0;
    if (!shared)
        DT_TRY(DT_NEW(&episodes->places, n * columns, "%" PRId64 " episodes", n));
    for (int64_t i = 0; i < n; i++) {
        struct dt_episode at = episodes->at[i];
        bool wanted = is_wanted(&episodes->rules, before + i), look = i == 0 || (wanted && !shared);
        if (dt_log_due(&next))
            dt_info("opening %s: %" PRId64 " of %" PRId64 " episodes", reader->file.path, i, n);
        if (look)
            DT_TRY(dt_episodes_switch(reader, i));
        if (i == 0)
            DT_TRY(dt_episodes_place_columns(reader));
        if (look)
            DT_TRY(count_rows(reader, &rows));
        if (i == 0)
            DT_TRY(dt_episodes_check_targets(reader, episodes));
        if (i == 0 && shared && rows != known->shape[0]) // starts are rows of this dataset
            return DT_FAIL(DT_USER, "make all datasets of a shard equally long",
                           "%s: %s has %" PRId64 " rows, %s has %" PRId64, known->file->path,
                           episodes->arrays[0].name, rows, known->name, known->shape[0]);
        for (int64_t k = 0; k < columns && look; k++) {
            struct dt_column *column = &episodes->columns.at[k];
            const struct dt_h5_array *array = &episodes->arrays[k];
            column->bytes = (i == 0 || column->bytes) && array->type == DT_U8 &&
                            !dt_column_is_shifted(column) && !column->valid;
            episodes->types |= 1u << array->type;
            if (!shared)
                episodes->places[kept * columns + k] =
                    (struct dt_episode_place){.offset = array->offset > 0 ? array->offset : 0,
                                              .type = array->type,
                                              .rows = array->shape[0],
                                              .outer = array->outer,
                                              .constant = array->constant};
        }
        if (shared)
            rows = (i + 1 < n ? episodes->at[i + 1].row : known->shape[0]) - at.row;
        at.first = total;
        episodes->at[i].group = episodes->at[i].inner = NULL;
        if (wanted && rows > 0) {
            total += rows;
            episodes->at[kept++] = at;
            continue;
        }
        free(at.group);
        free(at.inner);
        episodes->empty += wanted;
    }
    if (!shared) // indices have changed
        close_arrays(episodes);
    episodes->n = kept;
    DT_TRY(dt_list_grow(&episodes->at, kept, sizeof *episodes->at));
    episodes->at[kept] = (struct dt_episode){.first = total};
    return DT_OK;
}

// Returns the frames of all windows, counting a frame once per window.
static int64_t count_windows(struct dt_episodes *episodes)
{
    int64_t T = episodes->rules.seq_len, stride = episodes->rules.stride, windows = 0;
    int64_t shared = stride < T ? T - stride : 0; // frames shared by two windows
    int64_t frames = 0;
    for (int64_t i = 0; i <= episodes->n; i++) {
        struct dt_episode *at = &episodes->at[i];
        at->window = windows;
        if (i == episodes->n || T == 0)
            continue;
        int64_t n = at[1].first - at->first,
                of_this = n <= T ? 1 : (n - shared + stride - 1) / stride;
        windows += of_this;
        frames += (of_this - 1) * T + dt_min_i64(n - (of_this - 1) * stride, T);
    }
    return frames;
}

dt_status dt_episodes_open(struct dt_reader *reader, const struct dt_scan_rules *rules,
                           struct dt_shard *shard)
{
    const struct dt_episode_schema *schema = reader->kind->schema;
    const char *path = reader->file.path;
    struct dt_episodes *episodes;
    DT_TRY(DT_NEW(&episodes, 1, "the episodes of %s", path));
    reader->own = episodes;
    episodes->rules = *rules;
    episodes->open = -1;
    if (rules->stride == 0)
        episodes->rules.stride = rules->seq_len;
    const char *groups = rules->episodes[0] ? rules->episodes : schema->groups;
    if (rules->episodes[0] && schema->list)
        return DT_FAIL(DT_USER, "remove data.episodes, or set data.format = groups",
                       "%s is %s: its episodes share datasets and have no groups", path,
                       reader->kind->name);
    if (rules->mask[0] && (schema->list || !groups[strspn(groups, "/")]))
        return DT_FAIL(DT_USER, "only episodes that have groups of their own are in lists",
                       "%s is %s: it has no mask %s", path, reader->kind->name, rules->mask);
    DT_TRY(schema->list ? schema->list(reader, episodes)
                        : dt_groups_list(reader, groups, episodes));
    if (episodes->n == 0)
        return DT_FAIL(DT_USER, "remove the shard, or create it again", "%s has no episodes", path);
    DT_TRY(dt_episodes_list_columns(reader, episodes));
    shard->listed = episodes->n;
    for (int64_t i = 0; i < episodes->n_others; i++) {
        struct stat file;
        if (fstat(episodes->others[i]->file.fd, &file) != 0)
            return DT_FAIL_ERRNO("read", episodes->others[i]->path);
        struct dt_file_stamp stamp = dt_file_stamp(&file);
        shard->links = XXH64(&stamp, sizeof stamp, shard->links);
        shard->file_bytes += episodes->others[i]->file.bytes;
    }
    DT_TRY(count_frames(reader, shard->before));
    shard->in_windows = count_windows(episodes);
    for (int64_t e = 0; e < episodes->n; e++)
        for (int64_t i = 0; i < episodes->columns.n; i++)
            shard->longest =
                dt_max_i64(shard->longest, dt_episodes_rows(episodes, e, &episodes->columns.at[i]));
    shard->layout = episodes->layout;
    shard->bytes = dt_episodes_list_bytes(episodes);
    shard->type = DT_F32;
    shard->types = episodes->types;
    shard->count = episodes->at[episodes->n].first;
    shard->windows = episodes->at[episodes->n].window;
    shard->width = episodes->layout.frame_width;
    shard->stride = episodes->rules.stride;
    shard->episodes = episodes->n;
    shard->empty = episodes->empty;
    for (int64_t i = 0; i < episodes->columns.n && !episodes->places; i++)
        dt_h5_chunks_note(&episodes->arrays[i], shard);
    memcpy(shard->warning, episodes->warning, sizeof shard->warning);
    memcpy(shard->mask, episodes->mask, sizeof shard->mask);
    return DT_OK;
}

void dt_episodes_close(struct dt_reader *reader)
{
    struct dt_episodes *episodes = reader->own;
    close_arrays(episodes);
    for (int64_t i = 0; i < episodes->n; i++) {
        free(episodes->at[i].group);
        free(episodes->at[i].inner);
    }
    dt_h5_enter(reader->file.path);
    for (int64_t i = 0; i < episodes->n_others; i++) {
        dt_h5_close(&episodes->others[i]->file);
        free(episodes->others[i]);
    }
    dt_h5_leave();
    free(episodes->others);
    free(episodes->at);
    free(episodes->places);
    free(episodes->arrays);
    free(episodes->paths);
    dt_columns_free(&episodes->columns);
}
