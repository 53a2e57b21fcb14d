// A bias on the CPU. Backward: blocks of rows are summed into the workspace, then the blocks' sums
// are added in order.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { ROWS = 256 };

DT_CLONES static void add_bias(const struct dt_bias_forward_args *a, int64_t row)
{
    float *y = dt_view_at(&a->y, row, 0);
    for (int64_t i = 0; i < a->y.cols; i++)
        y[i] += a->bias[i];
}

DT_OP_CPU(bias_forward)
{
#pragma omp parallel for num_threads(device->threads) if (args->y.rows > ROWS)
    for (int64_t row = 0; row < args->y.rows; row++)
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
    int64_t width = a->dy.cols, end = dt_min_i64(a->dy.rows, (block + 1) * ROWS);
    float *sum = (float *)a->workspace + block * width;
    memset(sum, 0, (size_t)width * sizeof *sum);
    for (int64_t row = block * ROWS; row < end; row++) {
        const void *dy = dt_view_at(&a->dy, row, 0);
        DT_STORAGE_SWITCH(a->dy.dtype, bf16, add_row(sum, dy, width, bf16));
    }
}

DT_OP_CPU(bias_backward)
{
    int64_t width = args->dy.cols, blocks = dt_ceil_div(args->dy.rows, ROWS);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t block = 0; block < blocks; block++)
        sum_block(args, block);
    dt_add_blocks(args->dbias, args->workspace, blocks, width, 0, width, args->accumulate);
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(bias_backward)
{
    return dt_ceil_div(args->dy.rows, ROWS) * args->dy.cols * (int64_t)sizeof(float);
}
