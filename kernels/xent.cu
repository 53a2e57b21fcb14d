// Softmax cross-entropy on CUDA. A block owns a row of logits: one pass for maximum and Σ exp
// together (a thread's running sum is rescaled when its maximum grows), one for the gradient, which
// recomputes the exponentials. A thread handles four neighbours at a time (one if rows are
// unaligned). A second launch of one block adds the rows' losses in a fixed order. Only evaluation
// asks which rows are right, and a separate launch reads the logits again for that. A NaN or
// +infinity among the logits makes the row's loss NaN, as on the CPU.
//
// A row of 50,280 logits is 200 KB. If a block may have that much shared memory (227 KB on sm_90
// and sm_100), a thread keeps its logits there for the second pass, and an SM holds one row: per
// logit 4 bytes are read and, for bf16, 2 written. Otherwise the second pass reads the logits
// again, and of 10 bytes the L2 cache saves at most 4: the rows in flight, two per SM, are 53 MB,
// and their gradients pass through it too, while an H200 has 60 MB and an H100 50. Floors at 4.3
// TB/s: 1.4 ps per logit with the row kept, otherwise 1.4 to 2.3.
//
// The instructions per logit, including two exponentials (tests/sass/table.md), take less time than
// the bytes; the first pass has somewhat more than half of them. An exponential is exp2((x - max)
// log2 e). One FFMA of x with a precomputed max log2 e would save an instruction in each pass, but
// its rounding error exceeds 128 when logits reach 2^31, and the row's loss would become NaN.
#include "kernels/device.cuh"

#include <float.h>

enum {
    THREADS = 1024,
    WIDE = 4,
};

// The state over the elements seen so far: sum = Σ exp(x - max). It starts at a finite maximum, so
// that a logit of -infinity adds 0 and not NaN.
struct softmax {
    float max, sum;
};

DT_DEVICE float exp_above(float x, float max)
{
    return dt_exp2((x - max) * DT_LOG2_E);
}

template <int N> DT_DEVICE void see(softmax *s, const float (&x)[N])
{
    float max = s->max;
#pragma unroll
    for (int k = 0; k < N; k++)
        max = fmaxf(max, x[k]);
    if (max > s->max) {
        s->sum *= exp_above(s->max, max);
        s->max = max;
    }
#pragma unroll
    for (int k = 0; k < N; k++)
        s->sum += exp_above(x[k], max);
}

