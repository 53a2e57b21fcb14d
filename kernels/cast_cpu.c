// Casts on the CPU: blocks of elements shared among the threads.
#include "kernels/cpu.h"
#include "kernels/simd.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { BLOCK = 32768 };

DT_CLONES static void narrow(dt_bf16 *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dt_f32_to_bf16(x[i]);
}

DT_CLONES static void widen(float *y, const dt_bf16 *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] = dt_bf16_to_f32(x[i]);
}

static void cast_block(const struct dt_cast_args *args, int64_t from, int64_t n)
{
    const void *x = dt_in(args->x, from, args->x_type);
    void *y = dt_out(args->y, from, args->y_type);
    if (args->x_type == args->y_type)
        memcpy(y, x, (size_t)(n * dt_dtype_size(args->x_type)));
    else if (args->y_type == DT_BF16)
        narrow(y, x, n);
    else
        widen(y, x, n);
}

dt_status cast_cpu(struct dt_device *device, const struct dt_cast_args *args,
                   struct dt_stream *stream)
{
    (void)stream;
    int64_t blocks = dt_ceil_div(args->n, BLOCK);
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        cast_block(args, b * BLOCK, dt_min_i64(BLOCK, args->n - b * BLOCK));
    return DT_OK;
}

int64_t cast_cpu_workspace(struct dt_device *device, const struct dt_cast_args *args)
{
    (void)device, (void)args;
    return 0;
}
