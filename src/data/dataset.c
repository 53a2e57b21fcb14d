// Finds and checks the shards at the start of a run: expands globs, opens every shard, reports all
// problems in one error, and serialises the metadata for other ranks.
#include "data/dataset.h"

#include "base/file.h"
#include "base/list.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/problems.h"
#include "base/text.h"
#include "data/columns.h"
#include "data/reader.h"

#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *dt_shard_types(const struct dt_shard *shard, char text[DT_SHARD_TYPES])
{
    unsigned types = shard->types ? shard->types : 1u << shard->type;
    text[0] = 0;
    for (int type = 0; type < DT_DTYPE_COUNT; type++)
        if (types >> type & 1)
            dt_append(text, DT_SHARD_TYPES, "%s%s", text[0] ? ", " : "",
                      dt_dtype_name((dt_dtype)type));
    return text;
}

static dt_status add_shard(struct dt_dataset *dataset, const char *path)
{
    int64_t n = dataset->n_shards;
    DT_TRY(dt_list_grow(&dataset->shards, n, sizeof *dataset->shards));
    dataset->shards[n] = (struct dt_shard){0};
    DT_TRY(dt_memory_text(&dataset->shards[n].path, "%s", path));
    dataset->n_shards++;
    return DT_OK;
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(((const struct dt_shard *)a)->path, ((const struct dt_shard *)b)->path);
}

// Compares pointers to shards, for qsort.
static int compare_places(const void *a, const void *b)
{
    return compare_paths(*(const struct dt_shard *const *)a, *(const struct dt_shard *const *)b);
}

