// Tracing: code names its work by spans. Spans are counted by lane and name for the profile of a
// run (train/profile.h), and in the steps of log.trace_steps also kept for a timeline
// (train/timeline.h). Any thread may add spans. When tracing is off, a span costs one test of a
// flag; nothing is allocated after dt_trace_open.
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
    DT_LANE_PHASE,       // phases of the training thread, without gaps
    DT_LANE_DEVICE,      // phases on a device that has its own clock
    DT_LANE_OP,          // ops (backend/backend.h) in training steps
    DT_LANE_VALIDATION,  // ops in validation
    DT_LANE_COMM,        // collectives between hosts
    DT_LANE_DEVICE_COMM, // collectives between devices
    DT_LANE_INPUT,       // the reader thread
    DT_LANE_CHECKPOINT,  // snapshot and files
    DT_LANE_COUNT
};

struct dt_trace_work {
    double bytes, flops;
    double floor; // seconds that the machine needs at least; 0: unknown
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

// Starts counting from 0, with room to keep this many spans; dt_trace_bytes says how many bytes
// they take.
dt_status dt_trace_open(int64_t spans);
static inline int64_t dt_trace_bytes(int64_t spans)
{
    return spans * (int64_t)sizeof(struct dt_trace_span);
}
void dt_trace_close(void);
// Starts or stops keeping spans. Starting discards the spans kept before and cuts open spans to
// begin now.
void dt_trace_keep(bool keep);

// `name` is a string literal. Spans of one lane may nest or overlap.
void dt_trace_add(enum dt_lane lane, const char *name, uint64_t begin, uint64_t end,
                  const struct dt_trace_work *work);
// The training thread enters this phase and leaves the previous one.
void dt_trace_phase(const char *name);
// Registers functions to call at the begin and end of each phase, on the training thread; NULL:
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

// Adds a span from dt_trace_begin until now, or nothing if tracing was off then.
static inline void dt_trace_end(enum dt_lane lane, const char *name, uint64_t begin, int64_t bytes)
{
    if (begin > 0)
        dt_trace_add(lane, name, begin, dt_nanoseconds(),
                     &(struct dt_trace_work){.bytes = (double)bytes});
}

// Copies the counters, at most DT_TRACE_COUNTERS; returns how many.
int dt_trace_counters(struct dt_trace_counter *counters);
// The spans kept, ordered by end; valid until dt_trace_keep or dt_trace_close. *lost: how many did
// not fit.
int64_t dt_trace_spans(const struct dt_trace_span **spans, int64_t *lost);
