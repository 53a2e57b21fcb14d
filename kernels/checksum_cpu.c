// A checksum of an array on the CPU: a thread sums whole blocks of DT_NORM_BLOCK elements.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

DT_CLONES static uint64_t block_sum(const float *x, int64_t from, int64_t end)
{
    uint64_t sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = from; i < end; i++)
        sum += dt_bits_of_float(x[i]) * (2 * (uint64_t)i + 1);
    return sum;
}

DT_OP_CPU(checksum)
{
    int64_t blocks = dt_ceil_div(args->n, DT_NORM_BLOCK);
    uint64_t *partial = args->workspace, sum = 0;
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        partial[b] =
            block_sum(args->x, b * DT_NORM_BLOCK, dt_min_i64(args->n, (b + 1) * DT_NORM_BLOCK));
    for (int64_t b = 0; b < blocks; b++)
        sum += partial[b];
    *args->sum = sum;
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(checksum)
{
    return dt_ceil_div(args->n, DT_NORM_BLOCK) * (int64_t)sizeof(uint64_t);
}
