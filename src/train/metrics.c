// Curves as JSON lines and a console: one live line on a terminal, a plain line every so often
// elsewhere.
#include "train/metrics.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dt_metrics {
    struct dt_metrics_config config;
    char path[DT_PATH];
    int fd;
    bool live;
    double start;        // of the first step seen
    double tokens_per_s; // smoothed
    double last_check;   // dt_seconds of the last check that the file is in place
};

enum { CHECK_S = 1 }; // seconds between two of these

// The step that a line belongs to; -1 where it is torn or foreign.
static int64_t step_of(const char *line, int64_t length)
{
    cJSON *json = cJSON_ParseWithLength(line, (size_t)length);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    bool is_step = cJSON_IsNumber(step) && step->valuedouble >= 0 &&
                   step->valuedouble <= (double)DT_JSON_INT_MAX;
    int64_t number = is_step ? (int64_t)step->valuedouble : -1;
    cJSON_Delete(json);
    return number;
}

// Adds the bytes of the whole lines of steps up to `last` that a metrics file begins with, and
// gives the last step among them.
static dt_status measure_lines(const char *path, int64_t last, int64_t *end, int64_t *newest)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int fd;
    int64_t size;
    DT_TRY(dt_open_read(path, &fd, &size));
    FILE *file = fdopen(fd, "r");
    if (!file) {
        close(fd);
        return DT_FAIL(DT_MACHINE, NULL, "no memory to read %s", path);
    }
    while ((n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n') {
        int64_t step = step_of(line, n - 1);
        if (step < 0 || step > last)
            break;
        *end += n;
        *newest = step;
    }
    bool failed = ferror(file);
    free(line);
    fclose(file);
    return failed ? DT_FAIL(DT_MACHINE, NULL, "cannot read %s", path) : DT_OK;
}

// Cuts everything from the first line on that is torn, foreign or of a later step.
static dt_status cut_back(const char *path, int64_t last)
{
    int64_t end = 0, newest = 0;
    DT_TRY(measure_lines(path, last, &end, &newest));
    if (newest < last)
        dt_warn("%s ends with step %lld, the checkpoint is of step %lld: the curve has a gap", path,
                (long long)newest, (long long)last);
    if (truncate(path, end) != 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot cut %s back to step %lld: %s", path,
                       (long long)last, strerror(errno));
    return DT_OK;
}

dt_status dt_metrics_open(const struct dt_metrics_config *config, struct dt_metrics **out)
{
    struct dt_metrics *m = calloc(1, sizeof *m);
    if (!m)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for metrics");
    dt_status status;
    m->config = *config;
    if (config->console == DT_CONSOLE_PROGRESS)
        dt_log_assume_terminal();
    m->live = config->console != DT_CONSOLE_PLAIN && dt_log_is_terminal();
    DT_TRY_GOTO(status, fail, dt_path(m->path, "%s/metrics.jsonl", config->folder));
    bool resumed = config->resume_step > 0 && dt_file_exists(m->path);
    if (resumed)
        DT_TRY_GOTO(status, fail, cut_back(m->path, config->resume_step));
    m->fd =
        open(m->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (resumed ? 0 : O_TRUNC), 0666);
    if (m->fd < 0) {
        status = DT_FAIL(DT_MACHINE, NULL, "cannot write %s: %s", m->path, strerror(errno));
        goto fail;
    }
    DT_TRY_GOTO(status, fail_open, dt_fsync_parent(m->path));
    *out = m;
    return DT_OK;
fail_open:
    close(m->fd);
fail:
    free(m);
    return status;
}

// Lines written to a file that has no name any more are lost.
static dt_status check_in_place(struct dt_metrics *m)
{
    struct stat mine, named;
    m->last_check = dt_seconds();
    if (fstat(m->fd, &mine) == 0 && stat(m->path, &named) == 0 && mine.st_ino == named.st_ino &&
        mine.st_dev == named.st_dev)
        return DT_OK;
    return DT_FAIL(DT_MACHINE,
                   "leave the folder of a run in place until the run ends; resume from its last "
                   "checkpoint where there is one",
                   "%s was removed or replaced while the run wrote it", m->path);
}

dt_status dt_metrics_sync(struct dt_metrics *m)
{
    DT_TRY(check_in_place(m));
    if (fsync(m->fd) != 0)
        return DT_FAIL_ERRNO("write", m->path);
    return DT_OK;
}

void dt_metrics_close(struct dt_metrics *m)
{
    if (!m)
        return;
    dt_log_live(NULL);
    close(m->fd);
    free(m);
}

// "key":value with nine significant digits, or null.
static void add_number(char *line, size_t size, const char *key, double value)
{
    size_t n = strlen(line);
    if (isfinite(value))
        snprintf(line + n, size - n, ",\"%s\":%.9g", key, value);
    else
        snprintf(line + n, size - n, ",\"%s\":null", key);
}

