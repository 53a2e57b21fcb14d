// y += x on the CPU: blocks of elements shared among the threads.
#include "kernels/cpu.h"
#include "kernels/simd.h"
#include "kernels/storage_cpu.h"

enum { BLOCK = 32768 };

DT_INLINE void add(float *y, const void *x, int64_t n, bool bf16)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += dt_load(x, i, bf16);
}

DT_CLONES static void add_f32(float *restrict y, const void *restrict x, int64_t n)
{
    add(y, x, n, false);
}

DT_CLONES static void add_bf16(float *restrict y, const void *restrict x, int64_t n)
{
    add(y, x, n, true);
}

dt_status accumulate_cpu(struct dt_device *device, const struct dt_accumulate_args *args,
                         struct dt_stream *stream)
{
    (void)stream;
    int64_t blocks = dt_ceil_div(args->n, BLOCK);
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++) {
        int64_t from = b * BLOCK, n = dt_min_i64(BLOCK, args->n - from);
        (args->x_type == DT_BF16 ? add_bf16 : add_f32)(args->y + from,
                                                       dt_in(args->x, from, args->x_type), n);
    }
    return DT_OK;
}

int64_t accumulate_cpu_workspace(struct dt_device *device, const struct dt_accumulate_args *args)
{
    (void)device, (void)args;
    return 0;
}
