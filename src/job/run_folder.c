// A run's folder. Its lock is by flock(2), which the kernel releases whenever the holder dies.
#include "job/run_folder.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "job/settings.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MAX_BYTES = 1 << 20, STATE_MAX_BYTES = 1 << 16, TAIL_BYTES = 1 << 14 };

static const char claims[] = ".ended"; // a file per host, created by the rank that reports there

static void read_holder(int fd, char *text, size_t size)
{
    ssize_t n = pread(fd, text, size - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
}

static dt_status acquire_lock(const char *path, double wait_s, struct dt_run_folder *folder)
{
    char file[DT_PATH], holder[160], host[64] = "";
    DT_TRY(dt_path(file, "%s/.lock", path));
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0)
        return dt_errno_status(errno) == DT_MACHINE
                   ? DT_FAIL_ERRNO("write", file)
                   : DT_FAIL(DT_USER, "set run.dir to a folder that this job can write to",
                             "cannot write %s: %s", file, strerror(errno));
    double until = dt_seconds() + wait_s;
    bool waiting = false;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) {
            dt_warn("the file system of %s does not support locks (%s): nothing prevents a second "
                    "job from using this folder",
                    path, strerror(errno));
            break;
        }
        read_holder(fd, holder, sizeof holder);
        if (dt_seconds() > until) {
            close(fd);
            return DT_FAIL(DT_USER, "stop that job, or give this one another run.name or run.dir",
                           "%s is in use by %s", path, holder);
        }
        if (!waiting)
            dt_info("%s is in use by %s: waiting up to %.0f s", path, holder, wait_s);
        waiting = true;
        dt_sleep(0.2);
    }
    read_holder(fd, folder->previous, sizeof folder->previous);
    gethostname(host, sizeof host - 1);
    int n = snprintf(holder, sizeof holder, "process %d on host %s\n", (int)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)n, 0) != n)
        dt_warn("cannot write the holder into the run's lock: %s", strerror(errno));
    folder->lock = fd;
    return DT_OK;
}

dt_status dt_run_folder_path(const struct dt_settings *settings, char path[DT_PATH])
{
    const char *dir = settings->run.dir;
    return dt_path(path, "%s%s", dir[0] ? "" : "runs/", dir[0] ? dir : settings->run.name);
}

dt_status dt_run_folder_open(const char *path, double wait_s, struct dt_run_folder *folder)
{
    char file[DT_PATH];
    *folder = (struct dt_run_folder){.lock = -1};
    DT_TRY(dt_path(folder->path, "%s", path));
    DT_TRY(dt_path(folder->checkpoints, "%s/checkpoints", path));
    DT_TRY_NOTE(dt_make_dirs(folder->checkpoints), "creating the run's folder (run.dir)");
    DT_TRY(acquire_lock(path, wait_s, folder));
    DT_TRY(dt_path(file, "%s/%s", path, claims));
    DT_TRY(dt_remove_tree(file));
    if (mkdir(file, 0777) != 0)
        dt_warn("cannot create %s: %s; if the job fails, several ranks may say so", file,
                strerror(errno));
    return DT_OK;
}

void dt_run_folder_close(struct dt_run_folder *folder)
{
    if (folder->lock >= 0)
        close(folder->lock);
    folder->lock = -1;
}

// The step of the last train line in metrics.jsonl, or -1; state.json has that of the last save.
static int64_t last_logged_step(const struct dt_run_folder *folder)
{
    static const char key[] = "{\"event\":\"train\",\"step\":";
    char path[DT_PATH], text[TAIL_BYTES + 1];
    int64_t size, step = -1;
    int fd;
    if (dt_path(path, "%s/metrics.jsonl", folder->path) != DT_OK ||
        dt_open_read(path, &fd, &size) != DT_OK) {
        dt_error_clear();
        return -1;
    }
    ssize_t n = pread(fd, text, TAIL_BYTES, size > TAIL_BYTES ? (off_t)(size - TAIL_BYTES) : 0);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    for (const char *at = text; (at = strstr(at, key)); at++)
        step = strtoll(at + strlen(key), NULL, 10);
    return step;
}

