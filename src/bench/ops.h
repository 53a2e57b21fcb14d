// The calls of ops that a training step makes, each with what it must move and compute; and the
// limits of the machine that these are compared with.
#pragma once

#include "bench/bench.h"

#include "backend/cost.h"

union dt_bench_args {
#define DT_BENCH_MEMBER(op) struct dt_##op##_args op;
    DT_OPS(DT_BENCH_MEMBER)
#undef DT_BENCH_MEMBER
};

// One op: how to run a recorded call, and what it costs. A row for each of DT_OPS.
struct dt_bench_op {
    const char *name;
    dt_status (*run)(const struct dt_backend *backend, const union dt_bench_args *args,
                     struct dt_stream *stream);
    struct dt_op_cost (*cost)(const struct dt_backend *backend, const union dt_bench_args *args);
};
enum dt_bench_op_index {
#define DT_BENCH_INDEX(op) DT_BENCH_##op,
    DT_OPS(DT_BENCH_INDEX)
#undef DT_BENCH_INDEX
        DT_BENCH_OP_COUNT
};
extern const struct dt_bench_op dt_bench_op_table[DT_BENCH_OP_COUNT];

struct dt_bench_call {
    const struct dt_backend *backend;
    enum dt_bench_op_index op;
    union dt_bench_args args; // pointers into the rig
    char shape[80];           // of a GEMM the layer's name too
    struct dt_op_cost cost;
    int64_t count; // calls of this shape in a step; 0: a step makes none
};

// The different calls of one step and of the ops that it leaves out, in the order of DT_OPS.
struct dt_bench_calls {
    int64_t n;
    struct dt_bench_call at[128];
};
dt_status dt_bench_run_call(const void *call, struct dt_stream *stream); // as work (below)
// Opens the rig and runs a step.
dt_status dt_bench_record(const struct dt_bench_options *options, struct dt_bench_rig *rig,
                          struct dt_bench_calls *calls);

// What is timed: puts its work on `stream`. run NULL: nothing.
struct dt_bench_work {
    dt_status (*run)(const void *what, struct dt_stream *stream);
    const void *what;
};

struct dt_bench_timer {
    const struct dt_backend *backend;
    struct dt_stream *stream; // NULL: every call is done when it returns, the host's clock does
    uint64_t *stamps;         // device memory, in ns; one pair per repeat
    uint64_t *read;           // the same on the host
    double between;           // seconds from a stamp to the next with nothing in between
};
dt_status dt_bench_timer_open(const struct dt_backend *backend, struct dt_bench_timer *timer);
void dt_bench_timer_close(struct dt_bench_timer *timer);
// Repeats `work` for `seconds`, each repeat after `before` (NULL: nothing), whose time is
// not counted; records seconds per repeat, one figure per round.
dt_status dt_bench_time(const struct dt_bench_timer *timer, const struct dt_bench_work *before,
                        const struct dt_bench_work *work, double seconds,
                        struct dt_bench_clock *clock);

// Points into itself: must not be moved.
struct dt_bench_machine {
    struct dt_machine_limits limits;
    int threads;
    const struct dt_backend *backend;
    struct dt_bench_timer timer;
    struct dt_bench_work sweep; // fills the caches with other, clean data
    int64_t array_bytes;
    char *from, *to;                 // arrays larger than the caches, of the device
    struct dt_bench_call sweep_call; // the sweep of a device
};
dt_status dt_bench_machine_open(struct dt_bench_rig *rig, double seconds,
                                struct dt_bench_machine *machine);
void dt_bench_machine_close(struct dt_bench_machine *machine);

// The two ways to measure all but GEMM.
dt_status dt_bench_machine_measure_cpu(struct dt_bench_rig *rig, double seconds,
                                       struct dt_bench_machine *machine);
dt_status dt_bench_machine_measure_device(struct dt_bench_rig *rig, double seconds,
                                          struct dt_bench_machine *machine);
