// Finding shards and knowing them: globs, the check of all of them at start, metadata as bytes.
#include "data/dataset.h"

#include "base/file.h"
#include "base/log.h"
#include "data/reader.h"

#include <glob.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { REPORTED = 20 };

struct paths {
    char **at;
    int64_t n, room;
};

static dt_status add_path(struct paths *paths, const char *path)
{
    if (paths->n == paths->room) {
        int64_t room = paths->room ? 2 * paths->room : 64;
        char **at = realloc(paths->at, (size_t)room * sizeof *at);
        if (!at)
            return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of shards");
        paths->at = at;
        paths->room = room;
    }
    paths->at[paths->n] = strdup(path);
    if (!paths->at[paths->n])
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of shards");
    paths->n++;
    return DT_OK;
}

static void free_paths(struct paths *paths)
{
    for (int64_t i = 0; i < paths->n; i++)
        free(paths->at[i]);
    free(paths->at);
}

static int compare_paths(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void sort_and_drop_doubles(struct paths *paths)
{
    int64_t kept = 0;
    if (paths->n == 0)
        return;
    qsort(paths->at, (size_t)paths->n, sizeof *paths->at, compare_paths);
    for (int64_t i = 1; i < paths->n; i++) {
        if (strcmp(paths->at[i], paths->at[kept]) == 0)
            free(paths->at[i]);
        else
            paths->at[++kept] = paths->at[i];
    }
    paths->n = kept + 1;
}

// A file that exists, whatever characters are in its name, and a source are no patterns.
static dt_status expand_pattern(const char *pattern, struct paths *paths)
{
    glob_t found;
    if (dt_reader_source(pattern) || dt_file_exists(pattern))
        return add_path(paths, pattern);
    int failed = glob(pattern, GLOB_NOSORT | GLOB_TILDE, NULL, &found);
    if (failed == GLOB_NOMATCH)
        return DT_FAIL(DT_USER, "check the path; a glob looks like data/train-*.h5",
                       "no shard matches %s", pattern);
    if (failed)
        return DT_FAIL(DT_MACHINE, NULL, "cannot search for %s: %s", pattern,
                       failed == GLOB_NOSPACE ? "no memory" : "read error");
    dt_status status = DT_OK;
    for (size_t i = 0; i < found.gl_pathc && status == DT_OK; i++)
        status = add_path(paths, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

static dt_status expand(const char *globs, struct paths *paths)
{
    char *list = strdup(globs), *rest = list;
    if (!list)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a list of shards");
    dt_status status = DT_OK;
    for (char *word; status == DT_OK && (word = strsep(&rest, ","));) {
        word += strspn(word, " \t");
        for (size_t n = strlen(word); n > 0 && strchr(" \t", word[n - 1]); n--)
            word[n - 1] = 0;
        if (*word)
            status = expand_pattern(word, paths);
    }
    free(list);
    sort_and_drop_doubles(paths);
    if (status == DT_OK && paths->n == 0)
        return DT_FAIL(DT_USER, "give a glob such as data/train-*.h5", "no shards are given");
    return status;
}

// Collects what is wrong with single shards into one error.
struct findings {
    int64_t wrong;
    dt_status worst;
    char hint[DT_ERROR_HINT]; // of the first
    char text[DT_ERROR_MESSAGE];
    size_t used;
};

static void add_finding(struct findings *findings)
{
    struct dt_error error;
    dt_error_take(&error);
    if (error.code > findings->worst)
        findings->worst = error.code;
    if (findings->wrong == 0)
        snprintf(findings->hint, sizeof findings->hint, "%s", error.hint);
    if (findings->wrong++ >= REPORTED)
        return;
    size_t room = sizeof findings->text - findings->used;
    int n = snprintf(findings->text + findings->used, room, "\n  %s", error.message);
    findings->used += (size_t)n < room ? (size_t)n : room - 1;
}

static dt_status report(const struct findings *findings, int64_t n_shards)
{
    char more[64] = "";
    if (findings->wrong == 0)
        return DT_OK;
    if (findings->wrong > REPORTED)
        snprintf(more, sizeof more, "\n  and %" PRId64 " more", findings->wrong - REPORTED);
    if (n_shards == 1)
        return DT_FAIL(findings->worst, findings->hint, "%s", findings->text + strlen("\n  "));
    return DT_FAIL(findings->worst, findings->hint,
                   "%" PRId64 " of %" PRId64 " shards cannot be used:%s%s", findings->wrong,
                   n_shards, findings->text, more);
}

// Shards of one dataset are of one kind and width.
static dt_status look_at_shard(struct dt_dataset *dataset, int64_t i, int64_t vocab_size)
{
    struct dt_shard *shard = &dataset->shards[i], *first = &dataset->shards[0];
    struct dt_reader *reader;
    DT_TRY(dt_reader_open(shard->path, dataset->seq_len, vocab_size, shard, &reader));
    dt_status status = dt_reader_fingerprint(reader, shard);
    dt_reader_close(reader);
    DT_TRY(status);
    if (first->kind && shard->kind != first->kind)
        return DT_FAIL(DT_USER, "use shards of one kind", "%s holds %s, %s holds %s", shard->path,
                       shard->kind->name, first->path, first->kind->name);
    if (first->kind && shard->width != first->width)
        return DT_FAIL(DT_USER, "use shards of one width",
                       "%s: %" PRId64 " values a position, %s: %" PRId64, shard->path, shard->width,
                       first->path, first->width);
    return DT_OK;
}

static void add_up(struct dt_dataset *dataset)
{
    dataset->kind = dataset->shards[0].kind;
    for (int64_t i = 0; i < dataset->n_shards; i++) {
        const struct dt_shard *shard = &dataset->shards[i];
        dataset->windows += shard->windows;
        dataset->tokens += shard->count * shard->row;
        dataset->doc_starts |= shard->doc_starts;
        if (shard->windows == 0)
            dt_warn("%s holds %" PRId64 " %s: too short for a window of data.seq_len = %" PRId64
                    ", skipped",
                    shard->path, shard->count, shard->kind->unit, dataset->seq_len);
    }
}

static dt_status scan_files(struct dt_dataset *dataset, struct paths *paths, int64_t vocab_size)
{
    struct findings *findings = calloc(1, sizeof *findings);
    dataset->shards = calloc((size_t)paths->n, sizeof *dataset->shards);
    if (!dataset->shards || !findings) {
        free(findings);
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " shards", paths->n);
    }
    for (int64_t i = 0; i < paths->n; i++) { // the paths move over
        dataset->shards[i].path = paths->at[i];
        dataset->n_shards++;
    }
    paths->n = 0;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        if (look_at_shard(dataset, i, vocab_size) != DT_OK)
            add_finding(findings);
    dt_status status = report(findings, dataset->n_shards);
    free(findings);
    if (status == DT_OK)
        add_up(dataset);
    return status;
}

static dt_status scan_globs(const char *glob, int64_t vocab_size, struct dt_dataset *dataset)
{
    struct paths paths = {0};
    dt_status status = expand(glob, &paths);
    if (status == DT_OK)
        status = scan_files(dataset, &paths, vocab_size);
    free_paths(&paths);
    return status;
}

dt_status dt_dataset_scan(const char *glob, int64_t seq_len, int64_t vocab_size,
                          struct dt_dataset **dataset)
{
    *dataset = NULL;
    if (seq_len < 1 || seq_len > INT32_MAX)
        return DT_FAIL(DT_USER, "give a data.seq_len from 1 to 2147483647",
                       "a sequence of %" PRId64 " tokens cannot be trained", seq_len);
    struct dt_dataset *d = calloc(1, sizeof *d);
    if (!d)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a dataset");
    d->seq_len = seq_len;
    dt_status status = scan_globs(glob, vocab_size, d);
    if (status != DT_OK) {
        dt_dataset_free(d);
        return dt_error_push(status, __FILE__, __LINE__, __func__, "looking at the shards of %s",
                             glob);
    }
    *dataset = d;
    return DT_OK;
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

// As bytes: the dataset's struct, then the shards' structs, then the kind's name and the shards'
// paths, each with its zero. Sender and receiver are one program on one kind of machine.
dt_status dt_dataset_pack(const struct dt_dataset *dataset, void **bytes, int64_t *size)
{
    size_t structs = (size_t)dataset->n_shards * sizeof *dataset->shards, total;
    total = sizeof *dataset + structs + strlen(dataset->kind->name) + 1;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        total += strlen(dataset->shards[i].path) + 1;
    char *at = malloc(total);
    *bytes = at;
    *size = (int64_t)total;
    if (!at)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %zu bytes of metadata", total);
    memcpy(at, dataset, sizeof *dataset);
    memcpy(at + sizeof *dataset, dataset->shards, structs);
    at = stpcpy(at + sizeof *dataset + structs, dataset->kind->name) + 1;
    for (int64_t i = 0; i < dataset->n_shards; i++)
        at = stpcpy(at, dataset->shards[i].path) + 1;
    return DT_OK;
}

// The text at *at, which moves past it; NULL: it does not end before `end`.
static const char *next_text(const char **at, const char *end)
{
    const char *text = *at;
    size_t length = strnlen(text, (size_t)(end - text));
    if (text + length == end)
        return NULL;
    *at = text + length + 1;
    return text;
}

static dt_status unpack_shards(const char *at, const char *end, struct dt_dataset *dataset)
{
    int64_t n = dataset->n_shards;
    dataset->n_shards = 0; // counts the paths that are to be freed
    if (n < 1 || n > (end - at) / (int64_t)sizeof *dataset->shards)
        return DT_FAIL(DT_MACHINE, NULL, "the metadata of the shards arrived damaged");
    size_t structs = (size_t)n * sizeof *dataset->shards;
    dataset->shards = malloc(structs);
    if (!dataset->shards)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " shards", n);
    memcpy(dataset->shards, at, structs);
    at += structs;
    const char *name = next_text(&at, end);
    dataset->kind = name ? dt_reader_find(name) : NULL;
    for (; dataset->n_shards < n; dataset->n_shards++) {
        struct dt_shard *shard = &dataset->shards[dataset->n_shards];
        const char *path = dataset->kind ? next_text(&at, end) : NULL;
        if (!path)
            return DT_FAIL(DT_MACHINE, NULL, "the metadata of the shards arrived damaged");
        shard->kind = dataset->kind;
        shard->path = strdup(path);
        if (!shard->path)
            return DT_FAIL(DT_MACHINE, NULL, "no memory for %" PRId64 " shards", n);
    }
    return DT_OK;
}

dt_status dt_dataset_unpack(const void *bytes, int64_t size, struct dt_dataset **dataset)
{
    *dataset = NULL;
    if (size < (int64_t)sizeof **dataset)
        return DT_FAIL(DT_MACHINE, NULL, "the metadata of the shards arrived damaged");
    struct dt_dataset *d = malloc(sizeof *d);
    if (!d)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a dataset");
    memcpy(d, bytes, sizeof *d);
    d->shards = NULL;
    dt_status status =
        unpack_shards((const char *)bytes + sizeof *d, (const char *)bytes + size, d);
    if (status != DT_OK) {
        dt_dataset_free(d);
        return status;
    }
    *dataset = d;
    return DT_OK;
}
