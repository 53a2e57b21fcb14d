// Measures how long ops take, for the counters of base/trace.h. Ops that the thread launches
// between start and stop are timed at the dispatch (ops.c): on the CPU by the clock, on a device by
// a stamp before and after, read once the stream has done the work. Stamps do not work in a graph,
// so the few timed steps run without one (train/step.c).
#pragma once

#include "backend/cost.h"
#include "base/trace.h"

struct dt_op_times;

// limits (borrowed) NULL: unknown, so ops have no floor.
dt_status dt_op_times_create(const struct dt_backend *backend,
                             const struct dt_machine_limits *limits, struct dt_op_times **times);
void dt_op_times_destroy(struct dt_op_times *times); // NULL is fine
// Bytes that dt_op_times_create allocates on the device or, with `host`, on the host.
int64_t dt_op_times_bytes(const struct dt_backend *backend, bool host);
// Starts counting ops in `lane`.
void dt_op_times_start(struct dt_op_times *times, enum dt_lane lane);
// Copies the stamps to the host on `stream`, which must have joined all timed work.
dt_status dt_op_times_stop(struct dt_op_times *times, struct dt_stream *stream);
// Counts the ops between the last start and stop; their work must be done.
void dt_op_times_collect(struct dt_op_times *times);

// Receives the time of every call in addition to the counters (`dtrain bench`).
struct dt_op_listener {
    // Called at the dispatch: finds the row that the call belongs to; `time` receives its time
    // later. args is the op's struct.
    dt_status (*row)(void *context, const char *op, const void *args, const struct dt_op_cost *cost,
                     int *row);
    void (*time)(void *context, int row, double seconds);
    void *context;
    bool warm; // each op runs twice, and the second run, with warm caches, is timed
};
// Sets the listener (copied; NULL removes it) from the next start on. With a listener costs have
// shapes, and stamps are timed like other ops.
void dt_op_times_listen(struct dt_op_times *times, const struct dt_op_listener *listener);
bool dt_op_times_has_listener(const struct dt_op_times *times); // NULL is fine
// Converts a device stamp to the host's clock (dt_nanoseconds).
uint64_t dt_op_times_host(const struct dt_op_times *times, uint64_t stamp);

// The calling thread's times, NULL between stop and start; for ops.c and for work on a stream that
// is no op.
extern _Thread_local struct dt_op_times *dt_op_times_now;
bool dt_op_times_warms(const struct dt_op_times *times); // the op must be run once before `begin`
dt_status dt_op_times_begin(struct dt_op_times *times, struct dt_stream *stream);
// `lane`: DT_LANE_OP means the lane of dt_op_times_start. args NULL: the work is no op.
dt_status dt_op_times_end(struct dt_op_times *times, enum dt_lane lane, const char *name,
                          const void *args, const struct dt_op_cost *cost,
                          struct dt_stream *stream);
