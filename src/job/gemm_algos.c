// Reads what is known, asks the device to choose the rest, keeps and broadcasts the result. A
// record is the text of the device table's `choose`: an object whose member "gemm" has a member for
// each shape; the others say what it was made for.
#include "job/gemm_algos.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { RECORD_MAX = 16 << 20 };
static const char shapes_name[] = "gemm";

// Records.

static cJSON *shapes_of(const cJSON *record)
{
    return cJSON_GetObjectItemCaseSensitive(record, shapes_name);
}

static bool made_for_the_same(const cJSON *a, const cJSON *b)
{
    cJSON *x = cJSON_Duplicate(a, true), *y = cJSON_Duplicate(b, true);
    cJSON_DeleteItemFromObjectCaseSensitive(x, shapes_name);
    cJSON_DeleteItemFromObjectCaseSensitive(y, shapes_name);
    bool same = cJSON_Compare(x, y, true);
    cJSON_Delete(x);
    cJSON_Delete(y);
    return same;
}

static bool add_missing_shapes(cJSON *to, const cJSON *from)
{
    const cJSON *entry, *others = shapes_of(from);
    bool ok = cJSON_IsObject(shapes_of(to)) && made_for_the_same(to, from);
    if (!ok)
        return false;
    cJSON_ArrayForEach(entry, others)
    {
        if (!cJSON_GetObjectItemCaseSensitive(shapes_of(to), entry->string))
            ok = ok &&
                 cJSON_AddItemToObject(shapes_of(to), entry->string, cJSON_Duplicate(entry, true));
    }
    return ok;
}

dt_status dt_gemm_algos_merge(const char *first, const char *second, char **merged)
{
    cJSON *a = cJSON_Parse(first), *b = second ? cJSON_Parse(second) : NULL;
    char *text = a && b && add_missing_shapes(a, b) ? dt_json_text(a) : NULL;
    *merged = text ? text : strdup(first);
    cJSON_Delete(a);
    cJSON_Delete(b);
    return *merged ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for GEMM algorithms");
}

// *text is NULL where there is no such file.
static dt_status read_record(const char *path, char **text)
{
    int64_t size;
    *text = NULL;
    if (dt_file_exists(path))
        DT_TRY(dt_read_file(path, RECORD_MAX, text, &size));
    return DT_OK;
}

// The user's cache: a file for each device and its libraries.

static dt_status cache_folder(char folder[DT_PATH])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && cache[0] == '/')
        return dt_path(folder, "%s/dtrain", cache);
    if (home && home[0] == '/')
        return dt_path(folder, "%s/.cache/dtrain", home);
    folder[0] = '\0';
    return DT_OK;
}

// "NVIDIA-H200": the part of a file's name that people read.
static void plain_name(const char *name, char *text, size_t size)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._";
    snprintf(text, size, "%s", name);
    for (char *c = text; *c; c++)
        if (!strchr(plain, *c))
            *c = '-';
}

// "" where this user has no place for a cache.
static dt_status cache_path(const struct dt_backend *backend, char path[DT_PATH])
{
    char folder[DT_PATH], made_for[2048], versions[1024] = "", name[128];
    struct dt_device_info info;
    DT_TRY(cache_folder(folder));
    path[0] = '\0';
    if (!folder[0])
        return DT_OK;
    DT_TRY(backend->table->info(backend->device, &info));
    if (backend->table->versions)
        backend->table->versions(versions, sizeof versions);
    int n = snprintf(made_for, sizeof made_for, "%s\n%s\n%s", info.name, info.features, versions);
    plain_name(info.name, name, sizeof name);
    return dt_path(path, "%s/gemm-%s-%016llx.json", folder, name,
                   (unsigned long long)XXH64(made_for, (size_t)n, 0));
}

// Other jobs may write it at the same time: each writes under a name of its own and renames. The
// last one wins, and what it has not seen will be timed again some day.
static dt_status replace_cache(const struct dt_comm *comm, const char *path, const char *text)
{
    char own[DT_PATH];
    DT_TRY(dt_path(own, "%s.%s.%d", path, comm->info.host, (int)getpid()));
    DT_TRY(dt_write_file_atomic(own, text, (int64_t)strlen(text)));
    if (rename(own, path) == 0)
        return DT_OK;
    dt_status status = DT_FAIL_ERRNO("replace", path);
    unlink(own);
    return status;
}

