// Where the time goes. Code names its work by spans: each is counted under its lane and name, for
// the table of a run (train/profile.h), and in the steps of log.trace_steps also kept, for a
// timeline (train/timeline.h). Any thread may add spans. When off, a span costs one test of a flag;
// nothing is allocated after dt_trace_open.
//
//     uint64_t begin = dt_trace_begin();
//     … read a block …
//     dt_trace_end(DT_LANE_INPUT, "read block", begin, bytes);
#pragma once

#include "base/clock.h"
#include "base/error.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// Lanes of one rank, in the order of the table and of the timeline.
enum dt_lane {
    DT_LANE_PHASE,       // what the training thread does: one phase after another, without gaps
    DT_LANE_DEVICE,      // the same, on a device that has a clock of its own
    DT_LANE_OP,          // calls of ops (backend/backend.h) in training steps …
    DT_LANE_VALIDATION,  // … and in validation
    DT_LANE_COMM,        // collectives under way between hosts …
    DT_LANE_DEVICE_COMM, // … and between devices
    DT_LANE_INPUT,       // the reader thread
    DT_LANE_CHECKPOINT,  // snapshot and files
    DT_LANE_COUNT
};

struct dt_trace_work {
    double bytes, flops;
    double floor; // seconds: the least that the machine needs; 0: unknown
};

enum { DT_TRACE_NAME = 40, DT_TRACE_COUNTERS = 192 };

struct dt_trace_counter { // all spans of a name
    char name[DT_TRACE_NAME];
    int64_t lane, count;
    double seconds;
    struct dt_trace_work work;
};

struct dt_trace_span {
    const char *name;
    enum dt_lane lane;
    uint64_t begin, end; // dt_nanoseconds
    double bytes;
};

// The bits of dt_trace_mode, which is 0 where tracing is off.
enum { DT_TRACE_COUNTS = 1, DT_TRACE_KEEPS = 2 };
extern atomic_int dt_trace_mode;

// Starts to count, with all counters at 0 and room to keep this many spans, of so many bytes.
dt_status dt_trace_open(int64_t spans);
static inline int64_t dt_trace_bytes(int64_t spans)
{
    return spans * (int64_t)sizeof(struct dt_trace_span);
}
void dt_trace_close(void);
// Whether spans are kept from now on, cut to begin now; those kept before are forgotten when it
// begins again.
void dt_trace_keep(bool keep);

// `name` is a string literal. Spans of one lane may nest or overlap.
void dt_trace_add(enum dt_lane lane, const char *name, uint64_t begin, uint64_t end,
                  const struct dt_trace_work *work);
// The training thread enters this phase, and leaves the one before.
void dt_trace_phase(const char *name);
// Registers functions that are called as each phase begins and ends, on the training thread; NULL:
// none.
void dt_trace_ranges(void (*begin)(const char *name), void (*end)(void));

static inline int dt_trace_is_on(void)
{
    return atomic_load_explicit(&dt_trace_mode, memory_order_relaxed);
}

static inline uint64_t dt_trace_begin(void)
{
    return dt_trace_is_on() ? dt_nanoseconds() : 0;
}

// Adds a span from a dt_trace_begin until now, or nothing where that found tracing off.
static inline void dt_trace_end(enum dt_lane lane, const char *name, uint64_t begin, int64_t bytes)
{
    if (begin > 0)
        dt_trace_add(lane, name, begin, dt_nanoseconds(),
                     &(struct dt_trace_work){.bytes = (double)bytes});
}

// Copies the counters, at most DT_TRACE_COUNTERS; returns how many.
int dt_trace_counters(struct dt_trace_counter *counters);
// The spans kept, in the order in which they ended; valid until dt_trace_keep or dt_trace_close.
// *lost: how many had no room.
int64_t dt_trace_spans(const struct dt_trace_span **spans, int64_t *lost);
