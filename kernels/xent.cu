// Softmax cross-entropy on CUDA. A block owns a row of logits: one pass for maximum and Σ exp
// together (a thread's running sum is scaled anew when its maximum grows), one for the gradient
// with the exponentials made again. A thread takes eight neighbours at a time, one by one where
// rows are not aligned. A second launch of one block adds the rows' losses in a fixed order. A NaN
// or +infinity among the logits makes the row's loss NaN, as on the CPU.
//
// A row of 50,280 logits is 200 KB, more than shared memory: the second pass finds most of it in
// L2. Hence blocks of 1,024 threads: an SM then holds two rows, 53 MB of an H200's 60 (four rows of
// smaller blocks would be read twice from memory). Bytes a logit, gradient in bf16: 4 in and 2 out
// over copy bandwidth are the floor, 1.4 ps; two exponentials are half of it, and 24 instructions
// at 4 a clock and SM 0.6.
#include "kernels/device.cuh"

#include <float.h>

enum { THREADS = 1024, WIDE = 8 };

// Of the elements seen so far: sum = Σ exp(x - max). Starts at a maximum that is finite, so that a
// logit of -infinity adds 0 and not NaN.
struct softmax {
    float max, sum;
};

template <int N> DT_DEVICE void see(struct softmax *s, const float (&x)[N])
{
    float max = s->max;
#pragma unroll
    for (int k = 0; k < N; k++)
        max = fmaxf(max, x[k]);
    if (max > s->max) {
        s->sum *= __expf(s->max - max);
        s->max = max;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        s->sum += __expf(x[k] - max);
}

// Over a row, the same in every thread; the threads' sums are added in double.
template <int N> DT_DEVICE void reduce_row(const float *x, int64_t vocab, float *max, double *sum)
{
    struct softmax s = {-FLT_MAX, 0.0f};
    int64_t whole = vocab / N * N;
#pragma unroll 4
    for (int64_t i = (int64_t)threadIdx.x * N; i < whole; i += THREADS * N) {
        float v[N];
        dt_load<N>(x + i, v);
        see<N>(&s, v);
    }
    if (whole + threadIdx.x < vocab) {
        float v[1] = {x[whole + threadIdx.x]};
        see<1>(&s, v);
    }
    *max = dt_block_max<THREADS>(s.max);
    *sum = dt_block_sum<THREADS>((double)s.sum * (double)__expf(s.max - *max));
}

struct gradient {
    float max, inverse; // exp(x - max) · inverse = p
    float scale;
    int64_t label;
};

DT_DEVICE float gradient_of(const struct gradient *g, int64_t i, float x)
{
    float p = __expf(x - g->max) * g->inverse;
    return g->scale * (i == g->label ? p - 1.0f : p);
}

// dx may be x itself: a thread reads what it writes, before it does.
template <int N, class T>
DT_DEVICE void write_row(const struct gradient *g, const float *x, T *dx, int64_t vocab,
                         int64_t width)
{
    int64_t whole = vocab / N * N;
    for (int64_t i = (int64_t)threadIdx.x * N; i < whole; i += THREADS * N) {
        float v[N];
        dt_load<N>(x + i, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = gradient_of(g, i + k, v[k]);
        dt_store<N>(dx + i, v);
    }
    for (int64_t i = whole + threadIdx.x; i < width; i += THREADS)
        dx[i] = dt_from_f32<T>(i < vocab ? gradient_of(g, i, x[i]) : 0.0f);
}

template <class T> DT_DEVICE void zero_row(T *dx, int64_t width)
{
    for (int64_t i = threadIdx.x; i < width; i += THREADS)
        dx[i] = dt_from_f32<T>(0.0f);
}

// Rows an SM shall hold at a time: two where it holds that many threads and 32 registers are enough
// (an A100's compiler would spill).
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900 && __CUDA_ARCH__ != 1000
enum { ROWS_HELD = 1 };
#else
enum { ROWS_HELD = 2 };
#endif

template <int N, class T>
__global__ static void __launch_bounds__(THREADS, ROWS_HELD)
    xent_kernel(struct dt_xent_args a, float *losses)
{
    int64_t row = blockIdx.x;
    const float *x = a.logits + row * a.logits_stride;
    T *dx = a.dlogits ? (T *)a.dlogits + row * a.dlogits_stride : nullptr;
    struct gradient g = {0.0f, 0.0f, a.scale, a.labels[row]};
    if (g.label == DT_LABEL_IGNORED) { // the whole block
        if (dx)
            zero_row(dx, a.width);
        if (threadIdx.x == 0)
            losses[row] = 0.0f;
        return;
    }
    double sum;
    reduce_row<N>(x, a.vocab, &g.max, &sum);
    g.inverse = (float)(1.0 / sum);
    if (threadIdx.x == 0)
        losses[row] = (float)(log(sum) + (double)g.max - (double)x[g.label]);
    __syncthreads(); // the label's logit is read before it may be overwritten
    if (dx)
        write_row<N, T>(&g, x, dx, a.vocab, a.width);
}

__global__ static void __launch_bounds__(THREADS)
    sum_losses_kernel(int64_t rows, const float *losses, const int32_t *labels,
                      struct dt_loss_sum *sum)
{
    double loss = 0.0, counted = 0.0;
    for (int64_t r = threadIdx.x; r < rows; r += THREADS) {
        loss += (double)losses[r];
        counted += labels[r] != DT_LABEL_IGNORED;
    }
    loss = dt_block_sum<THREADS>(loss);
    counted = dt_block_sum<THREADS>(counted);
    if (threadIdx.x == 0) {
        sum->loss += loss;
        sum->counted += counted;
    }
}

template <class T>
static void xent_typed(const struct dt_xent_args *a, float *losses, dt_stream *stream)
{
    unsigned blocks = dt_blocks(a->rows, 1);
    if (dt_aligned<WIDE>(a->logits, a->logits_stride) &&
        dt_aligned<WIDE>((T *)a->dlogits, a->dlogits ? a->dlogits_stride : 0))
        DT_LAUNCH((xent_kernel<WIDE, T>), blocks, THREADS, 0, stream, *a, losses);
    else
        DT_LAUNCH((xent_kernel<1, T>), blocks, THREADS, 0, stream, *a, losses);
}

dt_status xent_cuda(struct dt_device *device, const struct dt_xent_args *args,
                    struct dt_stream *stream)
{
    (void)device;
    float *losses = args->losses ? args->losses : (float *)args->workspace;
    DT_STORAGE_SWITCH(args->dtype, T, xent_typed<T>(args, losses, stream));
    DT_LAUNCH((sum_losses_kernel), 1, THREADS, 0, stream, args->rows, losses, args->labels,
              args->sum);
    return DT_LAUNCHED("xent");
}

int64_t xent_cuda_workspace(struct dt_device *device, const struct dt_xent_args *args)
{
    (void)device;
    return args->rows * (int64_t)sizeof(float);
}
