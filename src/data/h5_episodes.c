// Episodes of one shard: their list and columns from metadata, rows of all columns as floats and
// ids with checks, blocks of windows. Memory of a block: a struct window for each, then frames
// [rows, F], targets [rows, W], ids [rows, n_ids], of all rows from the first window's to the
// last's.
#include "data/h5_episodes.h"

#include "base/list.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE_BYTES = 1 << 22, SAMPLES = 16, PATH_BYTES = 512 };

struct episode {
    char *group;    // "/data/demo_3"; NULL: a part of datasets that episodes share
    int64_t first;  // number of its first frame in the shard
    int64_t window; // number of its first window
};

struct dt_episodes {
    const struct dt_episode_schema *schema;
    struct dt_scan_rules rules;
    struct dt_frame_layout layout;
    struct dt_columns columns;
    int64_t n, empty;
    struct episode *at;         // [n + 1]; the last says where all end
    struct dt_h5_array *arrays; // [columns.n] of the episode `open`; shared: of all
    char (*paths)[PATH_BYTES];  // [columns.n] their names
    int64_t open;               // -1: none
};

// Adding episodes.

static dt_status add_episode(struct dt_episodes *episodes, const struct episode *episode)
{
    DT_TRY(dt_list_grow(&episodes->at, episodes->n, sizeof *episodes->at));
    episodes->at[episodes->n++] = *episode;
    return DT_OK;
}

dt_status dt_episodes_add_group(struct dt_episodes *episodes, const char *parent, const char *name)
{
    struct episode episode = {0};
    if (asprintf(&episode.group, "%s/%s", parent, name) < 0)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of episodes");
    dt_status status = add_episode(episodes, &episode);
    if (status != DT_OK)
        free(episode.group);
    return status;
}

dt_status dt_episodes_add_start(struct dt_episodes *episodes, int64_t first)
{
    return add_episode(episodes, &(struct episode){.first = first});
}

static int compare_numbers(const void *a, const void *b)
{
    const char *x = *(char *const *)a, *y = *(char *const *)b; // of the same prefix
    size_t n = strlen(x), m = strlen(y);
    return n != m ? (n > m) - (n < m) : strcmp(x, y);
}

dt_status dt_episodes_numbered(const struct dt_h5_file *file, const char *group, const char *prefix,
                               struct dt_h5_names *names)
{
    size_t length = strlen(prefix);
    int64_t kept = 0;
    DT_TRY(dt_h5_list(file, group, names));
    for (int64_t i = 0; i < names->n; i++) {
        const char *number = names->at[i] + length;
        if (strncmp(names->at[i], prefix, length) == 0 && *number &&
            number[strspn(number, "0123456789")] == 0)
            names->at[kept++] = names->at[i];
        else
            free(names->at[i]);
    }
    names->n = kept;
    if (kept > 0)
        qsort(names->at, (size_t)kept, sizeof *names->at, compare_numbers);
    return DT_OK;
}

// Columns.

// "/data/demo_3/obs/a" of the episode, or "/obs/a" where episodes share datasets.
static dt_status path_of(const struct dt_reader *reader, const char *group, const char *path,
                         char full[PATH_BYTES])
{
    int length = snprintf(full, PATH_BYTES, "%s/%s", group ? group : "", path);
    if (length < PATH_BYTES)
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "%s: the path of %s/%s is too long", reader->file.path,
                   group ? group : "", path);
}

// Appends the names in a group that does hold something else than what was looked for.
static void name_members(const struct dt_h5_file *file, const char *group, char *text, size_t size)
{
    struct dt_h5_names names = {0};
    enum dt_h5_node node;
    if (dt_h5_find(file, group, &node) == DT_OK && node == DT_H5_GROUP)
        dt_h5_list(file, group, &names);
    dt_error_clear();
    for (int64_t i = 0; i < names.n && i < 20; i++)
        dt_append(text, size, "%s%s", i ? ", " : "it has ", names.at[i]);
    dt_h5_names_free(&names);
}