// Adds PAIRS times two vectors of N elements, THREADS vectors apart, which are all loaded first and
// also stored in `kept`. A sum is rescaled once per two vectors, so its bits do not depend on how
// many are loaded at a time.
template <int PAIRS, int N, bool KEEP>
DT_DEVICE void see_pairs(softmax *s, const float *x, float *kept, int64_t i)
{
    float v[PAIRS][2 * N];
#pragma unroll
    for (int j = 0; j < 2 * PAIRS; j++) {
        float vector[N];
        dt_load<N>(x + i + j * THREADS * N, vector);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[j / 2][j % 2 * N + k] = vector[k];
    }
#pragma unroll
    for (int j = 0; KEEP && j < 2 * PAIRS; j++) {
        float vector[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            vector[k] = v[j / 2][j % 2 * N + k];
        dt_store<N>(kept + i + j * THREADS * N, vector);
    }
#pragma unroll
    for (int j = 0; j < PAIRS; j++)
        see<2 * N>(s, v[j]);
}

// Combines a row; every thread gets the result. The threads' sums are added in double.
template <int N, bool KEEP>
DT_DEVICE void reduce_row(const float *x, float *kept, int64_t vocab, float *max, double *sum)
{
    softmax s = {-FLT_MAX, 0.0f};
    constexpr int64_t STEP = THREADS * N;
    int64_t whole = vocab / N * N, i = (int64_t)threadIdx.x * N;
    if (KEEP) // with one row per SM registers hold four vectors, with two rows two
        for (; i + 3 * STEP < whole; i += 4 * STEP)
            see_pairs<2, N, KEEP>(&s, x, kept, i);
    for (; i + STEP < whole; i += 2 * STEP)
        see_pairs<1, N, KEEP>(&s, x, kept, i);
    if (i < whole) {
        float v[N];
        dt_load<N>(x + i, v);
        if (KEEP)
            dt_store<N>(kept + i, v);
        see<N>(&s, v);
    }
    if (whole + threadIdx.x < vocab) {
        float v[1] = {x[whole + threadIdx.x]};
        see<1>(&s, v);
    }
    *max = dt_block_max<THREADS>(s.max);
    *sum = dt_block_sum<THREADS>((double)s.sum * (double)exp_above(s.max, *max));
}

struct gradient {
    float max, factor; // exp(x - max) · factor = scale · p
    float scale;
    int64_t label;
    float logit; // the label's
};

// dx may be x itself: a thread reads an element before it writes it. It handles the same elements
// as in the first pass, so it finds in `kept` what it stored there.
template <int N, bool KEEP, class T>
DT_DEVICE void write_row(const gradient *g, const float *x, const float *kept, T *dx, int64_t vocab,
                         int64_t width)
{
    int64_t whole = vocab / N * N, i = (int64_t)threadIdx.x * N;
    int64_t label = g->label < whole ? g->label / N % THREADS : g->label - whole;
    for (; i < whole; i += THREADS * N) {
        float v[N];
        dt_load<N>(KEEP ? kept + i : x + i, v);
#pragma unroll
        for (int k = 0; k < N; k++)
            v[k] = exp_above(v[k], g->max) * g->factor;
        dt_store<N>(dx + i, v);
    }
    for (i = whole + threadIdx.x; i < width; i += THREADS)
        dx[i] = dt_from_f32<T>(i < vocab ? exp_above(x[i], g->max) * g->factor : 0.0f);
    if (label == threadIdx.x) // this thread wrote that element above
        dx[g->label] = dt_from_f32<T>(exp_above(g->logit, g->max) * g->factor - g->scale);
}

// Rows per SM: one if it keeps the row, else two if threads and registers allow (for sm_80 and
// sm_100 the compiler would spill).
template <bool KEEP> constexpr int rows_held(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return 1;
#else
    return KEEP ? 1 : 2;
#endif
}

template <int N, bool KEEP, class T>
__global__ static void __launch_bounds__(THREADS, (rows_held<KEEP>()))
    xent_kernel(dt_xent_args a, float *losses)
{
    DT_SHARED_DYN(float, kept);
    int64_t row = blockIdx.x;
    const float *x = dt_at<float>(a.logits, row);
    T *dx = a.dlogits.data ? dt_at<T>(a.dlogits, row) : nullptr;
    gradient g = {0.0f, 0.0f, a.scale, a.labels[row], 0.0f};
    if (g.label == DT_LABEL_IGNORED) { // the whole block
        for (int64_t i = threadIdx.x; dx && i < a.logits.cols; i += THREADS)
            dx[i] = dt_from_f32<T>(0.0f);
        if (threadIdx.x == 0)
            losses[row] = 0.0f;
        return;
    }
    double sum;
    g.logit = x[g.label]; // before it is overwritten
    reduce_row<N, KEEP>(x, kept, a.vocab, &g.max, &sum);
    g.factor = (float)((double)a.scale / sum);
    if (threadIdx.x == 0)
        losses[row] = (float)(log(sum) + (double)g.max - (double)g.logit);
    if (dx)
        write_row<N, KEEP, T>(&g, x, kept, dx, a.vocab, a.logits.cols);
}

// One block per row.
__global__ static void __launch_bounds__(THREADS) right_kernel(dt_xent_args a)
{
    int64_t row = blockIdx.x, label = a.labels[row];
    const float *x = dt_at<float>(a.logits, row);
    if (label == DT_LABEL_IGNORED) { // the whole block
        if (threadIdx.x == 0)
            a.right[row] = 0;
        return;
    }
    float best = x[label], beaten = best == best ? 0.0f : 1.0f; // a NaN is beaten
    for (int64_t i = threadIdx.x; i < a.vocab; i += THREADS)
        beaten = x[i] > best || (x[i] == best && i < label) ? 1.0f : beaten;
    beaten = dt_block_max<THREADS>(beaten);
    if (threadIdx.x == 0)
        a.right[row] = beaten == 0.0f;
}

__global__ static void __launch_bounds__(THREADS)
    sum_losses_kernel(int64_t rows, const float *losses, const int32_t *labels,
                      const uint8_t *right, dt_loss_sum *sum)
{
    double loss = 0.0, counted = 0.0, rights = 0.0;
    for (int64_t r = threadIdx.x; r < rows; r += THREADS) {
        loss += (double)losses[r];
        counted += labels[r] != DT_LABEL_IGNORED;
        rights += right ? right[r] : 0;
    }
    loss = dt_block_sum<THREADS>(loss);
    counted = dt_block_sum<THREADS>(counted);
    if (threadIdx.x == 0) {
        sum->loss += loss;
        sum->counted += counted;
    }
    if (!right)
        return;
    rights = dt_block_sum<THREADS>(rights);
    if (threadIdx.x == 0)
        sum->metrics[1] += rights;
}

template <class T> static void xent_typed(const dt_xent_args *a, float *losses, dt_stream *stream)
{
    unsigned blocks = dt_blocks(a->logits.rows, 1);
    int64_t row_bytes = a->vocab * (int64_t)sizeof(float);
    if (!dt_aligned<WIDE>(a->logits, a->dlogits))
        DT_LAUNCH((xent_kernel<1, false, T>), blocks, THREADS, 0, stream, *a, losses);
    else if (a->dlogits.data && dt_allow_shared(xent_kernel<WIDE, true, T>, row_bytes))
        DT_LAUNCH((xent_kernel<WIDE, true, T>), blocks, THREADS, row_bytes, stream, *a, losses);
    else
        DT_LAUNCH((xent_kernel<WIDE, false, T>), blocks, THREADS, 0, stream, *a, losses);
}

DT_OP_CUDA(xent)
{
    float *losses = args->losses ? args->losses : (float *)args->workspace;
    if (args->right)
        DT_LAUNCH((right_kernel), dt_blocks(args->logits.rows, 1), THREADS, 0, stream, *args);
    DT_STORAGE_SWITCH(args->dlogits.dtype, T, xent_typed<T>(args, losses, stream));
    DT_LAUNCH((sum_losses_kernel), 1, THREADS, 0, stream, args->logits.rows, losses, args->labels,
              args->right, args->sum);
    return DT_LAUNCHED("xent");
}

DT_OP_CUDA_WORKSPACE(xent)
{
    return args->logits.rows * (int64_t)sizeof(float);
}
