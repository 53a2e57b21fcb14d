// The losses of a policy's outputs on CUDA. A warp owns a row: its lanes share the columns of one
// output after another, a categorical one in three passes over logits that the first brought into
// the L1 cache. A row leaves each output's loss, measure and count, and its own loss, in the
// workspace, one array of rows after another; a second launch of a block an array adds them in a
// fixed order. Bytes an element: 4 in, and in bf16 2 out; the arrays are 12 an output and row,
// written and read.
#include "kernels/device.cuh"

#include <float.h>

enum { WARPS = 4, THREADS = 256 };

struct score {
    float loss, measure;
};

// What a warp sees of one output in a row. dx may be x itself: a lane reads what it writes, before
// it does.
template <class T> struct slice {
    const float *x, *bias, *targets;
    int n;
    float smoothing, scale;
    T *dx; // or NULL
};

DT_DEVICE float softmax_term(float z, float max)
{
    return dt_exp2((z - max) * DT_LOG2_E);
}

// The first of equal maxima: a lane has its lowest column, and of lanes the lower column wins.
template <class T> DT_DEVICE score categorical(const slice<T> &s)
{
    const int label = (int)s.targets[0];
    float max = -FLT_MAX, total = 0.0f, sum = 0.0f;
    int best = 0;
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP) {
        const float z = s.x[i] + s.bias[i];
        best = z > max ? i : best;
        max = z > max ? z : max;
        total += z;
    }
    const float mine = max;
    max = dt_warp_max(max);
    best = mine == max ? best : INT32_MAX;
#pragma unroll
    for (int lane = DT_WARP / 2; lane > 0; lane /= 2) {
        const int other = __shfl_xor_sync(DT_WHOLE_WARP, best, lane);
        best = other < best ? other : best;
    }
    total = dt_warp_sum(total);
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP)
        sum += softmax_term(s.x[i] + s.bias[i], max);
    sum = dt_warp_sum(sum);
    const float even = s.smoothing / (float)s.n, kept = 1.0f - s.smoothing;
    const float z = s.x[label] + s.bias[label];
    __syncwarp(); // before the label's may be overwritten
    const float factor = s.scale / sum;
    for (int i = (int)threadIdx.x; s.dx && i < s.n; i += DT_WARP) {
        const float q = i == label ? kept + even : even;
        s.dx[i] = dt_from_f32<T>(softmax_term(s.x[i] + s.bias[i], max) * factor - s.scale * q);
    }
    return {logf(sum) + max - kept * z - even * total, best == label ? 1.0f : 0.0f};
}

template <class T> DT_DEVICE score bernoulli(const slice<T> &s)
{
    const float inverse = 1.0f / (float)s.n;
    float loss = 0.0f, right = 0.0f;
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP) {
        const float z = s.x[i] + s.bias[i], t = s.targets[i];
        const float q = (1.0f - s.smoothing) * t + 0.5f * s.smoothing;
        const float positive = z < 0.0f ? 0.0f : z; // NaN stays
        loss += positive - q * z + log1pf(expf(z < 0.0f ? z : -z));
        right += (z > 0.0f) == (t > 0.5f) ? 1.0f : 0.0f;
        if (s.dx)
            s.dx[i] = dt_from_f32<T>(s.scale * inverse * (dt_sigmoid(z) - q));
    }
    return {dt_warp_sum(loss) * inverse, dt_warp_sum(right) * inverse};
}

template <class T> DT_DEVICE score distance(const slice<T> &s, bool huber)
{
    const float inverse = 1.0f / (float)s.n;
    float loss = 0.0f, size = 0.0f;
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP) {
        const float e = s.x[i] + s.bias[i] - s.targets[i], a = fabsf(e);
        const float slope = huber ? (a <= 1.0f ? e : copysignf(1.0f, e)) : 2.0f * e;
        loss += huber ? (a <= 1.0f ? 0.5f * e * e : a - 0.5f) : e * e;
        size += a;
        if (s.dx)
            s.dx[i] = dt_from_f32<T>(s.scale * inverse * slope);
    }
    return {dt_warp_sum(loss) * inverse, dt_warp_sum(size) * inverse};
}