void dt_run_folder_explain(const struct dt_run_folder *folder)
{
    char path[DT_PATH], *text;
    int64_t size;
    if (dt_path(path, "%s/state.json", folder->path) != DT_OK || !dt_file_exists(path) ||
        dt_read_file(path, STATE_MAX_BYTES, &text, &size) != DT_OK) {
        dt_error_clear();
        return;
    }
    cJSON *json = cJSON_Parse(text);
    free(text);
    const char *state = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "state"));
    const char *reason = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(json, "reason"));
    const cJSON *saved = cJSON_GetObjectItemCaseSensitive(json, "step");
    int64_t logged = last_logged_step(folder);
    double step = cJSON_IsNumber(saved) ? saved->valuedouble : 0;
    step = (double)logged > step ? (double)logged : step;
    if (state && strcmp(state, "running") == 0)
        dt_warn("the previous job (%s) ended without a message at step %.0f: it was killed from "
                "outside, or its machine was lost",
                folder->previous[0] ? folder->previous : "unknown", step);
    else if (state && reason && strcmp(state, "failed") == 0)
        dt_info("the previous job failed at step %.0f: %s", step, reason);
    cJSON_Delete(json);
}

static _Atomic int64_t best_step;
static _Atomic double best_loss;

void dt_run_folder_best(int64_t step, double loss)
{
    atomic_store(&best_loss, loss);
    atomic_store(&best_step, step);
}

// A line of JSON; caller frees. NULL: out of memory.
static char *state_text(const char *state, int64_t step, const char *reason)
{
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "state", state);
    cJSON_AddNumberToObject(json, "step", (double)step);
    cJSON_AddStringToObject(json, "reason", reason);
    if (atomic_load(&best_step) > 0) {
        cJSON_AddNumberToObject(json, "best_step", (double)atomic_load(&best_step));
        cJSON_AddNumberToObject(json, "best_loss", atomic_load(&best_loss));
    }
    char *text = dt_json_line(json);
    cJSON_Delete(json);
    return text;
}

dt_status dt_run_folder_state(const struct dt_run_folder *folder, const char *state, int64_t step,
                              const char *reason)
{
    char path[DT_PATH];
    int claimed = 0;
    DT_TRY(dt_path(path, "%s/%s", folder->path, claims));
    DIR *claimants = opendir(path);
    while (claimants && readdir(claimants))
        claimed++;
    if (claimants)
        closedir(claimants);
    if (claimed >
        2) // besides "." and "..": a rank of some host has claimed the end, whose reason is kept
        return DT_OK;
    DT_TRY(dt_path(path, "%s/state.json", folder->path));
    char *text = state_text(state, step, reason);
    if (!text)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %s", path);
    dt_status status = dt_write_file_atomic(path, text, (int64_t)strlen(text));
    free(text);
    return status;
}

static char watched[DT_PATH], claimed[DT_PATH]; // set before `watching`
static atomic_bool watching;
static _Atomic int64_t last_step;

void dt_run_folder_watch(const char *path)
{
    atomic_store(&watching, false);
    if (!path)
        return;
    snprintf(watched, sizeof watched, "%s/state.json", path);
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    snprintf(claimed, sizeof claimed, "%s/%s/%s", path, claims, host);
    atomic_store(&watching, true);
}

void dt_run_folder_step(int64_t step)
{
    atomic_store(&last_step, step);
}

