// Σ x² on the CPU: threads sum whole blocks of DT_NORM_BLOCK elements; one thread adds the blocks'
// sums.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

DT_CLONES static double block_sum(const float *x, int64_t n)
{
    double sum = 0.0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

DT_OP_CPU(sum_squares)
{
    double *partial = args->workspace, sum = 0.0;
    int64_t blocks = dt_ceil_div(args->n, DT_NORM_BLOCK);
    int64_t unknown = args->part == DT_SQUARES_TOTAL ? 0 : blocks;
#pragma omp parallel for num_threads(device->threads) if (unknown > 1)
    for (int64_t b = 0; b < unknown; b++) {
        int64_t from = b * DT_NORM_BLOCK;
        partial[b] = block_sum(args->x + from, dt_min_i64(DT_NORM_BLOCK, args->n - from));
    }
    for (int64_t b = 0; b < blocks; b++)
        sum += partial[b];
    if (args->part != DT_SQUARES_BLOCKS)
        *args->sum = sum;
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(sum_squares)
{
    return dt_ceil_div(args->n, DT_NORM_BLOCK) * (int64_t)sizeof(double);
}
