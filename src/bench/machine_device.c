// The limits of a device that has a clock of its own, measured by its ops: copying between arrays
// larger than its caches, arithmetic in registers (the op `spin`).
#include "bench/ops.h"

#include "base/round.h"

enum {
    ARRAY_MAX = 512 << 20, // bytes
    ARRAY_SHARE = 8,       // of the memory that is free
    SPIN_VALUES = 1 << 22,
    SPIN_ROUNDS_MIN = 8,
    SPIN_ROUNDS_MAX = 1 << 16,
};
static const double spin_seconds = 5e-4; // launch and writing do not show in that

// No op: it is timed here, unless this is the run that is not.
static dt_status run_copy(const struct dt_bench_machine *m, const void *args)
{
    (void)args;
    struct dt_op_times *times = dt_op_times_now;
    if (times)
        DT_TRY(dt_op_times_begin(times, NULL));
    DT_TRY(dt_copy(m->backend, m->to, m->from, m->array_bytes, NULL));
    return times ? dt_op_times_end(times, DT_LANE_OP, "copy", NULL, &(struct dt_op_cost){0}, NULL)
                 : DT_OK;
}

static dt_status run_spin(const struct dt_bench_machine *m, const void *args)
{
    return dt_spin(m->backend, args, NULL);
}

static dt_status spin_rate(const struct dt_bench_machine *m, enum dt_spin_kind kind, double seconds,
                           double *rate)
{
    struct dt_spin_args spin = {
        .kind = kind,
        .n = dt_min_i64(m->array_bytes / (int64_t)sizeof(float), SPIN_VALUES),
        .a = 0.5f,
        .b = 0.25f,
        .y = (float *)(void *)m->to};
    double best = 0;
    for (spin.rounds = SPIN_ROUNDS_MIN; spin.rounds <= SPIN_ROUNDS_MAX && best < spin_seconds;
         spin.rounds *= 4) {
        DT_TRY(dt_bench_best_time(m, run_spin, &spin, seconds / 4, &best));
        *rate = (double)spin.n * (double)spin.rounds / best;
    }
    return DT_OK;
}

dt_status dt_bench_machine_measure_device(struct dt_bench_rig *rig, double seconds,
                                          struct dt_bench_machine *m)
{
    struct dt_device_info info;
    double best;
    DT_TRY(dt_backend_info(&rig->backend, &info));
    int64_t share = info.memory_free / ARRAY_SHARE / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
    m->array_bytes = dt_min_i64(share, ARRAY_MAX);
    DT_TRY(dt_alloc(&rig->backend, m->array_bytes, &m->from));
    DT_TRY(dt_alloc(&rig->backend, m->array_bytes, &m->to));
    DT_TRY(dt_bench_best_time(m, run_copy, NULL, seconds, &best));
    m->limits.copy = 2 * (double)m->array_bytes / best;
    DT_TRY(spin_rate(m, DT_SPIN_EXP, seconds, &m->limits.exps));
    DT_TRY(spin_rate(m, DT_SPIN_EXP2, seconds, &m->limits.exp2s));
    return spin_rate(m, DT_SPIN_FMA, seconds, &m->limits.lanes);
}