// Existing files, whatever their name, and sources are not patterns.
static dt_status expand_pattern(struct dt_dataset *dataset, const char *pattern)
{
    glob_t found;
    if (dt_is_dir(pattern))
        return DT_FAIL(DT_USER, "name the shards in it, such as data/train-*.h5", "%s is a folder",
                       pattern);
    if (dt_reader_source(pattern) || dt_file_exists(pattern))
        return add_shard(dataset, pattern);
    int failed = glob(pattern, GLOB_NOSORT | GLOB_TILDE, NULL, &found);
    if (failed == GLOB_NOMATCH)
        return DT_FAIL(DT_USER,
                       "check the path, which is relative to the current folder unless it begins "
                       "with / or ~; a glob looks like data/train-*.h5",
                       "no shard matches %s", pattern);
    if (failed)
        return DT_FAIL(DT_MACHINE, NULL, "cannot search for %s: %s", pattern,
                       failed == GLOB_NOSPACE ? "no memory" : "read error");
    dt_status status = DT_OK;
    for (size_t i = 0; i < found.gl_pathc && status == DT_OK; i++)
        status = add_shard(dataset, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

// Adds the shards of a source. A path that several of its globs match counts once.
static dt_status find_source(struct dt_dataset *dataset, struct dt_source *source)
{
    char *list, *rest;
    int64_t first = dataset->n_shards, kept = first;
    DT_TRY(dt_memory_text(&list, "%s", source->name));
    rest = list;
    dt_status status = DT_OK;
    for (char *word; status == DT_OK && (word = strsep(&rest, ","));) {
        word += strspn(word, " \t");
        for (size_t n = strlen(word); n > 0 && strchr(" \t", word[n - 1]); n--)
            word[n - 1] = 0;
        if (*word)
            status = expand_pattern(dataset, word);
    }
    free(list);
    DT_TRY(status);
    if (dataset->n_shards == first)
        return DT_FAIL(DT_USER, "give a glob such as data/train-*.h5", "no shards given");
    qsort(dataset->shards + first, (size_t)(dataset->n_shards - first), sizeof *dataset->shards,
          compare_paths);
    for (int64_t i = first; i < dataset->n_shards; i++)
        if (kept > first && compare_paths(&dataset->shards[i], &dataset->shards[kept - 1]) == 0)
            free(dataset->shards[i].path);
        else
            dataset->shards[kept++] = dataset->shards[i];
    dataset->n_shards = kept;
    source->first_shard = first;
    source->n_shards = kept - first;
    return DT_OK;
}

static struct dt_source *source_of(struct dt_dataset *dataset, int64_t shard)
{
    struct dt_source *source = dataset->sources, *last = source + dataset->n_sources - 1;
    while (source < last && shard >= source[1].first_shard)
        source++;
    return source;
}

// A shard in two sources would be read by the weights of both.
static dt_status check_apart(struct dt_dataset *dataset)
{
    const struct dt_shard **sorted;
    int64_t n = dataset->n_shards, twice = 0;
    if (dataset->n_sources == 1)
        return DT_OK;
    DT_TRY(DT_NEW(&sorted, n, "%" PRId64 " shards", n));
    for (int64_t i = 0; i < n; i++)
        sorted[i] = &dataset->shards[i];
    qsort(sorted, (size_t)n, sizeof *sorted, compare_places);
    while (twice < n - 1 && strcmp(sorted[twice]->path, sorted[twice + 1]->path) != 0)
        twice++;
    dt_status status = DT_OK;
    if (twice < n - 1)
        status = DT_FAIL(DT_USER, "change the globs so that each shard is in one source",
                         "%s is in two sources, %s and %s", sorted[twice]->path,
                         source_of(dataset, sorted[twice] - dataset->shards)->name,
                         source_of(dataset, sorted[twice + 1] - dataset->shards)->name);
    free(sorted);
    return status;
}

// Checks that all shards of a dataset have the same kind and width.
static dt_status inspect_shard(struct dt_dataset *dataset, int64_t i)
{
    struct dt_shard *shard = &dataset->shards[i], *first = &dataset->shards[0];
    struct dt_reader *reader;
    shard->before = i > 0 ? shard[-1].before + shard[-1].listed : 0;
    DT_TRY(dt_reader_open(shard->path, &dataset->rules, shard, &reader));
    dt_status status = dt_reader_fingerprint(reader, shard);
    if (status == DT_OK)
        status = dt_reader_hash_data(reader, shard, dt_dataset_hash_bytes(dataset));
    if (status == DT_OK && i == 0 && shard->kind->columns)
        shard->kind->columns(reader, dataset->inputs, dataset->targets);
    dt_reader_close(reader);
    DT_TRY(status);
    if (!first->kind)
        return DT_OK;
    if (shard->kind != first->kind)
        return DT_FAIL(DT_USER, "use shards of one kind", "%s holds %s, %s holds %s", shard->path,
                       shard->kind->name, first->path, first->kind->name);
    if (shard->width != first->width)
        return DT_FAIL(DT_USER, "use shards of one width",
                       "%s: %" PRId64 " values per position, %s: %" PRId64, shard->path,
                       shard->width, first->path, first->width);
    if (memcmp(&shard->layout, &first->layout, sizeof shard->layout) != 0)
        return DT_FAIL(DT_USER,
                       "name the datasets in data.inputs and data.targets, or use shards "
                       "that hold the same ones",
                       "%s has different columns from %s", shard->path, first->path);
    return DT_OK;
}

static void add_up(struct dt_dataset *dataset)
{
    dataset->kind = dataset->shards[0].kind;
    dataset->layout = dataset->shards[0].layout;
    bool same_bytes = true;
    for (int64_t i = 0; i < dataset->n_shards; i++) {
        const struct dt_shard *shard = &dataset->shards[i];
        struct dt_source *source = source_of(dataset, i);
        source->windows += shard->windows;
        source->tokens += shard->count * shard->row;
        dataset->windows += shard->windows;
        dataset->tokens += shard->count * shard->row;
        dataset->episodes += shard->episodes;
        dataset->in_windows += shard->in_windows;
        dataset->longest = dt_max_i64(dataset->longest, shard->longest);
        dataset->doc_starts |= shard->doc_starts;
        if (memcmp(&shard->bytes, &dataset->shards[0].bytes, sizeof shard->bytes) != 0)
            same_bytes = false;
        if (shard->warning[0] && !dataset->rules.held_out) // warn only about trained shards
            dt_warn("%s: %s", shard->path, shard->warning);
        if (shard->empty > 0)
            dt_warn("%s: skipped empty episodes: %" PRId64, shard->path, shard->empty);
        bool others_hold = dataset->rules.val_fraction > 0 && shard->episodes == 0;
        if (shard->windows == 0 && !others_hold)
            dt_warn("%s holds %" PRId64 " %s: too short for a window of data.seq_len = %" PRId64
                    ", skipped",
                    shard->path, shard->count, shard->kind->unit, dataset->rules.seq_len);
    }
    if (same_bytes)
        dataset->bytes = dataset->shards[0].bytes;
}

// Reports problems with a key's text once instead of per shard.
static dt_status check_texts(const struct dt_scan_rules *rules)
{
    struct dt_columns columns = {0};
    dt_status status = dt_columns_parse("data.inputs", rules->inputs, false, &columns);
    if (status == DT_OK)
        status = dt_columns_parse("data.targets", rules->targets, true, &columns);
    if (status == DT_OK)
        status = dt_columns_parse_weights(rules, &columns);
    dt_columns_free(&columns);
    return status;
}

// Opens every shard and reports all unusable ones, with the hint of the first.
static dt_status open_shards(struct dt_dataset *dataset)
{
    struct dt_problems wrong = {0};
    char hint[DT_ERROR_HINT] = "";
    dt_status worst = DT_OK;
    double next = 0;
    for (int64_t i = 0; i < dataset->n_shards; i++) {
        if (dt_log_due(&next))
            dt_info("reading the metadata of the shards: %" PRId64 " of %" PRId64, i,
                    dataset->n_shards);
        dt_status status = inspect_shard(dataset, i);
        if (status == DT_OK)
            continue;
        if (wrong.n == 0)
            snprintf(hint, sizeof hint, "%s", dt_error_current()->hint);
        dt_problems_add(&wrong, "%s", dt_error_current()->message);
        worst = status > worst ? status : worst;
    }
    if (dataset->n_shards == 1)
        dt_problems_raise(&wrong, hint);
    else
        dt_problems_report(&wrong, hint, "%d of %" PRId64 " shards cannot be used", wrong.n,
                           dataset->n_shards);
    return worst == DT_MACHINE ? dt_error_during_run(DT_USER) : worst;
}

dt_status dt_dataset_scan(const char *glob, const struct dt_scan_rules *rules,
                          struct dt_dataset **dataset)
{
    struct dt_dataset *d;
    *dataset = NULL;
    DT_TRY(DT_NEW(&d, 1, "a dataset"));
    d->rules = *rules;
    dt_status status = check_texts(rules);
    if (status == DT_OK)
        status = dt_mixture_parse(glob, d->sources, &d->n_sources);
    for (int i = 0; i < d->n_sources && status == DT_OK; i++)
        status = find_source(d, &d->sources[i]);
    if (status == DT_OK)
        status = check_apart(d);
    if (status == DT_OK)
        status = open_shards(d);
    if (status != DT_OK) {
        dt_dataset_free(d);
        return dt_error_push(status, __FILE__, __LINE__, __func__, "reading the metadata of %s",
                             glob);
    }
    add_up(d);
    *dataset = d;
    return DT_OK;
}

double dt_dataset_filled(const struct dt_dataset *dataset)
{
    double positions = (double)dataset->windows * (double)dataset->rules.seq_len;
    return dataset->in_windows > 0 ? (double)dataset->in_windows / positions : 1;
}

static int64_t compressed_bytes(const struct dt_dataset *dataset)
{
    int64_t total = 0;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        total += dataset->shards[i].compressed_bytes;
    return total;
}

int64_t dt_dataset_kept_chunks(const struct dt_dataset *dataset)
{
    return dt_min_i64(compressed_bytes(dataset), DT_KEPT_CHUNK_BYTES);
}

int64_t dt_dataset_decodes(const struct dt_dataset *dataset, int64_t block,
                           const struct dt_shard **worst)
{
    int64_t most = 1;
    *worst = NULL;
    if (compressed_bytes(dataset) <= DT_KEPT_CHUNK_BYTES)
        return 1;
    for (int64_t i = 0; i < dataset->n_shards; i++) {
        const struct dt_shard *shard = &dataset->shards[i];
        if (shard->compressed_bytes == 0 || shard->windows == 0)
            continue;
        double read = (double)block * (double)shard->compressed_bytes / (double)shard->windows;
        int64_t times = (int64_t)((double)shard->chunk_bytes / read);
        if (times > most) {
            most = times;
            *worst = shard;
        }
    }
    return most;
}

int64_t dt_dataset_hash_bytes(const struct dt_dataset *dataset)
{
    const int64_t shard = 1 << 28, all = 1 << 30, least = 1 << 16;
    return dt_max_i64(least, dt_min_i64(all / dataset->n_shards, shard));
}

void dt_dataset_free(struct dt_dataset *dataset)
{
    if (!dataset)
        return;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        free(dataset->shards[i].path);
    free(dataset->shards);
    free(dataset);
}

// Format: number of bytes, struct dt_dataset, the shards' structs, then the kind's name and the
// shards' paths, each zero-terminated. Sender and receiver are the same program on the same kind of
// machine.
dt_status dt_dataset_pack(const struct dt_dataset *dataset, void **bytes, int64_t *size)
{
    size_t structs = (size_t)dataset->n_shards * sizeof *dataset->shards, total;
    total = sizeof total + sizeof *dataset + structs + strlen(dataset->kind->name) + 1;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        total += strlen(dataset->shards[i].path) + 1;
    *size = (int64_t)total;
    DT_TRY(DT_NEW_BYTES(bytes, total, "the metadata of %" PRId64 " shards", dataset->n_shards));
    char *at = mempcpy(*bytes, &total, sizeof total);
    at = mempcpy(at, dataset, sizeof *dataset);
    at = mempcpy(at, dataset->shards, structs);
    at = stpcpy(at, dataset->kind->name) + 1;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        at = stpcpy(at, dataset->shards[i].path) + 1;
    return DT_OK;
}

dt_status dt_dataset_unpack(const void *bytes, int64_t size, struct dt_dataset **dataset)
{
    struct dt_dataset *d;
    const char *at = bytes;
    size_t total = 0;
    *dataset = NULL;
    if (size >= (int64_t)sizeof total)
        memcpy(&total, at, sizeof total);
    if (total == 0 || (int64_t)total != size)
        return DT_FAIL(DT_MACHINE, NULL, "the broadcast metadata of the shards is damaged");
    DT_TRY(DT_NEW(&d, 1, "a dataset"));
    memcpy(d, at + sizeof total, sizeof *d);
    at += sizeof total + sizeof *d;
    int64_t n = d->n_shards;
    d->n_shards = 0; // counts the paths to free
    dt_status status = DT_NEW(&d->shards, n, "%" PRId64 " shards", n);
    if (status == DT_OK)
        memcpy(d->shards, at, (size_t)n * sizeof *d->shards);
    at += n * (int64_t)sizeof *d->shards;
    d->kind = dt_reader_find(at);
    while (status == DT_OK && d->n_shards < n) {
        struct dt_shard *shard = &d->shards[d->n_shards];
        shard->kind = d->kind;
        at += strlen(at) + 1;
        status = dt_memory_text(&shard->path, "%s", at);
        d->n_shards += status == DT_OK;
    }
    if (status == DT_OK)
        *dataset = d;
    else
        dt_dataset_free(d);
    return status;
}
