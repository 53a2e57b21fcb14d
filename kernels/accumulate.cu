// y += x on CUDA. A thread handles eight neighbours with 16-byte accesses; the tail, and unaligned
// arrays, are handled one by one. Bytes per element: x once, y in and out, 12 (fp32) or 10 (bf16).
// The floor is that over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256, EACH = 8 };

template <int N, class X>
__global__ static void __launch_bounds__(THREADS) accumulate_kernel(int64_t n, const X *x, float *y)
{
    int64_t from = dt_thread_index() * EACH, end = dt_least(from + EACH, n);
    if (N == EACH && from + EACH <= n) {
        float add[N], sum[N];
        dt_load<N>(x + from, add);
        dt_load<N>(y + from, sum);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum[k] += add[k];
        dt_store<N>(y + from, sum);
        return;
    }
    for (int64_t i = from; i < end; i++)
        y[i] += dt_to_f32(x[i]);
}

// fp64 arrays are small, so elements are added one by one.
__global__ static void __launch_bounds__(THREADS)
    accumulate_f64_kernel(int64_t n, const double *x, double *y)
{
    int64_t i = dt_thread_index();
    if (i < n)
        y[i] += x[i];
}

template <class X> static void launch(int64_t n, const X *x, float *y, dt_stream *stream)
{
    DT_WIDE_SWITCH(dt_aligned<EACH>(x, y), N, EACH,
                   DT_LAUNCH((accumulate_kernel<N, X>), dt_blocks(n, THREADS * EACH), THREADS, 0,
                             stream, n, x, y));
}

DT_OP_CUDA(accumulate)
{
    if (args->x_type == DT_F64)
        DT_LAUNCH(accumulate_f64_kernel, dt_blocks(args->n, THREADS), THREADS, 0, stream, args->n,
                  (const double *)args->x, (double *)args->y);
    else
        DT_STORAGE_SWITCH(args->x_type, X,
                          launch(args->n, (const X *)args->x, (float *)args->y, stream));
    return DT_LAUNCHED("accumulate");
}
