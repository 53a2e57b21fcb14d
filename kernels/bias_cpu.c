// A bias on the CPU. Backward: a block of rows leaves its sum in the workspace, then the blocks'
// sums are added in their order.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { ROWS = 256 };

DT_CLONES static void add_bias(const struct dt_bias_forward_args *a, int64_t row)
{
    float *y = a->y + row * a->y_stride;
    for (int64_t i = 0; i < a->width; i++)
        y[i] += a->bias[i];
}

dt_status bias_forward_cpu(struct dt_device *device, const struct dt_bias_forward_args *args,
                           struct dt_stream *stream)
{
    (void)stream;
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (args->rows > ROWS)
    for (int64_t row = 0; row < args->rows; row++)
        add_bias(args, row);
    return DT_OK;
}

DT_INLINE void add_row(float *restrict sum, const void *restrict dy, int64_t width, bool bf16)
{
    for (int64_t i = 0; i < width; i++)
        sum[i] += dt_load(dy, i, bf16);
}

DT_CLONES static void sum_block(const struct dt_bias_backward_args *a, int64_t block)
{
    float *sum = (float *)a->workspace + block * a->width;
    memset(sum, 0, (size_t)a->width * sizeof *sum);
    for (int64_t row = block * ROWS; row < dt_min_i64(a->rows, (block + 1) * ROWS); row++) {
        const void *dy = (const char *)a->dy + row * a->dy_stride * dt_dtype_size(a->dtype);
        if (a->dtype == DT_BF16)
            add_row(sum, dy, a->width, true);
        else
            add_row(sum, dy, a->width, false);
    }
}

dt_status bias_backward_cpu(struct dt_device *device, const struct dt_bias_backward_args *args,
                            struct dt_stream *stream)
{
    (void)stream;
    int64_t blocks = dt_ceil_div(args->rows, ROWS);
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++)
        sum_block(args, block);
    if (!args->accumulate)
        memset(args->dbias, 0, (size_t)args->width * sizeof *args->dbias);
    for (int64_t block = 0; block < blocks; block++)
        add_row(args->dbias, (const float *)args->workspace + block * args->width, args->width,
                false);
    return DT_OK;
}

int64_t bias_backward_cpu_workspace(struct dt_device *device,
                                    const struct dt_bias_backward_args *args)
{
    (void)device;
    return dt_ceil_div(args->rows, ROWS) * args->width * (int64_t)sizeof(float);
}
