// Opens a shard of episodes: lists them by the kind's schema, finds the columns that data.inputs
// and data.targets name, and counts rows and windows. Only metadata is read.
#include "data/h5_episodes.h"

#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/round.h"
#include "base/text.h"
#include "data/h5_chunks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    BYTES_LEAST = 64,
    COLUMNS_MOST = 4096,  // datasets that a frame is read from
    WIDTH_MOST = 1 << 26, // numbers of a frame
};

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

// A group may be a link to one in another file of the same folder, which is in that file itself.
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

// Columns.

static const struct dt_h5_file *file_of(const struct dt_reader *reader, const struct dt_episode *at)
{
    return at->file ? at->file : &reader->file;
}

// "/data/demo_3/obs/a" of the episode, or "/obs/a" where episodes share datasets; "../" leads to
// the group that the episode is in.
static dt_status path_of(const struct dt_reader *reader, const struct dt_episode *at,
                         const char *path, char full[DT_H5_PATH])
{
    const char *group = at->inner ? at->inner : at->group ? at->group : "";
    size_t n = strlen(group);
    const char *rest = path;
    for (; strncmp(rest, "../", 3) == 0 && n > 0; rest += 3)
        while (n > 0 && group[--n] != '/')
            continue;
    if (strncmp(rest, "../", 3) == 0)
        return DT_FAIL(DT_USER, "write ../ at most once for each group that episodes are in",
                       "%s: %s leads out of the file from %s", reader->file.path, path,
                       group[0] ? group : "its root");
    if (snprintf(full, DT_H5_PATH, "%.*s/%s", (int)n, group, rest) < DT_H5_PATH)
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "%s: the path of %s/%s is too long", reader->file.path, group,
                   path);
}

static const char *key_of(const struct dt_column *column)
{
    return column->weight ? "data.weights" : column->target ? "data.targets" : "data.inputs";
}

static dt_status fail_missing(const struct dt_h5_file *file, const char *key, const char *full)
{
    char hint[DT_ERROR_HINT] = "", parent[DT_H5_PATH];
    snprintf(parent, sizeof parent, "%s", full);
    char *slash = strrchr(parent, '/');
    slash[slash == parent] = 0;
    dt_h5_name_members(file, parent, hint, sizeof hint);
    return DT_FAIL(DT_USER, hint[0] ? hint : "name datasets that every episode has",
                   "%s has no %s (%s)", file->path, full, key);
}

// A key's walk through groups.
struct walk {
    const char *key;
    int64_t n; // groups so far, each by its address
    struct visited {
        uint64_t address;
        char path[DT_H5_PATH];
    } * at;
};

// Hard links that lead to one group could unfold to any number of paths, or go round in circles.
static dt_status enter_group(const struct dt_reader *reader, struct walk *walk, const char *full,
                             uint64_t address)
{
    for (int64_t i = 0; i < walk->n; i++)
        if (walk->at[i].address == address)
            return DT_FAIL(DT_USER, "name the datasets that are wanted, each once",
                           "%s: %s is the group %s again, by a hard link (%s)", reader->file.path,
                           full, walk->at[i].path, walk->key);
    if (walk->n == COLUMNS_MOST)
        return DT_FAIL(DT_USER, "name the datasets that are wanted",
                       "%s: there are more than %d groups on the way to %s (%s)", reader->file.path,
                       COLUMNS_MOST, full, walk->key);
    DT_TRY(dt_list_grow(&walk->at, walk->n, sizeof *walk->at));
    walk->at[walk->n].address = address;
    strcpy(walk->at[walk->n++].path, full);
    return DT_OK;
}