static dt_status fail_missing(const struct dt_reader *reader, const char *key, const char *full)
{
    char hint[DT_ERROR_HINT] = "", parent[PATH_BYTES];
    snprintf(parent, sizeof parent, "%s", full);
    char *slash = strrchr(parent, '/');
    slash[slash == parent] = 0;
    name_members(&reader->file, parent, hint, sizeof hint);
    return DT_FAIL(DT_USER, hint[0] ? hint : "name datasets that every episode has",
                   "%s has no %s (%s)", reader->file.path, full, key);
}

// Adds `column` with its path or, where that is a group, with those of all datasets in it.
static dt_status expand(const struct dt_reader *reader, struct dt_episodes *episodes,
                        const char *key, const struct dt_column *column)
{
    char full[PATH_BYTES];
    enum dt_h5_node node;
    struct dt_h5_names names;
    DT_TRY(path_of(reader, episodes->at[0].group, column->path, full));
    DT_TRY(dt_h5_find(&reader->file, full, &node));
    if (node == DT_H5_DATASET)
        return dt_columns_add(&episodes->columns, column);
    if (node == DT_H5_NOTHING)
        return fail_missing(reader, key, full);
    dt_status status = dt_h5_list(&reader->file, full, &names);
    for (int64_t i = 0; i < names.n && status == DT_OK; i++) {
        struct dt_column member = *column;
        int length = snprintf(member.path, sizeof member.path, "%s/%s", column->path, names.at[i]);
        status = length < DT_COLUMN_PATH ? expand(reader, episodes, key, &member)
                                         : DT_FAIL(DT_USER, NULL, "%s: a path in %s is too long",
                                                   reader->file.path, full);
    }
    dt_h5_names_free(&names);
    return status;
}

static dt_status add_columns(const struct dt_reader *reader, struct dt_episodes *episodes,
                             const char *key, const char *text, bool target)
{
    struct dt_columns named = {0};
    int64_t before = episodes->columns.n;
    dt_status status = dt_columns_parse(key, text, target, &named);
    for (int64_t i = 0; i < named.n && status == DT_OK; i++)
        status = expand(reader, episodes, key, &named.at[i]);
    dt_columns_free(&named);
    if (status == DT_OK && episodes->columns.n == before)
        status =
            DT_FAIL(DT_USER, NULL, "%s: %s names no dataset of %s", key, text, reader->file.path);
    return status;
}

// The heads' own datasets where there is no data.targets, which a schema may have.
static dt_status add_named_targets(const struct dt_reader *reader, struct dt_episodes *episodes)
{
    const struct dt_scan_rules *rules = &episodes->rules;
    for (int i = 0; i < rules->n_targets; i++) {
        char path[DT_DATA_NAME + 32];
        snprintf(path, sizeof path, "%s/%s", episodes->schema->targets, rules->target[i].name);
        DT_TRY(add_columns(reader, episodes, "the targets of model.heads", path, true));
    }
    return DT_OK;
}

static dt_status has_targets(const struct dt_reader *reader, const struct dt_episodes *episodes,
                             bool *found)
{
    char full[PATH_BYTES];
    enum dt_h5_node node;
    DT_TRY(path_of(reader, episodes->at[0].group, episodes->schema->targets, full));
    DT_TRY(dt_h5_find(&reader->file, full, &node));
    *found = node != DT_H5_NOTHING;
    return DT_OK;
}

static dt_status list_columns(const struct dt_reader *reader, struct dt_episodes *episodes)
{
    const struct dt_episode_schema *schema = episodes->schema;
    const struct dt_scan_rules *rules = &episodes->rules;
    DT_TRY(add_columns(reader, episodes, "data.inputs",
                       rules->inputs[0] ? rules->inputs : schema->inputs, false));
    bool any = true;
    if (rules->seq_len == 0 && !rules->targets[0]) // to verify a shard; targets may be anywhere
        DT_TRY(has_targets(reader, episodes, &any));
    if (!rules->targets[0] && schema->by_head && rules->n_targets > 0)
        DT_TRY(add_named_targets(reader, episodes));
    else if (any)
        DT_TRY(add_columns(reader, episodes, "data.targets",
                           rules->targets[0] ? rules->targets : schema->targets, true));
    int64_t n = episodes->columns.n;
    episodes->arrays = calloc((size_t)n, sizeof *episodes->arrays);
    episodes->paths = calloc((size_t)n, sizeof *episodes->paths);
    if (!episodes->arrays || !episodes->paths)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " columns", n);
    return DT_OK;
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
    if (array->n_dims < 1 || array->type == DT_DTYPE_COUNT)
        return DT_FAIL(DT_USER,
                       "store little-endian integers, booleans or floats of 16 to 64 bits, a row "
                       "a frame, or name other datasets",
                       "%s: %s %s%s", array->file->path, array->name,
                       array->n_dims < 1 ? "is a single value of " : "holds ", array->type_text);
    if (end > width || width < 1)
        return DT_FAIL(DT_USER, NULL, "%s: %s has %" PRId64 " columns, none of number %" PRId64,
                       array->file->path, array->name, width, end - 1);
    if (column->table > 0 && !dt_columns_is_integer(array->type))
        return DT_FAIL(DT_USER, "only integers can be ids",
                       "%s: %s holds %s; data.inputs says :id*%" PRId64, array->file->path,
                       array->name, array->type_text, column->table);
    return DT_OK;
}

