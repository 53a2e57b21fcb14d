// A bias on CUDA. Forward: one thread per element. Backward: a block sums ROWS rows of 32 columns,
// a warp every eighth row, into the workspace; a second launch adds the blocks' sums. Bytes: y
// twice; dy once, plus 4 / ROWS per column and row.
#include "kernels/partials.cuh"

enum { THREADS = 256, ROWS = 256, WARPS = 8 };

__global__ static void __launch_bounds__(THREADS) forward_kernel(dt_bias_forward_args a)
{
    const int64_t i = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    if (i < a.y.cols)
        *dt_at<float>(a.y, blockIdx.x, i) += a.bias[i];
}

DT_OP_CUDA(bias_forward)
{
    DT_LAUNCH((forward_kernel),
              dim3(dt_blocks(args->y.rows, 1), (unsigned)dt_div_up(args->y.cols, THREADS)), THREADS,
              0, stream, *args);
    return DT_LAUNCHED("bias_forward");
}

template <class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS)
    backward_kernel(dt_bias_backward_args a, float *partials)
{
    DT_SHARED(float, warps, [WARPS][DT_WARP]);
    const int64_t i = (int64_t)blockIdx.y * DT_WARP + threadIdx.x;
    const int64_t end = dt_least((blockIdx.x + (int64_t)1) * ROWS, a.dy.rows);
    float sum = 0.0f;
    for (int64_t row = (int64_t)blockIdx.x * ROWS + threadIdx.y; row < end; row += WARPS)
        sum += i < a.dy.cols ? dt_get<T>(a.dy, row, i) : 0.0f;
    warps[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || i >= a.dy.cols)
        return;
    for (int w = 1; w < WARPS; w++)
        sum += warps[w][threadIdx.x];
    partials[(int64_t)blockIdx.x * a.dy.cols + i] = sum;
}

DT_OP_CUDA(bias_backward)
{
    DT_STORAGE_SWITCH(
        args->dy.dtype, T,
        DT_LAUNCH((backward_kernel<T>),
                  dim3(dt_blocks(args->dy.rows, ROWS), (unsigned)dt_div_up(args->dy.cols, DT_WARP)),
                  dim3(DT_WARP, WARPS), 0, stream, *args, (float *)args->workspace));
    partials_launch({(const float *)args->workspace, dt_div_up(args->dy.rows, ROWS), args->dy.cols,
                     0, nullptr, args->dbias, nullptr, args->accumulate},
                    stream);
    return DT_LAUNCHED("bias_backward");
}

DT_OP_CUDA_WORKSPACE(bias_backward)
{
    return dt_div_up(args->dy.rows, ROWS) * args->dy.cols * (int64_t)sizeof(float);
}
