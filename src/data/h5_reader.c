// Opens a shard, finds its reader kind by its datasets, and does what all kinds share: checks of
// rules and vocabulary, scratch memory, hashes of arrays.
#include "data/h5_reader.h"

#include "base/memory.h"
#include "base/text.h"
#include "data/h5_episodes.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

const struct dt_reader_kind *dt_reader_find(const char *name)
{
    for (const struct dt_reader_kind *const *k = dt_reader_kinds; *k; k++)
        if (strcmp((*k)->name, name) == 0)
            return *k;
    return NULL;
}

const char *dt_reader_formats(void)
{
    static char words[512];
    if (words[0])
        return words;
    dt_append(words, sizeof words, "auto");
    for (const struct dt_reader_kind *const *k = dt_reader_kinds; *k; k++)
        if (!(*k)->source)
            dt_append(words, sizeof words, "|%s", (*k)->name);
    return words;
}

const struct dt_reader_kind *dt_reader_source(const char *text)
{
    for (const struct dt_reader_kind *const *k = dt_reader_kinds; *k; k++)
        if ((*k)->source && strcmp((*k)->source, text) == 0)
            return *k;
    return NULL;
}

// The i-th name that recognises a kind; NULL after the last.
static const char *name_of(const struct dt_reader_kind *kind, int i)
{
    if (i == 0 && kind->schema && kind->schema->groups && kind->schema->groups[0])
        return kind->schema->groups;
    return i < DT_READER_DATASETS ? kind->datasets[i] : NULL;
}

// Appends the datasets of all kinds or of `only`: with `whole` "/tokens, or /input_ids and
// /labels", else the first of each, "/tokens nor /input_ids".
static void list_datasets(const struct dt_reader_kind *only, bool whole, char *text, size_t size)
{
    size_t start = strlen(text);
    for (const struct dt_reader_kind *const *k = dt_reader_kinds; *k; k++)
        for (int i = 0; (i == 0 || whole) && name_of(*k, i) && (!only || *k == only); i++) {
            const char *before = i > 0 ? " and " : !text[start] ? "" : whole ? ", or " : " nor ";
            dt_append(text, size, "%s%s", before, name_of(*k, i));
        }
}

// Finds the first name of the kind that the file has, and the first that it lacks; NULL: none.
static dt_status look_for(const struct dt_reader *reader, const struct dt_reader_kind *kind,
                          const char **has, const char **lacks)
{
    *has = *lacks = NULL;
    for (int i = 0; name_of(kind, i); i++) {
        bool found;
        if (kind->datasets[0])
            DT_TRY(dt_h5_has(&reader->file, kind->datasets[i], &found));
        else
            DT_TRY(dt_groups_has(&reader->file, kind->schema->groups, &found));
        const char **which = found ? has : lacks;
        *which = *which ? *which : name_of(kind, i);
    }
    return DT_OK;
}

// Finds the kind of a shard. The generic kind has no names that recognise it: it is used if
// data.episodes is set or, if no other kind matches, data.inputs.
static dt_status recognise(struct dt_reader *reader, const struct dt_scan_rules *rules)
{
    bool automatic = !rules->format[0] || strcmp(rules->format, "auto") == 0;
    const struct dt_reader_kind *any = dt_reader_find("groups");
    const struct dt_reader_kind *only = !automatic           ? dt_reader_find(rules->format)
                                        : rules->episodes[0] ? any
                                                             : NULL;
    const char *path = reader->file.path, *first = NULL, *missing = NULL;
    char hint[384] = "a shard holds ", instead[256] = "neither ";
    if (!automatic && !only)
        return DT_FAIL(DT_USER, NULL, "data.format: no reader for %s", rules->format);
    if (only && (!name_of(only, 0) || (rules->episodes[0] && only->schema))) {
        reader->kind = only;
        return DT_OK;
    }
    for (const struct dt_reader_kind *const *k = dt_reader_kinds; *k; k++) {
        const char *has = NULL, *lacks = NULL;
        if (!only || *k == only)
            DT_TRY(look_for(reader, *k, &has, &lacks));
        if (has && first)
            return DT_FAIL(DT_USER,
                           "name the one to read with data.format, or split them into two files",
                           "%s has both %s and %s", path, first, has);
        if (has) {
            reader->kind = *k;
            first = has;
            missing = lacks;
        }
    }
    if (first && !missing)
        return DT_OK;
    if (!first && automatic && any && rules->inputs[0]) {
        reader->kind = any;
        return DT_OK;
    }
    list_datasets(only, true, hint, sizeof hint);
    list_datasets(only, false, instead, sizeof instead);
    if (first)
        snprintf(instead, sizeof instead, "%s without %s", first, missing);
    if (only)
        return DT_FAIL(DT_USER, "data.format = auto finds the schema by the datasets",
                       "%s has no %s: it is not %s, as data.format says", path,
                       missing ? missing : name_of(only, 0), only->name);
    dt_append(hint, sizeof hint, "%s",
              rules->seq_len == 0
                  ? "; dtrain verify CONFIG checks other datasets, with the rules of "
                    "a configuration that names them"
                  : "; or name other datasets with data.inputs and data.targets");
    return DT_FAIL(DT_USER, hint, "%s has %s", path, instead);
}

