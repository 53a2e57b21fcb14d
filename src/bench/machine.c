// Measures the limits of the machine: the minimum time of an op, the rates of GEMM and, on a
// device, of copies and arithmetic. machine_cpu.c measures the latter on a CPU.
#include "bench/ops.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/round.h"

#include <math.h>

enum {
    LEAST = 3,
    BATCH = 4, // runs before the host waits
    SQUARE_MIN = 256,
    SQUARE_MAX = 8192,
    TRIES = 8,             // tries per size: a product of twice the size needs eight times the time
    ARRAY_MAX = 512 << 20, // bytes of a device array
    ARRAY_SHARE = 8,       // as a share of the free memory
    SPIN_VALUES = 1 << 22,
    SPIN_ROUNDS_MIN = 8,
    SPIN_ROUNDS_MAX = 1 << 16,
};
static const double spin_seconds = 5e-4; // long enough to hide launch and writing

// Fills values in [-1/2, 1/2] with different rows, because products of zeros take less power than a
// model's.
static dt_status fill(const struct dt_bench_machine *m, enum dt_dtype type, int64_t n)
{
    char *host;
    DT_TRY(DT_NEW(&host, n * dt_dtype_size(type), "a matrix of %lld elements", (long long)n));
    for (int64_t i = 0; i < n; i++) {
        float x = (float)(i * 7919 % 1009) / 1009 - 0.5f;
        if (type == DT_BF16)
            ((dt_bf16 *)(void *)host)[i] = dt_f32_to_bf16(x);
        else
            ((float *)(void *)host)[i] = x;
    }
    dt_status status = dt_to_device(m->backend, m->from, host, n * dt_dtype_size(type), NULL);
    if (status == DT_OK)
        status = dt_stream_sync(m->backend, NULL);
    free(host);
    return status;
}

static dt_status only_row(void *context, const char *op, const void *args,
                          const struct dt_op_cost *cost, int *row)
{
    (void)context, (void)op, (void)args, (void)cost;
    *row = 0;
    return DT_OK;
}

static void note_time(void *best, int row, double seconds)
{
    (void)row;
    *(double *)best = fmin(*(double *)best, seconds);
}

dt_status dt_bench_best_time(const struct dt_bench_machine *m,
                             dt_status (*run)(const struct dt_bench_machine *m, const void *args),
                             const void *args, double seconds, double *best)
{
    struct dt_op_listener listener = {only_row, note_time, best, false};
    dt_status status = run(m, args); // the first run loads libraries
    double start = dt_seconds();
    *best = INFINITY;
    dt_op_times_listen(m->times, &listener);
    for (int i = 0; status == DT_OK && (i < LEAST || dt_seconds() - start < seconds); i++) {
        dt_op_times_start(m->times, DT_LANE_OP);
        for (int k = 0; k < BATCH && status == DT_OK; k++)
            status = run(m, args);
        dt_status stopped = dt_op_times_stop(m->times, NULL);
        status = status == DT_OK ? stopped : status;
        if (status == DT_OK)
            status = dt_stream_sync(m->backend, NULL);
        if (status == DT_OK)
            dt_op_times_collect(m->times);
    }
    dt_op_times_listen(m->times, NULL);
    *best = fmax(*best, 1e-9); // short work may be below the clock's resolution
    return status;
}

static dt_status run_gemm(const struct dt_bench_machine *m, const void *args)
{
    return dt_gemm(m->backend, args, NULL);
}

static dt_status time_square(const struct dt_bench_machine *m, enum dt_dtype type, int64_t n,
                             double seconds, double *best)
{
    struct dt_view operand = dt_view_of(m->from, n, n, type);
    struct dt_gemm_args args = {.a = operand, .b = operand, .c = dt_view_of(m->to, n, n, DT_F32)};
    args.workspace_bytes = dt_gemm_workspace(m->backend, &args);
    DT_TRY(dt_alloc(m->backend, args.workspace_bytes, &args.workspace));
    dt_status status = fill(m, type, n * n);
    if (status == DT_OK)
        status = dt_bench_best_time(m, run_gemm, &args, seconds, best);
    dt_free(m->backend, args.workspace);
    return status;
}

// Increases the size until too few tries fit into the time.
static dt_status gemm_rate(const struct dt_bench_machine *m, enum dt_dtype type, double seconds,
                           double *rate)
{
    double best = 0;
    *rate = 0;
    for (int64_t n = SQUARE_MIN; n <= SQUARE_MAX && TRIES * best < seconds; n *= 2) {
        if (n * n * (int64_t)sizeof(float) > m->array_bytes)
            break;
        DT_TRY(time_square(m, type, n, seconds / 2, &best));
        double reached = 2 * (double)n * (double)n * (double)n / best;
        *rate = fmax(*rate, reached);
    }
    return DT_OK;
}

// A copy is no op, so it is timed here, except in the first run.
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

// Measures all limits except GEMM on a device with its own clock, by its ops: copies between arrays
// larger than its caches, and arithmetic in registers (the op `spin`).
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

dt_status dt_bench_machine_open(struct dt_bench_rig *rig, double seconds,
                                struct dt_bench_machine *m)
{
    *m = (struct dt_bench_machine){
        .threads = rig->info.threads, .backend = &rig->backend, .times = rig->times};
    dt_status status = m->backend->table->unified
                           ? dt_bench_machine_measure_cpu(rig, seconds, m)
                           : dt_bench_machine_measure_device(rig, seconds, m);
    if (status == DT_OK)
        status = gemm_rate(m, DT_F32, seconds, &m->limits.gemm_f32);
    if (status == DT_OK)
        status = gemm_rate(m, DT_BF16, seconds, &m->limits.gemm_bf16);
    if (m->backend->table->unified)
        m->limits.lanes = m->limits.gemm_f32 / 2; // a multiply-add is two FLOPs
    if (status != DT_OK)
        dt_bench_machine_close(m);
    return status;
}

void dt_bench_machine_close(struct dt_bench_machine *m)
{
    dt_free(m->backend, m->from);
    dt_free(m->backend, m->to);
    *m = (struct dt_bench_machine){0};
}
