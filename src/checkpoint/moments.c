// Optimizer files: written whole, read from any split.
#include "checkpoint/moments.h"

#include "base/file.h"
#include "base/safetensors.h"

#include <stdlib.h>
#include <string.h>

enum { KINDS = 2, ENTRY_NAME = DT_PARAM_NAME + 64, FILES_MAX = 99999 };
static const char *const kind_prefix[KINDS] = {"exp_avg.", "exp_avg_sq."}; // m, v

static void file_name(char name[DT_MANIFEST_NAME], int index, int n)
{
    snprintf(name, DT_MANIFEST_NAME, "optimizer-%05d-of-%05d.safetensors", index, n);
}

// Entries in the order m of all rows, v of all rows.
struct entries {
    int n;
    char (*names)[ENTRY_NAME];
    struct dt_safetensors_entry *list;
};

static void free_entries(struct entries *entries)
{
    free(entries->names);
    free(entries->list);
}

static dt_status make_entries(const struct dt_params *params, struct entries *entries)
{
    entries->n = KINDS * params->n;
    entries->names = calloc((size_t)entries->n + 1, sizeof *entries->names);
    entries->list = calloc((size_t)entries->n + 1, sizeof *entries->list);
    if (!entries->names || !entries->list)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the names of %d moments", entries->n);
    for (int i = 0; i < entries->n; i++) {
        const struct dt_param *row = &params->rows[i % params->n];
        snprintf(entries->names[i], ENTRY_NAME, "%s%s[0:%lld]", kind_prefix[i / params->n],
                 row->name, (long long)row->file_count);
        entries->list[i] = (struct dt_safetensors_entry){
            .name = entries->names[i], .dtype = DT_F32, .n_dims = 1, .shape = {row->file_count}};
    }
    return DT_OK;
}

static dt_status write_kind(struct dt_safetensors_writer *writer, const struct dt_params *params,
                            const float *moments)
{
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        DT_TRY(dt_safetensors_write(writer, moments + row->offset,
                                    row->file_count * (int64_t)sizeof *moments));
    }
    return DT_OK;
}

static dt_status write_file(const char *path, const struct dt_params *params, const float *m,
                            const float *v, struct dt_manifest_file *file)
{
    struct entries entries = {0};
    struct dt_safetensors_writer *writer = NULL;
    dt_status status = make_entries(params, &entries);
    if (status == DT_OK)
        status = dt_safetensors_create(path, entries.list, entries.n, NULL, 0, &writer);
    free_entries(&entries);
    DT_TRY(status);
    DT_TRY_GOTO(status, discard, write_kind(writer, params, m));
    DT_TRY_GOTO(status, discard, write_kind(writer, params, v));
    return dt_safetensors_finish(writer, &file->size, &file->hash);
discard:
    dt_safetensors_discard(writer);
    return status;
}

dt_status dt_moments_write(struct dt_manifest *manifest, const char *folder,
                           const struct dt_params *params, const float *m, const float *v)
{
    char path[DT_PATH];
    struct dt_manifest_file file;
    file_name(file.name, 1, 1);
    DT_TRY(dt_path(path, "%s/%s", folder, file.name));
    DT_TRY(write_file(path, params, m, v, &file));
    return dt_manifest_add(manifest, file.name, file.size, file.hash);
}

// How many files the set has, as its first listed one says; 0 where none is listed.
static int set_size(const struct dt_manifest *manifest)
{
    const char *prefix = "optimizer-00001-of-";
    for (int i = 0; i < manifest->n; i++) {
        const char *name = manifest->files[i].name;
        int n = strncmp(name, prefix, strlen(prefix)) == 0 ? atoi(name + strlen(prefix)) : 0;
        if (n > 0 && n <= FILES_MAX)
            return n;
    }
    return 0;
}

void dt_moments_check_names(const struct dt_manifest *manifest, struct dt_problems *problems)
{
    int n = set_size(manifest);
    char name[DT_MANIFEST_NAME];
    if (n == 0)
        dt_problems_add(problems, "MANIFEST lists no optimizer-00001-of-….safetensors");
    for (int i = 1; i <= n; i++) {
        file_name(name, i, n);
        if (!dt_manifest_find(manifest, name))
            dt_problems_add(problems, "MANIFEST lacks %s", name);
    }
}

struct piece { // elements [first, last) of row's m (kind 0) or v (kind 1)
    int row, kind;
    int64_t first, last;
};

struct pieces {
    int64_t n, capacity;
    struct piece *list;
};

static bool parse_number(const char **text, int64_t *value)
{
    const char *start = *text;
    *value = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        if (__builtin_mul_overflow(*value, 10, value) ||
            __builtin_add_overflow(*value, **text - '0', value))
            return false;
    return *text > start;
}

static bool parse_range(const char *text, struct piece *piece)
{
    if (*text++ != '[' || !parse_number(&text, &piece->first) || *text++ != ':' ||
        !parse_number(&text, &piece->last))
        return false;
    return strcmp(text, "]") == 0 && piece->first < piece->last;
}

static int find_row(const struct dt_params *params, const char *name, size_t length)
{
    for (int i = 0; i < params->n; i++)
        if (strlen(params->rows[i].name) == length &&
            memcmp(params->rows[i].name, name, length) == 0)
            return i;
    return -1;
}

static bool parse_entry(const struct dt_params *params, const char *name, struct piece *piece)
{
    for (piece->kind = 0; piece->kind < KINDS; piece->kind++) {
        size_t prefix = strlen(kind_prefix[piece->kind]);
        if (strncmp(name, kind_prefix[piece->kind], prefix) != 0)
            continue;
        size_t length = strcspn(name + prefix, "[");
        piece->row = find_row(params, name + prefix, length);
        return piece->row >= 0 && parse_range(name + prefix + length, piece);
    }
    return false;
}

