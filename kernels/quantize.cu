// Rounding to int8 on CUDA. A block handles a row: its threads find the largest value, then read
// the row again from the caches. Floor: x and y once, over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 128 };

// Non-finite values have the largest bits: the maximum becomes infinity, and its inverse NaN.
template <class X, class Y>
__global__ static void __launch_bounds__(THREADS)
    quantize_kernel(int64_t cols, const X *x, int64_t x_stride, Y *y, int64_t y_stride,
                    float *scale_out)
{
    const X *from = x + blockIdx.x * x_stride;
    Y *to = y + blockIdx.x * y_stride;
    float most = 0.0f;
    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        float size = fabsf(dt_to_f32(from[j]));
        most = size <= 3.4028234e38f ? fmaxf(most, size) : INFINITY;
    }
    most = dt_block_max<THREADS>(most);
    most = most <= 3.4028234e38f ? most : NAN;
    float scale = most / 127.0f, inverse = most >= DT_QUANTIZE_LEAST ? 127.0f / most : most * 0.0f;
    for (int64_t j = threadIdx.x; j < cols; j += THREADS) {
        const float q = rintf(dt_to_f32(from[j]) * inverse);
        if constexpr (sizeof(Y) == 1)
            to[j] = (int8_t)(q == q ? q : 0.0f);
        else
            to[j] = dt_from_f32<Y>(q * scale);
    }
    if (threadIdx.x == 0 && scale_out)
        scale_out[blockIdx.x] = scale;
}

template <class X, class Y> static void launch(const dt_quantize_args *args, dt_stream *stream)
{
    DT_LAUNCH((quantize_kernel<X, Y>), (unsigned)args->x.rows, THREADS, 0, stream, args->x.cols,
              (const X *)args->x.data, args->x.stride, (Y *)args->y.data, args->y.stride,
              args->scale);
}

DT_OP_CUDA(quantize)
{
    DT_STORAGE_SWITCH(args->x.dtype, X, if (args->y.dtype == DT_I8) launch<X, int8_t>(args, stream);
                      else launch<X, X>(args, stream));
    return DT_LAUNCHED("quantize");
}
