// The losses of a policy's outputs on CUDA. A warp owns a row, and its lanes share the columns of
// one output after another. A categorical output takes three passes over logits, which the first
// pass brings into the L1 cache. In a mixture the lanes share the columns of one component after
// another, and one lane keeps the component's log density. A row writes its contribution to each
// number of the sum to the workspace, an array of rows per number; a second launch with a block per
// array adds them in a fixed order. Bytes per element: 4 in, and in bf16 2 out; the arrays have 24
// per output and row, written and read.
#include "kernels/device.cuh"

#include <float.h>

enum { WARPS = 4, THREADS = 256 };
static_assert(sizeof(dt_policy_loss_args) + sizeof(void *) <= 4096, "the parameters of a kernel");
static_assert((int)DT_OUTPUT_COMPONENTS <= (int)DT_WARP, "a lane keeps a component");
static const float LOG_2PI = 1.8378770664093453f;

struct score {
    float loss, measure;
};

// One output in a row. dx may be x itself: a lane reads an element before it writes it.
template <class T> struct slice {
    const dt_output_slice &o;
    const float *x, *bias, *targets, *mean, *deviation; // NULL: 0 and 1
    int n;                                              // columns of logits
    int present;                                        // targets present, at least one
    float smoothing, scale;
    T *dx; // or NULL
};

template <class T> DT_DEVICE float logit(const slice<T> &s, int i)
{
    return s.x[i] + s.bias[i];
}

template <class T> DT_DEVICE float target(const slice<T> &s, int i)
{
    return s.mean ? (s.targets[i] - s.mean[i]) / s.deviation[i] : s.targets[i];
}

template <class T> DT_DEVICE float unit(const slice<T> &s, int i)
{
    return s.mean ? s.deviation[i] : 1.0f;
}

// The difference between the prediction of z and target i, and its derivative. With a range, it is
// measured from the end that z is nearer to, so that a policy can learn targets at an end exactly.
template <class T> DT_DEVICE float error_of(const slice<T> &s, float z, int i, float &slope)
{
    const float t = target(s, i), range = s.o.high - s.o.low;
    slope = 1.0f;
    if (!(range > 0.0f))
        return z - t;
    const float gap = dt_tanh_gap(z);
    slope = 2.0f * range * gap * (1.0f - gap);
    return z < 0.0f ? s.o.low - t + range * gap : s.o.high - t - range * gap;
}

DT_DEVICE float softmax_term(float z, float max)
{
    return dt_exp2((z - max) * DT_LOG2_E);
}

DT_DEVICE int warp_min(int x)
{
#pragma unroll
    for (int lane = DT_WARP / 2; lane > 0; lane /= 2) {
        const int other = __shfl_xor_sync(DT_WHOLE_WARP, x, lane);
        x = other < x ? other : x;
    }
    return x;
}

// Finds the first of equal maxima: each lane has its lowest column, and the lowest of the lanes'
// columns wins.
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
    best = warp_min(mine == max ? best : INT32_MAX);
    total = dt_warp_sum(total);
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP)
        sum += softmax_term(s.x[i] + s.bias[i], max);
    sum = dt_warp_sum(sum);
    const float even = s.smoothing / (float)s.n, kept = 1.0f - s.smoothing;
    const float z = s.x[label] + s.bias[label];
    __syncwarp(); // before the label's element is overwritten
    const float factor = s.scale / sum;
    for (int i = (int)threadIdx.x; s.dx && i < s.n; i += DT_WARP) {
        const float q = i == label ? kept + even : even;
        s.dx[i] = dt_from_f32<T>(softmax_term(s.x[i] + s.bias[i], max) * factor - s.scale * q);
    }
    return {logf(sum) + max - kept * z - even * total, best == label ? 1.0f : 0.0f};
}

template <class T> DT_DEVICE score bernoulli(const slice<T> &s)
{
    const float inverse = 1.0f / (float)s.present;
    float loss = 0.0f, right = 0.0f;
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP) {
        const float z = logit(s, i), t = s.targets[i];
        float gradient = 0.0f;
        if (!isnan(t)) {
            const float q = (1.0f - s.smoothing) * t + 0.5f * s.smoothing;
            const float positive = z < 0.0f ? 0.0f : z; // NaN stays
            loss += positive - q * z + log1pf(expf(z < 0.0f ? z : -z));
            right += (z > 0.0f) == (t > 0.5f) ? 1.0f : 0.0f;
            gradient = s.scale * inverse * (dt_sigmoid(z) - q);
        }
        if (s.dx)
            s.dx[i] = dt_from_f32<T>(gradient);
    }
    return {dt_warp_sum(loss) * inverse, dt_warp_sum(right) * inverse};
}