static dt_status open_file(struct dt_reader *reader, const char *path,
                           const struct dt_scan_rules *rules, struct dt_shard *shard)
{
    DT_TRY(dt_h5_open(path, &reader->file));
    reader->file.time_axis = (int)rules->time_axis;
    DT_TRY(recognise(reader, rules));
    const char *key = rules->inputs[0]       ? "data.inputs"
                      : rules->targets[0]    ? "data.targets"
                      : rules->weights[0]    ? "data.weights"
                      : rules->mask[0]       ? "data.mask"
                      : rules->episodes[0]   ? "data.episodes"
                      : rules->time_axis > 0 ? "data.time_axis"
                      : rules->stride > 0    ? "data.stride"
                                             : NULL;
    if (rules->val_fraction > 0 && !reader->kind->schema)
        return DT_FAIL(DT_USER,
                       "keep files for validation apart, and name them with data.val "
                       "(dtrain pack --val makes them)",
                       "%s holds %s: data.val_fraction holds out episodes, and it has none", path,
                       reader->kind->name);
    if (key && !reader->kind->numbers)
        return DT_FAIL(DT_USER, "remove the key, or use shards of episodes",
                       "%s holds %s: %s is for episodes of frames", path, reader->kind->name, key);
    struct stat file;
    bool found;
    if (fstat(reader->file.fd, &file) != 0)
        return DT_FAIL_ERRNO("read", path);
    shard->file = dt_file_stamp(&file);
    shard->file_bytes = reader->file.bytes;
    for (int i = 0; i < DT_READER_DATASETS && reader->kind->datasets[i]; i++)
        DT_TRY(
            dt_h5_array_open(&reader->file, reader->kind->datasets[i], &reader->arrays[i], &found));
    DT_TRY(reader->kind->open(reader, rules, shard));
    if (!reader->kind->datasets[0])
        return DT_OK;
    DT_TRY(dt_h5_attribute_u64(&reader->arrays[0], "tokenizer_xxh64", &shard->tokenizer, &found));
    DT_TRY(dt_h5_attribute(&reader->arrays[0], "bytes", &shard->text_bytes, &found));
    DT_TRY(dt_h5_attribute(&reader->arrays[0], "vocab_size", &shard->vocab_size, &found));
    if (found && rules->vocab_size > 0 && shard->vocab_size > rules->vocab_size)
        return DT_FAIL(
            DT_USER,
            "set model.vocab_size, or choose a run.init_from, to cover the shards' vocab_size",
            "%s: its vocab_size is %" PRId64 ", the model's is %" PRId64, path, shard->vocab_size,
            rules->vocab_size);
    return DT_OK;
}