bool dt_run_folder_claim_end(void)
{
    int fd =
        atomic_load(&watching) ? open(claimed, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
    if (fd >= 0)
        close(fd);
    return fd >= 0 || !atomic_load(&watching) || errno != EEXIST;
}

void dt_run_folder_note_end(const char *reason)
{
    if (!atomic_exchange(&watching, false) || !dt_file_exists(watched))
        return;
    char *text = state_text("failed", atomic_load(&last_step), reason);
    if (!text)
        return;
    struct dt_error error;
    dt_error_take(&error);
    size_t size = strlen(text);
    // Overwriting such a short file needs no space on the disk.
    int fd = dt_write_file_atomic(watched, text, (int64_t)size) == DT_OK
                 ? -1
                 : open(watched, O_WRONLY | O_CLOEXEC);
    if (fd >= 0 && pwrite(fd, text, size, 0) == (ssize_t)size && ftruncate(fd, (off_t)size) == 0)
        fsync(fd);
    if (fd >= 0)
        close(fd);
    dt_error_restore(&error);
    free(text);
}

dt_status dt_run_folder_config(const struct dt_run_folder *folder, const struct dt_config *config)
{
    char path[DT_PATH], *text;
    size_t size;
    DT_TRY(dt_path(path, "%s/config.resolved.ini", folder->path));
    DT_TRY(dt_config_echo_text(config, &text, &size));
    dt_status status = dt_write_file_atomic(path, text, (int64_t)size);
    free(text);
    return status;
}

// Compares values: 3e-3 equals 0.003.
static bool is_same(const struct dt_config_row *row, const char *was, const char *is)
{
    struct dt_settings a = {0}, b = {0};
    char problem[DT_CONFIG_PROBLEM];
    void *in_a = (char *)&a + row->section->offset, *in_b = (char *)&b + row->section->offset;
    if (strcmp(was, is) == 0)
        return true;
    return dt_config_convert(row->key, was, in_a, problem) &&
           dt_config_convert(row->key, is, in_b, problem) && dt_config_equal(row->key, in_a, in_b);
}

// Reports the keys that have changed since the configuration in the folder was written: logs all
// or, with `problems`, adds those that decide what is trained. Ignores keys that nothing reads,
// which earlier versions wrote too.
static void compare_configs(const struct dt_run_folder *folder, const struct dt_config *config,
                            const char *resume, struct dt_problems *problems)
{
    static const char change[] = "%s was '%s', now it is '%s' (%s)";
    struct dt_settings settings;
    struct dt_config *before = NULL;
    char path[DT_PATH], *text = NULL;
    int64_t size;
    if (dt_path(path, "%s/config.resolved.ini", folder->path) != DT_OK ||
        dt_read_file(path, CONFIG_MAX_BYTES, &text, &size) != DT_OK ||
        dt_config_parse(&dt_settings_table, NULL, path, text, size, NULL, NULL, 0, &settings,
                        &before) != DT_OK) { // missing, or written by another version
        free(text);
        dt_error_clear();
        return;
    }
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);) {
        const struct dt_config_value *was = dt_config_find(before, row.name);
        const struct dt_config_value *is = dt_config_find(config, row.name);
        if (is->hidden || is_same(&row, was->text, is->text) || strcmp(is->origin, resume) == 0)
            continue;
        if (!problems)
            dt_info(change, row.name, was->text, is->text, is->origin);
        else if (!row.key->neutral && !row.section->neutral)
            dt_problems_add(problems, change, row.name, was->text, is->text, is->origin);
    }
    dt_config_free(before);
    free(text);
}

void dt_run_folder_changes(const struct dt_run_folder *folder, const struct dt_config *config,
                           const char *resume)
{
    compare_configs(folder, config, resume, NULL);
}

dt_status dt_run_folder_check_trained(const struct dt_run_folder *folder,
                                      const struct dt_config *config, const char *resume)
{
    struct dt_problems problems = {0};
    compare_configs(folder, config, resume, &problems);
    return dt_problems_report(&problems,
                              "give the run with these settings a run.name of its own, or increase "
                              "run.steps to train this one further",
                              "%s is already trained this far, with other settings", folder->path);
}
