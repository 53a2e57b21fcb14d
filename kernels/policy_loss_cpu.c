// The losses of a policy's outputs on the CPU, rows shared among the threads. A row leaves each
// output's loss, measure and count, and its own loss, in the workspace, one array of rows after
// another; then a thread adds up an array in the order of its rows.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { ROWS = 8 };

struct score {
    float loss, measure;
};

// What a function of one output sees of a row. dx may be x itself: each element is read before it
// is written.
struct slice {
    const float *x, *bias, *targets;
    int64_t n;
    float smoothing, scale;
    void *dx; // from element `first` on; or NULL
    int64_t first;
};

DT_INLINE struct score categorical(const struct slice *s, bool bf16)
{
    int64_t n = s->n, label = (int64_t)s->targets[0], best = 0;
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
    float even = s->smoothing / (float)n, kept = 1.0f - s->smoothing;
    float z = s->x[label] + s->bias[label]; // before it may be overwritten
    struct score score = {logf(sum) + max - kept * z - even * total, best == label};
    if (!s->dx)
        return score;
    float factor = s->scale / sum;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dt_store(s->dx, s->first + i,
                 dt_expf(s->x[i] + s->bias[i] - max) * factor - s->scale * even, bf16);
    float p = dt_expf(z - max) * factor;
    dt_store(s->dx, s->first + label, p - s->scale * (kept + even), bf16);
    return score;
}

DT_INLINE struct score bernoulli(const struct slice *s, bool bf16)
{
    float loss = 0.0f, right = 0.0f, inverse = 1.0f / (float)s->n;
    for (int64_t i = 0; i < s->n; i++) {
        float z = s->x[i] + s->bias[i], t = s->targets[i];
        float q = (1.0f - s->smoothing) * t + 0.5f * s->smoothing;
        float positive = z < 0.0f ? 0.0f : z; // NaN stays
        loss += positive - q * z + dt_log1pf_unit(dt_expf(z < 0.0f ? z : -z));
        right += (z > 0.0f) == (t > 0.5f);
        if (s->dx)
            dt_store(s->dx, s->first + i, s->scale * inverse * (dt_sigmoidf(z) - q), bf16);
    }
    return (struct score){loss * inverse, right * inverse};
}

DT_INLINE struct score distance(const struct slice *s, bool huber, bool bf16)
{
    float loss = 0.0f, size = 0.0f, inverse = 1.0f / (float)s->n;
    for (int64_t i = 0; i < s->n; i++) {
        float e = s->x[i] + s->bias[i] - s->targets[i], a = e < 0.0f ? -e : e;
        float slope = huber ? (a <= 1.0f ? e : copysignf(1.0f, e)) : 2.0f * e;
        loss += huber ? (a <= 1.0f ? 0.5f * e * e : a - 0.5f) : e * e;
        size += a;
        if (s->dx)
            dt_store(s->dx, s->first + i, s->scale * inverse * slope, bf16);
    }
    return (struct score){loss * inverse, size * inverse};
}

DT_INLINE void zero(void *dx, int64_t from, int64_t end, bool bf16)
{
    for (int64_t i = from; dx && i < end; i++)
        dt_store(dx, i, 0.0f, bf16);
}

DT_INLINE void loss_row(const struct dt_policy_loss_args *a, int64_t row, bool bf16)
{
    const float *x = dt_view_at(&a->logits, row, 0), *targets = dt_view_at(&a->targets, row, 0);
    void *dx = dt_view_at(&a->dlogits, row, 0);
    int64_t rows = a->logits.rows;
    bool counted = !a->mask || a->mask[row];
    float *scores = (float *)a->workspace + row, loss = 0.0f;
    int64_t done = 0;
    for (int64_t k = 0; k < a->n; k++) {
        const struct dt_output_slice *o = &a->outputs[k];
        struct slice s = {x + o->first, a->bias + o->first,   targets + o->target, o->width,
                          o->smoothing, a->scale * o->weight, counted ? dx : NULL, o->first};
        struct score of = !counted                           ? (struct score){0}
                          : o->kind == DT_OUTPUT_CATEGORICAL ? categorical(&s, bf16)
                          : o->kind == DT_OUTPUT_BERNOULLI   ? bernoulli(&s, bf16)
                          : o->kind == DT_OUTPUT_HUBER       ? distance(&s, true, bf16)
                                                             : distance(&s, false, bf16);
        float *metrics = scores + DT_OUTPUT_METRICS * k * rows;
        metrics[0] = of.loss;
        metrics[rows] = of.measure;
        metrics[2 * rows] = counted ? 1.0f : 0.0f;
        loss += o->weight * of.loss;
        zero(dx, done, counted ? o->first : o->first + o->width, bf16);
        done = o->first + o->width;
    }
    zero(dx, done, a->logits.cols, bf16);
    scores[DT_OUTPUT_METRICS * a->n * rows] = loss;
}

DT_CLONES static void loss_row_typed(const struct dt_policy_loss_args *a, int64_t row)
{
    DT_STORAGE_SWITCH(a->dlogits.dtype, bf16, loss_row(a, row, bf16));
}

DT_OP_CPU(policy_loss)
{
    int threads = device->threads;
    int64_t metrics = DT_OUTPUT_METRICS * args->n;
#pragma omp parallel for schedule(static, ROWS) num_threads(threads) if (args->logits.rows > ROWS)
    for (int64_t row = 0; row < args->logits.rows; row++)
        loss_row_typed(args, row);
#pragma omp parallel for num_threads(threads) if (args->logits.rows > ROWS)
    for (int64_t i = 0; i <= metrics; i++) {
        const float *scores = (const float *)args->workspace + i * args->logits.rows;
        double sum = 0.0;
        for (int64_t row = 0; row < args->logits.rows; row++)
            sum += (double)scores[row];
        *(i < metrics ? &args->sum->metrics[i] : &args->sum->loss) += sum;
    }
    int64_t counted = args->mask ? 0 : args->logits.rows;
    for (int64_t row = 0; args->mask && row < args->logits.rows; row++)
        counted += args->mask[row] != 0;
    args->sum->counted += (double)counted;
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(policy_loss)
{
    return (DT_OUTPUT_METRICS * args->n + 1) * args->logits.rows * (int64_t)sizeof(float);
}
