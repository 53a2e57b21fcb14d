// y += x on the CPU: blocks of elements shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

enum { BLOCK = 32768 };

DT_INLINE void add(float *restrict y, const void *restrict x, int64_t n, bool bf16)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += dt_load(x, i, bf16);
}

DT_CLONES static void add_block(const struct dt_accumulate_args *args, int64_t from, int64_t n)
{
    const char *x = (const char *)args->x + from * dt_dtype_size(args->x_type);
    DT_STORAGE_SWITCH(args->x_type, bf16, add((float *)args->y + from, x, n, bf16));
}

static void add_f64(double *restrict y, const double *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += x[i];
}

DT_OP_CPU(accumulate)
{
    if (args->x_type == DT_F64) { // few
        add_f64(args->y, args->x, args->n);
        return DT_OK;
    }
    int64_t blocks = dt_ceil_div(args->n, BLOCK);
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        add_block(args, b * BLOCK, dt_min_i64(BLOCK, args->n - b * BLOCK));
    return DT_OK;
}
