// A folder of checkpoints: finds, verifies and removes checkpoints.
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/log.h"
#include "base/problems.h"
#include "checkpoint/manifest.h"

#include <dirent.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

dt_status dt_checkpoint_verify(const char *path)
{
    static const char *const needed[] = {"config.json", "model.safetensors", "trainer.json"};
    struct dt_manifest manifest;
    struct dt_problems problems = {0};
    dt_status status = DT_OK;
    DT_TRY_NOTE(dt_manifest_read(path, &manifest), "verifying the checkpoint %s", path);
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!dt_manifest_find(&manifest, needed[i]))
            dt_problems_add(&problems, "MANIFEST lacks %s", needed[i]);
    dt_optimizer_states_check_names(&manifest, &problems);
    for (int i = 0; i < manifest.n && status == DT_OK; i++)
        status = dt_manifest_check(path, &manifest.files[i], &problems);
    dt_manifest_free(&manifest);
    DT_TRY_NOTE(status, "verifying the checkpoint %s", path);
    return dt_problems_report(&problems, "use another checkpoint",
                              "the checkpoint %s is incomplete or damaged", path);
}

dt_status dt_checkpoint_verify_weights(const char *path)
{
    char manifest[DT_PATH];
    DT_TRY(dt_path(manifest, "%s/MANIFEST", path));
    return dt_file_exists(manifest) ? dt_checkpoint_verify(path) : DT_OK;
}

// Entries of a folder, in the order of newer_first.
struct entries {
    int n;
    struct dirent **list;
};

// The step in a checkpoint's name, or -1.
static int64_t parse_step(const char *name)
{
    char again[64];
    if (strncmp(name, "step-", 5) != 0 || strlen(name) > 5 + 18)
        return -1;
    int64_t step = strtoll(name + 5, NULL, 10);
    snprintf(again, sizeof again, "step-%08lld", (long long)step);
    return step >= 0 && strcmp(name, again) == 0 ? step : -1;
}

static int is_step(const struct dirent *entry)
{
    return entry->d_type != DT_REG && parse_step(entry->d_name) >= 0;
}

static int is_leftover(const struct dirent *entry)
{
    return fnmatch(".step-*.tmp-*", entry->d_name, FNM_PERIOD) == 0;
}

static int newer_first(const struct dirent **a, const struct dirent **b)
{
    int64_t x = parse_step((*a)->d_name), y = parse_step((*b)->d_name);
    return (x < y) - (x > y);
}

// A missing folder counts as empty.
static dt_status list(const char *dir, int (*wanted)(const struct dirent *),
                      struct entries *entries)
{
    *entries = (struct entries){0};
    int n = scandir(dir, &entries->list, wanted, newer_first);
    if (n < 0)
        return errno == ENOENT ? DT_OK : DT_FAIL_ERRNO("read", dir);
    entries->n = n;
    return DT_OK;
}

static void free_entries(struct entries *entries)
{
    for (int i = 0; i < entries->n; i++)
        free(entries->list[i]);
    free(entries->list);
}

// Refuses a copy under the name of a later step, from which runs would resume again and again.
static dt_status check_step(const char *path, const char *name)
{
    struct dt_trainer_state state;
    DT_TRY(dt_checkpoint_state(path, &state));
    if (state.step == parse_step(name))
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "%s is a checkpoint of step %lld under another name", path,
                   (long long)state.step);
}

dt_status dt_checkpoint_newest(const char *dir, char *path)
{
    struct entries steps;
    bool intact = false;
    dt_status worst = DT_USER;
    *path = '\0';
    DT_TRY(list(dir, is_step, &steps));
    for (int i = 0; i < steps.n && !intact; i++) {
        intact = dt_path(path, "%s/%s", dir, steps.list[i]->d_name) == DT_OK &&
                 dt_checkpoint_verify(path) == DT_OK &&
                 check_step(path, steps.list[i]->d_name) == DT_OK;
        if (!intact)
            dt_warn("skipping a checkpoint: %s", dt_error_current()->message);
        if (dt_error_current()->code == DT_MACHINE)
            worst = DT_MACHINE;
        dt_error_clear();
    }
    free_entries(&steps);
    if (intact || steps.n == 0)
        return DT_OK;
    *path = '\0';
    return DT_FAIL(worst,
                   "the warnings above say why: restore one of them, set run.resume = PATH of "
                   "another, or start a new run with another run.name",
                   "none of the %d checkpoints in %s can be used", steps.n, dir);
}

