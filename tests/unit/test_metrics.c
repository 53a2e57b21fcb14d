// Tests metric sinks. A third sink is its code and one row of the table, which is defined here
// instead of src/train/sinks.c. It receives every event, with fields as the table lists them. Also
// tests the lines of metrics.jsonl.
#include "train/metrics.h"

#include "captured.h"
#include "scratch.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

// The clock of this program, which replaces that of libc.
static time_t now = 1000;
int clock_gettime(clockid_t clock, struct timespec *time)
{
    (void)clock;
    *time = (struct timespec){.tv_sec = now};
    return 0;
}

extern const struct dt_metric_sink dt_sink_console, dt_sink_jsonl;
static char seen[1024]; // "train loss=2 … ": what the sink was given

static dt_status open_sink(const struct dt_metrics_config *config, void **state)
{
    *state = seen;
    return config->steps > 0 ? DT_OK : DT_FAIL(DT_USER, NULL, "no steps");
}

// Writes every number of an event, whatever its name, as a sink for scalars would.
static dt_status write_sink(void *state, const struct dt_metric_event *event)
{
    char *text = state;
    sprintf(text + strlen(text), "%s", dt_metric_name(event->kind));
    for (const struct dt_metric_field *f = dt_metric_fields; f->name; f++)
        if (dt_metric_has(event, f) && f->type == DT_VALUE_NUMBER)
            sprintf(text + strlen(text), " %s=%g", f->name,
                    *(const double *)((const char *)event + f->offset));
    strcat(text, "\n");
    return DT_OK;
}

static dt_status sync_sink(void *state)
{
    strcat(state, "sync\n");
    return DT_OK;
}

static void close_sink(void *state)
{
    strcat(state, "close\n");
}

static const struct dt_metric_sink test_sink = {open_sink, write_sink, sync_sink, close_sink};
const struct dt_metric_sink *const dt_metric_sinks[] = {
    &dt_sink_console,
    &dt_sink_jsonl,
    &test_sink,
    NULL,
};

static const struct dt_outputs heads = {
    .n = 2,
    .list = {{.name = "buttons", .measure = "accuracy"}, {.name = "aim", .measure = "error"}}};
static const struct dt_loss_sum sum = {.counted = 4, .metrics = {2, 1, 4, NAN, 6, 3}};
static const struct dt_metric_event events[] = {
    {.kind = DT_METRIC_TRAIN,
     .step = 1,
     .tokens = 64,
     .loss = 1. / 3,
     .grad_norm = INFINITY,
     .lr = 1e-3,
     .step_ms = 5,
     .tokens_per_s = 12800,
     .memory_mb = 1.5,
     .loss_z = -1.5,
     .skipped = true},
    {.kind = DT_METRIC_EVAL,
     .step = 1,
     .tokens = 32,
     .loss = 0,
     .has_perplexity = true,
     .perplexity = 1,
     .accuracy = 0.5},
    {.kind = DT_METRIC_CHECKPOINT, .step = 1, .path = "a \"b\"\\c", .stall_ms = 2, .write_ms = 30},
    {.kind = DT_METRIC_TRAIN, .step = 2, .epoch = 1, .tokens = 128, .loss = NAN},
    {.kind = DT_METRIC_EVAL,
     .step = 2,
     .loss = 1,
     .has_ema = true,
     .ema_loss = NAN,
     .heads = &heads,
     .sum = &sum},
};
static const char *const lines[] = {
    "{\"event\":\"train\",\"step\":1,\"epoch\":0,\"loss\":0.333333333,\"grad_norm\":null,\"lr\":"
    "0.001,\"tokens\":64,\"step_ms\":5,\"tokens_per_s\":12800,\"data_wait_ms\":0,\"comm_wait_ms\":"
    "0,\"idle_ms\":0,\"memory_mb\":1.5,\"loss_z\":-1.5,\"skipped\":true}\n",
    "{\"event\":\"eval\",\"step\":1,\"loss\":0,\"perplexity\":1,\"accuracy\":0.5,\"tokens\":32}\n",
    "{\"event\":\"checkpoint\",\"step\":1,\"path\":\"a "
    "\\\"b\\\"\\\\c\",\"stall_ms\":2,\"write_ms\":30}\n",
    "{\"event\":\"train\",\"step\":2,\"epoch\":1,\"loss\":null,\"grad_norm\":0,\"lr\":0,\"tokens\":"
    "128,\"step_ms\":0,\"tokens_per_s\":0,\"data_wait_ms\":0,\"comm_wait_ms\":0,\"idle_ms\":0,"
    "\"memory_mb\":0,\"loss_z\":0,\"skipped\":false}\n",
    "{\"event\":\"eval\",\"step\":2,\"loss\":1,\"ema_loss\":null,\"tokens\":0,\"heads\":{"
    "\"buttons\":{"
    "\"loss\":0.5,\"accuracy\":0.25},\"aim\":{\"loss\":null,\"error\":2}}}\n",
};

// Writes events [from, to) to the sinks, as a run that was resumed at `resume_step` does.
static void write_events(int64_t resume_step, int from, int to)
{
    struct dt_metrics_config config = {.folder = ".",
                                       .resume_step = resume_step,
                                       .first_step = resume_step + 1,
                                       .steps = 2,
                                       .every = 1,
                                       .unit = "frames"};
    struct dt_metrics *metrics = NULL;
    CHECK_OK(dt_metrics_open(&config, &metrics));
    for (int i = from; i < to; i++)
        CHECK_OK(dt_metrics_write(metrics, &events[i]));
    CHECK_OK(dt_metrics_sync(metrics));
    dt_metrics_close(metrics);
}

