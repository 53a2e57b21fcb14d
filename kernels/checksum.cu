// A checksum of an array on CUDA in two launches: a block sums DT_NORM_BLOCK elements, each thread
// every THREADS-th; one more block adds the blocks' sums. Floor: the bytes of x, 4 per element; the
// ten instructions take less time.
#include "kernels/partials.cuh"

enum { THREADS = 512 };

__global__ static void __launch_bounds__(THREADS)
    checksum_kernel(int64_t n, const float *x, uint64_t *partial)
{
    int64_t first = (int64_t)blockIdx.x * DT_NORM_BLOCK, end = dt_least(first + DT_NORM_BLOCK, n);
    uint64_t sum = 0;
    for (int64_t i = first + threadIdx.x; i < end; i += THREADS)
        sum += __float_as_uint(x[i]) * (2 * (uint64_t)i + 1);
    sum = dt_block_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

DT_OP_CUDA(checksum)
{
    int64_t blocks = dt_div_up(args->n, DT_NORM_BLOCK);
    uint64_t *partial = (uint64_t *)args->workspace;
    if (blocks > 0)
        DT_LAUNCH((checksum_kernel), (unsigned)blocks, THREADS, 0, stream, args->n, args->x,
                  partial);
    DT_LAUNCH((sum_partial_kernel<THREADS, uint64_t>), 1, THREADS, 0, stream, blocks, partial,
              args->sum);
    return DT_LAUNCHED("checksum");
}

DT_OP_CUDA_WORKSPACE(checksum)
{
    return dt_div_up(args->n, DT_NORM_BLOCK) * (int64_t)sizeof(uint64_t);
}