// The first entry up to step `limit`, or steps->n if there is none.
static int find_step(const struct entries *steps, int64_t limit)
{
    int i = 0;
    while (i < steps->n && parse_step(steps->list[i]->d_name) > limit)
        i++;
    return i;
}

dt_status dt_checkpoint_last_step(const char *dir, int64_t limit, int64_t *step)
{
    struct entries steps;
    DT_TRY(list(dir, is_step, &steps));
    int i = find_step(&steps, limit);
    *step = i < steps.n ? parse_step(steps.list[i]->d_name) : -1;
    free_entries(&steps);
    return DT_OK;
}

static dt_status remove_leftovers(const char *dir)
{
    char path[DT_PATH];
    struct entries leftovers;
    dt_status status = DT_OK;
    DT_TRY(list(dir, is_leftover, &leftovers));
    for (int i = 0; i < leftovers.n && status == DT_OK; i++) {
        status = dt_path(path, "%s/%s", dir, leftovers.list[i]->d_name);
        if (status == DT_OK)
            status = dt_remove_tree(path);
    }
    free_entries(&leftovers);
    return status;
}

// Renames to a hidden name first, so that a kill during the removal leaves no incomplete checkpoint
// under a real name; replaces what an earlier kill left.
static dt_status remove_step(const char *dir, const char *name)
{
    char path[DT_PATH], hidden[DT_PATH];
    DT_TRY(dt_path(path, "%s/%s", dir, name));
    DT_TRY(dt_path(hidden, "%s/.%s.tmp-removed", dir, name));
    DT_TRY(dt_remove_tree(hidden));
    if (rename(path, hidden) != 0)
        return DT_FAIL_ERRNO("remove", path);
    return dt_remove_tree(hidden);
}

dt_status dt_checkpoint_cut(const char *dir, int64_t step)
{
    struct entries steps;
    DT_TRY(list(dir, is_step, &steps));
    int after = find_step(&steps, step);
    dt_status status = DT_OK;
    if (after == steps.n)
        status = DT_FAIL(DT_USER, "do not remove checkpoints of a run that is training",
                         "%s has no checkpoint up to step %lld", dir, (long long)step);
    for (int i = 0; i < after && status == DT_OK; i++)
        status = remove_step(dir, steps.list[i]->d_name);
    free_entries(&steps);
    return status;
}

static dt_status prune(const char *dir, const struct entries *steps, int64_t keep, int64_t saved,
                       int64_t best)
{
    char path[DT_PATH];
    int intact = 0; // the newest valid one
    if (keep <= 0 || steps->n <= keep)
        return DT_OK;
    for (; intact < steps->n; intact++) {
        DT_TRY(dt_path(path, "%s/%s", dir, steps->list[intact]->d_name));
        if (parse_step(steps->list[intact]->d_name) == saved || dt_checkpoint_verify(path) == DT_OK)
            break;
        dt_error_clear();
    }
    if (intact == steps->n)
        return DT_OK; // nothing to resume from: remove nothing
    for (int i = (int)keep; i < steps->n; i++) {
        if (i == intact || (best > 0 && parse_step(steps->list[i]->d_name) == best))
            continue;
        DT_TRY(remove_step(dir, steps->list[i]->d_name));
    }
    return DT_OK;
}

dt_status dt_checkpoint_prune(const char *dir, int64_t keep, int64_t saved, int64_t best)
{
    struct entries steps;
    DT_TRY(remove_leftovers(dir));
    DT_TRY(list(dir, is_step, &steps));
    dt_status status = prune(dir, &steps, keep, saved, best);
    free_entries(&steps);
    DT_TRY_NOTE(status, "removing old checkpoints in %s", dir);
    return DT_OK;
}

// Creates the link under another name and renames it, so that there always is one.
void dt_checkpoint_mark_best(const char *dir, int64_t step)
{
    char path[DT_PATH], target[64], temporary[DT_PATH], now[64] = "";
    snprintf(target, sizeof target, "step-%08lld", (long long)step);
    if (dt_path(path, "%s/best", dir) != DT_OK ||
        dt_path(temporary, "%s/.step-best.tmp-link", dir) != DT_OK) {
        dt_error_clear();
        return;
    }
    bool linked = readlink(path, now, sizeof now - 1) > 0;
    if (step == 0 ? !linked : strcmp(now, target) == 0)
        return;
    unlink(temporary); // left by a killed job
    bool done = step == 0 ? unlink(path) == 0
                          : symlink(target, temporary) == 0 && rename(temporary, path) == 0;
    if (!done)
        dt_warn("cannot update the link %s: %s", path, strerror(errno));
}
