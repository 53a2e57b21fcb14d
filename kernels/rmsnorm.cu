// RMSNorm without weights on CUDA. A warp owns a row of a group; a lane handles eight neighbours at
// a time (one if rows are unaligned), and reads them a second time, from the L1 cache, to scale
// them. Floor: forward x read and written, backward n read, dx read and written, over copy
// bandwidth.
#include "kernels/device.cuh"

enum {
    WARPS = 4, // rows per block
    WIDE = 8,  // elements per thread at a time
};

template <int N, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS) forward_kernel(dt_rmsnorm_forward_args a)
{
    const int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (pair >= a.x.rows * a.groups)
        return; // the whole warp
    const int64_t width = a.x.cols / a.groups;
    T *x = dt_at<T>(a.x, pair / a.groups, pair % a.groups * width);
    float sum = 0.0f, v[N];
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        dt_load<N>(x + i, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += v[k] * v[k];
    }
    const float rstd = 1.0f / sqrtf(dt_warp_sum(sum) / (float)width + a.eps);
    if (a.rstd && threadIdx.x == 0)
        a.rstd[pair] = rstd;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        dt_load<N>(x + i, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] *= rstd;
        dt_store<N>(x + i, v);
    }
}

template <int N, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS) backward_kernel(dt_rmsnorm_backward_args a)
{
    const int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (pair >= a.n.rows * a.groups)
        return;
    const int64_t row = pair / a.groups, width = a.n.cols / a.groups;
    const int64_t first = pair % a.groups * width;
    const T *n = dt_at<T>(a.n, row, first);
    T *dx = dt_at<T>(a.dx, row, first);
    float sum = 0.0f, v[N], d[N];
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        dt_load<N>(n + i, v);
        dt_load<N>(dx + i, d);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += d[k] * v[k];
    }
    const float mean = dt_warp_sum(sum) / (float)width, rstd = a.rstd[pair];
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        dt_load<N>(n + i, v);
        dt_load<N>(dx + i, d);
#pragma unroll
        for (int k = 0; k < N; k++)
            d[k] = rstd * (d[k] - v[k] * mean);
        dt_store<N>(dx + i, d);
    }
}

DT_OP_CUDA(rmsnorm_forward)
{
    const bool wide = args->x.cols / args->groups % WIDE == 0 && dt_aligned<WIDE>(args->x);
    DT_STORAGE_SWITCH(args->x.dtype, T,
                      DT_WIDE_SWITCH(wide, N, WIDE,
                                     DT_LAUNCH((forward_kernel<N, T>),
                                               dt_blocks(args->x.rows * args->groups, WARPS),
                                               dim3(DT_WARP, WARPS), 0, stream, *args)));
    return DT_LAUNCHED("rmsnorm_forward");
}

DT_OP_CUDA(rmsnorm_backward)
{
    const bool wide =
        args->n.cols / args->groups % WIDE == 0 && dt_aligned<WIDE>(args->n, args->dx);
    DT_STORAGE_SWITCH(args->n.dtype, T,
                      DT_WIDE_SWITCH(wide, N, WIDE,
                                     DT_LAUNCH((backward_kernel<N, T>),
                                               dt_blocks(args->n.rows * args->groups, WARPS),
                                               dim3(DT_WARP, WARPS), 0, stream, *args)));
    return DT_LAUNCHED("rmsnorm_backward");
}
