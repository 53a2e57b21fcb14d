// A folder of checkpoints: which are there, which are whole, which may go.
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/log.h"
#include "base/problems.h"
#include "checkpoint/manifest.h"

#include <dirent.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void check_file(const char *folder, const struct dt_manifest_file *file,
                       struct dt_problems *problems)
{
    char path[DT_PATH];
    uint64_t hash;
    int64_t size = -1;
    if (dt_path(path, "%s/%s", folder, file->name) == DT_OK)
        size = dt_file_size(path);
    if (size < 0)
        dt_problems_add(problems, "%s is missing", file->name);
    else if (size != file->size)
        dt_problems_add(problems, "%s has %lld bytes, MANIFEST says %lld", file->name,
                        (long long)size, (long long)file->size);
    else if (dt_hash_file(path, &hash, NULL) != DT_OK)
        dt_problems_add(problems, "%s: %.200s", file->name, dt_error_current()->message);
    else if (hash != file->hash)
        dt_problems_add(problems,
                        "%s has hash %016" PRIx64 ", MANIFEST says %016" PRIx64 ": it is damaged",
                        file->name, hash, file->hash);
    dt_error_clear();
}

// Without these no run resumes.
static void check_names(const struct dt_manifest *manifest, struct dt_problems *problems)
{
    static const char *const needed[] = {"config.json", "model.safetensors", "trainer.json"};
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!dt_manifest_find(manifest, needed[i]))
            dt_problems_add(problems, "MANIFEST lacks %s", needed[i]);
    dt_optimizer_states_check_names(manifest, problems);
}

dt_status dt_checkpoint_verify(const char *path)
{
    struct dt_manifest manifest;
    struct dt_problems problems = {0};
    DT_TRY_NOTE(dt_manifest_read(path, &manifest), "verifying the checkpoint %s", path);
    check_names(&manifest, &problems);
    for (int i = 0; i < manifest.n; i++)
        check_file(path, &manifest.files[i], &problems);
    dt_manifest_free(&manifest);
    return dt_problems_report(&problems, "use another checkpoint", "the checkpoint %s is not whole",
                              path);
}

dt_status dt_checkpoint_verify_weights(const char *path)
{
    char manifest[DT_PATH];
    DT_TRY(dt_path(manifest, "%s/MANIFEST", path));
    return dt_file_exists(manifest) ? dt_checkpoint_verify(path) : DT_OK;
}

struct steps {
    int64_t n, capacity;
    int64_t *list; // the newest first
};

