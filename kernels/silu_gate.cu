// The gated activation on CUDA. A thread takes WIDE neighbours of a row, by accesses of 16 bytes in
// bf16 and twice that in fp32; one by one where a view is not aligned. Bytes: every array once;
// that over copy bandwidth is the floor.
#include "kernels/device.cuh"

enum { THREADS = 256, WIDE = 8 };

template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    forward_kernel(struct dt_silu_gate_forward_args a, int64_t across)
{
    const int64_t index = dt_thread_index(), row = index / across, col = index % across * N;
    if (row >= a.x.rows)
        return;
    float x[N], u[N];
    dt_load<N>((const T *)a.x.data + row * a.x.stride + col, x);
    if (a.u.data)
        dt_load<N>((const T *)a.u.data + row * a.u.stride + col, u);
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = x[i] * dt_sigmoid(x[i]) * (a.u.data ? u[i] : 1.0f);
    dt_store<N>((T *)a.y.data + row * a.y.stride + col, x);
}

template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    backward_kernel(struct dt_silu_gate_backward_args a, int64_t across)
{
    const int64_t index = dt_thread_index(), row = index / across, col = index % across * N;
    if (row >= a.x.rows)
        return;
    float x[N], u[N], dy[N];
    dt_load<N>((const T *)a.x.data + row * a.x.stride + col, x);
    dt_load<N>((const T *)a.dy.data + row * a.dy.stride + col, dy);
    if (a.u.data)
        dt_load<N>((const T *)a.u.data + row * a.u.stride + col, u);
#pragma unroll
    for (int i = 0; i < N; i++) {
        const float s = dt_sigmoid(x[i]), slope = s * (1.0f + x[i] * (1.0f - s));
        const float gate = a.u.data ? u[i] : 1.0f;
        u[i] = dy[i] * x[i] * s;
        x[i] = dy[i] * gate * slope;
    }
    dt_store<N>((T *)a.dx.data + row * a.dx.stride + col, x);
    if (a.u.data)
        dt_store<N>((T *)a.du.data + row * a.du.stride + col, u);
}

template <class T> static bool wide(const struct dt_view &view)
{
    return dt_aligned<WIDE>((const T *)view.data, view.stride);
}

template <class T>
static void forward_typed(const struct dt_silu_gate_forward_args *a, struct dt_stream *stream)
{
    const int64_t rows = a->x.rows, cols = a->x.cols;
    if (cols % WIDE == 0 && wide<T>(a->x) && wide<T>(a->u) && wide<T>(a->y))
        DT_LAUNCH((forward_kernel<WIDE, T>), dt_blocks(rows * (cols / WIDE), THREADS), THREADS, 0,
                  stream, *a, cols / WIDE);
    else
        DT_LAUNCH((forward_kernel<1, T>), dt_blocks(rows * cols, THREADS), THREADS, 0, stream, *a,
                  cols);
}

DT_OP_CUDA(silu_gate_forward)
{
    DT_STORAGE_SWITCH(args->x.dtype, T, forward_typed<T>(args, stream));
    return DT_LAUNCHED("silu_gate_forward");
}

template <class T>
static void backward_typed(const struct dt_silu_gate_backward_args *a, struct dt_stream *stream)
{
    const int64_t rows = a->x.rows, cols = a->x.cols;
    if (cols % WIDE == 0 && wide<T>(a->x) && wide<T>(a->u) && wide<T>(a->dy) && wide<T>(a->dx) &&
        wide<T>(a->du))
        DT_LAUNCH((backward_kernel<WIDE, T>), dt_blocks(rows * (cols / WIDE), THREADS), THREADS, 0,
                  stream, *a, cols / WIDE);
    else
        DT_LAUNCH((backward_kernel<1, T>), dt_blocks(rows * cols, THREADS), THREADS, 0, stream, *a,
                  cols);
}

DT_OP_CUDA(silu_gate_backward)
{
    DT_STORAGE_SWITCH(args->x.dtype, T, backward_typed<T>(args, stream));
    return DT_LAUNCHED("silu_gate_backward");
}