// Adds `column` with its path or, where that is a group, with those of all datasets in it.
static dt_status expand(const struct dt_reader *reader, struct dt_episodes *episodes,
                        struct walk *walk, const struct dt_column *column)
{
    char full[DT_H5_PATH];
    enum dt_h5_node node;
    uint64_t address;
    struct dt_h5_names names;
    const struct dt_h5_file *file = file_of(reader, &episodes->at[0]);
    if (column->attribute)
        return dt_columns_add(&episodes->columns, column);
    DT_TRY(path_of(reader, &episodes->at[0], column->path, full));
    DT_TRY(dt_h5_find(file, full, &node, &address));
    if (node == DT_H5_DATASET && episodes->columns.n == COLUMNS_MOST)
        return DT_FAIL(DT_USER, "name the datasets that are wanted, or store fewer",
                       "%s: %s is one of more than %d datasets (%s)", reader->file.path, full,
                       COLUMNS_MOST, walk->key);
    if (node == DT_H5_DATASET)
        return dt_columns_add(&episodes->columns, column);
    if (node != DT_H5_GROUP)
        return fail_missing(file, walk->key, full);
    DT_TRY(enter_group(reader, walk, full, address));
    dt_status status = dt_h5_list(file, full, &names);
    for (int64_t i = 0; i < names.n && status == DT_OK; i++) {
        struct dt_column member = *column;
        int length = snprintf(member.path, sizeof member.path, "%s/%s", column->path, names.at[i]);
        status = length < DT_COLUMN_PATH ? expand(reader, episodes, walk, &member)
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
    char hint[DT_ERROR_HINT] = "";
    if (!text[0]) {
        const char *group = episodes->at[0].group;
        dt_h5_name_members(&reader->file, group[0] ? group : "/", hint, sizeof hint);
        return DT_FAIL(DT_USER, hint,
                       "%s is required: name datasets of the episodes of %s, such as %s", key,
                       reader->file.path, group[0] ? group : "the whole file");
    }
    dt_status status = dt_columns_parse(key, text, target, &named);
    for (int64_t i = 0; i < named.n && status == DT_OK; i++) {
        struct walk walk = {.key = key};
        named.at[i].word = episodes->columns.n;
        status = expand(reader, episodes, &walk, &named.at[i]);
        free(walk.at);
    }
    dt_columns_free(&named);
    if (status == DT_OK && episodes->columns.n == before)
        status =
            DT_FAIL(DT_USER, NULL, "%s: %s names no dataset of %s", key, text, reader->file.path);
    return status;
}

// Whether the targets are the heads' own datasets, since no data.targets names others.
static bool by_head(const struct dt_reader *reader)
{
    const struct dt_scan_rules *rules = &((const struct dt_episodes *)reader->own)->rules;
    return reader->kind->schema->by_head && !rules->targets[0] && rules->n_targets > 0;
}

// Whether the first episode has the dataset that is named first.
static dt_status has_targets(const struct dt_reader *reader, const struct dt_episodes *episodes,
                             const char *text, bool *any)
{
    struct dt_columns named = {0};
    char full[DT_H5_PATH] = "";
    enum dt_h5_node node;
    uint64_t address;
    dt_status status = dt_columns_parse("data.targets", text, true, &named);
    bool attribute = status == DT_OK && named.n > 0 && named.at[0].attribute;
    if (status == DT_OK && named.n > 0)
        status = path_of(reader, &episodes->at[0], named.at[0].path, full);
    dt_columns_free(&named);
    DT_TRY(status);
    if (full[0] && !attribute)
        DT_TRY(dt_h5_find(file_of(reader, &episodes->at[0]), full, &node, &address));
    *any = full[0] && (attribute || node != DT_H5_NOTHING);
    return DT_OK;
}

static dt_status list_columns(const struct dt_reader *reader, struct dt_episodes *episodes)
{
    const struct dt_episode_schema *schema = reader->kind->schema;
    const struct dt_scan_rules *rules = &episodes->rules;
    char path[DT_H5_PATH];
    DT_TRY(add_columns(reader, episodes, "data.inputs",
                       rules->inputs[0] ? rules->inputs : schema->inputs, false));
    bool any = true;
    if (rules->seq_len == 0 && !rules->targets[0]) { // to verify a shard; targets may be anywhere
        DT_TRY(path_of(reader, &episodes->at[0], schema->targets, path));
        DT_TRY(dt_h5_has(file_of(reader, &episodes->at[0]), path, &any));
    }
    if (rules->whole) { // predictions need none
        snprintf(path, sizeof path, "%s/%s", schema->targets, rules->target[0].name);
        DT_TRY(has_targets(reader, episodes,
                           by_head(reader)     ? path
                           : rules->targets[0] ? rules->targets
                                               : schema->targets,
                           &any));
    }
    for (int i = 0; i < rules->n_targets && by_head(reader) && any; i++) {
        snprintf(path, sizeof path, "%s/%s", schema->targets, rules->target[i].name);
        DT_TRY(add_columns(reader, episodes, "the targets of model.heads", path, true));
    }
    if (any && !by_head(reader))
        DT_TRY(add_columns(reader, episodes, "data.targets",
                           rules->targets[0] ? rules->targets : schema->targets, true));
    DT_TRY(dt_columns_parse_weights(rules, &episodes->columns));
    int64_t n = episodes->columns.n;
    for (int64_t i = 0; i < n; i++) {
        struct dt_column *column = &episodes->columns.at[i];
        for (int k = 0; k < 2 && schema->longer[k]; k++)
            column->longer |=
                strncmp(column->path, schema->longer[k], strlen(schema->longer[k])) == 0;
    }
    DT_TRY(DT_NEW(&episodes->arrays, n, "%" PRId64 " columns", n));
    return DT_NEW(&episodes->paths, n, "%" PRId64 " columns", n);
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
        return DT_H5_REJECT(array, NULL, "has %" PRId64 " columns; there is no column %" PRId64,
                            width, end - 1);
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

// Opens a column's dataset or attribute, checked. One value or row is that of every frame, except
// where an episode of one frame more has it.
static dt_status open_array(const struct dt_h5_file *file, const struct dt_column *column,
                            const char *full, struct dt_h5_array *array)
{
    bool found;
    if (column->attribute)
        DT_TRY(dt_h5_attribute_open(file, full, array, &found));
    else
        DT_TRY(dt_h5_array_open(file, full, array, &found));
    if (!found)
        return fail_missing(file, key_of(column), full);
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
        DT_TRY_GOTO(status, out, path_of(reader, at, column->path, full));
        if (place && place->offset > 0) {
            *array = (struct dt_h5_array){.file = file_of(reader, at),
                                          .name = full,
                                          .id = -1,
                                          .type = place->type,
                                          .shape = {place->rows, column->width},
                                          .outer = place->outer,
                                          .constant = place->constant,
                                          .offset = place->offset};
            continue;
        }
        status = open_array(file_of(reader, at), column, full, array);
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

// What the shard's columns add up to, from the open episode.

// The heads need all columns of the targets, and each head those of its own dataset if it has one.
static dt_status check_targets(const struct dt_reader *reader, const struct dt_episodes *episodes)
{
    const struct dt_scan_rules *rules = &episodes->rules;
    int64_t need = 0;
    if (rules->whole && episodes->layout.target_width == 0)
        return DT_OK;
    char what[512] = "";
    for (int i = 0; i < rules->n_targets; i++) {
        need += rules->target[i].width;
        dt_append(what, sizeof what, "%s%s %" PRId64, i ? ", " : "", rules->target[i].name,
                  rules->target[i].width);
    }
    if (rules->n_targets > 0 && need != episodes->layout.target_width)
        return DT_FAIL(DT_USER,
                       "make data.targets name one column for each value that model.heads predicts",
                       "%s: the targets have %" PRId64 " columns, the heads need %" PRId64 " (%s)",
                       reader->file.path, episodes->layout.target_width, need, what);
    const struct dt_target *target = rules->target;
    for (int64_t i = 0; i < episodes->columns.n && by_head(reader); i++) {
        const struct dt_column *column = &episodes->columns.at[i];
        if (!column->target)
            continue;
        if (column->width != target->width)
            return DT_FAIL(DT_USER, "correct the data, or the head in model.heads",
                           "%s: %s has %" PRId64 " columns, the head %s needs %" PRId64,
                           reader->file.path, episodes->arrays[i].name, column->width, target->name,
                           target->width);
        target++;
    }
    return DT_OK;
}

// Places the columns [i, end) of one word, and its flags.
static void place_word(struct dt_episodes *episodes, int64_t i, int64_t end)
{
    struct dt_frame_layout *layout = &episodes->layout;
    const struct dt_column word = episodes->columns.at[i];
    if (word.weight) {
        layout->weight_width = 1 + episodes->rules.n_targets;
        return;
    }
    int64_t *width = word.target      ? &layout->target_width
                     : word.table > 0 ? &layout->n_ids
                                      : &layout->frame_width;
    bool apart = width != &layout->frame_width; // the flags are
    int64_t first = *width, shifts = word.to - word.from, step = 0, flag = layout->frame_width;
    for (int64_t k = i; k < end; k++) {
        struct dt_column *column = &episodes->columns.at[k];
        column->at = first + step;
        step += column->end - column->first;
        column->flag = apart ? flag : first + step; // of the last column counts
    }
    int64_t flag_step = apart ? 1 : step + word.valid;
    step += word.valid && !apart;
    for (int64_t k = i; k < end; k++) {
        struct dt_column *column = &episodes->columns.at[k];
        column->step = step;
        column->flag_step = flag_step;
        column->valid = word.valid && k == end - 1;
    }
    const int64_t most = INT64_MAX / (2 * COLUMNS_MOST); // far too many, but no overflow
    if (__builtin_mul_overflow(shifts, step, &step) || step > most)
        step = most;
    *width = first + step;
    if (word.valid && apart)
        layout->frame_width += shifts;
    if (!word.target && word.table == 0 && dt_column_is_shifted(&word))
        layout->shifted = 1;
}

static void hash_column(XXH64_state_t *hash, const struct dt_column *column)
{
    // A weight's place tells it from a target.
    int64_t numbers[] = {column->first, column->end, column->table,
                         column->weight ? 2 + column->at : column->target};
    int64_t shifts[] = {column->from, column->to, column->step, column->valid};
    XXH64_update(hash, numbers, sizeof numbers);
    XXH64_update(hash, column->path, strlen(column->path) + 1);
    if (dt_column_is_shifted(column) || column->valid)
        XXH64_update(hash, shifts, sizeof shifts);
    XXH64_update(hash, column->shared, strlen(column->shared));
}

static dt_status place_columns(struct dt_reader *reader)
{
    struct dt_episodes *episodes = reader->own;
    struct dt_frame_layout *layout = &episodes->layout;
    struct dt_columns *columns = &episodes->columns;
    XXH64_state_t *hash = XXH64_createState();
    if (!hash)
        return DT_FAIL(DT_MACHINE, NULL, "no memory to open %s", reader->file.path);
    XXH64_reset(hash, 0);
    for (int64_t i = 0; i < columns->n; i++) {
        struct dt_column *column = &columns->at[i];
        column->width = episodes->arrays[i].shape[1];
        if (column->end < 0)
            column->end = column->width;
    }
    for (int64_t i = 0, end; i < columns->n; i = end) {
        for (end = i; end < columns->n && columns->at[end].word == columns->at[i].word;)
            end++;
        place_word(episodes, i, end);
        for (int64_t k = i; k < end; k++)
            hash_column(hash, &columns->at[k]);
    }
    layout->columns = XXH64_digest(hash);
    XXH64_freeState(hash);
    if (layout->n_ids > DT_IDS_MAX)
        return DT_FAIL(DT_USER, "name fewer columns with :id*N",
                       "%s: data.inputs has %" PRId64 " columns of ids, the most are %d",
                       reader->file.path, layout->n_ids, DT_IDS_MAX);
    for (int64_t i = 0; i < columns->n; i++) {
        const struct dt_column *column = &columns->at[i];
        int64_t at = column->at;
        for (int64_t s = column->from; column->table > 0 && s < column->to; s++, at += column->step)
            for (int64_t j = at; j < at + column->end - column->first; j++) {
                layout->ids[j] = column->table;
                memcpy(layout->tables[j], column->shared, sizeof column->shared);
            }
    }
    if (layout->frame_width > WIDTH_MOST || layout->target_width > WIDTH_MOST)
        return DT_FAIL(DT_USER, "name fewer columns with data.inputs and data.targets",
                       "%s: a frame has %" PRId64 " numbers and %" PRId64
                       " targets, the most are %d",
                       reader->file.path, layout->frame_width, layout->target_width, WIDTH_MOST);
    return DT_OK;
}

// Counts the rows of the open episode's datasets that are frames; all must agree, also in their
// widths. An episode of constants alone has one.
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
        if (n != *rows && !array->constant)
            return DT_H5_REJECT(
                array,
                array->n_dims > 1 ? "make all datasets of an episode equally long; where time is "
                                    "the second dimension, set data.time_axis = 1"
                                  : "make all datasets of an episode equally long",
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

// Where the list of bytes stands: after the last column that is not bytes.
struct byte_list {
    struct dt_byte_columns bytes;
    int64_t after;
};

// A few columns are not worth an array of their own.
static void add_bytes(struct byte_list *list, int64_t end)
{
    struct dt_byte_columns *bytes = &list->bytes;
    if (end - list->after >= BYTES_LEAST && bytes->n < DT_BYTE_RANGES) {
        bytes->at[bytes->n].first = list->after;
        bytes->at[bytes->n++].end = end;
    }
}

// Columns [at, at + n), and as many after each `step` for each of the shifts, are not bytes.
static void add_others(struct byte_list *list, const struct dt_column *column, int64_t at,
                       int64_t step, int64_t n)
{
    add_bytes(list, at);
    list->after = dt_max_i64(list->after, at + (column->to - column->from - 1) * step + n);
}

static struct dt_byte_columns list_bytes(const struct dt_episodes *episodes)
{
    struct byte_list list = {.after = 0};
    for (int64_t i = 0; i < episodes->columns.n; i++) {
        const struct dt_column *column = &episodes->columns.at[i];
        if (!column->target && !column->weight && column->table == 0 && !column->bytes)
            add_others(&list, column, column->at, column->step, column->end - column->first);
        if (column->valid)
            add_others(&list, column, column->flag, column->flag_step, 1);
    }
    add_bytes(&list, episodes->layout.frame_width);
    return list.bytes;
}

// Whether the rules want episode `number` of the dataset. One of each 1 / val_fraction that follow
// each other is held out, so that it is the same on any number of ranks and with any files after
// it.
static bool is_wanted(const struct dt_scan_rules *rules, int64_t number)
{
    enum { STREAM = -3 }; // of Philox, beside those of the order and of synthetic data
    if (rules->val_fraction == 0)
        return true;
    int64_t share = dt_max_i64((int64_t)(rules->val_fraction * 0x1p32 + 0.5), 1);
    int64_t stretch = (number * share) >> 32, first = dt_ceil_div(stretch << 32, share);
    struct dt_philox rng = dt_philox_init(rules->seed, (uint32_t)STREAM, (uint64_t)stretch);
    int64_t n = dt_ceil_div((stretch + 1) << 32, share) - first;
    bool held_out = number == first + (int64_t)dt_philox_below(&rng, (uint64_t)n);
    return held_out == rules->held_out;
}

// Counts the frames of the episodes that are wanted, from rows counted in each or from starts, and
// drops the others and those without frames.
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
            DT_TRY(place_columns(reader));
        if (look)
            DT_TRY(count_rows(reader, &rows));
        if (i == 0)
            DT_TRY(check_targets(reader, episodes));
        if (i == 0 && shared && rows != known->shape[0]) // starts are rows of that dataset
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
    if (!shared) // numbers have changed
        close_arrays(episodes);
    episodes->n = kept;
    DT_TRY(dt_list_grow(&episodes->at, kept, sizeof *episodes->at));
    episodes->at[kept] = (struct dt_episode){.first = total};
    return DT_OK;
}

// Returns how many frames they have, each as often as windows have it.
static int64_t count_windows(struct dt_episodes *episodes)
{
    int64_t T = episodes->rules.seq_len, stride = episodes->rules.stride, windows = 0;
    int64_t shared = stride < T ? T - stride : 0; // frames that two windows have in common
    int64_t frames = 0;
    for (int64_t i = 0; i <= episodes->n; i++) {
        struct dt_episode *at = &episodes->at[i];
        at->window = windows;
        if (i == episodes->n || T == 0)
            continue;
        int64_t n = at[1].first - at->first,
                of_this = n <= T ? 1 : (n - shared + stride - 1) / stride;
        windows += of_this;
        frames +=
            (of_this - 1) * T + dt_min_i64(n - (of_this - 1) * stride, T); // only the last is short
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
    DT_TRY(list_columns(reader, episodes));
    shard->listed = episodes->n;
    for (int64_t i = 0; i < episodes->n_others; i++)
        shard->file_bytes += episodes->others[i]->file.bytes;
    DT_TRY(count_frames(reader, shard->before));
    shard->in_windows = count_windows(episodes);
    shard->layout = episodes->layout;
    shard->bytes = list_bytes(episodes);
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

void dt_episodes_columns(const struct dt_reader *reader, char inputs[DT_DATA_TEXT],
                         char targets[DT_DATA_TEXT])
{
    const struct dt_episodes *episodes = reader->own;
    const struct dt_episode_schema *schema = reader->kind->schema;
    const struct dt_scan_rules *rules = &episodes->rules;
    if (!dt_columns_text(&episodes->columns, false, inputs))
        snprintf(inputs, DT_DATA_TEXT, "%s", rules->inputs[0] ? rules->inputs : schema->inputs);
    if (!dt_columns_text(&episodes->columns, true, targets))
        snprintf(targets, DT_DATA_TEXT, "%s", rules->targets[0] ? rules->targets : schema->targets);
}