// The step of a checkpoint's folder name as dt_checkpoint_save spells it, or -1.
static int64_t parse_step(const char *name)
{
    char again[64];
    if (strncmp(name, "step-", 5) != 0 || strlen(name) > 5 + 18)
        return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld", (long long)step);
    return step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

static dt_status add_step(struct steps *steps, int64_t step)
{
    if (steps->n == steps->capacity) {
        int64_t capacity = steps->capacity > 0 ? 2 * steps->capacity : 16;
        int64_t *list = realloc(steps->list, (size_t)capacity * sizeof *list);
        if (!list)
            return DT_FAIL(DT_MACHINE, NULL, "no memory to list checkpoints");
        steps->list = list;
        steps->capacity = capacity;
    }
    steps->list[steps->n++] = step;
    return DT_OK;
}

static int newer_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

static dt_status step_path(const char *dir, int64_t step, char *path)
{
    return dt_path(path, "%s/step-%08lld", dir, (long long)step);
}

static dt_status read_names(DIR *stream, const char *dir, struct steps *steps)
{
    char path[DT_PATH];
    const struct dirent *entry;
    for (errno = 0; (entry = readdir(stream)); errno = 0) {
        int64_t step = parse_step(entry->d_name);
        if (step < 0)
            continue;
        DT_TRY(step_path(dir, step, path));
        if (dt_is_dir(path))
            DT_TRY(add_step(steps, step));
    }
    return errno == 0 ? DT_OK : DT_FAIL_ERRNO("read", dir);
}

// A folder that is not there has none.
static dt_status list_steps(const char *dir, struct steps *steps)
{
    *steps = (struct steps){0};
    DIR *stream = opendir(dir);
    if (!stream)
        return errno == ENOENT ? DT_OK : DT_FAIL_ERRNO("open", dir);
    dt_status status = read_names(stream, dir, steps);
    closedir(stream);
    if (status != DT_OK)
        free(steps->list);
    else if (steps->n > 0)
        qsort(steps->list, (size_t)steps->n, sizeof *steps->list, newer_first);
    return status;
}

static dt_status find_whole(const char *dir, const struct steps *steps, char *path)
{
    for (int64_t i = 0; i < steps->n; i++) {
        DT_TRY(step_path(dir, steps->list[i], path));
        if (dt_checkpoint_verify(path) == DT_OK)
            return DT_OK;
        dt_warn("a checkpoint is passed over: %s", dt_error_current()->message);
        dt_error_clear();
    }
    *path = '\0';
    if (steps->n == 0)
        return DT_OK;
    return DT_FAIL(DT_USER,
                   "bring a whole one back, give run.resume = PATH of another, or begin anew with "
                   "another run.name",
                   "none of the %lld checkpoints in %s is whole", (long long)steps->n, dir);
}

dt_status dt_checkpoint_newest(const char *dir, char *path)
{
    struct steps steps;
    *path = '\0';
    DT_TRY(list_steps(dir, &steps));
    dt_status status = find_whole(dir, &steps, path);
    free(steps.list);
    return status;
}

dt_status dt_checkpoint_last_step(const char *dir, int64_t *step)
{
    struct steps steps;
    DT_TRY(list_steps(dir, &steps));
    *step = steps.n > 0 ? steps.list[0] : -1;
    free(steps.list);
    return DT_OK;
}

// Hidden first, so that a kill in mid-removal leaves no half checkpoint under a real name.
static dt_status remove_step(const char *dir, int64_t step)
{
    char path[DT_PATH], hidden[DT_PATH];
    DT_TRY(step_path(dir, step, path));
    DT_TRY(dt_path(hidden, "%s/.step-%08lld.tmp-%ld", dir, (long long)step, (long)getpid()));
    DT_TRY(dt_remove_tree(hidden));
    if (rename(path, hidden) != 0)
        return DT_FAIL_ERRNO("remove", path);
    return dt_remove_tree(hidden);
}

static bool is_whole(const char *dir, int64_t step)
{
    char path[DT_PATH];
    bool whole = step_path(dir, step, path) == DT_OK && dt_checkpoint_verify(path) == DT_OK;
    dt_error_clear();
    return whole;
}

// Index of the newest that verifies; steps->n where none does.
static int64_t newest_whole(const char *dir, const struct steps *steps, int64_t saved)
{
    int64_t i = 0;
    while (i < steps->n && steps->list[i] != saved && !is_whole(dir, steps->list[i]))
        i++;
    return i;
}

static dt_status prune_steps(const char *dir, const struct steps *steps, int64_t keep,
                             int64_t saved)
{
    if (keep <= 0 || steps->n <= keep)
        return DT_OK;
    int64_t whole = newest_whole(dir, steps, saved);
    if (whole == steps->n)
        return DT_OK; // nothing to resume from: leave all to the user
    for (int64_t i = keep; i < steps->n; i++)
        if (i != whole)
            DT_TRY(remove_step(dir, steps->list[i]));
    return DT_OK;
}

static dt_status remove_leftovers(const char *dir)
{
    char path[DT_PATH];
    const struct dirent *entry;
    dt_status status = DT_OK;
    DIR *stream = opendir(dir);
    if (!stream)
        return errno == ENOENT ? DT_OK : DT_FAIL_ERRNO("open", dir);
    while (status == DT_OK && (entry = readdir(stream))) {
        if (fnmatch(".step-*.tmp-*", entry->d_name, FNM_PERIOD) != 0)
            continue;
        status = dt_path(path, "%s/%s", dir, entry->d_name);
        if (status == DT_OK)
            status = dt_remove_tree(path);
    }
    closedir(stream);
    return status;
}

dt_status dt_checkpoint_prune(const char *dir, int64_t keep, int64_t saved)
{
    struct steps steps;
    DT_TRY(remove_leftovers(dir));
    DT_TRY(list_steps(dir, &steps));
    dt_status status = prune_steps(dir, &steps, keep, saved);
    free(steps.list);
    DT_TRY_NOTE(status, "removing old checkpoints of %s", dir);
    return DT_OK;
}