template <class T> DT_DEVICE void zero(T *dx, int64_t from, int64_t end)
{
    for (int64_t i = from + threadIdx.x; dx && i < end; i += DT_WARP)
        dx[i] = dt_from_f32<T>(0.0f);
}

template <class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS)
    loss_kernel(const dt_policy_loss_args a, float *scores)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.logits.rows)
        return;
    T *dx = a.dlogits.data ? dt_at<T>(a.dlogits, row) : nullptr;
    const bool counted = !a.mask || a.mask[row];
    int64_t done = 0;
    float loss = 0.0f;
    for (int k = 0; k < (int)a.n; k++) {
        const dt_output_slice &o = a.outputs[k];
        const slice<T> s = {dt_at<float>(a.logits, row, o.first),
                            a.bias + o.first,
                            dt_at<float>(a.targets, row, o.target),
                            o.width,
                            o.smoothing,
                            a.scale * o.weight,
                            dx ? dx + o.first : nullptr};
        score of = {0.0f, 0.0f};
        if (counted)
            of = o.kind == DT_OUTPUT_CATEGORICAL ? categorical<T>(s)
                 : o.kind == DT_OUTPUT_BERNOULLI ? bernoulli<T>(s)
                                                 : distance<T>(s, o.kind == DT_OUTPUT_HUBER);
        zero<T>(dx, done, counted ? o.first : o.first + o.width);
        done = o.first + o.width;
        loss += o.weight * of.loss;
        if (threadIdx.x == 0) {
            float *metrics = scores + DT_OUTPUT_METRICS * k * a.logits.rows + row;
            metrics[0] = of.loss;
            metrics[a.logits.rows] = of.measure;
            metrics[2 * a.logits.rows] = counted ? 1.0f : 0.0f;
        }
    }
    zero<T>(dx, done, a.logits.cols);
    if (threadIdx.x == 0)
        scores[DT_OUTPUT_METRICS * a.n * a.logits.rows + row] = loss;
}

// Block i adds array i of the scores; the last one counts the rows too.
__global__ static void __launch_bounds__(THREADS)
    sum_kernel(int64_t rows, int64_t n, const float *scores, const uint8_t *mask, dt_loss_sum *sum)
{
    const int64_t i = blockIdx.x;
    double total = 0.0, counted = 0.0;
    for (int64_t row = threadIdx.x; row < rows; row += THREADS) {
        total += (double)scores[i * rows + row];
        counted += !mask || mask[row] ? 1.0 : 0.0;
    }
    total = dt_block_sum<THREADS>(total);
    counted = dt_block_sum<THREADS>(counted);
    if (threadIdx.x > 0)
        return;
    if (i < DT_OUTPUT_METRICS * n) {
        sum->metrics[i] += total;
    } else {
        sum->loss += total;
        sum->counted += counted;
    }
}

DT_OP_CUDA(policy_loss)
{
    float *scores = (float *)args->workspace;
    DT_STORAGE_SWITCH(args->dlogits.dtype, T,
                      DT_LAUNCH((loss_kernel<T>), dt_blocks(args->logits.rows, WARPS),
                                dim3(DT_WARP, WARPS), 0, stream, *args, scores));
    DT_LAUNCH((sum_kernel), (unsigned)(DT_OUTPUT_METRICS * args->n + 1), THREADS, 0, stream,
              args->logits.rows, args->n, scores, args->mask, args->sum);
    return DT_LAUNCHED("policy_loss");
}

DT_OP_CUDA_WORKSPACE(policy_loss)
{
    return (DT_OUTPUT_METRICS * args->n + 1) * args->logits.rows * (int64_t)sizeof(float);
}