static dt_status open_array(struct dt_reader *reader, int64_t i, const char *group)
{
    struct dt_episodes *episodes = reader->own;
    const struct dt_column *column = &episodes->columns.at[i];
    struct dt_h5_array *array = &episodes->arrays[i];
    char *full = episodes->paths[i];
    enum dt_h5_node node;
    bool found;
    DT_TRY(path_of(reader, group, column->path, full));
    DT_TRY(dt_h5_find(&reader->file, full, &node));
    if (node != DT_H5_DATASET)
        return fail_missing(reader, column->target ? "data.targets" : "data.inputs", full);
    DT_TRY(dt_h5_array_open(&reader->file, full, array, &found));
    return check_array(array, column);
}

// The arrays of this episode; shared ones are those of all.
static dt_status open_episode(struct dt_reader *reader, int64_t number)
{
    struct dt_episodes *episodes = reader->own;
    const char *group = episodes->at[number].group;
    if (episodes->open == number || (episodes->open >= 0 && !group))
        return DT_OK;
    close_arrays(episodes);
    dt_h5_enter();
    dt_status status = DT_OK;
    for (int64_t i = 0; i < episodes->columns.n && status == DT_OK; i++)
        status = open_array(reader, i, group);
    dt_h5_leave();
    if (status == DT_OK)
        episodes->open = number;
    return status;
}

// What the shard's columns add up to, from the open episode.

static dt_status check_targets(const struct dt_reader *reader, const struct dt_episodes *episodes)
{
    const struct dt_scan_rules *rules = &episodes->rules;
    int64_t need = 0;
    char what[512] = "";
    for (int i = 0; i < rules->n_targets; i++) {
        need += rules->target[i].width;
        dt_append(what, sizeof what, "%s%s %" PRId64, i ? ", " : "", rules->target[i].name,
                  rules->target[i].width);
    }
    if (rules->n_targets == 0 || need == episodes->layout.target_width)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "let data.targets name a column for each value that model.heads predict",
                   "%s: the targets have %" PRId64 " columns, the heads need %" PRId64 " (%s)",
                   reader->file.path, episodes->layout.target_width, need, what);
}

static dt_status place_columns(struct dt_reader *reader)
{
    struct dt_episodes *episodes = reader->own;
    struct dt_frame_layout *layout = &episodes->layout;
    XXH64_state_t *hash = XXH64_createState();
    if (!hash)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a checksum");
    XXH64_reset(hash, 0);
    for (int64_t i = 0; i < episodes->columns.n; i++) {
        struct dt_column *column = &episodes->columns.at[i];
        column->width = episodes->arrays[i].shape[1];
        if (column->end < 0)
            column->end = column->width;
        int64_t n = column->end - column->first;
        int64_t *width = column->target      ? &layout->target_width
                         : column->table > 0 ? &layout->n_ids
                                             : &layout->frame_width;
        column->at = *width;
        *width += n;
        for (int64_t j = column->at; column->table > 0 && j < *width && j < DT_IDS_MAX; j++)
            layout->ids[j] = column->table;
        int64_t numbers[] = {column->first, column->end, column->table, column->target};
        XXH64_update(hash, numbers, sizeof numbers);
        XXH64_update(hash, column->path, strlen(column->path) + 1);
    }
    layout->columns = XXH64_digest(hash);
    XXH64_freeState(hash);
    if (layout->n_ids > DT_IDS_MAX)
        return DT_FAIL(DT_USER, "name fewer columns with :id*N",
                       "%s: data.inputs has %" PRId64 " columns of ids, the most are %d",
                       reader->file.path, layout->n_ids, DT_IDS_MAX);
    return check_targets(reader, episodes);
}

