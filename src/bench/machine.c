// The limits of the machine: the arrays and products that both ways to measure them share.
#include "bench/ops.h"

struct dt_gemm_args dt_bench_square(const struct dt_bench_machine *m, enum dt_dtype type, int64_t n)
{
    struct dt_view operand = dt_view_of(m->from, n, n, type);
    return (struct dt_gemm_args){.a = operand, .b = operand, .c = dt_view_of(m->to, n, n, DT_F32)};
}

float dt_bench_value(int64_t i)
{
    return (float)(i * 7919 % 1009) / 1009 - 0.5f;
}

dt_status dt_bench_machine_open(struct dt_bench_rig *rig, double seconds,
                                struct dt_bench_machine *m)
{
    *m = (struct dt_bench_machine){.threads = rig->info.threads, .backend = &rig->backend};
    DT_TRY(dt_bench_timer_open(m->backend, &m->timer));
    dt_status status = m->backend->table->unified
                           ? dt_bench_machine_measure_cpu(rig, seconds, m)
                           : dt_bench_machine_measure_device(rig, seconds, m);
    if (status != DT_OK)
        dt_bench_machine_close(m);
    return status;
}

void dt_bench_machine_close(struct dt_bench_machine *m)
{
    m->backend->table->free(m->backend->device, m->from);
    m->backend->table->free(m->backend->device, m->to);
    dt_bench_timer_close(&m->timer);
    *m = (struct dt_bench_machine){0};
}