template <class T> DT_DEVICE score distance(const slice<T> &s, bool huber)
{
    const float inverse = 1.0f / (float)s.present;
    float loss = 0.0f, size = 0.0f, bend;
    for (int i = (int)threadIdx.x; i < s.n; i += DT_WARP) {
        float gradient = 0.0f;
        if (!isnan(s.targets[i])) {
            const float e = error_of(s, logit(s, i), i, bend), a = fabsf(e);
            const float slope = huber ? (a <= 1.0f ? e : copysignf(1.0f, e)) : 2.0f * e;
            loss += huber ? (a <= 1.0f ? 0.5f * e * e : a - 0.5f) : e * e;
            size += a * unit(s, i);
            gradient = s.scale * inverse * slope * bend;
        }
        if (s.dx)
            s.dx[i] = dt_from_f32<T>(gradient);
    }
    return {dt_warp_sum(loss) * inverse, dt_warp_sum(size) * inverse};
}

template <class T> DT_DEVICE score quantile(const slice<T> &s)
{
    const float inverse = 1.0f / (float)s.present, each = inverse / (float)s.o.parts;
    const int columns = s.o.columns;
    float loss = 0.0f, size = 0.0f;
    for (int at = (int)threadIdx.x; at < s.n; at += DT_WARP) {
        const int j = at / columns, i = at % columns;
        float gradient = 0.0f;
        if (!isnan(s.targets[i])) {
            const float q = s.o.levels[j], u = target(s, i) - logit(s, at);
            const float slope = u < 0.0f ? q - 1.0f : q;
            loss += slope * u;
            size += j == s.o.median ? fabsf(u) * unit(s, i) : 0.0f;
            gradient = s.scale * each * -slope;
        }
        if (s.dx)
            s.dx[at] = dt_from_f32<T>(gradient);
    }
    return {dt_warp_sum(loss) * each, dt_warp_sum(size) * inverse};
}

// Column i of component c: the distance to the target in units of sigma, its derivative, 1 / sigma,
// the derivative of sigma by its input, and log sigma.
struct bell {
    float distance, slope, inverse, rise, log_scale;
};

template <class T> DT_DEVICE bell bell_of(const slice<T> &s, int c, int i)
{
    const int K = s.o.parts, n = s.o.columns;
    const float spread = logit(s, K + (K + c) * n + i);
    const float scale = dt_softplus(spread) + DT_GMM_SCALE_MIN;
    bell b;
    b.inverse = 1.0f / scale;
    b.distance = error_of(s, logit(s, K + c * n + i), i, b.slope) * b.inverse;
    b.rise = dt_sigmoid(spread);
    b.log_scale = logf(scale);
    return b;
}

template <class T> DT_DEVICE score mixture(const slice<T> &s)
{
    const int K = s.o.parts, n = s.o.columns, lane = (int)threadIdx.x;
    const bool mine = lane < K;
    const float z = mine ? logit(s, lane) : -FLT_MAX;
    float joint = -FLT_MAX, size = 0.0f, slope;
    for (int c = 0; c < K; c++) {
        float density = 0.0f;
        for (int i = lane; i < n; i += DT_WARP) {
            if (isnan(s.targets[i]))
                continue;
            const bell b = bell_of(s, c, i);
            density += 0.5f * b.distance * b.distance + b.log_scale;
        }
        density = dt_warp_sum(density);
        joint = lane == c ? z - density : joint;
    }
    const float max = dt_warp_max(z), top = dt_warp_max(joint);
    const int best = warp_min(mine && z == max ? lane : K - 1);
    const float prior = mine ? softmax_term(z, max) : 0.0f;
    const float share = mine ? softmax_term(joint, top) : 0.0f;
    const float all = dt_warp_sum(prior), total = dt_warp_sum(share);
    for (int i = lane; i < n; i += DT_WARP)
        if (!isnan(s.targets[i]))
            size += fabsf(error_of(s, logit(s, K + best * n + i), i, slope)) * unit(s, i);
    size = dt_warp_sum(size);
    __syncwarp(); // before they may be overwritten
    for (int c = 0; c < K && s.dx; c++) {
        const float part = s.scale * __shfl_sync(DT_WHOLE_WARP, share, c) / total;
        for (int i = lane; i < n; i += DT_WARP) {
            float by_mean = 0.0f, by_spread = 0.0f;
            if (!isnan(s.targets[i])) {
                const bell b = bell_of(s, c, i);
                by_mean = part * b.distance * b.inverse * b.slope;
                by_spread = part * (1.0f - b.distance * b.distance) * b.inverse * b.rise;
            }
            s.dx[K + c * n + i] = dt_from_f32<T>(by_mean);
            s.dx[K + (K + c) * n + i] = dt_from_f32<T>(by_spread);
        }
    }
    if (s.dx && mine)
        s.dx[lane] = dt_from_f32<T>(s.scale * (prior / all - share / total));
    const float loss = max + logf(all) - top - logf(total) + 0.5f * LOG_2PI * (float)s.present;
    return {loss, size / (float)s.present};
}