// Rows of the open episode's datasets that are frames; all must agree, also in their widths.
static dt_status count_rows(const struct dt_reader *reader, int64_t *rows)
{
    const struct dt_episodes *episodes = reader->own;
    const char *longer = episodes->schema->longer;
    *rows = -1;
    for (int64_t i = 0; i < episodes->columns.n; i++) {
        const struct dt_column *column = &episodes->columns.at[i];
        const struct dt_h5_array *array = &episodes->arrays[i];
        bool more = longer && strncmp(column->path, longer, strlen(longer)) == 0;
        int64_t n = array->shape[0] - (more && array->shape[0] > 0);
        if (*rows < 0)
            *rows = n;
        if (n != *rows)
            return DT_FAIL(DT_USER, "make all datasets of an episode equally long",
                           "%s: %s has %" PRId64 " rows, %s has %" PRId64 "%s", array->file->path,
                           array->name, array->shape[0], episodes->arrays[0].name,
                           episodes->arrays[0].shape[0],
                           longer ? " (observations have one more than actions)" : "");
        if (array->shape[1] != column->width)
            return DT_FAIL(DT_USER, "make a dataset equally wide in all episodes",
                           "%s: %s has %" PRId64 " columns, in the first episode %" PRId64,
                           array->file->path, array->name, array->shape[1], column->width);
    }
    return DT_OK;
}

// Starts are rows of the dataset that recognised the kind.
static dt_status check_shared_rows(const struct dt_reader *reader, int64_t rows)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_h5_array *known = &reader->arrays[0];
    if (rows == known->shape[0])
        return DT_OK;
    return DT_FAIL(DT_USER, "make all datasets of a shard equally long",
                   "%s: %s has %" PRId64 " rows, %s has %" PRId64, known->file->path,
                   episodes->arrays[0].name, rows, known->name, known->shape[0]);
}

// Frames of all episodes, from rows counted in each or from starts; drops those without frames.
static dt_status count_frames(struct dt_reader *reader)
{
    struct dt_episodes *episodes = reader->own;
    bool shared = !episodes->at[0].group;
    int64_t total = 0, rows = 0, kept = 0, n = episodes->n;
    for (int64_t i = 0; i < n; i++) {
        struct episode at = episodes->at[i];
        DT_TRY(open_episode(reader, i));
        if (i == 0)
            DT_TRY(place_columns(reader));
        if (i == 0 || !shared)
            DT_TRY(count_rows(reader, &rows));
        if (i == 0 && shared)
            DT_TRY(check_shared_rows(reader, total = rows));
        if (shared) {
            rows = (i + 1 < n ? episodes->at[i + 1].first : total) - at.first;
        } else {
            at.first = total;
            total += rows;
        }
        episodes->at[i].group = NULL;
        if (rows > 0) {
            episodes->at[kept++] = at;
            continue;
        }
        free(at.group);
        episodes->empty++;
    }
    if (!shared) // numbers have changed
        close_arrays(episodes);
    episodes->n = kept;
    DT_TRY(dt_list_grow(&episodes->at, kept, sizeof *episodes->at));
    episodes->at[kept] = (struct episode){.first = total};
    return DT_OK;
}

static void count_windows(struct dt_episodes *episodes)
{
    int64_t T = episodes->rules.seq_len, stride = episodes->rules.stride, windows = 0;
    int64_t shared = stride < T ? T - stride : 0; // frames that two windows have in common
    for (int64_t i = 0; i <= episodes->n; i++) {
        struct episode *at = &episodes->at[i];
        at->window = windows;
        if (i == episodes->n || T == 0)
            continue;
        int64_t n = at[1].first - at->first;
        windows += n <= T ? 1 : (n - shared + stride - 1) / stride;
    }
}

