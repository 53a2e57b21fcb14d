// Σ x² on CUDA in two launches. A block sums DT_NORM_BLOCK elements, a thread four neighbours at a
// time in double; one more block adds the blocks' sums. Which thread adds what depends only on n,
// not on alignment or the GPU. Floor: x once, 4 bytes per element, over read bandwidth (the double
// additions take a fifth of it on data-centre GPUs).
#include "kernels/partials.cuh"

enum { THREADS = 512, EACH = 4 };

static_assert(DT_NORM_BLOCK % (THREADS * EACH) == 0, "every thread of a full block adds as many");

DT_DEVICE double add_square(double sum, float x)
{
    return sum + (double)x * (double)x;
}

// N = EACH: x is aligned to 16 bytes; the order of the additions is the same with N = 1.
template <int N>
__global__ static void __launch_bounds__(THREADS)
    sum_squares_kernel(int64_t n, const float *x, double *partial)
{
    int64_t first = (int64_t)blockIdx.x * DT_NORM_BLOCK, end = dt_least(first + DT_NORM_BLOCK, n);
    double sum = 0.0;
    for (int64_t i = first + threadIdx.x * EACH; i < end; i += THREADS * EACH) {
        if (N == EACH && i + EACH <= end) {
            float v[N];
            dt_load<N>(x + i, v);
#pragma unroll
            for (int k = 0; k < N; k++)
                sum = add_square(sum, v[k]);
        } else {
            for (int64_t k = i; k < dt_least(i + EACH, end); k++)
                sum = add_square(sum, x[k]);
        }
    }
    sum = dt_block_sum<THREADS>(sum);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

DT_OP_CUDA(sum_squares)
{
    int64_t blocks = dt_div_up(args->n, DT_NORM_BLOCK);
    double *partial = (double *)args->workspace;
    if (blocks > 0 && args->part != DT_SQUARES_TOTAL)
        DT_WIDE_SWITCH(dt_aligned<EACH>(args->x), N, EACH,
                       DT_LAUNCH((sum_squares_kernel<N>), (unsigned)blocks, THREADS, 0, stream,
                                 args->n, args->x, partial));
    if (args->part != DT_SQUARES_BLOCKS)
        DT_LAUNCH((sum_partial_kernel<THREADS, double>), 1, THREADS, 0, stream, blocks, partial,
                  args->sum);
    return DT_LAUNCHED("sum_squares");
}

DT_OP_CUDA_WORKSPACE(sum_squares)
{
    return dt_div_up(args->n, DT_NORM_BLOCK) * (int64_t)sizeof(double);
}
