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

DT_OP_CPU(accumulate)
{
    const double *x = args->x_type == DT_F64 ? args->x : NULL; // few elements
    int64_t blocks = x ? 0 : dt_ceil_div(args->n, BLOCK);
    for (int64_t i = 0; x && i < args->n; i++)
        ((double *)args->y)[i] += x[i];
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        add_block(args, b * BLOCK, dt_min_i64(BLOCK, args->n - b * BLOCK));
    return DT_OK;
}