static dt_status open_all(struct dt_reader *reader, const struct dt_scan_rules *rules,
                          struct dt_shard *shard)
{
    struct dt_episodes *episodes = reader->own;
    const char *path = reader->file.path;
    if (rules->mask[0] && !episodes->schema->masks)
        return DT_FAIL(DT_USER, "only shards of robomimic have lists of episodes",
                       "%s is %s: it has no mask %s", path, reader->kind->name, rules->mask);
    DT_TRY(episodes->schema->list(reader, rules, episodes));
    if (episodes->n == 0)
        return DT_FAIL(DT_USER, "remove the shard, or create it again", "%s has no episodes", path);
    DT_TRY(list_columns(reader, episodes));
    DT_TRY(count_frames(reader));
    count_windows(episodes);
    shard->layout = episodes->layout;
    shard->type = DT_F32;
    shard->count = episodes->at[episodes->n].first;
    shard->windows = episodes->at[episodes->n].window;
    shard->width = episodes->layout.frame_width;
    shard->stride = episodes->rules.stride;
    shard->episodes = episodes->n;
    shard->empty = episodes->empty;
    return DT_OK;
}

dt_status dt_episodes_open(struct dt_reader *reader, const struct dt_scan_rules *rules,
                           const struct dt_episode_schema *schema, struct dt_shard *shard)
{
    struct dt_episodes *episodes = reader->own = calloc(1, sizeof *episodes);
    if (!episodes)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to open %s", reader->file.path);
    episodes->schema = schema;
    episodes->rules = *rules;
    episodes->open = -1;
    if (rules->stride == 0)
        episodes->rules.stride = rules->seq_len;
    return open_all(reader, rules, shard);
}

void dt_episodes_close(struct dt_reader *reader)
{
    struct dt_episodes *episodes = reader->own;
    close_arrays(episodes);
    for (int64_t i = 0; i < episodes->n; i++)
        free(episodes->at[i].group);
    free(episodes->at);
    free(episodes->arrays);
    free(episodes->paths);
    dt_columns_free(&episodes->columns);
}

// Reading rows.

static int64_t episode_of_frame(const struct dt_episodes *episodes, int64_t frame)
{
    int64_t low = 0, high = episodes->n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (episodes->at[middle].first <= frame)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int64_t episode_of_window(const struct dt_episodes *episodes, int64_t window)
{
    int64_t low = 0, high = episodes->n;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (episodes->at[middle].window <= window)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// Where values go: row r of each is frame first + r.
struct rows {
    float *frames, *targets;
    int32_t *ids;
    bool check;
};

// "/data/demo_3/obs/a, row 17" or "/frames, row 2017 (row 17 of episode 3)".
static const char *name_row(const struct dt_episodes *episodes, int64_t column, int64_t number,
                            int64_t row, char *text, size_t size)
{
    const struct episode *at = &episodes->at[number];
    const char *name = episodes->arrays[column].name;
    if (at->group)
        snprintf(text, size, "%s, row %" PRId64, name, row);
    else
        snprintf(text, size, "%s, row %" PRId64 " (row %" PRId64 " of episode %" PRId64 ")", name,
                 at->first + row, row, number);
    return text;
}

static dt_status fail_id(const struct dt_reader *reader, int64_t column, int64_t number,
                         int64_t row, int64_t wrong)
{
    const struct dt_episodes *episodes = reader->own;
    char where[PATH_BYTES + 128];
    return DT_FAIL(DT_USER, "raise the N of :id*N in data.inputs, or correct the data",
                   "%s: %s: id %" PRId64 " is not in [0, %" PRId64 ")", reader->file.path,
                   name_row(episodes, column, number, row, where, sizeof where), wrong,
                   episodes->columns.at[column].table);
}

static bool all_finite(const float *values, int64_t n)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest < 0x7f800000u;
}

// Of `rows` rows from row `row` of an episode on.
static dt_status check_finite(const struct dt_reader *reader, int64_t column, int64_t number,
                              int64_t row, int64_t rows, const float *values, int64_t stride)
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_column *c = &episodes->columns.at[column];
    char where[PATH_BYTES + 128];
    for (int64_t r = 0, j = 0; r < rows; r++, values += stride) {
        if (all_finite(values, c->end - c->first))
            continue;
        while (isfinite(values[j]))
            j++;
        return DT_FAIL(DT_USER, "repair or remove the episode",
                       "%s: %s, column %" PRId64 ": %g is not finite", reader->file.path,
                       name_row(episodes, column, number, row + r, where, sizeof where),
                       c->first + j, values[j]);
    }
    return DT_OK;
}