static void check_file(int n)
{
    char want[2048] = "", *text;
    int64_t size;
    for (int i = 0; i < n; i++)
        strcat(want, lines[i]);
    CHECK_OK(dt_read_file("metrics.jsonl", 1 << 20, &text, &size));
    CHECK_STR(text, want);
    free(text);
}

// A run that was resumed at step 100 of 1902 takes 2 s for each step. Its time left counts from its
// own start, and its rate is smoothed from the third step on.
static void test_console(void)
{
    static const char *const shown[] = {"1000 tokens/s", "ETA 1:00:00", "ETA 59:58", "ETA 59:56"};
    static const char *const rates[] = {"1000 tokens/s", "  100 tokens/s", "110 tokens/s",
                                        "119 tokens/s"};
    static const double tokens_per_s[] = {1000, 100, 200, 200};
    struct dt_metrics_config config = {.folder = ".",
                                       .resume_step = 100,
                                       .first_step = 101,
                                       .steps = 1902,
                                       .every = 1,
                                       .console = DT_CONSOLE_PLAIN,
                                       .unit = "tokens"};
    void *console;
    capture_stderr();
    CHECK_OK(dt_sink_console.open(&config, &console));
    for (int i = 0; i < 4; i++, now += 2)
        CHECK_OK(dt_sink_console.write(console,
                                       &(struct dt_metric_event){.kind = DT_METRIC_TRAIN,
                                                                 .step = 101 + i,
                                                                 .tokens_per_s = tokens_per_s[i]}));
    dt_sink_console.close(console);
    char *text = strdup(captured()), *rest, *line = strtok_r(text, "\n", &rest);
    for (int i = 0; i < 4; i++, line = strtok_r(NULL, "\n", &rest))
        CHECK(line && strstr(line, shown[i]) && strstr(line, rates[i]) &&
                  (i > 0 || !strstr(line, "ETA")),
              "line %d lacks \"%s\" or \"%s\": %s", i, shown[i], rates[i], line ? line : "(none)");
    free(text);
}

// With log.every the first and the last step are shown as well.
static void test_console_every(void)
{
    struct dt_metrics_config config = {.first_step = 101,
                                       .steps = 203,
                                       .every = 50,
                                       .console = DT_CONSOLE_PLAIN,
                                       .unit = "tokens"};
    void *console;
    capture_stderr();
    CHECK_OK(dt_sink_console.open(&config, &console));
    for (int64_t step = 101; step <= 203; step++)
        CHECK_OK(dt_sink_console.write(
            console, &(struct dt_metric_event){.kind = DT_METRIC_TRAIN, .step = step}));
    dt_sink_console.close(console);
    const char *line = captured();
    static const int64_t shown[] = {101, 150, 200, 203};
    for (int i = 0; i < 4; i++, line += strcspn(line, "\n") + 1)
        CHECK_INT(strtol(line + strcspn(line, "0123456789"), NULL, 10), shown[i]);
    CHECK_STR(line, "");
}

// A file that was removed is noticed by the first line that is written a second after the last
// check.
static void test_removed(void)
{
    struct dt_metrics_config config = {.folder = ".", .steps = 2, .every = 1, .unit = "tokens"};
    void *jsonl;
    CHECK_OK(dt_sink_jsonl.open(&config, &jsonl));
    CHECK_OK(dt_sink_jsonl.write(jsonl, &events[0]));
    CHECK(unlink("metrics.jsonl") == 0, "metrics.jsonl");
    CHECK_OK(dt_sink_jsonl.write(jsonl, &events[0]));
    now++;
    CHECK_FAILS(dt_sink_jsonl.write(jsonl, &events[0]), DT_MACHINE, "was removed or replaced");
    dt_sink_jsonl.close(jsonl);
}

int main(void)
{
    make_scratch();
    CHECK(chdir(scratch) == 0, "no scratch folder");
    write_events(0, 0, 5);
    check_file(5);
    CHECK_STR(seen, "train loss=0.333333 grad_norm=inf lr=0.001 step_ms=5 tokens_per_s=12800 "
                    "data_wait_ms=0 comm_wait_ms=0 idle_ms=0 memory_mb=1.5 loss_z=-1.5\n"
                    "eval loss=0 perplexity=1 accuracy=0.5\n"
                    "checkpoint stall_ms=2 write_ms=30\n"
                    "train loss=nan grad_norm=0 lr=0 step_ms=0 tokens_per_s=0 data_wait_ms=0 "
                    "comm_wait_ms=0 idle_ms=0 memory_mb=0 loss_z=0\n"
                    "eval loss=1 ema_loss=nan\n"
                    "sync\nclose\n");

    // A run that resumes at step 1 removes the lines of step 2 and a torn line.
    FILE *file = fopen("metrics.jsonl", "a");
    fputs("{\"event\":\"train\",\"st", file);
    fclose(file);
    write_events(1, 0, 0);
    check_file(3);
    write_events(1, 3, 4);
    check_file(4);
    write_events(0, 0, 1); // a new run starts a new file
    check_file(1);

    test_removed();
    test_console();
    test_console_every();

    // If a sink cannot be opened, those before it are closed, and there are no metrics.
    struct dt_metrics *metrics = NULL;
    CHECK_INT(dt_metrics_open(&(struct dt_metrics_config){.folder = "."}, &metrics), DT_USER);
    CHECK(!metrics, "metrics without a sink");
    CHECK_OK(dt_metrics_write(NULL, &events[0])); // the other ranks have no metrics
    remove_scratch();
    return test_end();
}