static dt_status check_entry(const char *path, const struct dt_params *params,
                             const struct dt_safetensor *tensor, struct piece *piece)
{
    const char *hint = "the checkpoint was written by another program, or for another model";
    if (!parse_entry(params, tensor->name, piece))
        return DT_FAIL(DT_USER, hint, "%s: %.200s is no range of this model's moments", path,
                       tensor->name);
    if (tensor->dtype != DT_F32 || tensor->n_dims != 1 ||
        tensor->shape[0] != piece->last - piece->first)
        return DT_FAIL(DT_USER, hint, "%s: %.200s must be fp32 of one dimension, as its name says",
                       path, tensor->name);
    if (piece->last > params->rows[piece->row].file_count)
        return DT_FAIL(DT_USER, hint, "%s: %.200s ends behind the tensor's %lld elements", path,
                       tensor->name, (long long)params->rows[piece->row].file_count);
    return DT_OK;
}

static dt_status add_piece(struct pieces *pieces, const struct piece *piece)
{
    if (pieces->n == pieces->capacity) {
        int64_t capacity = pieces->capacity > 0 ? 2 * pieces->capacity : 64;
        struct piece *list = realloc(pieces->list, (size_t)capacity * sizeof *list);
        if (!list)
            return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of %lld moments",
                           (long long)capacity);
        pieces->list = list;
        pieces->capacity = capacity;
    }
    pieces->list[pieces->n++] = *piece;
    return DT_OK;
}

// What is done with each entry of each file: first all are checked and listed, then all are read.
struct visit {
    const struct dt_params *params;
    struct pieces *pieces; // listing
    float *moments[KINDS]; // reading
};

static dt_status visit_file(const struct dt_safetensors *file, const struct visit *visit)
{
    for (int i = 0; i < file->n_tensors; i++) {
        const struct dt_safetensor *tensor = &file->tensors[i];
        struct piece piece;
        DT_TRY(check_entry(file->path, visit->params, tensor, &piece));
        if (visit->pieces) {
            DT_TRY(add_piece(visit->pieces, &piece));
            continue;
        }
        int64_t offset = visit->params->rows[piece.row].offset + piece.first;
        DT_TRY(dt_safetensors_read_f32(file, tensor, 0, tensor->count,
                                       visit->moments[piece.kind] + offset));
    }
    return DT_OK;
}

// One file open at a time: a set may have more than a process may open.
static dt_status visit_all(const struct dt_manifest *manifest, const char *folder,
                           const struct visit *visit)
{
    int n = set_size(manifest);
    char path[DT_PATH], name[DT_MANIFEST_NAME];
    for (int i = 1; i <= n; i++) {
        struct dt_safetensors *file;
        file_name(name, i, n);
        DT_TRY(dt_path(path, "%s/%s", folder, name));
        DT_TRY(dt_safetensors_open(path, &file));
        dt_status status = visit_file(file, visit);
        dt_safetensors_close(file);
        DT_TRY(status);
    }
    return DT_OK;
}

static int compare_pieces(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->row != y->row)
        return x->row < y->row ? -1 : 1;
    if (x->kind != y->kind)
        return x->kind < y->kind ? -1 : 1;
    return (x->first > y->first) - (x->first < y->first);
}

// Sorted ranges of one tensor's moments, from pieces->list[next] on, must follow one on another.
// Gives the first piece behind them.
static int64_t check_tensor(struct dt_problems *problems, const struct dt_params *params, int row,
                            int kind, const struct pieces *pieces, int64_t next)
{
    int64_t start = next, end = 0;
    bool follows = true;
    for (; next < pieces->n; next++) {
        const struct piece *piece = &pieces->list[next];
        if (piece->row != row || piece->kind != kind)
            break;
        follows = follows && piece->first == end;
        end = piece->last;
    }
    const char *name = params->rows[row].name;
    if (next == start)
        dt_problems_add(problems, "%s%s is missing", kind_prefix[kind], name);
    else if (!follows || end != params->rows[row].file_count)
        dt_problems_add(problems, "%s%s: its ranges leave out or repeat some of %lld elements",
                        kind_prefix[kind], name, (long long)params->rows[row].file_count);
    return next;
}

static dt_status check_cover(const char *folder, const struct dt_params *params,
                             const struct pieces *pieces)
{
    struct dt_problems problems = {0};
    int64_t next = 0;
    if (pieces->n > 0)
        qsort(pieces->list, (size_t)pieces->n, sizeof *pieces->list, compare_pieces);
    for (int row = 0; row < params->n; row++)
        for (int kind = 0; kind < KINDS; kind++)
            next = check_tensor(&problems, params, row, kind, pieces, next);
    return dt_problems_report(&problems, "use another checkpoint",
                              "the optimizer files of %s are not whole", folder);
}

dt_status dt_moments_read(const struct dt_manifest *manifest, const char *folder,
                          const struct dt_params *params, float *m, float *v)
{
    struct pieces pieces = {0};
    struct visit list = {.params = params, .pieces = &pieces};
    struct visit read = {.params = params, .moments = {m, v}};
    dt_status status = visit_all(manifest, folder, &list);
    if (status == DT_OK)
        status = check_cover(folder, params, &pieces);
    free(pieces.list);
    DT_TRY(status);
    memset(m, 0, (size_t)params->elements * sizeof *m);
    memset(v, 0, (size_t)params->elements * sizeof *v);
    return visit_all(manifest, folder, &read);
}