// Reads a column of the open episode's rows [row, row + n).
static dt_status read_column(struct dt_reader *reader, int64_t column, int64_t number, int64_t row,
                             int64_t n, const struct rows *to)
{
    struct dt_episodes *episodes = reader->own;
    const struct dt_column *c = &episodes->columns.at[column];
    const struct dt_frame_layout *layout = &episodes->layout;
    const struct dt_h5_array *array = &episodes->arrays[column];
    int64_t width = array->shape[1], bytes = width * dt_dtype_size(array->type);
    int64_t at_once = bytes < PIECE_BYTES ? PIECE_BYTES / bytes : 1, wrong, bad;
    int64_t stride = c->target ? layout->target_width : layout->frame_width;
    int64_t base = episodes->at[number].group ? 0 : episodes->at[number].first;
    void *stored;
    if (at_once > n)
        at_once = n;
    DT_TRY(dt_reader_scratch(reader, at_once * bytes, &stored));
    for (int64_t done = 0; done < n; done += at_once) {
        int64_t some = n - done < at_once ? n - done : at_once;
        DT_TRY(dt_h5_array_read(array, base + row + done, some, stored));
        if (c->table > 0) {
            bad = dt_columns_to_ids(array->type, stored, some, width, c->first, c->end - c->first,
                                    c->table, to->ids + done * layout->n_ids + c->at, layout->n_ids,
                                    &wrong);
            if (bad >= 0 && to->check)
                return fail_id(reader, column, number, row + done + bad / (c->end - c->first),
                               wrong);
            continue;
        }
        float *floats = (c->target ? to->targets : to->frames) + done * stride + c->at;
        dt_columns_to_floats(array->type, stored, some, width, c->first, c->end - c->first, floats,
                             stride);
        if (to->check)
            DT_TRY(check_finite(reader, column, number, row + done, some, floats, stride));
    }
    return DT_OK;
}

// The head that column `at` of the targets belongs to; NULL: not known.
static const struct dt_target *target_of(const struct dt_scan_rules *rules, int64_t at)
{
    for (int i = 0; i < rules->n_targets; i++) {
        if (at < rules->target[i].width)
            return &rules->target[i];
        at -= rules->target[i].width;
    }
    return NULL;
}

static dt_status check_classes(struct dt_reader *reader, int64_t number, int64_t row, int64_t n,
                               const float *targets)
{
    struct dt_episodes *episodes = reader->own;
    int64_t W = episodes->layout.target_width;
    for (int64_t i = 0; i < episodes->columns.n; i++) {
        const struct dt_column *c = &episodes->columns.at[i];
        for (int64_t j = c->at; c->target && j < c->at + c->end - c->first; j++) {
            const struct dt_target *target = target_of(&episodes->rules, j);
            if (!target || target->classes == 0)
                continue;
            for (int64_t r = 0; r < n; r++) {
                float value = targets[r * W + j];
                char where[PATH_BYTES + 128];
                if (value >= 0 && value < (float)target->classes && value == floorf(value))
                    continue;
                return DT_FAIL(DT_USER, "correct the data, or the head in model.heads",
                               "%s: %s, column %" PRId64
                               ": %g is not a whole number in [0, %" PRId64 ") for the head %s",
                               reader->file.path,
                               name_row(episodes, i, number, row + r, where, sizeof where),
                               c->first + j - c->at, value, target->classes, target->name);
            }
        }
    }
    return DT_OK;
}

// Frames [first, first + n) of the shard, of all columns.
static dt_status read_rows(struct dt_reader *reader, int64_t first, int64_t n, struct rows to)
{
    struct dt_episodes *episodes = reader->own;
    const struct dt_frame_layout *layout = &episodes->layout;
    for (int64_t e = episode_of_frame(episodes, first), some; n > 0; e++, n -= some) {
        const struct episode *at = &episodes->at[e];
        int64_t row = first - at->first, left = at[1].first - first;
        some = left < n ? left : n;
        DT_TRY(open_episode(reader, e));
        for (int64_t i = 0; i < episodes->columns.n; i++) {
            const struct dt_column *c = &episodes->columns.at[i];
            if (c->target ? to.targets != NULL : c->table > 0 ? to.ids != NULL : to.frames != NULL)
                DT_TRY(read_column(reader, i, e, row, some, &to));
        }
        if (to.check && to.targets)
            DT_TRY(check_classes(reader, e, row, some, to.targets));
        to.frames = to.frames ? to.frames + some * layout->frame_width : NULL;
        to.targets = to.targets ? to.targets + some * layout->target_width : NULL;
        to.ids = to.ids ? to.ids + some * layout->n_ids : NULL;
        first += some;
    }
    return DT_OK;
}

