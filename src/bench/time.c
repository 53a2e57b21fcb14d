// How long work takes. On a device with a clock of its own a round is a batch of repeats between
// stamps, captured in a graph, so that neither the host nor the launches are in the figure; on the
// CPU a round is one repeat by the host's clock.
#include "bench/ops.h"

#include "base/clock.h"

#include <math.h>

enum { LEAST = 3, BATCH = 32 };
static const double batch_seconds = 2e-3; // of work; longer work is a round of its own
static const double shortest = 1e-9;      // the device's clock may tick more slowly than short work

static dt_status run(const struct dt_bench_work *work, struct dt_stream *stream)
{
    return work->run ? work->run(work->what, stream) : DT_OK;
}

static dt_status time_on_host(const struct dt_bench_timer *timer,
                              const struct dt_bench_work *before, const struct dt_bench_work *work,
                              double seconds, struct dt_bench_clock *clock)
{
    DT_TRY(run(work, NULL));
    dt_bench_start(clock);
    while (dt_bench_more(clock, LEAST, seconds)) {
        if (before)
            DT_TRY(run(before, NULL));
        double start = dt_seconds();
        DT_TRY(run(work, NULL));
        DT_TRY(dt_stream_sync(timer->backend, NULL));
        dt_bench_note(clock, dt_seconds() - start);
    }
    return DT_OK;
}

static dt_status stamp(const struct dt_bench_timer *timer, int at)
{
    struct dt_stamp_args args = {.time = timer->stamps + at};
    return dt_stamp(timer->backend, &args, timer->stream);
}

// A pair of stamps around each repeat where something comes before it, else one around them all.
static dt_status put_batch(const struct dt_bench_timer *timer, const struct dt_bench_work *before,
                           const struct dt_bench_work *work, int repeats)
{
    for (int i = 0; i < repeats; i++) {
        if (before)
            DT_TRY(run(before, timer->stream));
        if (before || i == 0)
            DT_TRY(stamp(timer, before ? 2 * i : 0));
        DT_TRY(run(work, timer->stream));
        if (before || i == repeats - 1)
            DT_TRY(stamp(timer, before ? 2 * i + 1 : 1));
    }
    return DT_OK;
}

// Waits for the batch; the mean time of a repeat.
static dt_status read_batch(const struct dt_bench_timer *timer, bool pairs, int repeats,
                            double *seconds)
{
    int n = pairs ? repeats : 1;
    DT_TRY(dt_to_host(timer->backend, timer->read, timer->stamps,
                      2 * n * (int64_t)sizeof *timer->read, timer->stream));
    DT_TRY(dt_stream_sync(timer->backend, timer->stream));
    *seconds = 0;
    for (int i = 0; i < n; i++)
        *seconds += 1e-9 * (double)(timer->read[2 * i + 1] - timer->read[2 * i]) - timer->between;
    *seconds = fmax(*seconds / repeats, shortest);
    return DT_OK;
}

// The first run loads what the work needs, the second says how many repeats make a batch.
static dt_status choose_repeats(const struct dt_bench_timer *timer,
                                const struct dt_bench_work *work, int *repeats)
{
    double seconds = 0;
    for (int i = 0; i < 2; i++) {
        DT_TRY(put_batch(timer, NULL, work, 1));
        DT_TRY(read_batch(timer, false, 1, &seconds));
    }
    *repeats = (int)fmin(fmax(batch_seconds / seconds, 1), BATCH);
    return DT_OK;
}

static dt_status time_on_device(const struct dt_bench_timer *timer,
                                const struct dt_bench_work *before,
                                const struct dt_bench_work *work, double seconds,
                                struct dt_bench_clock *clock)
{
    const struct dt_backend *backend = timer->backend;
    struct dt_graph *graph = NULL;
    int repeats = 1;
    DT_TRY(choose_repeats(timer, work, &repeats));
    DT_TRY(dt_capture_begin(backend, timer->stream));
    dt_status status = put_batch(timer, before, work, repeats);
    dt_status ended = dt_capture_end(backend, timer->stream, &graph);
    status = status == DT_OK ? ended : status;
    dt_bench_start(clock);
    while (status == DT_OK && dt_bench_more(clock, LEAST, seconds)) {
        double mean = 0;
        status = dt_graph_launch(backend, graph, timer->stream);
        if (status == DT_OK)
            status = read_batch(timer, before != NULL, repeats, &mean);
        dt_bench_note(clock, mean);
    }
    if (graph)
        dt_graph_destroy(backend, graph);
    return status;
}

dt_status dt_bench_time(const struct dt_bench_timer *timer, const struct dt_bench_work *before,
                        const struct dt_bench_work *work, double seconds,
                        struct dt_bench_clock *clock)
{
    return (timer->stream ? time_on_device : time_on_host)(timer, before, work, seconds, clock);
}

// What a pair of stamps measures with nothing between them.
static dt_status measure_between(struct dt_bench_timer *timer)
{
    static const struct dt_bench_work nothing;
    struct dt_bench_clock clock;
    DT_TRY(time_on_device(timer, &nothing, &nothing, 0, &clock));
    timer->between = dt_bench_median(&clock);
    return DT_OK;
}

dt_status dt_bench_timer_open(const struct dt_backend *backend, struct dt_bench_timer *timer)
{
    int64_t bytes = 2 * BATCH * (int64_t)sizeof *timer->stamps;
    *timer = (struct dt_bench_timer){.backend = backend};
    if (backend->table->unified)
        return DT_OK;
    dt_status status = dt_stream_create(backend, &timer->stream);
    if (status == DT_OK)
        status = dt_alloc(backend, bytes, &timer->stamps);
    if (status == DT_OK)
        status = dt_alloc_host(backend, bytes, &timer->read);
    if (status == DT_OK)
        status = measure_between(timer);
    if (status != DT_OK)
        dt_bench_timer_close(timer);
    return status;
}

void dt_bench_timer_close(struct dt_bench_timer *timer)
{
    dt_free_host(timer->backend, timer->read);
    dt_free(timer->backend, timer->stamps);
    if (timer->stream)
        dt_stream_destroy(timer->backend, timer->stream);
}
