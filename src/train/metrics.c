// Curves as JSON lines and a console: one live line on a terminal, a plain line every so often
// elsewhere.
#include "train/metrics.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct dt_metrics {
    struct dt_metrics_config config;
    char path[DT_PATH];
    int fd;
    bool live;
    double start;        // of the first step seen
    double tokens_per_s; // smoothed
};

// Does this line belong to a step up to `last`? A torn or foreign line does not.
static bool line_stays(const char *line, int64_t length, int64_t last)
{
    cJSON *json = cJSON_ParseWithLength(line, (size_t)length);
    const cJSON *step = cJSON_GetObjectItemCaseSensitive(json, "step");
    bool stays = cJSON_IsNumber(step) && step->valuedouble <= (double)last;
    cJSON_Delete(json);
    return stays;
}

// Adds the bytes of the whole lines of steps up to `last` that a metrics file begins with.
static dt_status measure_lines(const char *path, int64_t last, int64_t *end)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    FILE *file = fopen(path, "re");
    if (!file)
        return DT_FAIL_ERRNO("open", path);
    while ((n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n' &&
           line_stays(line, n - 1, last))
        *end += n;
    bool failed = ferror(file);
    free(line);
    fclose(file);
    return failed ? DT_FAIL(DT_MACHINE, NULL, "cannot read %s", path) : DT_OK;
}

// Everything behind the first line that does not stay is cut.
static dt_status cut_back(const char *path, int64_t last)
{
    int64_t end = 0;
    DT_TRY(measure_lines(path, last, &end));
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
    *out = m;
    return DT_OK;
fail:
    free(m);
    return status;
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
