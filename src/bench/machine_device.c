// The limits of a device that has a clock of its own, measured by its ops: copying between arrays
// larger than its caches, arithmetic in registers (the op `spin`).
#include "bench/ops.h"

#include "base/round.h"

enum {
    ARRAY_MAX = 512 << 20, // bytes
    ARRAY_SHARE = 8,       // of the memory that is free
    SWEEP_MAX = 256 << 20, // several times the largest second-level cache
    SPIN_VALUES = 1 << 22,
    SPIN_ROUNDS_MIN = 8,
    SPIN_ROUNDS_MAX = 1 << 16,
};
static const double spin_seconds = 5e-4; // launch and writing do not show in that

static dt_status take_arrays(const struct dt_bench_rig *rig, struct dt_bench_machine *m)
{
    struct dt_device_info info;
    DT_TRY(dt_backend_info(&rig->backend, &info));
    int64_t share = info.memory_free / ARRAY_SHARE / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
    m->array_bytes = dt_min_i64(share, ARRAY_MAX);
    DT_TRY(dt_alloc(&rig->backend, m->array_bytes, &m->from));
    return dt_alloc(&rig->backend, m->array_bytes, &m->to);
}

static dt_status run_copy(const void *what, struct dt_stream *stream)
{
    const struct dt_bench_machine *m = what;
    return dt_copy(m->backend, m->to, m->from, m->array_bytes, stream);
}

static dt_status copy_rate(struct dt_bench_machine *m, double seconds)
{
    struct dt_bench_work work = {run_copy, m};
    struct dt_bench_clock clock;
    DT_TRY(dt_bench_time(&m->timer, NULL, &work, seconds, &clock));
    m->limits.copy = 2 * (double)m->array_bytes / dt_bench_best(&clock);
    return DT_OK;
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
    struct dt_bench_call call = {.backend = m->backend, .op = DT_BENCH_spin, .args.spin = spin};
    struct dt_bench_work work = {dt_bench_run_call, &call};
    struct dt_bench_clock clock;
    double best = 0;
    for (int64_t rounds = SPIN_ROUNDS_MIN; rounds <= SPIN_ROUNDS_MAX && best < spin_seconds;
         rounds *= 4) {
        call.args.spin.rounds = rounds;
        DT_TRY(dt_bench_time(&m->timer, NULL, &work, seconds / 4, &clock));
        best = dt_bench_best(&clock);
        *rate = (double)spin.n * (double)rounds / best;
    }
    return DT_OK;
}

// Reading alone: what a copy leaves in the caches would have to be written back while an op is
// timed.
static void prepare_sweep(struct dt_bench_machine *m)
{
    int64_t bytes = dt_min_i64(m->array_bytes, SWEEP_MAX);
    struct dt_sum_squares_args args = {.n = bytes / (int64_t)sizeof(float),
                                       .x = (const float *)(const void *)m->from,
                                       .sum = (double *)(void *)m->to,
                                       .workspace = m->to + DT_ARENA_ALIGN};
    args.workspace_bytes = dt_sum_squares_workspace(m->backend, &args);
    m->sweep_call = (struct dt_bench_call){
        .backend = m->backend, .op = DT_BENCH_sum_squares, .args.sum_squares = args};
    m->sweep = (struct dt_bench_work){dt_bench_run_call, &m->sweep_call};
}

dt_status dt_bench_machine_measure_device(struct dt_bench_rig *rig, double seconds,
                                          struct dt_bench_machine *m)
{
    DT_TRY(take_arrays(rig, m));
    DT_TRY(copy_rate(m, seconds));
    DT_TRY(spin_rate(m, DT_SPIN_EXP, seconds, &m->limits.exps));
    DT_TRY(spin_rate(m, DT_SPIN_EXP2, seconds, &m->limits.exp2s));
    DT_TRY(spin_rate(m, DT_SPIN_FMA, seconds, &m->limits.lanes));
    prepare_sweep(m);
    return DT_OK;
}
