// `dtrain bench`: every op at the shapes of a model's training step, against the machine's limits.
// The floor of a call is that of backend/cost.h.
#include "bench/ops.h"

#include "base/memory.h"

#include <stdio.h>

static const double default_seconds = 0.2;

// Of a call, or of all calls of a step, one after the other.
struct times {
    double median, best, floor; // seconds
    const char *bound;          // what the floor of a call comes from
};

static struct times times_of(const struct dt_op_cost *cost, const struct dt_bench_machine *m,
                             const struct dt_bench_clock *clock)
{
    struct dt_op_floor floor = dt_op_floor(cost, &m->limits);
    return (struct times){dt_bench_median(clock), dt_bench_best(clock), floor.seconds, floor.bound};
}

static dt_status time_call(const struct dt_bench_call *call, const struct dt_bench_machine *machine,
                           double seconds, bool warm, struct dt_bench_clock *clock)
{
    struct dt_bench_work work = {dt_bench_run_call, call};
    return dt_bench_time(&machine->timer, warm ? NULL : &machine->sweep, &work, seconds, clock);
}

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
        printf("%s\n%s, %d threads; copy %.1f GB/s; GEMM fp32 %.0f, bf16 %.0f GFLOP/s; "
               "exponentials %.2f G/s (the scan's %.2f)\n\n",
               rig->info.name, precision, m->threads, m->limits.copy / 1e9,
               m->limits.gemm_f32 / 1e9, m->limits.gemm_bf16 / 1e9, m->limits.exps / 1e9,
               m->limits.exp2s / 1e9);
}

static void print_header(void)
{
    printf("%-25s %-34s %5s %9s %9s %8s %7s %8s %8s %6s %9s %-5s %5s\n", "op", "shape", "calls",
           "ms", "best ms", "MB", "GB/s", "GFLOP", "GFLOP/s", "Gexp/s", "floor ms", "bound",
           "of it");
}

static void print_row(const struct dt_bench_call *call, const struct times *t)
{
    const struct dt_op_cost *c = &call->cost;
    printf("%-25s %-34s %5lld %9.4f %9.4f %8.2f %7.2f %8.3f %8.1f %6.2f %9.4f %-5s %5.2f\n",
           dt_bench_op_table[call->op].name, call->shape, (long long)call->count, t->median * 1e3,
           t->best * 1e3, c->bytes / 1e6, c->bytes / t->best / 1e9, c->flops / 1e9,
           c->flops / t->best / 1e9, (c->exps + c->exp2s) / t->best / 1e9, t->floor * 1e3, t->bound,
           t->floor / t->best);
}

static void print_json(const struct dt_bench_call *call, int64_t repeats, const struct times *t)
{
    const struct dt_op_cost *c = &call->cost;
    double exps = c->exps + c->exp2s;
    printf("{\"bench\":\"op\",\"op\":\"%s\",\"shape\":\"%s\",\"calls\":%lld,\"repeats\":%lld,"
           "\"ms\":%.6f,\"best_ms\":%.6f,\"bytes\":%.0f,\"gb_per_s\":%.3f,\"flops\":%.0f,"
           "\"gflops\":%.3f,\"exps\":%.0f,\"gexp_per_s\":%.3f,\"floor_ms\":%.6f,\"bound\":\"%s\","
           "\"fraction\":%.4f}\n",
           dt_bench_op_table[call->op].name, call->shape, (long long)call->count,
           (long long)repeats, t->median * 1e3, t->best * 1e3, c->bytes, c->bytes / t->best / 1e9,
           c->flops, c->flops / t->best / 1e9, exps, exps / t->best / 1e9, t->floor * 1e3, t->bound,
           t->floor / t->best);
}

static dt_status time_all(const struct dt_bench_options *options, const struct dt_bench_rig *rig,
                          const struct dt_bench_calls *calls,
                          const struct dt_bench_machine *machine)
{
    double seconds = options->seconds > 0 ? options->seconds : default_seconds;
    struct times total = {0};
    struct dt_bench_clock clock;
    print_machine(rig, machine, options->json);
    if (!options->json)
        print_header();
    for (int op = 0; op < DT_BENCH_OP_COUNT; op++)
        for (int64_t i = 0; i < calls->n; i++) {
            const struct dt_bench_call *call = &calls->at[i];
            if ((int)call->op != op)
                continue;
            DT_TRY_NOTE(time_call(call, machine, seconds, options->warm, &clock), "timing %s",
                        dt_bench_op_table[op].name);
            struct times times = times_of(&call->cost, machine, &clock);
            if (options->json)
                print_json(call, clock.n, &times);
            else
                print_row(call, &times);
            total.median += (double)call->count * times.median;
            total.best += (double)call->count * times.best;
            total.floor += (double)call->count * times.floor;
        }
    if (!options->json)
        printf("\nops of a step: %.1f ms, %.1f ms by each op's best time, floor %.1f ms (%.2f)\n",
               total.median * 1e3, total.best * 1e3, total.floor * 1e3, total.floor / total.best);
    return DT_OK;
}

dt_status dt_bench_ops(const struct dt_bench_options *options)
{
    struct dt_bench_rig rig;
    struct dt_bench_machine machine;
    struct dt_bench_calls *calls;
    double seconds = options->seconds > 0 ? options->seconds : default_seconds;
    DT_TRY(DT_NEW(&calls, 1, "a list of calls"));
    dt_status status = dt_bench_record(options, &rig, calls);
    if (status == DT_OK) {
        status = dt_bench_machine_open(&rig, seconds, &machine);
        if (status == DT_OK) {
            status = time_all(options, &rig, calls, &machine);
            dt_bench_machine_close(&machine);
        }
        dt_bench_rig_close(&rig);
    }
    free(calls);
    return status;
}
