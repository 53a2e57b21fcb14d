// The counters and spans of this process, under one lock: a few hundred spans per step do not
// contend for it.
#include "base/trace.h"

#include "base/memory.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

atomic_int dt_trace_mode;

static struct {
    pthread_mutex_t lock;
    struct dt_trace_counter counters[DT_TRACE_COUNTERS];
    int n_counters;
    struct dt_trace_span *spans; // [capacity]
    int64_t n_spans, capacity, lost;
    uint64_t kept_from;
    const char *phase; // NULL: none yet
    uint64_t phase_begin;
    void (*range_begin)(const char *name); // both or none; called on the training thread
    void (*range_end)(void);
} trace = {.lock = PTHREAD_MUTEX_INITIALIZER};

dt_status dt_trace_open(int64_t spans)
{
    struct dt_trace_span *memory = NULL;
    if (spans > 0)
        DT_TRY(DT_NEW(&memory, spans, "a trace of %lld spans", (long long)spans));
    dt_trace_close();
    pthread_mutex_lock(&trace.lock);
    trace.spans = memory;
    trace.capacity = spans;
    trace.n_counters = 0;
    pthread_mutex_unlock(&trace.lock);
    atomic_store(&dt_trace_mode, DT_TRACE_COUNTS);
    return DT_OK;
}

void dt_trace_ranges(void (*begin)(const char *name), void (*end)(void))
{
    trace.range_begin = begin;
    trace.range_end = end;
}

void dt_trace_close(void)
{
    atomic_store(&dt_trace_mode, 0);
    if (trace.range_end && trace.phase)
        trace.range_end();
    dt_trace_ranges(NULL, NULL);
    pthread_mutex_lock(&trace.lock);
    free(trace.spans);
    trace.spans = NULL;
    trace.n_spans = trace.capacity = trace.lost = 0;
    trace.phase = NULL;
    pthread_mutex_unlock(&trace.lock);
}

void dt_trace_keep(bool keep)
{
    pthread_mutex_lock(&trace.lock);
    if (keep) {
        trace.n_spans = trace.lost = 0;
        trace.kept_from = dt_nanoseconds();
    }
    atomic_store(&dt_trace_mode, DT_TRACE_COUNTS | (keep ? DT_TRACE_KEEPS : 0));
    pthread_mutex_unlock(&trace.lock);
}

// The counter of a name; NULL: too many names. Call this and `add` with the lock held.
static struct dt_trace_counter *counter_of(enum dt_lane lane, const char *name)
{
    struct dt_trace_counter *counter = trace.counters;
    for (int i = 0; i < trace.n_counters; i++, counter++)
        if (counter->lane == (int64_t)lane && strcmp(counter->name, name) == 0)
            return counter;
    if (trace.n_counters == DT_TRACE_COUNTERS)
        return NULL;
    trace.n_counters++;
    *counter = (struct dt_trace_counter){.lane = lane};
    snprintf(counter->name, sizeof counter->name, "%s", name);
    return counter;
}

static void add(enum dt_lane lane, const char *name, uint64_t begin, uint64_t end,
                const struct dt_trace_work *work)
{
    struct dt_trace_counter *counter = counter_of(lane, name);
    if (counter) {
        counter->count++;
        counter->seconds += end > begin ? (double)(end - begin) * 1e-9 : 0;
        counter->work.bytes += work->bytes;
        counter->work.flops += work->flops;
        counter->work.floor += work->floor;
    }
    if (!(atomic_load(&dt_trace_mode) & DT_TRACE_KEEPS))
        return;
    begin = begin > trace.kept_from ? begin : trace.kept_from;
    end = end > begin ? end : begin;
    if (trace.n_spans == trace.capacity)
        trace.lost++;
    else
        trace.spans[trace.n_spans++] = (struct dt_trace_span){name, lane, begin, end, work->bytes};
}

void dt_trace_add(enum dt_lane lane, const char *name, uint64_t begin, uint64_t end,
                  const struct dt_trace_work *work)
{
    pthread_mutex_lock(&trace.lock);
    add(lane, name, begin, end, work);
    pthread_mutex_unlock(&trace.lock);
}

void dt_trace_phase(const char *name)
{
    if (!dt_trace_is_on())
        return;
    uint64_t now = dt_nanoseconds();
    if (trace.range_end && trace.phase)
        trace.range_end();
    if (trace.range_begin)
        trace.range_begin(name);
    pthread_mutex_lock(&trace.lock);
    if (trace.phase)
        add(DT_LANE_PHASE, trace.phase, trace.phase_begin, now, &(struct dt_trace_work){0});
    trace.phase = name;
    trace.phase_begin = now;
    pthread_mutex_unlock(&trace.lock);
}

int dt_trace_counters(struct dt_trace_counter *counters)
{
    pthread_mutex_lock(&trace.lock);
    int n = trace.n_counters;
    memcpy(counters, trace.counters, (size_t)n * sizeof *counters);
    pthread_mutex_unlock(&trace.lock);
    return n;
}

int64_t dt_trace_spans(const struct dt_trace_span **spans, int64_t *lost)
{
    pthread_mutex_lock(&trace.lock);
    int64_t n = trace.n_spans;
    *spans = trace.spans;
    *lost = trace.lost;
    pthread_mutex_unlock(&trace.lock);
    return n;
}
