// Normalising on CUDA. A thread handles eight neighbouring columns (one if rows are unaligned) of
// ROWS rows, and reads their mean and deviation once. Floor: x and y once, and 8 / ROWS bytes per
// number, over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 128, EACH = 8, ROWS = 8 };

template <int N, class X> DT_DEVICE void load_stored(const X *p, float (&out)[N])
{
    if constexpr (sizeof(X) > 1) {
        dt_load<N>(p, out);
    } else if constexpr (N == EACH) {
        const uint2 v = *reinterpret_cast<const uint2 *>(p);
#pragma unroll
        for (int i = 0; i < N; i++)
            out[i] = (float)((i < 4 ? v.x : v.y) >> i % 4 * 8 & 0xffu);
    } else {
        static_assert(N == 1, "1 or 8 bytes at a time");
        out[0] = (float)p[0];
    }
}

template <int N, class Y, class X>
__global__ static void __launch_bounds__(THREADS) normalize_kernel(dt_normalize_args a)
{
    const int64_t i = ((int64_t)blockIdx.y * THREADS + threadIdx.x) * N;
    const int64_t first = (int64_t)blockIdx.x * ROWS, end = dt_least(first + ROWS, a.x.rows);
    float mean[N], deviation[N], v[N];
    if (i >= a.x.cols)
        return;
    dt_load<N>(a.mean + i, mean);
    dt_load<N>(a.deviation + i, deviation);
    for (int64_t row = first; row < end; row++) {
        const bool keep = !a.keep || a.keep[row];
        load_stored<N>(dt_at<X>(a.x, row, i), v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = keep ? (v[k] - mean[k]) / deviation[k] : 0.0f;
        dt_store<N>(dt_at<Y>(a.y, row, i), v);
    }
}

template <class Y, class X> static void launch(const dt_normalize_args *a, dt_stream *stream)
{
    const bool wide = a->x.cols % EACH == 0 && dt_aligned<EACH>(a->x, a->y, a->mean, a->deviation);
    DT_WIDE_SWITCH(wide, N, EACH,
                   DT_LAUNCH((normalize_kernel<N, Y, X>),
                             dim3(dt_blocks(a->x.rows, ROWS), dt_blocks(a->x.cols, THREADS * N)),
                             THREADS, 0, stream, *a));
}

DT_OP_CUDA(normalize)
{
    DT_STORAGE_SWITCH(args->y.dtype, Y,
                      if (args->x.dtype == DT_U8) launch<Y, uint8_t>(args, stream);
                      else launch<Y, float>(args, stream));
    return DT_LAUNCHED("normalize");
}
