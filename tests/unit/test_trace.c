// Tests that spans are counted and kept: from two threads, within the available room, and cut to
// the window. On a timeline they nest.
#include "trace_events.h"

#include "base/trace.h"
#include "train/timeline.h"

#include <pthread.h>

enum { SPANS = 1000 };

static const struct dt_trace_counter *find(const struct dt_trace_counter *counters, int n,
                                           enum dt_lane lane, const char *name)
{
    static const struct dt_trace_counter none;
    for (int i = 0; i < n; i++)
        if (counters[i].lane == (int64_t)lane && strcmp(counters[i].name, name) == 0)
            return &counters[i];
    return &none;
}

static void test_off(void)
{
    struct dt_trace_counter counters[DT_TRACE_COUNTERS];
    CHECK_INT((long long)dt_trace_begin(), 0);
    dt_trace_phase("forward");
    dt_trace_end(DT_LANE_INPUT, "read", dt_trace_begin(), 5);
    CHECK_INT(dt_trace_counters(counters), 0);
}

static void test_counters(void)
{
    struct dt_trace_counter counters[DT_TRACE_COUNTERS];
    struct dt_trace_work work = {.bytes = 10, .flops = 20, .floor = 0.5};
    CHECK_OK(dt_trace_open(0));
    for (int i = 0; i < 3; i++)
        dt_trace_add(DT_LANE_OP, "gemm", 1000, 2000 + 1000 * (uint64_t)i, &work);
    dt_trace_add(DT_LANE_COMM, "gemm", 5, 5, &work); // a different lane
    dt_trace_add(DT_LANE_OP, "late", 7, 3, &work);   // a device's clock may run backwards
    dt_trace_phase("forward");
    dt_trace_phase("backward");
    dt_trace_phase("forward");
    int n = dt_trace_counters(counters);
    const struct dt_trace_counter *gemm = find(counters, n, DT_LANE_OP, "gemm");
    CHECK_INT(n, 5);
    CHECK_INT(gemm->count, 3);
    CHECK_NEAR(gemm->seconds, 6e-6, 1e-12);
    CHECK_NEAR(gemm->work.bytes + gemm->work.flops + gemm->work.floor, 91.5, 1e-12);
    CHECK_INT(find(counters, n, DT_LANE_COMM, "gemm")->count, 1);
    CHECK_NEAR(find(counters, n, DT_LANE_OP, "late")->seconds, 0, 0);
    // The second one has not ended.
    CHECK_INT(find(counters, n, DT_LANE_PHASE, "forward")->count, 1);
    CHECK_INT(find(counters, n, DT_LANE_PHASE, "backward")->count, 1);
    // More names than there is room for are left out.
    static char names[2 * DT_TRACE_COUNTERS][16];
    for (int i = 0; i < 2 * DT_TRACE_COUNTERS; i++) {
        snprintf(names[i], sizeof names[i], "n%d", i);
        dt_trace_add(DT_LANE_OP, names[i], 1, 2, &work);
    }
    CHECK_INT(dt_trace_counters(counters), DT_TRACE_COUNTERS);
    dt_trace_close();
}

static void *add_spans(void *name)
{
    for (int i = 0; i < SPANS; i++)
        dt_trace_end(DT_LANE_INPUT, name, dt_trace_begin(), 1);
    return NULL;
}

// Each of two threads adds as many spans as there is room for. Half of them are lost, but all are
// counted.
static void test_threads_and_overflow(void)
{
    struct dt_trace_counter counters[DT_TRACE_COUNTERS];
    const struct dt_trace_span *spans;
    pthread_t other;
    char mine[] = "mine", others[] = "the other's";
    int64_t lost;
    CHECK_OK(dt_trace_open(SPANS));
    dt_trace_keep(true);
    CHECK_INT(pthread_create(&other, NULL, add_spans, others), 0);
    add_spans(mine);
    pthread_join(other, NULL);
    dt_trace_keep(false);
    CHECK_INT(dt_trace_spans(&spans, &lost), SPANS);
    CHECK_INT(lost, SPANS);
    int n = dt_trace_counters(counters);
    CHECK_INT(find(counters, n, DT_LANE_INPUT, mine)->count, SPANS);
    CHECK_INT(find(counters, n, DT_LANE_INPUT, others)->count, SPANS);
    add_spans(mine);
    CHECK_INT(dt_trace_spans(&spans, &lost), SPANS); // nothing is kept after the window
    CHECK_INT(lost, SPANS);
    dt_trace_keep(true);
    CHECK_INT(dt_trace_spans(&spans, &lost), 0);
    CHECK_INT(lost, 0);
    dt_trace_close();
}

static void test_window(void)
{
    const struct dt_trace_span *spans;
    int64_t lost;
    CHECK_OK(dt_trace_open(SPANS));
    dt_trace_phase("forward");
    uint64_t before = dt_nanoseconds();
    dt_trace_keep(true);
    uint64_t after = dt_nanoseconds();
    dt_trace_phase("backward");
    CHECK_INT(dt_trace_spans(&spans, &lost), 1);
    CHECK(spans[0].begin >= before && spans[0].begin <= after,
          "begun before the window, the span is cut to it");
    dt_trace_close();
}

static cJSON *parse(const struct dt_trace_span *spans, int64_t n, int64_t shift)
{
    char *events, *text;
    CHECK_OK(dt_timeline_text(spans, n, shift, 3, &events));
    CHECK(asprintf(&text, "{\"traceEvents\":[%s]}", events) > 0, "memory");
    cJSON *document = cJSON_ParseWithOpts(text, NULL, 1);
    CHECK(document, "not JSON: %s", text);
    free(events);
    free(text);
    return document;
}

// Collectives that overlap are on separate tracks. Spans that nest stay on one track.
static void test_timeline(void)
{
    const uint64_t ns = 1000000000;
    const struct dt_trace_span list[] = {
        {"inner", DT_LANE_OP, ns + 10, ns + 20, 8},
        {"forward", DT_LANE_PHASE, ns, ns + 100, 0},
        {"next", DT_LANE_OP, ns + 20, ns + 100, 0},
        {"a", DT_LANE_COMM, ns, ns + 50, 1e6},
        {"b", DT_LANE_COMM, ns + 25, ns + 75, 1e6},
        {"c", DT_LANE_COMM, ns + 50, ns + 60, 1e6},
        {"empty", DT_LANE_CHECKPOINT, ns + 1, ns + 1, 0},
    };
    enum { N = sizeof list / sizeof *list };
    cJSON *document = parse(list, N, -(int64_t)ns);
    int n, tracks = 1;
    struct trace_event *spans = trace_spans(document, &n);
    trace_check_nesting(spans, n);
    CHECK_INT(n, N);
    for (int i = 1; i < n; i++)
        tracks += spans[i].track != spans[i - 1].track;
    CHECK_INT(tracks, 4); // compute, two of communication, checkpoint
    CHECK_INT(spans[0].rank, 3);
    CHECK_STR(spans[0].name, "forward");
    CHECK_NEAR(spans[1].begin, 0.010, 1e-9);
    CHECK_NEAR(spans[1].end, 0.020, 1e-9);
    free(spans);
    cJSON_Delete(document);
    document = parse(NULL, 0, 0); // without any events, the document is still valid
    cJSON_Delete(document);
}

int main(void)
{
    RUN(test_off, test_counters, test_threads_and_overflow, test_window, test_timeline);
    return test_end();
}
