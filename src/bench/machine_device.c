// The limits of a device that has a clock of its own, measured by its ops: copying between arrays
// larger than its caches, GEMM of large squares, arithmetic in registers (the op `spin`).
#include "bench/ops.h"

#include <stdlib.h>

enum {
    ARRAY_MAX = 512 << 20, // bytes
    ARRAY_SHARE = 8,       // of the memory that is free
    SWEEP_MAX = 256 << 20, // several times the largest second-level cache
    SQUARE_MIN = 256,
    SQUARE_MAX = 8192,
    TRIES = 8, // a product of twice the size takes eight times as long
    SPIN_VALUES = 1 << 22,
    SPIN_ROUNDS_MIN = 8,
    SPIN_ROUNDS_MAX = 1 << 16,
};
static const double spin_seconds = 5e-4; // launch and writing do not show in that

struct op_call {
    const struct dt_backend *backend;
    union dt_bench_args args;
};

static dt_status take_arrays(const struct dt_bench_rig *rig, struct dt_bench_machine *m)
{
    const struct dt_device_table *table = rig->backend.table;
    struct dt_device *device = rig->backend.device;
    struct dt_device_info info;
    DT_TRY(table->info(device, &info));
    int64_t share = info.memory_free / ARRAY_SHARE / DT_ARENA_ALIGN * DT_ARENA_ALIGN;
    m->array_bytes = share < ARRAY_MAX ? share : ARRAY_MAX;
    DT_TRY(table->alloc(device, m->array_bytes, (void **)&m->from));
    return table->alloc(device, m->array_bytes, (void **)&m->to);
}

static dt_status run_copy(const void *what, struct dt_stream *stream)
{
    const struct dt_bench_machine *m = what;
    return m->backend->table->copy(m->backend->device, m->to, m->from, m->array_bytes, stream);
}

static dt_status copy_rate(struct dt_bench_machine *m, double seconds)
{
    struct dt_bench_work work = {run_copy, m};
    struct dt_bench_clock clock;
    DT_TRY(dt_bench_time(&m->timer, NULL, &work, seconds, &clock));
    m->copy = 2 * (double)m->array_bytes / dt_bench_best(&clock);
    return DT_OK;
}

// Values in [-1/2, 1/2], the same for every size: products of zeros take less power than a model's.
static dt_status fill_square(const struct dt_bench_machine *m, enum dt_dtype type, int64_t n)
{
    const struct dt_device_table *table = m->backend->table;
    int64_t size = dt_dtype_size(type);
    char *host = malloc((size_t)(n * n * size));
    if (!host)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a matrix of %lld x %lld", (long long)n,
                       (long long)n);
    for (int64_t i = 0; i < n * n; i++) {
        float x = dt_bench_value(i);
        if (type == DT_BF16)
            ((dt_bf16 *)(void *)host)[i] = dt_f32_to_bf16(x);
        else
            ((float *)(void *)host)[i] = x;
    }
    dt_status status = table->to_device(m->backend->device, m->from, host, n * n * size, NULL);
    if (status == DT_OK)
        status = table->stream_sync(m->backend->device, NULL);
    free(host);
    return status;
}

static dt_status run_gemm(const void *what, struct dt_stream *stream)
{
    const struct op_call *call = what;
    return dt_gemm(call->backend, &call->args.gemm, stream);
}

static dt_status time_square(struct dt_bench_rig *rig, const struct dt_bench_machine *m,
                             enum dt_dtype type, int64_t n, double seconds, double *best)
{
    struct op_call call = {&rig->backend, {.gemm = dt_bench_square(m, type, n)}};
    struct dt_gemm_args *args = &call.args.gemm;
    struct dt_bench_work work = {run_gemm, &call};
    struct dt_bench_clock clock;
    const struct dt_device_table *table = rig->backend.table;
    args->workspace_bytes = dt_gemm_workspace(&rig->backend, args);
    DT_TRY(table->alloc(rig->backend.device, args->workspace_bytes, &args->workspace));
    dt_status status = dt_bench_rig_choose(rig); // an algorithm for this shape
    if (status == DT_OK)
        status = fill_square(m, type, n);
    if (status == DT_OK)
        status = dt_bench_time(&m->timer, NULL, &work, seconds, &clock);
    if (status == DT_OK)
        *best = dt_bench_best(&clock);
    table->free(rig->backend.device, args->workspace);
    return status;
}

