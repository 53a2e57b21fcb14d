// The gated activation on CUDA. A thread handles WIDE neighbours of a row, in bf16 with 16-byte
// accesses, in fp32 with two of them; one element if a view is unaligned. Floor: every array once,
// over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256, WIDE = 8 };

// f(x) = x · factor(x)
DT_DEVICE float factor(float x, dt_activation f)
{
    return f == DT_RELU2 ? fmaxf(x, 0.0f) : dt_sigmoid(x);
}

template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    forward_kernel(dt_silu_gate_forward_args a, int64_t across)
{
    const int64_t index = dt_thread_index(), row = index / across, col = index % across * N;
    if (row >= a.x.rows)
        return;
    float x[N], u[N];
    dt_load<N>(dt_at<T>(a.x, row, col), x);
    if (a.u.data)
        dt_load<N>(dt_at<T>(a.u, row, col), u);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = x[i] * factor(x[i], a.f) * (a.u.data ? u[i] : 1.0f);
    dt_store<N>(dt_at<T>(a.y, row, col), x);
}

template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    backward_kernel(dt_silu_gate_backward_args a, int64_t across)
{
    const int64_t index = dt_thread_index(), row = index / across, col = index % across * N;
    if (row >= a.x.rows)
        return;
    float x[N], u[N], dy[N];
    dt_load<N>(dt_at<T>(a.x, row, col), x);
    dt_load<N>(dt_at<T>(a.dy, row, col), dy);
    if (a.u.data)
        dt_load<N>(dt_at<T>(a.u, row, col), u);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = factor(x[i], a.f);
        const float slope = a.f == DT_RELU2 ? 2.0f * s : s * (1.0f + x[i] * (1.0f - s));
        const float gate = a.u.data ? u[i] : 1.0f;
        u[i] = dy[i] * x[i] * s;
        x[i] = dy[i] * gate * slope;
    }
    dt_store<N>(dt_at<T>(a.dx, row, col), x);
    if (a.u.data)
        dt_store<N>(dt_at<T>(a.du, row, col), u);
}

DT_OP_CUDA(silu_gate_forward)
{
    const int64_t rows = args->x.rows, cols = args->x.cols;
    const bool wide = cols % WIDE == 0 && dt_aligned<WIDE>(args->x, args->u, args->y);
    DT_STORAGE_SWITCH(
        args->x.dtype, T,
        DT_WIDE_SWITCH(wide, N, WIDE,
                       DT_LAUNCH((forward_kernel<N, T>), dt_blocks(rows * (cols / N), THREADS),
                                 THREADS, 0, stream, *args, cols / N)));
    return DT_LAUNCHED("silu_gate_forward");
}

DT_OP_CUDA(silu_gate_backward)
{
    const int64_t rows = args->x.rows, cols = args->x.cols;
    const bool wide =
        cols % WIDE == 0 && dt_aligned<WIDE>(args->x, args->u, args->dy, args->dx, args->du);
    DT_STORAGE_SWITCH(
        args->x.dtype, T,
        DT_WIDE_SWITCH(wide, N, WIDE,
                       DT_LAUNCH((backward_kernel<N, T>), dt_blocks(rows * (cols / N), THREADS),
                                 THREADS, 0, stream, *args, cols / N)));
    return DT_LAUNCHED("silu_gate_backward");
}
