// How long ops take, for the counters of base/trace.h. Ops that the thread launches between start
// and stop are timed at the dispatch (ops.c): on the CPU by the clock, on a device by stamps around
// each, which are read when the stream has done the work. Stamps do not work in a graph, so steps
// that are timed run without one, and are few (train/step.c).
#pragma once

#include "backend/cost.h"
#include "base/trace.h"

struct dt_op_times;

// limits (borrowed): NULL where they are not known, then ops have no floor.
dt_status dt_op_times_create(const struct dt_backend *backend,
                             const struct dt_machine_limits *limits, struct dt_op_times **times);
void dt_op_times_destroy(struct dt_op_times *times); // NULL is fine
// Bytes that dt_op_times_create allocates on the device, or on the host (pinned and plain).
int64_t dt_op_times_bytes(const struct dt_backend *backend, bool host);
// Ops are counted in `lane`.
void dt_op_times_start(struct dt_op_times *times, enum dt_lane lane);
// Sends the stamps to the host on `stream`, on which all timed work has been joined.
dt_status dt_op_times_stop(struct dt_op_times *times, struct dt_stream *stream);
// Counts the ops between the last start and stop, whose work is done.
void dt_op_times_collect(struct dt_op_times *times);

// Receives the time of every call, beside the counters (`dtrain bench`).
struct dt_op_listener {
    // Called at the dispatch: finds the row that the call belongs to; its time comes later. args is
    // the op's struct.
    dt_status (*row)(void *context, const char *op, const void *args, const struct dt_op_cost *cost,
                     int *row);
    void (*time)(void *context, int row, double seconds);
    void *context;
    bool warm; // each op runs twice, and the second run is timed: its arrays are in the caches
};
// Sets the listener from the next start on; it is copied, NULL removes it. The costs that a
// listener gets have shapes, and stamps are timed like other ops.
void dt_op_times_listen(struct dt_op_times *times, const struct dt_op_listener *listener);
bool dt_op_times_has_listener(const struct dt_op_times *times); // NULL is fine
// The time on the host's clock (dt_nanoseconds) of a stamp on the device's clock.
uint64_t dt_op_times_host(const struct dt_op_times *times, uint64_t stamp);

// For ops.c, and for work on a stream that is no op: the calling thread's times, NULL between stop
// and start.
extern _Thread_local struct dt_op_times *dt_op_times_now;
bool dt_op_times_warms(const struct dt_op_times *times); // the op is to be run once before `begin`
dt_status dt_op_times_begin(struct dt_op_times *times, struct dt_stream *stream);
// `lane`: DT_LANE_OP for that of dt_op_times_start. args: NULL where it is no op.
dt_status dt_op_times_end(struct dt_op_times *times, enum dt_lane lane, const char *name,
                          const void *args, const struct dt_op_cost *cost,
                          struct dt_stream *stream);
