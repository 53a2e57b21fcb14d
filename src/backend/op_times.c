// Times ops: on a device by two stamps per op, kept until the step is done; on the CPU by the clock
// before and after the op, which is done when it returns.
#include "backend/op_times.h"

#include "base/memory.h"

enum {
    CALLS = 16384, // timed per step; further calls are not timed
    TRIES = 8,     // attempts to read both clocks at the same time
};

struct call {
    enum dt_lane lane;
    const char *name;
    struct dt_trace_work work;
    int row; // the listener's row
};

struct dt_op_times {
    const struct dt_backend *backend;
    const struct dt_machine_limits *limits;
    enum dt_lane lane;              // lane in which ops are counted
    uint64_t begin;                 // CPU: when the current op began
    struct dt_op_listener listener; // zeros: none
    // Only for devices:
    uint64_t *stamps, *read; // [2, CALLS] on the device; pinned
    struct call *calls;      // [CALLS]
    int64_t n;
    uint64_t host_minus_device; // offset of the clocks, modulo 2^64
    uint64_t nothing;           // ns between two adjacent stamps
};

_Thread_local struct dt_op_times *dt_op_times_now;

static dt_status stamp(struct dt_op_times *t, int64_t at, struct dt_stream *stream)
{
    struct dt_stamp_args args = {.time = &t->stamps[at]};
    return t->backend->op->stamp(t->backend->device, &args, stream);
}

static dt_status read_stamps(struct dt_op_times *t, int64_t n, struct dt_stream *stream)
{
    return dt_to_host(t->backend, t->read, t->stamps, n * (int64_t)sizeof *t->read, stream);
}

// Finds the offset of the clocks, within half the time that the host needs for a stamp and a copy.
static dt_status compare_clocks(struct dt_op_times *t, struct dt_stream *stream)
{
    uint64_t least = UINT64_MAX;
    for (int i = 0; i < TRIES; i++) {
        uint64_t before = dt_nanoseconds();
        DT_TRY(stamp(t, 0, stream));
        DT_TRY(stamp(t, 1, stream));
        DT_TRY(read_stamps(t, 2, stream));
        DT_TRY(dt_stream_sync(t->backend, stream));
        uint64_t after = dt_nanoseconds();
        if (after - before >= least)
            continue;
        least = after - before;
        t->host_minus_device = before + least / 2 - t->read[0];
        t->nothing = t->read[1] - t->read[0];
    }
    return DT_OK;
}

static const int64_t stamps_bytes = 2 * CALLS * (int64_t)sizeof(uint64_t);

int64_t dt_op_times_bytes(const struct dt_backend *backend, bool host)
{
    int64_t calls = host ? CALLS * (int64_t)sizeof(struct call) : 0;
    return backend->table->unified ? 0 : stamps_bytes + calls;
}

static dt_status create_on_device(struct dt_op_times *t)
{
    struct dt_stream *stream;
    DT_TRY(DT_NEW(&t->calls, CALLS, "the times of %d calls", CALLS));
    DT_TRY(dt_alloc(t->backend, stamps_bytes, &t->stamps));
    DT_TRY(dt_alloc_host(t->backend, stamps_bytes, &t->read));
    DT_TRY(dt_stream_create(t->backend, &stream));
    dt_status status = compare_clocks(t, stream);
    dt_stream_destroy(t->backend, stream);
    return status;
}

dt_status dt_op_times_create(const struct dt_backend *backend,
                             const struct dt_machine_limits *limits, struct dt_op_times **times)
{
    struct dt_op_times *t;
    DT_TRY(DT_NEW(&t, 1, "the times of ops"));
    t->backend = backend;
    t->limits = limits;
    dt_status status = backend->table->unified ? DT_OK : create_on_device(t);
    if (status != DT_OK)
        dt_op_times_destroy(t);
    else
        *times = t;
    return status;
}

void dt_op_times_destroy(struct dt_op_times *t)
{
    if (!t)
        return;
    if (dt_op_times_now == t)
        dt_op_times_now = NULL;
    dt_free_host(t->backend, t->read);
    dt_free(t->backend, t->stamps);
    free(t->calls);
    free(t);
}

void dt_op_times_start(struct dt_op_times *t, enum dt_lane lane)
{
    t->n = 0;
    t->lane = lane;
    dt_op_times_now = t;
}

dt_status dt_op_times_stop(struct dt_op_times *t, struct dt_stream *stream)
{
    dt_op_times_now = NULL;
    return t->calls ? read_stamps(t, 2 * t->n, stream) : DT_OK;
}

void dt_op_times_listen(struct dt_op_times *t, const struct dt_op_listener *listener)
{
    t->listener = listener ? *listener : (struct dt_op_listener){0};
}

bool dt_op_times_has_listener(const struct dt_op_times *t)
{
    return t && t->listener.row;
}

bool dt_op_times_warms(const struct dt_op_times *t)
{
    return t->listener.warm;
}

static void count(struct dt_op_times *t, const struct call *call, uint64_t begin, uint64_t end)
{
    dt_trace_add(call->lane, call->name, begin, end, &call->work);
    if (t->listener.row)
        t->listener.time(t->listener.context, call->row, 1e-9 * (double)(end - begin));
}

uint64_t dt_op_times_host(const struct dt_op_times *t, uint64_t stamp)
{
    return stamp + t->host_minus_device;
}

void dt_op_times_collect(struct dt_op_times *t)
{
    for (int64_t i = 0; i < t->n; i++) {
        uint64_t begin = t->read[2 * i], end = t->read[2 * i + 1];
        end = end - begin > t->nothing ? end - t->nothing : begin;
        count(t, &t->calls[i], dt_op_times_host(t, begin), dt_op_times_host(t, end));
    }
    t->n = 0;
}

dt_status dt_op_times_begin(struct dt_op_times *t, struct dt_stream *stream)
{
    if (t->calls)
        return t->n < CALLS ? stamp(t, 2 * t->n, stream) : DT_OK;
    t->begin = dt_nanoseconds();
    return DT_OK;
}

dt_status dt_op_times_end(struct dt_op_times *t, enum dt_lane lane, const char *name,
                          const void *args, const struct dt_op_cost *cost, struct dt_stream *stream)
{
    uint64_t now = t->calls ? 0 : dt_nanoseconds();
    struct call call = {.lane = lane == DT_LANE_OP ? t->lane : lane,
                        .name = cost->name ? cost->name : name,
                        .work = {.bytes = cost->bytes, .flops = cost->flops}};
    if (t->limits)
        call.work.floor = dt_op_floor(cost, t->limits).seconds;
    if (t->listener.row)
        DT_TRY(t->listener.row(t->listener.context, name, args, cost, &call.row));
    if (!t->calls)
        count(t, &call, t->begin, now);
    else if (t->n < CALLS) {
        DT_TRY(stamp(t, 2 * t->n + 1, stream));
        t->calls[t->n++] = call;
    }
    return DT_OK;
}