dt_status dt_reader_open(const char *path, const struct dt_scan_rules *rules,
                         struct dt_shard *shard, struct dt_reader **reader)
{
    struct dt_reader *r;
    *reader = NULL;
    DT_TRY(DT_NEW(&r, 1, "reading %s", path));
    r->kind = dt_reader_source(path);
    r->file = (struct dt_h5_file){.path = path, .id = -1, .fd = -1};
    *shard = (struct dt_shard){.path = shard->path, .row = 1, .width = 1, .before = shard->before};
    dt_h5_enter(path);
    dt_status status = r->kind ? r->kind->open(r, rules, shard) : open_file(r, path, rules, shard);
    dt_h5_leave();
    if (status == DT_OK && rules->reverse_complement && !r->kind->strands)
        status = DT_FAIL(DT_USER, "remove the key, or pack DNA with dtrain pack --format fasta",
                         "%s holds %s: data.reverse_complement is for tokens of DNA", path,
                         r->kind->name);
    shard->kind = status == DT_OK ? r->kind : NULL;
    if (status != DT_OK) {
        dt_reader_close(r);
        return dt_error_push(status, __FILE__, __LINE__, __func__, NULL);
    }
    *reader = r;
    return DT_OK;
}

void dt_reader_close(struct dt_reader *reader)
{
    if (!reader)
        return;
    if (reader->own && reader->kind->close)
        reader->kind->close(reader);
    for (int i = 0; i < DT_READER_DATASETS; i++)
        dt_h5_array_close(&reader->arrays[i]);
    dt_h5_enter(reader->file.path);
    dt_h5_close(&reader->file);
    dt_h5_leave();
    free(reader->own);
    free(reader->scratch);
    free(reader);
}

dt_status dt_reader_fingerprint(struct dt_reader *reader, struct dt_shard *shard)
{
    return reader->kind->fingerprint && shard->count > 0 ? reader->kind->fingerprint(reader, shard)
                                                         : DT_OK;
}

dt_status dt_reader_hash_data(struct dt_reader *reader, struct dt_shard *shard, int64_t bytes)
{
    shard->data_hash = 0;
    return reader->kind->hash && shard->count > 0
               ? reader->kind->hash(reader, shard, bytes, &shard->data_hash)
               : DT_OK;
}

dt_status dt_reader_scratch(struct dt_reader *reader, int64_t bytes, void *pointer)
{
    DT_TRY(DT_ROOM(&reader->scratch, &reader->scratch_bytes, bytes, NULL, "reading %s",
                   reader->file.path));
    memcpy(pointer, &reader->scratch, sizeof reader->scratch);
    return DT_OK;
}

dt_status dt_reader_hash(struct dt_reader *reader, const struct dt_h5_array *array, int64_t first,
                         int64_t count, uint64_t *hash)
{
    int64_t bytes = count * array->shape[1] * dt_dtype_size(array->type);
    void *rows = NULL;
    DT_TRY(dt_reader_scratch(reader, bytes, &rows));
    DT_TRY(dt_h5_array_read(array, first, count, rows));
    *hash = XXH64(rows, (size_t)bytes, *hash);
    return DT_OK;
}

// Pieces are large enough for efficient reads, and numerous enough to be spread.
struct dt_hash_plan dt_hash_plan(int64_t count, int64_t row_bytes, int64_t bytes)
{
    enum { SPREAD = 64, LEAST = 1 << 12, MOST = 1 << 20 };
    int64_t piece = dt_max_i64(LEAST, dt_min_i64(bytes / SPREAD, MOST));
    int64_t rows = dt_min_i64(dt_max_i64(piece / row_bytes, 1), count);
    bool all = count <= bytes / row_bytes;
    int64_t n = all ? dt_ceil_div(count, rows) : dt_max_i64(bytes / (rows * row_bytes), 2);
    return (struct dt_hash_plan){.count = count, .rows = rows, .n = n, .all = all};
}

int64_t dt_hash_piece(const struct dt_hash_plan *plan, int64_t i, int64_t *rows)
{
    int64_t first = plan->all ? i * plan->rows
                              : (int64_t)((__int128)(plan->count - plan->rows) * i / (plan->n - 1));
    *rows = dt_min_i64(plan->count - first, plan->rows);
    return first;
}

dt_status dt_reader_hash_array(struct dt_reader *reader, const struct dt_h5_array *array,
                               int64_t bytes, uint64_t *hash)
{
    int64_t row = array->shape[1] * dt_dtype_size(array->type), rows;
    struct dt_hash_plan plan = dt_hash_plan(array->shape[0], row, bytes);
    for (int64_t i = 0; i < plan.n; i++) {
        int64_t first = dt_hash_piece(&plan, i, &rows);
        DT_TRY(dt_reader_hash(reader, array, first, rows, hash));
        dt_file_progress();
    }
    return DT_OK;
}
