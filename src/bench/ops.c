// `dtrain bench` compares every op of a training step with the machine's limits. It runs the real
// step and times its ops as in training (backend/op_times.h), with a row per op and shape; the
// floor of a call is from backend/cost.h. Ops that a step of a single process does not need are
// called separately.
#include "bench/ops.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/text.h"

#include <stdio.h>
#include <string.h>

enum { LEAST = 1 /* steps */, LEAST_REST = 3, SPIN_ROUNDS = 16 };
static const double default_seconds = 0.2; // per row

#define NAME(op) #op,
static const char *const op_names[] = {DT_OPS(NAME)};

// The calls of one op at one shape.
struct row {
    const char *op;
    char shape[80]; // for GEMM with the layer's name
    struct dt_op_cost cost;
    int64_t calls; // total over the measured steps; 0 if a step does not run the op
    struct dt_bench_clock clock;
};

struct ops {
    struct dt_bench_rig rig;
    bool in_step;
    int64_t steps;
    int n;
    struct row *rows;
};

static void print_machine(const struct dt_bench_rig *rig, const struct dt_bench_machine *m,
                          bool json)
{
    const char *precision = dt_dtype_name(dt_model_config(rig->model)->storage);
    if (json)
        printf("{\"bench\":\"machine\",\"device\":\"%s\",\"name\":\"%s\",\"precision\":\"%s\","
               "\"threads\":%d,\"copy_gb_per_s\":%.3f,\"gemm_fp32_gflops\":%.2f,"
               "\"gemm_bf16_gflops\":%.2f,\"gexp_per_s\":%.3f,\"gexp2_per_s\":%.3f,"
               "\"glane_per_s\":%.3f}\n",
               rig->backend.table->name, rig->info.name, precision, m->threads,
               m->limits.copy / 1e9, m->limits.gemm_f32 / 1e9, m->limits.gemm_bf16 / 1e9,
               m->limits.exps / 1e9, m->limits.exp2s / 1e9, m->limits.lanes / 1e9);
    else
        dt_print_line("%s, %s, %d threads; copy %.1f GB/s; GEMM fp32 %.0f, bf16 %.0f GFLOP/s; "
                      "exponentials %.2f G/s (the scan's %.2f)",
                      rig->info.name, precision, m->threads, m->limits.copy / 1e9,
                      m->limits.gemm_f32 / 1e9, m->limits.gemm_bf16 / 1e9, m->limits.exps / 1e9,
                      m->limits.exp2s / 1e9);
}

static void print_row(const struct row *row, int64_t calls, const struct dt_op_floor *floor,
                      bool json)
{
    const struct dt_op_cost *c = &row->cost;
    double exps = c->exps + c->exp2s, best = dt_bench_best(&row->clock),
           share = floor->seconds / best, ms = dt_bench_median(&row->clock) * 1e3;
    double gbs = c->bytes / best / 1e9, gflops = c->flops / best / 1e9, gexps = exps / best / 1e9;
    if (json)
        printf(
            "{\"bench\":\"op\",\"op\":\"%s\",\"shape\":\"%s\",\"calls\":%lld,\"repeats\":%lld,"
            "\"ms\":%.6f,\"best_ms\":%.6f,\"bytes\":%.0f,\"gb_per_s\":%.3f,\"flops\":%.0f,"
            "\"gflops\":%.3f,\"exps\":%.0f,\"gexp_per_s\":%.3f,\"floor_ms\":%.6f,\"bound\":\"%s\","
            "\"fraction\":%.4f}\n",
            row->op, row->shape, (long long)calls, (long long)row->clock.n, ms, best * 1e3,
            c->bytes, gbs, c->flops, gflops, exps, gexps, floor->seconds * 1e3, floor->bound,
            share);
    else
        printf("%-25s %s\n  %4lld %9.4f %9.4f %7.2f %7.2f %8.1f %6.2f %9.4f %-5s %5.2f\n", row->op,
               row->shape, (long long)calls, ms, best * 1e3, c->bytes / 1e6, gbs, gflops, gexps,
               floor->seconds * 1e3, floor->bound, share);
}

// Returns the index of `pointer` in the flat array `base`, or -1; `base` may be NULL.
static int64_t element_of(const struct dt_params *params, const void *base, enum dt_dtype type,
                          const void *pointer)
{
    uintptr_t from = (uintptr_t)base, at = (uintptr_t)pointer;
    uintptr_t bytes = (uintptr_t)(params->elements * dt_dtype_size(type));
    return base && at >= from && at < from + bytes ? (int64_t)(at - from) / dt_dtype_size(type)
                                                   : -1;
}

