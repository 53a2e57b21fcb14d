// The losses of a policy's outputs on the CPU, rows shared among the threads. A row writes its
// contribution to each number of the sum to the workspace, an array of rows per number; then a
// thread sums each array in the order of rows.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { ROWS = 8 };
#define LOG_2PI 1.8378770664093453f

struct score {
    float loss, measure;
};

// One output in a row. dx may be x itself: each element is read before it is written.
struct slice {
    const struct dt_output_slice *o;
    const float *x, *bias, *targets, *mean, *deviation; // NULL: 0 and 1
    int64_t present;                                    // targets present, at least one
    float scale;
    void *dx; // or NULL
};

DT_INLINE void put(const struct slice *s, int64_t i, float gradient, bool bf16)
{
    dt_store(s->dx, s->o->first + i, gradient, bf16);
}

DT_INLINE float logit(const struct slice *s, int64_t i)
{
    return s->x[i] + s->bias[i];
}

DT_INLINE float target(const struct slice *s, int64_t i)
{
    return s->mean ? (s->targets[i] - s->mean[i]) / s->deviation[i] : s->targets[i];
}

DT_INLINE float unit(const struct slice *s, int64_t i)
{
    return s->mean ? s->deviation[i] : 1.0f;
}

// The difference between the prediction of z and target i, and its derivative. With a range, it is
// measured from the end that z is nearer to, so that a policy can learn targets at an end exactly.
DT_INLINE float error_of(const struct slice *s, float z, int64_t i, float *slope)
{
    float t = target(s, i), range = s->o->high - s->o->low;
    *slope = 1.0f;
    if (!(range > 0.0f))
        return z - t;
    float gap = dt_tanh_gapf(z);
    *slope = 2.0f * range * gap * (1.0f - gap);
    return z < 0.0f ? s->o->low - t + range * gap : s->o->high - t - range * gap;
}

DT_INLINE struct score categorical(const struct slice *s, bool bf16)
{
    int64_t n = s->o->width, label = (int64_t)s->targets[0], best = 0;
    float max = -INFINITY, total = 0.0f, sum = 0.0f;
    for (int64_t i = 0; i < n; i++) {
        float z = s->x[i] + s->bias[i];
        best = z > max ? i : best;
        max = z > max ? z : max;
        total += z;
    }
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += dt_expf(s->x[i] + s->bias[i] - max);
    float even = s->o->smoothing / (float)n, kept = 1.0f - s->o->smoothing;
    float z = s->x[label] + s->bias[label]; // before it is overwritten
    struct score score = {logf(sum) + max - kept * z - even * total, best == label};
    if (!s->dx)
        return score;
    float factor = s->scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        put(s, i, dt_expf(s->x[i] + s->bias[i] - max) * factor - s->scale * even, bf16);
    float p = dt_expf(z - max) * factor;
    put(s, label, p - s->scale * (kept + even), bf16);
    return score;
}

DT_INLINE struct score bernoulli(const struct slice *s, bool bf16)
{
    float loss = 0.0f, right = 0.0f, inverse = 1.0f / (float)s->present;
    float smoothing = s->o->smoothing;
    for (int64_t i = 0; i < s->o->width; i++) {
        float z = logit(s, i), t = s->targets[i], gradient = 0.0f;
        if (!isnan(t)) {
            float q = (1.0f - smoothing) * t + 0.5f * smoothing;
            float positive = z < 0.0f ? 0.0f : z; // NaN stays
            loss += positive - q * z + dt_log1pf_unit(dt_expf(z < 0.0f ? z : -z));
            right += (z > 0.0f) == (t > 0.5f);
            gradient = s->scale * inverse * (dt_sigmoidf(z) - q);
        }
        if (s->dx)
            put(s, i, gradient, bf16);
    }
    return (struct score){loss * inverse, right * inverse};
}

