// Finds the columns that data.inputs, data.targets and data.weights name in the first episode of a
// shard, and assigns them positions in rows of frames, ids and targets.
#include "data/h5_episodes.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    BYTES_LEAST = 64,
    WIDTH_MOST = 1 << 26, // numbers per frame
};

const struct dt_h5_file *dt_episodes_file(const struct dt_reader *reader,
                                          const struct dt_episode *at)
{
    return at->file ? at->file : &reader->file;
}

dt_status dt_episodes_path(const struct dt_reader *reader, const struct dt_episode *at,
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

const char *dt_episodes_key(const struct dt_column *column)
{
    return column->weight ? "data.weights" : column->target ? "data.targets" : "data.inputs";
}

dt_status dt_episodes_missing(const struct dt_h5_file *file, const char *key, const char *full)
{
    char hint[DT_ERROR_HINT] = "", parent[DT_H5_PATH];
    snprintf(parent, sizeof parent, "%s", full);
    char *slash = strrchr(parent, '/');
    slash[slash == parent] = 0;
    if (strrchr(full, '/')[1] == '@')
        snprintf(hint, sizeof hint, "name an attribute that every episode has");
    else
        dt_h5_name_members(file, parent, hint, sizeof hint);
    return DT_FAIL(DT_USER, hint[0] ? hint : "name datasets that every episode has",
                   "%s has no %s (%s)", file->path, full, key);
}

// State of expanding a key's groups.
struct walk {
    const char *key;
    int64_t n; // groups so far, by address
    struct visited {
        uint64_t address;
        char path[DT_H5_PATH];
    } * at;
};

// Refuses to enter a group twice: hard links to one group could give any number of paths, or
// cycles.
static dt_status enter_group(const struct dt_reader *reader, struct walk *walk, const char *full,
                             uint64_t address)
{
    for (int64_t i = 0; i < walk->n; i++)
        if (walk->at[i].address == address)
            return DT_FAIL(DT_USER, "name the datasets that are wanted, each once",
                           "%s: %s is the group %s again, by a hard link (%s)", reader->file.path,
                           full, walk->at[i].path, walk->key);
    if (walk->n == DT_COLUMNS_MOST)
        return DT_FAIL(DT_USER, "name the datasets that are wanted",
                       "%s: there are more than %d groups on the way to %s (%s)", reader->file.path,
                       DT_COLUMNS_MOST, full, walk->key);
    DT_TRY(dt_list_grow(&walk->at, walk->n, sizeof *walk->at));
    walk->at[walk->n].address = address;
    strcpy(walk->at[walk->n++].path, full);
    return DT_OK;
}

// Adds `column` with its path or, if that is a group, with the paths of all datasets in it.
static dt_status expand(const struct dt_reader *reader, struct dt_episodes *episodes,
                        struct walk *walk, const struct dt_column *column)
{
    char full[DT_H5_PATH];
    enum dt_h5_node node;
    uint64_t address;
    struct dt_h5_names names;
    const struct dt_h5_file *file = dt_episodes_file(reader, &episodes->at[0]);
    if (column->attribute)
        return dt_columns_add(&episodes->columns, column);
    DT_TRY(dt_episodes_path(reader, &episodes->at[0], column->path, full));
    DT_TRY(dt_h5_find(file, full, &node, &address));
    if (node == DT_H5_DATASET && episodes->columns.n == DT_COLUMNS_MOST)
        return DT_FAIL(DT_USER, "name the datasets that are wanted, or store fewer",
                       "%s: %s is one of more than %d datasets (%s)", reader->file.path, full,
                       DT_COLUMNS_MOST, walk->key);
    if (node == DT_H5_DATASET)
        return dt_columns_add(&episodes->columns, column);
    if (node != DT_H5_GROUP)
        return dt_episodes_missing(file, walk->key, full);
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

// Whether the targets are one dataset per head, because data.targets is not set.
static bool by_head(const struct dt_reader *reader)
{
    const struct dt_scan_rules *rules = &((const struct dt_episodes *)reader->own)->rules;
    return reader->kind->schema->by_head && !rules->targets[0] && rules->n_targets > 0;
}

// Whether the first episode has the dataset of the first target.
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
        status = dt_episodes_path(reader, &episodes->at[0], named.at[0].path, full);
    dt_columns_free(&named);
    DT_TRY(status);
    if (full[0] && !attribute)
        DT_TRY(dt_h5_find(dt_episodes_file(reader, &episodes->at[0]), full, &node, &address));
    *any = full[0] && (attribute || node != DT_H5_NOTHING);
    return DT_OK;
}

dt_status dt_episodes_list_columns(const struct dt_reader *reader, struct dt_episodes *episodes)
{
    const struct dt_episode_schema *schema = reader->kind->schema;
    const struct dt_scan_rules *rules = &episodes->rules;
    char path[DT_H5_PATH];
    DT_TRY(add_columns(reader, episodes, "data.inputs",
                       rules->inputs[0] ? rules->inputs : schema->inputs, false));
    bool any = true;
    if (rules->seq_len == 0 && !rules->targets[0]) { // verifying a shard, whose targets are unknown
        DT_TRY(dt_episodes_path(reader, &episodes->at[0], schema->targets, path));
        DT_TRY(dt_h5_has(dt_episodes_file(reader, &episodes->at[0]), path, &any));
    }
    if (rules->whole) { // predictions need no targets
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

// The layout of the shard's columns, from the open episode.

dt_status dt_episodes_check_targets(const struct dt_reader *reader,
                                    const struct dt_episodes *episodes)
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

static void hash_column(XXH64_state_t *hash, const struct dt_column *column)
{
    // The position distinguishes a weight from a target.
    int64_t numbers[] = {column->first, column->end, column->table,
                         column->weight ? 2 + column->at : column->target};
    int64_t shifts[] = {column->from, column->to, column->step, column->valid};
    XXH64_update(hash, numbers, sizeof numbers);
    XXH64_update(hash, column->path, strlen(column->path) + 1);
    if (dt_column_is_shifted(column) || column->valid)
        XXH64_update(hash, shifts, sizeof shifts);
    XXH64_update(hash, column->shared, strlen(column->shared));
}

dt_status dt_episodes_place_columns(struct dt_reader *reader)
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
        if (column->weight)
            layout->weight_width = 1 + episodes->rules.n_targets;
    }
    dt_columns_place(columns, layout);
    for (int64_t i = 0; i < columns->n; i++)
        hash_column(hash, &columns->at[i]);
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

// A list of byte columns being built, up to the last other column.
struct byte_list {
    struct dt_byte_columns bytes;
    int64_t after;
};

// Too few columns are not worth a separate array.
static void add_bytes(struct byte_list *list, int64_t end)
{
    struct dt_byte_columns *bytes = &list->bytes;
    if (end - list->after >= BYTES_LEAST && bytes->n < DT_BYTE_RANGES) {
        bytes->at[bytes->n].first = list->after;
        bytes->at[bytes->n++].end = end;
    }
}

// Excludes from the byte columns [at, at + n), and for each further shift the columns `step` later.
static void add_others(struct byte_list *list, const struct dt_column *column, int64_t at,
                       int64_t step, int64_t n)
{
    add_bytes(list, at);
    list->after = dt_max_i64(list->after, at + (column->to - column->from - 1) * step + n);
}

struct dt_byte_columns dt_episodes_list_bytes(const struct dt_episodes *episodes)
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