dt_status dt_episodes_frames(struct dt_reader *reader, int64_t first, int64_t n, float *frames)
{
    return read_rows(reader, first, n, (struct rows){.frames = frames, .check = true});
}

// Bytes of all columns of `rows` rows, as a block has them.
static int64_t rows_bytes(const struct dt_frame_layout *layout, int64_t rows)
{
    return dt_reader_align(rows * layout->frame_width * (int64_t)sizeof(float)) +
           dt_reader_align(rows * layout->target_width * (int64_t)sizeof(float)) +
           dt_reader_align(rows * layout->n_ids * (int64_t)sizeof(int32_t));
}

static struct rows place_rows(const struct dt_frame_layout *layout, int64_t rows, char *memory)
{
    char *targets = memory + dt_reader_align(rows * layout->frame_width * (int64_t)sizeof(float));
    char *ids = targets + dt_reader_align(rows * layout->target_width * (int64_t)sizeof(float));
    return (struct rows){.frames = (float *)(void *)memory,
                         .targets = (float *)(void *)targets,
                         .ids = (int32_t *)(void *)ids,
                         .check = true};
}

dt_status dt_episodes_verify(struct dt_reader *reader, const struct dt_shard *shard, int64_t first,
                             int64_t n)
{
    char *memory = malloc((size_t)rows_bytes(&shard->layout, n) + 1);
    if (!memory)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " frames", n);
    dt_status status = read_rows(reader, first, n, place_rows(&shard->layout, n, memory));
    free(memory);
    return status;
}

// The list of episodes, and rows spread over the shard.
dt_status dt_episodes_fingerprint(struct dt_reader *reader, struct dt_shard *shard)
{
    struct dt_episodes *episodes = reader->own;
    int64_t bytes = rows_bytes(&shard->layout, SAMPLES);
    char *memory = calloc(1, (size_t)bytes + 1);
    dt_status status = memory ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for a checksum");
    shard->first_hash = shard->layout.columns;
    for (int64_t i = 0; i < episodes->n; i++) {
        const struct episode *at = &episodes->at[i];
        shard->first_hash = XXH64(&at[1].first, sizeof at[1].first, shard->first_hash);
        if (at->group)
            shard->first_hash = XXH64(at->group, strlen(at->group), shard->first_hash);
    }
    struct rows all = memory ? place_rows(&shard->layout, SAMPLES, memory) : (struct rows){0};
    for (int64_t i = 0; i < SAMPLES && status == DT_OK; i++)
        status = read_rows(reader, (shard->count - 1) * i / (SAMPLES - 1), 1,
                           (struct rows){all.frames + i * shard->layout.frame_width,
                                         all.targets + i * shard->layout.target_width,
                                         all.ids + i * shard->layout.n_ids, false});
    if (memory)
        shard->last_hash = XXH64(memory, (size_t)bytes, 0);
    free(memory);
    return status;
}

void dt_episodes_place(struct dt_reader *reader, int64_t window, char *text, size_t size)
{
    const struct dt_episodes *episodes = reader->own;
    const struct episode *at = &episodes->at[episode_of_window(episodes, window)];
    int64_t row = (window - at->window) * episodes->rules.stride;
    if (at->group)
        snprintf(text, size, "%s:%" PRId64, at->group, row);
    else
        snprintf(text, size, "%" PRId64, at->first + row);
}

// Batches.

struct window {
    int64_t row; // in the block
    int32_t n;   // frames
    bool starts; // an episode
};

struct list_of { // indices into rows[]; -1: not there
    int frames, ids, targets, mask, reset;
};

