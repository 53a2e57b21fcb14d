// Writes metrics.jsonl, one JSON object per event. A line is one write(2), so a killed job leaves
// at most one torn line. A resumed run cuts off that line and the lines of later steps.
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/round.h"
#include "train/metrics.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct jsonl {
    char path[DT_PATH];
    int fd;
    _Atomic double last_check; // dt_seconds of the last check that the file is in place
};

enum { CHECK_S = 1 }; // seconds between checks

// The step of a line; -1: torn or foreign.
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

// Measures the leading whole lines of steps up to `last` in a metrics file, and returns the last
// step among them. A checkpoint's line may follow lines of later steps.
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
        *newest = dt_max_i64(*newest, step);
    }
    bool failed = ferror(file);
    free(line);
    fclose(file);
    return failed ? DT_FAIL(DT_MACHINE, NULL, "cannot read %s", path) : DT_OK;
}

// Cuts the file at the first line that is torn, foreign or of a later step.
static dt_status cut_back(const char *path, int64_t last)
{
    int64_t end = 0, newest = 0;
    DT_TRY(measure_lines(path, last, &end, &newest));
    if (newest < last)
        dt_warn("%s ends at step %lld, but the checkpoint is at step %lld: the curve has a gap",
                path, (long long)newest, (long long)last);
    if (truncate(path, end) != 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot truncate %s to step %lld: %s", path,
                       (long long)last, strerror(errno));
    return DT_OK;
}

static void close_jsonl(void *state)
{
    struct jsonl *sink = state;
    if (sink->fd >= 0)
        close(sink->fd);
    free(sink);
}

static dt_status open_jsonl(const struct dt_metrics_config *config, void **state)
{
    struct jsonl *sink;
    dt_status status;
    DT_TRY(DT_NEW(&sink, 1, "metrics.jsonl"));
    sink->fd = -1;
    DT_TRY_GOTO(status, fail, dt_path(sink->path, "%s/metrics.jsonl", config->folder));
    bool resumed = config->resume_step > 0 && dt_file_exists(sink->path);
    if (resumed)
        DT_TRY_GOTO(status, fail, cut_back(sink->path, config->resume_step));
    DT_TRY_GOTO(status, fail, dt_open_append(sink->path, !resumed, &sink->fd));
    *state = sink;
    return DT_OK;
fail:
    close_jsonl(sink);
    return status;
}

// Checks that the file was not unlinked, since further lines would be lost.
static dt_status check_in_place(struct jsonl *sink)
{
    struct stat mine, named;
    sink->last_check = dt_seconds();
    if (fstat(sink->fd, &mine) == 0 && stat(sink->path, &named) == 0 &&
        mine.st_ino == named.st_ino && mine.st_dev == named.st_dev)
        return DT_OK;
    return DT_FAIL(DT_MACHINE,
                   "keep the run's folder in place until the run ends; resume from its last "
                   "checkpoint if it has one",
                   "%s was removed or replaced during the run", sink->path);
}

static dt_status sync_jsonl(void *state)
{
    struct jsonl *sink = state;
    DT_TRY(check_in_place(sink));
    return dt_fsync(sink->fd) == 0 ? DT_OK : DT_FAIL_ERRNO("write", sink->path);
}

static void put_text(FILE *out, const char *text)
{
    cJSON *json = cJSON_CreateStringReference(text);
    char *quoted = cJSON_PrintUnformatted(json);
    fputs(quoted ? quoted : "null", out);
    cJSON_free(quoted);
    cJSON_Delete(json);
}

// Numbers have nine significant digits; non-finite ones are null.
static void put_value(FILE *out, const struct dt_metric_field *field, const void *value)
{
    if (field->type == DT_VALUE_INT)
        fprintf(out, "%lld", (long long)*(const int64_t *)value);
    else if (field->type == DT_VALUE_FLAG)
        fputs(*(const bool *)value ? "true" : "false", out);
    else if (field->type == DT_VALUE_TEXT)
        put_text(out, *(const char *const *)value);
    else if (isfinite(*(const double *)value))
        fprintf(out, "%.9g", *(const double *)value);
    else
        fputs("null", out);
}

// {"loss":0.3,"accuracy":0.9}
static void put_numbers(FILE *out, const struct dt_named_number *list, int n)
{
    const struct dt_metric_field number = {.type = DT_VALUE_NUMBER};
    for (int i = 0; i < n; i++) {
        fprintf(out, "%s\"%s\":", i ? "," : "{", list[i].name);
        put_value(out, &number, &list[i].value);
    }
    fputs("}", out);
}

// ,"sources":{"web/*.h5":{"loss":2.1,"tokens":4096,"epochs":0.5}}
static void put_sources(FILE *out, const struct dt_metric_event *event)
{
    for (int i = 0; i < event->n_sources; i++) {
        struct dt_named_number list[DT_SOURCE_NUMBERS];
        int n = dt_source_numbers(event, i, list);
        fputs(i ? "," : ",\"sources\":{", out);
        put_text(out, event->sources[i].name);
        fputs(":", out);
        put_numbers(out, list, n);
    }
    fputs("}", out);
}

// ,"heads":{"buttons":{"loss":0.3,"accuracy":0.9}}
static void put_heads(FILE *out, const struct dt_metric_event *event)
{
    for (int k = 0; k < event->heads->n; k++) {
        struct dt_named_number list[DT_HEAD_NUMBERS];
        int n = dt_head_numbers(event->heads, event->sum, event->scores, k, list);
        fprintf(out, "%s\"%s\":", k ? "," : ",\"heads\":{", event->heads->list[k].name);
        put_numbers(out, list, n);
    }
    fputs("}", out);
}

static dt_status write_event(void *state, const struct dt_metric_event *event)
{
    struct jsonl *sink = state;
    char *line = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&line, &size);
    if (!out)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a line of %s", sink->path);
    fprintf(out, "{\"event\":\"%s\"", dt_metric_name(event->kind));
    for (const struct dt_metric_field *field = dt_metric_fields; field->name; field++)
        if (dt_metric_has(event, field)) {
            fprintf(out, ",\"%s\":", field->name);
            put_value(out, field, (const char *)event + field->offset);
        }
    if (event->heads)
        put_heads(out, event);
    if (event->n_sources > 0)
        put_sources(out, event);
    fputs("}\n", out);
    dt_status status = DT_OK;
    if (fclose(out) != 0)
        status = DT_FAIL(DT_MACHINE, NULL, "no memory for a line of %s", sink->path);
    if (status == DT_OK && dt_seconds() - sink->last_check >= CHECK_S)
        status = check_in_place(sink); // not per line: network file systems ask their server
    if (status == DT_OK)
        status = dt_write_all(sink->fd, sink->path, line, (int64_t)size);
    free(line);
    return status;
}

const struct dt_metric_sink dt_sink_jsonl = {
    .open = open_jsonl, .write = write_event, .sync = sync_jsonl, .close = close_jsonl};