// The size grows until the time would pass in less than some tries of it.
static dt_status gemm_rate(struct dt_bench_rig *rig, const struct dt_bench_machine *m,
                           enum dt_dtype type, double seconds, double *rate)
{
    double best = 0;
    *rate = 0;
    for (int64_t n = SQUARE_MIN; n <= SQUARE_MAX && TRIES * best < seconds; n *= 2) {
        if (n * n * (int64_t)sizeof(float) > m->array_bytes)
            break;
        DT_TRY(time_square(rig, m, type, n, seconds / 2, &best));
        double reached = 2 * (double)n * (double)n * (double)n / best;
        *rate = reached > *rate ? reached : *rate;
    }
    return DT_OK;
}

static dt_status run_spin(const void *what, struct dt_stream *stream)
{
    const struct op_call *call = what;
    return dt_spin(call->backend, &call->args.spin, stream);
}

static dt_status spin_rate(const struct dt_bench_machine *m, enum dt_spin_kind kind, double seconds,
                           double *rate)
{
    int64_t values = m->array_bytes / (int64_t)sizeof(float);
    struct op_call call = {m->backend,
                           {.spin = {.kind = kind,
                                     .n = values < SPIN_VALUES ? values : SPIN_VALUES,
                                     .a = 0.5f,
                                     .b = 0.25f,
                                     .y = (float *)(void *)m->to}}};
    struct dt_bench_work work = {run_spin, &call};
    struct dt_bench_clock clock;
    double best = 0;
    for (int64_t rounds = SPIN_ROUNDS_MIN; rounds <= SPIN_ROUNDS_MAX && best < spin_seconds;
         rounds *= 4) {
        call.args.spin.rounds = rounds;
        DT_TRY(dt_bench_time(&m->timer, NULL, &work, seconds / 4, &clock));
        best = dt_bench_best(&clock);
        *rate = (double)call.args.spin.n * (double)rounds / best;
    }
    return DT_OK;
}

// Reading alone: what a copy leaves in the caches would have to be written back while an op is
// timed.
static dt_status run_sweep(const void *what, struct dt_stream *stream)
{
    const struct dt_bench_machine *m = what;
    return dt_sum_squares(m->backend, &m->sweep_args, stream);
}

static void prepare_sweep(struct dt_bench_machine *m)
{
    int64_t bytes = m->array_bytes < SWEEP_MAX ? m->array_bytes : SWEEP_MAX;
    struct dt_sum_squares_args *args = &m->sweep_args;
    *args = (struct dt_sum_squares_args){.n = bytes / (int64_t)sizeof(float),
                                         .x = (const float *)(const void *)m->from,
                                         .sum = (double *)(void *)m->to,
                                         .workspace = m->to + DT_ARENA_ALIGN};
    args->workspace_bytes = dt_sum_squares_workspace(m->backend, args);
    m->sweep = (struct dt_bench_work){run_sweep, m};
}

dt_status dt_bench_machine_measure_device(struct dt_bench_rig *rig, double seconds,
                                          struct dt_bench_machine *m)
{
    DT_TRY(take_arrays(rig, m));
    DT_TRY(copy_rate(m, seconds));
    DT_TRY(gemm_rate(rig, m, DT_F32, seconds, &m->gemm_f32));
    DT_TRY(gemm_rate(rig, m, DT_BF16, seconds, &m->gemm_bf16));
    DT_TRY(spin_rate(m, DT_SPIN_EXP, seconds, &m->exps));
    DT_TRY(spin_rate(m, DT_SPIN_EXP2, seconds, &m->exp2s));
    DT_TRY(spin_rate(m, DT_SPIN_FMA, seconds, &m->lanes));
    prepare_sweep(m);
    return DT_OK;
}
