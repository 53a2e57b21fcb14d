// Measures the ops of a training step, and the machine's limits that they are compared with, by the
// instrument of training (backend/op_times.h).
#pragma once

#include "bench/bench.h"

#include "backend/op_times.h"

struct dt_bench_machine {
    struct dt_machine_limits limits;
    int threads;
    const struct dt_backend *backend;
    struct dt_op_times *times; // borrowed
    int64_t array_bytes;
    char *from, *to; // device arrays larger than the caches
};
dt_status dt_bench_machine_open(struct dt_bench_rig *rig, double seconds,
                                struct dt_bench_machine *machine);
void dt_bench_machine_close(struct dt_bench_machine *machine);
// Repeats `run`, which calls one op, for `seconds`; returns the shortest time of the op.
dt_status dt_bench_best_time(const struct dt_bench_machine *machine,
                             dt_status (*run)(const struct dt_bench_machine *machine,
                                              const void *args),
                             const void *args, double seconds, double *best);

// Two ways to measure all limits except GEMM.
dt_status dt_bench_machine_measure_device(struct dt_bench_rig *rig, double seconds,
                                          struct dt_bench_machine *machine);
dt_status dt_bench_machine_measure_cpu(struct dt_bench_rig *rig, double seconds,
                                       struct dt_bench_machine *machine);