// Adds `record` to what the file at `path` holds, of the run or of the cache.
static dt_status keep(const struct dt_job *job, const char *path, const char *record, bool cache)
{
    char *before = NULL, *merged = NULL;
    DT_TRY(read_record(path, &before));
    dt_status status = dt_gemm_algos_merge(record, before, &merged);
    if (status == DT_OK && (!before || strcmp(merged, before) != 0))
        status = cache ? replace_cache(job->comm, path, merged)
                       : dt_write_file_atomic(path, merged, (int64_t)strlen(merged));
    free(before);
    free(merged);
    return status;
}

static dt_status keep_in_cache(const struct dt_job *job, const char *path, const char *record)
{
    char folder[DT_PATH];
    DT_TRY(cache_folder(folder));
    DT_TRY(dt_make_dirs(folder));
    return keep(job, path, record, true);
}

// Rank 0.

static dt_status run_path(const struct dt_job *job, char path[DT_PATH])
{
    return dt_path(path, "%s/gemm.json", job->run_path);
}

// The device knows what the run chose before and, for other shapes, what the cache holds.
static dt_status choose(const struct dt_job *job, char **record)
{
    char path[DT_PATH], cache[DT_PATH], *of_run = NULL, *of_cache = NULL, *known = NULL;
    dt_status status;
    DT_TRY(run_path(job, path));
    DT_TRY(cache_path(&job->backend, cache));
    DT_TRY(read_record(path, &of_run));
    if (cache[0] && read_record(cache, &of_cache) != DT_OK)
        dt_error_clear();
    if (of_run)
        DT_TRY_GOTO(status, out, dt_gemm_algos_merge(of_run, of_cache, &known));
    DT_TRY_GOTO(status, out,
                job->backend.table->choose(job->backend.device, known ? known : of_cache, record));
    DT_TRY_GOTO(status, out, keep(job, path, *record, false));
    if (cache[0] && keep_in_cache(job, cache, *record) != DT_OK)
        dt_error_clear();
out:
    free(of_run);
    free(of_cache);
    free(known);
    return status;
}

static dt_status recall(const struct dt_job *job, char **record)
{
    char path[DT_PATH];
    DT_TRY(run_path(job, path));
    return read_record(path, record);
}

// All ranks.

// Rank 0's record reaches the device of every rank; none: devices stay as they are.
static dt_status use_on_all(const struct dt_job *job, char **record)
{
    void *bytes = *record;
    int64_t size = bytes ? (int64_t)strlen(*record) + 1 : 0;
    dt_status status = dt_broadcast_buffer(job->comm, &bytes, &size, 0);
    *record = bytes;
    DT_TRY(status);
    return dt_agree(job->comm,
                    size > 0 ? job->backend.table->use(job->backend.device, *record) : DT_OK);
}

// `find` gives rank 0's record, NULL where there is none.
static dt_status share(const struct dt_job *job,
                       dt_status (*find)(const struct dt_job *job, char **record))
{
    char *record = NULL;
    dt_status status = dt_agree(job->comm, job->comm->info.rank == 0 ? find(job, &record) : DT_OK);
    if (status == DT_OK)
        status = use_on_all(job, &record);
    free(record);
    return status;
}

dt_status dt_gemm_algos_apply(struct dt_job *job)
{
    struct dt_memory_plan plan = {0};
    struct dt_model_shape shape = dt_job_shape(job, true);
    // What is fastest here and now may differ in the next run: the library's first choice does not.
    if (!job->backend.table->choose || dt_job_sum_order(job) == DT_SUM_TREE)
        return DT_OK;
    // The device learns its shapes while the model is planned.
    DT_TRY(dt_agree(job->comm, dt_model_plan(&job->backend, &job->model, &shape, &plan)));
    return share(job, choose);
}

dt_status dt_gemm_algos_recall(struct dt_job *job)
{
    return job->backend.table->use ? share(job, recall) : DT_OK;
}