DT_INLINE struct score distance(const struct slice *s, bool huber, bool bf16)
{
    float loss = 0.0f, size = 0.0f, inverse = 1.0f / (float)s->present;
    for (int64_t i = 0; i < s->o->width; i++) {
        float bend, gradient = 0.0f;
        if (!isnan(s->targets[i])) {
            float e = error_of(s, logit(s, i), i, &bend), a = e < 0.0f ? -e : e;
            float slope = huber ? (a <= 1.0f ? e : copysignf(1.0f, e)) : 2.0f * e;
            loss += huber ? (a <= 1.0f ? 0.5f * e * e : a - 0.5f) : e * e;
            size += a * unit(s, i);
            gradient = s->scale * inverse * slope * bend;
        }
        if (s->dx)
            put(s, i, gradient, bf16);
    }
    return (struct score){loss * inverse, size * inverse};
}

DT_INLINE struct score quantile(const struct slice *s, bool bf16)
{
    const struct dt_output_slice *o = s->o;
    float loss = 0.0f, size = 0.0f, inverse = 1.0f / (float)s->present;
    float each = inverse / (float)o->parts;
    for (int64_t j = 0, at = 0; j < o->parts; j++)
        for (int64_t i = 0; i < o->columns; i++, at++) {
            float q = o->levels[j], gradient = 0.0f;
            if (!isnan(s->targets[i])) {
                float u = target(s, i) - logit(s, at), slope = u < 0.0f ? q - 1.0f : q;
                loss += slope * u;
                size += j == o->median ? fabsf(u) * unit(s, i) : 0.0f;
                gradient = s->scale * each * -slope;
            }
            if (s->dx)
                put(s, at, gradient, bf16);
        }
    return (struct score){loss * each, size * inverse};
}

// Column i of component c: the distance to the target in units of σ, its derivative, 1 / σ, and
// dσ/ds.
struct bell {
    float distance, slope, inverse, rise, log_scale;
};

DT_INLINE struct bell bell(const struct slice *s, int64_t c, int64_t i)
{
    int64_t K = s->o->parts, n = s->o->columns;
    struct bell bell;
    float spread = logit(s, K + (K + c) * n + i), scale = dt_softplusf(spread) + DT_GMM_SCALE_MIN;
    bell.inverse = 1.0f / scale;
    bell.distance = error_of(s, logit(s, K + c * n + i), i, &bell.slope) * bell.inverse;
    bell.rise = dt_sigmoidf(spread);
    bell.log_scale = logf(scale);
    return bell;
}

DT_INLINE void mixture_gradient(const struct slice *s, int64_t c, float share, bool bf16)
{
    int64_t K = s->o->parts, n = s->o->columns, at = K + c * n;
    for (int64_t i = 0; i < n; i++) {
        float by_mean = 0.0f, by_spread = 0.0f;
        if (!isnan(s->targets[i])) {
            struct bell b = bell(s, c, i);
            by_mean = share * b.distance * b.inverse * b.slope;
            by_spread = share * (1.0f - b.distance * b.distance) * b.inverse * b.rise;
        }
        put(s, at + i, by_mean, bf16);
        put(s, at + K * n + i, by_spread, bf16);
    }
}

DT_INLINE struct score mixture(const struct slice *s, bool bf16)
{
    int64_t K = s->o->parts, n = s->o->columns, best = 0;
    float joint[DT_OUTPUT_COMPONENTS], max = -INFINITY, top = -INFINITY;
    float all = 0.0f, total = 0.0f, size = 0.0f, slope;
    for (int64_t c = 0; c < K; c++) {
        float z = logit(s, c);
        joint[c] = z;
        for (int64_t i = 0; i < n; i++) {
            if (isnan(s->targets[i]))
                continue;
            struct bell b = bell(s, c, i);
            joint[c] -= 0.5f * b.distance * b.distance + b.log_scale;
        }
        best = z > max ? c : best;
        max = z > max ? z : max;
        top = joint[c] > top ? joint[c] : top;
    }
    for (int64_t c = 0; c < K; c++) {
        all += dt_expf(logit(s, c) - max);
        total += dt_expf(joint[c] - top);
    }
    for (int64_t i = 0; i < n; i++)
        if (!isnan(s->targets[i]))
            size += fabsf(error_of(s, logit(s, K + best * n + i), i, &slope)) * unit(s, i);
    for (int64_t c = 0; c < K && s->dx; c++) {
        float share = s->scale * dt_expf(joint[c] - top) / total;
        float prior = s->scale * dt_expf(logit(s, c) - max) / all;
        mixture_gradient(s, c, share, bf16);
        put(s, c, prior - share, bf16);
    }
    float loss = max + logf(all) - top - logf(total) + 0.5f * LOG_2PI * (float)s->present;
    return (struct score){loss, size / (float)s->present};
}