// A product's layer, "in_proj" for the tensor "backbone.layers.0.mixer.in_proj.weight". The weights
// are B in forward and dX, and their gradient is C in dW.
static void linear_name(const struct dt_bench_rig *rig, const struct dt_gemm_args *a, char *name,
                        size_t size)
{
    const struct dt_params *params = dt_model_params(rig->model);
    const void *bf16 = dt_model_weights_bf16(rig->model);
    const void *weights = bf16 ? bf16 : dt_model_weights(rig->model);
    int64_t element =
        a->trans_a ? element_of(params, dt_model_gradients(rig->model), a->c.dtype, a->c.data)
                   : element_of(params, weights, a->b.dtype, a->b.data);
    snprintf(name, size, "other");
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        if (element < row->offset || element >= row->offset + row->count)
            continue;
        snprintf(name, size, "%s", row->name);
        char *end = strstr(name, ".weight");
        if (end)
            *end = 0;
        char *dot = strrchr(name, '.');
        if (dot)
            memmove(name, dot + 1, strlen(dot));
    }
    if (strcmp(name, "embeddings") == 0 || strcmp(name, "lm_head") == 0)
        snprintf(name, size, "head"); // tied weights
}

static dt_status find_row(void *context, const char *op, const void *args,
                          const struct dt_op_cost *cost, int *row)
{
    struct ops *ops = context;
    char layer[DT_PARAM_NAME] = "", shape[sizeof ops->rows->shape];
    if (strcmp(op, "gemm") == 0)
        linear_name(&ops->rig, args, layer, sizeof layer);
    snprintf(shape, sizeof shape, "%.12s%s%s", layer, layer[0] ? " " : "", cost->shape);
    int i = 0;
    while (i < ops->n &&
           (strcmp(ops->rows[i].op, op) != 0 || strcmp(ops->rows[i].shape, shape) != 0))
        i++;
    if (i == ops->n) {
        DT_TRY(dt_list_grow(&ops->rows, ops->n, sizeof *ops->rows));
        struct row *added = &ops->rows[ops->n++];
        added->op = op;
        added->cost = *cost;
        added->calls = added->clock.n = 0;
        snprintf(added->shape, sizeof added->shape, "%s", shape);
    }
    ops->rows[i].calls += ops->in_step;
    *row = i;
    return DT_OK;
}

static void note_time(void *context, int row, double seconds)
{
    struct ops *ops = context;
    dt_bench_note(&ops->rows[row].clock, seconds > 0 ? seconds : 1e-9);
}

// Calls ops that a step of a single process does not, at the size of all weights.
static dt_status call_the_rest(const struct dt_bench_rig *rig)
{
    const struct dt_backend *backend = &rig->backend;
    int64_t n = dt_model_params(rig->model)->elements;
    struct dt_cast_args cast = {.n = n,
                                .x = dt_model_weights(rig->model),
                                .x_type = DT_F32,
                                .y = rig->spare,
                                .y_type = DT_BF16};
    struct dt_accumulate_args accumulate = {.n = n,
                                            .x = dt_model_weights(rig->model),
                                            .x_type = DT_F32,
                                            .y = dt_model_gradients(rig->model)};
    struct dt_quantize_args quantize = {
        .x = dt_view_of(dt_model_weights(rig->model), n / 64, 64, DT_F32),
        .y = dt_view_of(dt_model_gradients(rig->model), n / 64, 64, DT_F32)};
    DT_TRY(dt_quantize(backend, &quantize, NULL));
    DT_TRY(dt_cast(backend, &cast, NULL));
    DT_TRY(dt_accumulate(backend, &accumulate, NULL));
    struct dt_commit_args commit = {.bytes = 2 * n, // at most the spare memory
                                    .from = dt_model_weights(rig->model),
                                    .to = rig->spare,
                                    .control = rig->stepper->optimizer.control};
    DT_TRY(dt_commit(backend, &commit, NULL));
    struct dt_checksum_args checksum = {
        .n = n, .x = dt_model_weights(rig->model), .sum = (uint64_t *)(void *)rig->spare};
    checksum.workspace_bytes = dt_checksum_workspace(backend, &checksum);
    checksum.workspace = checksum.sum + 1;
    DT_TRY(dt_checksum(backend, &checksum, NULL));
    struct dt_spin_args spin = {.kind = DT_SPIN_EXP2,
                                .n = n / 2, // half as many floats as bf16 elements
                                .rounds = SPIN_ROUNDS,
                                .y = (float *)(void *)rig->spare};
    return dt_spin(backend, &spin, NULL);
}