static struct list_of index_arrays(const struct dt_frame_layout *layout,
                                   const struct dt_read_rules *rules)
{
    int n = 0;
    struct list_of list = {-1, -1, -1, -1, -1};
    if (layout->frame_width > 0)
        list.frames = n++;
    if (layout->n_ids > 0)
        list.ids = n++;
    list.targets = n++;
    list.mask = n++;
    if (rules->carry)
        list.reset = n++;
    return list;
}

void dt_episodes_arrays(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                        struct dt_array_list *list)
{
    const struct dt_frame_layout *layout = &dataset->layout;
    if (layout->frame_width > 0)
        dt_array_list_add(list, "frames", rules->frames_type, layout->frame_width, false);
    if (layout->n_ids > 0)
        dt_array_list_add(list, "ids", DT_I32, layout->n_ids, false);
    dt_array_list_add(list, "targets", DT_F32, layout->target_width, false);
    dt_array_list_add(list, "mask", DT_U8, 1, false);
    if (rules->carry)
        dt_array_list_add(list, "reset", DT_U8, 1, true);
}

// Rows that consecutive windows span: from one start to the next are at most `stride` rows or, at
// the end of an episode, seq_len.
static int64_t span(const struct dt_dataset *dataset, const struct dt_shard *shard, int64_t windows)
{
    int64_t T = dataset->rules.seq_len, step = shard->stride > T ? shard->stride : T, rows;
    if (__builtin_mul_overflow(windows, step, &rows) || rows > shard->count)
        rows = shard->count;
    return rows;
}

int64_t dt_episodes_block_bytes(const struct dt_dataset *dataset, const struct dt_read_rules *rules,
                                const struct dt_shard *shard, int64_t windows)
{
    (void)rules;
    return dt_reader_align(windows * (int64_t)sizeof(struct window)) +
           rows_bytes(&dataset->layout, span(dataset, shard, windows));
}

dt_status dt_episodes_read(struct dt_reader *reader, const struct dt_dataset *dataset,
                           const struct dt_read_rules *rules, struct dt_block *block)
{
    struct dt_episodes *episodes = reader->own;
    struct window *windows = (struct window *)(void *)block->memory;
    int64_t T = dataset->rules.seq_len, first = -1, end = 0;
    int64_t e = episode_of_window(episodes, block->first);
    (void)rules;
    for (int64_t i = 0; i < block->windows; i++) {
        int64_t window = block->first + i;
        while (window >= episodes->at[e + 1].window)
            e++;
        const struct episode *at = &episodes->at[e];
        int64_t row = at->first + (window - at->window) * episodes->rules.stride;
        int64_t n = at[1].first - row < T ? at[1].first - row : T;
        if (first < 0)
            first = row;
        end = row + n > end ? row + n : end;
        windows[i] = (struct window){row - first, (int32_t)n, window == at->window};
    }
    char *values = block->memory + dt_reader_align(block->windows * (int64_t)sizeof(struct window));
    block->data = windows;
    block->rows = end - first;
    return read_rows(reader, first, end - first, place_rows(&dataset->layout, end - first, values));
}

// n rows of frames, normalised, as `type`.
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
    const struct dt_frame_layout *layout = &dataset->layout;
    const struct window *w = (const struct window *)block->data + (window - block->first);
    struct list_of to = index_arrays(layout, rules);
    struct rows from = place_rows(
        layout, block->rows, block->memory + dt_reader_align(block->windows * (int64_t)sizeof *w));
    int64_t F = layout->frame_width, W = layout->target_width, K = layout->n_ids;
    if (w->n < dataset->rules.seq_len)
        dt_episodes_pad(dataset, rules, rows);
    if (to.frames >= 0)
        write_frames(rules, F, w->n, from.frames + w->row * F, rows[to.frames]);
    if (to.ids >= 0)
        memcpy(rows[to.ids], from.ids + w->row * K, (size_t)(w->n * K) * sizeof(int32_t));
    memcpy(rows[to.targets], from.targets + w->row * W, (size_t)(w->n * W) * sizeof(float));
    memset(rows[to.mask], 1, (size_t)w->n);
    if (to.reset >= 0) {
        memset(rows[to.reset], 0, (size_t)dataset->rules.seq_len);
        *(uint8_t *)rows[to.reset] = w->starts;
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