DT_INLINE struct score score_of(const struct slice *s, bool bf16)
{
    switch (s->o->kind) {
    case DT_OUTPUT_CATEGORICAL:
        return categorical(s, bf16);
    case DT_OUTPUT_BERNOULLI:
        return bernoulli(s, bf16);
    case DT_OUTPUT_HUBER:
        return distance(s, true, bf16);
    case DT_OUTPUT_GMM:
        return mixture(s, bf16);
    case DT_OUTPUT_QUANTILE:
        return quantile(s, bf16);
    default:
        return distance(s, false, bf16);
    }
}

DT_INLINE void zero(void *dx, int64_t from, int64_t end, bool bf16)
{
    for (int64_t i = from; dx && i < end; i++)
        dt_store(dx, i, 0.0f, bf16);
}

DT_INLINE int64_t count_present(const float *targets, int64_t n)
{
    int64_t present = 0;
    for (int64_t i = 0; i < n; i++)
        present += !isnan(targets[i]);
    return present;
}

DT_INLINE void loss_row(const struct dt_policy_loss_args *a, int64_t row, bool bf16)
{
    const float *x = dt_view_at(&a->logits, row, 0), *targets = dt_view_at(&a->targets, row, 0),
                *weights = dt_view_at(&a->weights, row, 0);
    void *dx = dt_view_at(&a->dlogits, row, 0);
    int64_t rows = a->logits.rows, done = 0;
    bool here = !a->mask || a->mask[row], counted = false;
    float *scores = (float *)a->workspace + row, loss = 0.0f;
    for (int64_t k = 0; k < a->n; k++) {
        const struct dt_output_slice *o = &a->outputs[k];
        float weight = weights ? weights[1 + k] : 1.0f;
        struct slice s = {o,
                          x + o->first,
                          a->bias + o->first,
                          targets + o->target,
                          a->mean ? a->mean + o->target : NULL,
                          a->mean ? a->deviation + o->target : NULL,
                          here ? count_present(targets + o->target, o->columns) : 0,
                          a->scale * o->weight * weight,
                          dx};
        bool has = s.present > 0;
        struct score of = has ? score_of(&s, bf16) : (struct score){0};
        float *metrics = scores + (2 + DT_OUTPUT_METRICS * k) * rows;
        metrics[0] = weight * of.loss;
        metrics[rows] = weight * of.measure;
        metrics[2 * rows] = has ? weight : 0.0f;
        loss += o->weight * weight * of.loss;
        counted |= has;
        zero(dx, done, has ? o->first : o->first + o->width, bf16);
        done = o->first + o->width;
    }
    zero(dx, done, a->logits.cols, bf16);
    scores[0] = loss;
    scores[rows] = !counted ? 0.0f : weights ? weights[0] : 1.0f;
}

DT_CLONES static void loss_row_typed(const struct dt_policy_loss_args *a, int64_t row)
{
    DT_STORAGE_SWITCH(a->dlogits.dtype, bf16, loss_row(a, row, bf16));
}

DT_OP_CPU(policy_loss)
{
    int threads = device->threads;
    int64_t rows = args->logits.rows;
    double *sums = (double *)args->sum;
#pragma omp parallel for schedule(static, ROWS) num_threads(threads) if (rows > ROWS)
    for (int64_t row = 0; row < rows; row++)
        loss_row_typed(args, row);
#pragma omp parallel for num_threads(threads) if (rows > ROWS)
    for (int64_t i = 0; i < 2 + DT_OUTPUT_METRICS * args->n; i++) {
        const float *scores = (const float *)args->workspace + i * rows;
        double sum = 0.0;
        for (int64_t row = 0; row < rows; row++)
            sum += (double)scores[row];
        sums[i] += sum;
    }
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(policy_loss)
{
    return (2 + DT_OUTPUT_METRICS * args->n) * args->logits.rows * (int64_t)sizeof(float);
}