static dt_status put_line(struct dt_metrics *m, char *line, size_t size)
{
    size_t n = strlen(line);
    snprintf(line + n, size - n, "}\n");
    if (dt_seconds() - m->last_check >= CHECK_S) // a network file system may ask its server
        DT_TRY(check_in_place(m));
    return dt_write_all(m->fd, m->path, line, (int64_t)strlen(line));
}

static void format_time(double seconds, char *text, size_t size)
{
    int64_t s = (int64_t)(seconds + 0.5);
    if (s >= 3600)
        snprintf(text, size, "%lld:%02lld:%02lld", (long long)s / 3600, (long long)s / 60 % 60,
                 (long long)s % 60);
    else
        snprintf(text, size, "%lld:%02lld", (long long)s / 60, (long long)s % 60);
}

static void console(struct dt_metrics *m, const struct dt_train_line *line)
{
    const struct dt_metrics_config *c = &m->config;
    int64_t done = line->step - c->first_step, left = c->steps - line->step;
    char eta[32], text[256];
    // ETA from the second step on: the first holds warm-up of caches and libraries.
    if (done == 0)
        m->start = dt_seconds();
    format_time(done > 0 ? (dt_seconds() - m->start) / (double)done * (double)left : 0, eta,
                sizeof eta);
    m->tokens_per_s =
        done <= 1 ? line->tokens_per_s : 0.9 * m->tokens_per_s + 0.1 * line->tokens_per_s;
    snprintf(text, sizeof text,
             "step %lld/%lld  loss %.4f  norm %.3g  lr %.3g  %.0f tokens/s  %.1f GFLOP/s%s%s%s",
             (long long)line->step, (long long)c->steps, line->loss, line->grad_norm, line->lr,
             m->tokens_per_s, m->tokens_per_s * c->flops_per_token * 1e-9, done > 0 ? "  ETA " : "",
             done > 0 ? eta : "", line->skipped ? "  SKIPPED" : "");
    if (m->live)
        dt_log_live(text);
    else if (line->step % c->every == 0 || line->step == c->steps || done == 0)
        dt_info("%s", text);
}

dt_status dt_metrics_train(struct dt_metrics *m, const struct dt_train_line *line)
{
    char text[512];
    snprintf(text, sizeof text, "{\"event\":\"train\",\"step\":%lld,\"epoch\":%lld",
             (long long)line->step, (long long)line->epoch);
    add_number(text, sizeof text, "loss", line->loss);
    add_number(text, sizeof text, "grad_norm", line->grad_norm);
    add_number(text, sizeof text, "lr", line->lr);
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, ",\"tokens\":%lld", (long long)line->tokens);
    add_number(text, sizeof text, "step_ms", line->step_ms);
    add_number(text, sizeof text, "tokens_per_s", line->tokens_per_s);
    add_number(text, sizeof text, "data_wait_ms", line->data_wait_ms);
    add_number(text, sizeof text, "comm_wait_ms", line->comm_wait_ms);
    add_number(text, sizeof text, "idle_ms", line->idle_ms);
    add_number(text, sizeof text, "memory_mb", line->memory_mb);
    n = strlen(text);
    snprintf(text + n, sizeof text - n, ",\"skipped\":%s", line->skipped ? "true" : "false");
    console(m, line);
    return put_line(m, text, sizeof text);
}

dt_status dt_metrics_eval(struct dt_metrics *m, int64_t step, double loss, int64_t tokens)
{
    char text[256];
    snprintf(text, sizeof text, "{\"event\":\"eval\",\"step\":%lld", (long long)step);
    add_number(text, sizeof text, "loss", loss);
    add_number(text, sizeof text, "perplexity", exp(loss));
    size_t n = strlen(text);
    snprintf(text + n, sizeof text - n, ",\"tokens\":%lld", (long long)tokens);
    dt_info("step %lld  validation loss %.4f  perplexity %.3f  over %lld tokens", (long long)step,
            loss, exp(loss), (long long)tokens);
    return put_line(m, text, sizeof text);
}

// A path as a JSON string.
static char *quoted(const char *text)
{
    cJSON *json = cJSON_CreateString(text);
    char *out = cJSON_PrintUnformatted(json);
    cJSON_Delete(json);
    return out;
}

dt_status dt_metrics_checkpoint(struct dt_metrics *m, int64_t step, const char *path,
                                double stall_ms)
{
    char text[2 * DT_PATH], *name = quoted(path);
    if (!name)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a metrics line");
    snprintf(text, sizeof text, "{\"event\":\"checkpoint\",\"step\":%lld,\"path\":%s",
             (long long)step, name);
    cJSON_free(name);
    add_number(text, sizeof text, "stall_ms", stall_ms);
    dt_info("step %lld  checkpoint %s", (long long)step, path);
    return put_line(m, text, sizeof text);
}