static dt_status run_step(struct ops *ops)
{
    struct dt_step_result result;
    ops->in_step = true;
    DT_TRY(dt_bench_rig_launch(&ops->rig));
    DT_TRY(dt_stepper_collect(ops->rig.stepper, &result));
    ops->in_step = false;
    ops->steps++;
    return DT_OK;
}

static dt_status run_the_rest(struct ops *ops)
{
    dt_op_times_start(ops->rig.times, DT_LANE_OP);
    dt_status status = call_the_rest(&ops->rig), stopped = dt_op_times_stop(ops->rig.times, NULL);
    DT_TRY(status);
    DT_TRY(stopped);
    DT_TRY(dt_stream_sync(&ops->rig.backend, NULL));
    dt_op_times_collect(ops->rig.times);
    return DT_OK;
}

// The first round loads libraries and determines the number of rows.
static dt_status measure(struct ops *ops, bool warm, double seconds)
{
    struct dt_op_listener listener = {find_row, note_time, ops, warm};
    dt_op_times_listen(ops->rig.times, &listener);
    DT_TRY(run_step(ops));
    DT_TRY(run_the_rest(ops));
    for (int i = 0; i < ops->n; i++)
        ops->rows[i].calls = ops->rows[i].clock.n = 0;
    ops->steps = 0;
    struct dt_bench_clock total;
    dt_bench_start(&total);
    while (dt_bench_more(&total, LEAST, seconds * ops->n)) {
        DT_TRY(run_step(ops));
        dt_bench_note(&total, 0);
    }
    for (int i = 0; i < LEAST_REST; i++)
        DT_TRY(run_the_rest(ops));
    dt_op_times_listen(ops->rig.times, NULL);
    return DT_OK;
}

static void print_all(const struct dt_bench_options *options, const struct ops *ops,
                      const struct dt_bench_machine *machine)
{
    double median = 0, best = 0, floor = 0;
    print_machine(&ops->rig, machine, options->json);
    if (!options->json)
        printf("\n%-25s %s\n %5s %9s %9s %7s %7s %8s %6s %9s %-5s %5s\n", "op", "shape", "calls",
               "ms", "best ms", "MB", "GB/s", "GFLOP/s", "Gexp/s", "floor ms", "bound", "of it");
    for (size_t op = 0; op < sizeof op_names / sizeof *op_names; op++)
        for (const struct row *row = ops->rows; row < ops->rows + ops->n; row++) {
            if (strcmp(row->op, op_names[op]) != 0 || row->clock.n == 0)
                continue;
            struct dt_op_floor least = dt_op_floor(&row->cost, &machine->limits);
            double calls = (double)row->calls / (double)ops->steps;
            print_row(row, row->calls / ops->steps, &least, options->json);
            median += calls * dt_bench_median(&row->clock);
            best += calls * dt_bench_best(&row->clock);
            floor += calls * least.seconds;
        }
    if (!options->json)
        printf("\nops of a step: %.1f ms, %.1f ms by each op's best, floor %.1f ms (%.2f)\n",
               median * 1e3, best * 1e3, floor * 1e3, floor / best);
}

dt_status dt_bench_ops(const struct dt_bench_options *options)
{
    // Disables graphs, whose launch makes no calls, so that every op of the step is timed.
    struct dt_bench_options plain = *options;
    struct dt_bench_machine machine;
    struct ops *ops;
    double seconds = options->seconds > 0 ? options->seconds : default_seconds;
    plain.cuda_graph = DT_TOGGLE_FALSE;
    DT_TRY(DT_NEW(&ops, 1, "the times of ops"));
    dt_status status = dt_bench_rig_open(&plain, true, &ops->rig);
    if (status == DT_OK) {
        status = dt_bench_machine_open(&ops->rig, seconds, &machine);
        if (status == DT_OK) {
            status = measure(ops, options->warm, seconds);
            if (status == DT_OK)
                print_all(options, ops, &machine);
            dt_bench_machine_close(&machine);
        }
        dt_bench_rig_close(&ops->rig);
    }
    free(ops->rows);
    free(ops);
    return status;
}
