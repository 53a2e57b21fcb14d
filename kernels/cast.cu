// Casts on CUDA. A thread handles eight neighbours with 16-byte accesses; the tail, and unaligned
// arrays, are handled one by one. Floor: both arrays once, over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256, EACH = 8 };

// Equal types are copied bit by bit; the hardware's conversion would replace NaNs by its own.
template <class Y, class X> DT_DEVICE void convert(X x, Y *y)
{
    if constexpr (std::is_same_v<X, Y>)
        *y = x;
    else
        *y = dt_from_f32<Y>(dt_to_f32(x));
}

template <int N, class Y, class X>
__global__ static void __launch_bounds__(THREADS) cast_kernel(int64_t n, const X *x, Y *y)
{
    int64_t from = dt_thread_index() * EACH, end = dt_least(from + EACH, n);
    constexpr int PIECE = 16 / (int)sizeof(X);
    if (N == EACH && from + EACH <= n) {
        if constexpr (std::is_same_v<X, Y>) {
#pragma unroll
            for (int i = 0; i < EACH; i += PIECE)
                *reinterpret_cast<dt_packed<X, PIECE> *>(y + from + i) =
                    dt_fetch<PIECE>(x + from + i);
        } else {
            float v[EACH];
            dt_load<EACH>(x + from, v);
            dt_store<EACH>(y + from, v);
        }
        return;
    }
    for (int64_t i = from; i < end; i++)
        convert(x[i], y + i);
}

template <class Y, class X> static void launch(int64_t n, const X *x, Y *y, dt_stream *stream)
{
    DT_WIDE_SWITCH(dt_aligned<EACH>(x, y), N, EACH,
                   DT_LAUNCH((cast_kernel<N, Y, X>), dt_blocks(n, THREADS * EACH), THREADS, 0,
                             stream, n, x, y));
}

DT_OP_CUDA(cast)
{
    DT_STORAGE_SWITCH(args->x_type, X,
                      DT_STORAGE_SWITCH(args->y_type, Y,
                                        launch(args->n, (const X *)args->x, (Y *)args->y, stream)));
    return DT_LAUNCHED("cast");
}