template <class T> DT_DEVICE score score_of(const slice<T> &s)
{
    switch (s.o.kind) {
    case DT_OUTPUT_CATEGORICAL:
        return categorical(s);
    case DT_OUTPUT_BERNOULLI:
        return bernoulli(s);
    case DT_OUTPUT_GMM:
        return mixture(s);
    case DT_OUTPUT_QUANTILE:
        return quantile(s);
    default:
        return distance(s, s.o.kind == DT_OUTPUT_HUBER);
    }
}

DT_DEVICE int count_present(const float *targets, int n)
{
    int present = 0;
    for (int i = (int)threadIdx.x; i < n; i += DT_WARP)
        present += isnan(targets[i]) ? 0 : 1;
    return dt_warp_sum(present);
}

template <class T> DT_DEVICE void zero(T *dx, int64_t from, int64_t end)
{
    for (int64_t i = from + threadIdx.x; dx && i < end; i += DT_WARP)
        dx[i] = dt_from_f32<T>(0.0f);
}

template <class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS, 6)
    loss_kernel(const dt_policy_loss_args a, float *scores)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.logits.rows)
        return;
    T *dx = a.dlogits.data ? dt_at<T>(a.dlogits, row) : nullptr;
    const float *weights = a.weights.data ? dt_at<float>(a.weights, row) : nullptr;
    const bool here = !a.mask || a.mask[row];
    const int64_t rows = a.logits.rows;
    int64_t done = 0;
    float loss = 0.0f;
    bool counted = false;
    for (int k = 0; k < (int)a.n; k++) {
        const dt_output_slice &o = a.outputs[k];
        const float *targets = dt_at<float>(a.targets, row, o.target);
        const float weight = weights ? weights[1 + k] : 1.0f;
        const slice<T> s = {o,
                            dt_at<float>(a.logits, row, o.first),
                            a.bias + o.first,
                            targets,
                            a.mean ? a.mean + o.target : nullptr,
                            a.mean ? a.deviation + o.target : nullptr,
                            o.width,
                            here ? count_present(targets, o.columns) : 0,
                            o.smoothing,
                            a.scale * o.weight * weight,
                            dx ? dx + o.first : nullptr};
        const bool has = s.present > 0;
        score of = {0.0f, 0.0f};
        if (has)
            of = score_of(s);
        zero<T>(dx, done, has ? o.first : o.first + o.width);
        done = o.first + o.width;
        loss += o.weight * weight * of.loss;
        counted |= has;
        if (threadIdx.x == 0) {
            float *metrics = scores + (2 + DT_OUTPUT_METRICS * k) * rows + row;
            metrics[0] = weight * of.loss;
            metrics[rows] = weight * of.measure;
            metrics[2 * rows] = has ? weight : 0.0f;
        }
    }
    zero<T>(dx, done, a.logits.cols);
    if (threadIdx.x == 0) {
        scores[row] = loss;
        scores[rows + row] = !counted ? 0.0f : weights ? weights[0] : 1.0f;
    }
}

// Block i adds array i to number i of the sum.
__global__ static void __launch_bounds__(THREADS)
    sum_kernel(int64_t rows, const float *scores, double *sums)
{
    const int64_t i = blockIdx.x;
    double total = 0.0;
    for (int64_t row = threadIdx.x; row < rows; row += THREADS)
        total += (double)scores[i * rows + row];
    total = dt_block_sum<THREADS>(total);
    if (threadIdx.x == 0)
        sums[i] += total;
}

// How many numbers the sum of n outputs has.
static int64_t sums_of(const dt_policy_loss_args *args)
{
    return 2 + DT_OUTPUT_METRICS * args->n;
}

DT_OP_CUDA(policy_loss)
{
    float *scores = (float *)args->workspace;
    DT_STORAGE_SWITCH(args->dlogits.dtype, T,
                      DT_LAUNCH((loss_kernel<T>), dt_blocks(args->logits.rows, WARPS),
                                dim3(DT_WARP, WARPS), 0, stream, *args, scores));
    DT_LAUNCH((sum_kernel), (unsigned)sums_of(args), THREADS, 0, stream, args->logits.rows, scores,
              (double *)args->sum);
    return DT_LAUNCHED("policy_loss");
}

DT_OP_CUDA_WORKSPACE(policy_loss)
{
    return sums_of(args) * args->logits.rows * (int64_t)sizeof(float);
}
