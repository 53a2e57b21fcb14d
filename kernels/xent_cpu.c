// Softmax cross-entropy on the CPU, rows shared among the threads: the maximum, then Σ exp, then
// the gradient with recomputed exponentials, which is cheaper than keeping them. A NaN or an
// infinity among the logits makes the row's loss NaN: max ignores NaN, but the sum does not. One
// thread adds the losses.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 8,
    SPAN = 2048, // exponentials summed in fp32 before being added in double
};

struct softmax {
    float max;
    double sum; // Σ exp(x - max)
};

DT_CLONES static struct softmax reduce_row(const float *x, int64_t n)
{
    float max = x[0];
    double total = 0.0;
#pragma omp simd reduction(max : max)
    for (int64_t i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t from = 0; from < n; from += SPAN) {
        int64_t end = dt_min_i64(from + SPAN, n);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = from; i < end; i++)
            sum += dt_expf(x[i] - max);
        total += (double)sum;
    }
    return (struct softmax){max, total};
}

// dlogits may be logits itself, so no restrict: each element is read before it is written.
DT_INLINE void gradient(const struct dt_xent_args *a, const float *x, float max, float scale,
                        void *dx, bool bf16)
{
#pragma omp simd
    for (int64_t v = 0; v < a->vocab; v++)
        dt_store(dx, v, dt_expf(x[v] - max) * scale, bf16);
    for (int64_t v = a->vocab; v < a->logits.cols; v++)
        dt_store(dx, v, 0.0f, bf16);
}

DT_CLONES static void gradient_row(const struct dt_xent_args *a, const float *x, float max,
                                   float scale, void *dx)
{
    DT_STORAGE_SWITCH(a->dlogits.dtype, bf16, gradient(a, x, max, scale, dx, bf16));
}

// Whether the label's logit is the first of the largest.
DT_CLONES static bool is_right(const float *x, int64_t n, int32_t label)
{
    float best = x[label];
    int beaten = best != best; // NaN
#pragma omp simd reduction(| : beaten)
    for (int64_t i = 0; i < label; i++)
        beaten |= x[i] >= best;
#pragma omp simd reduction(| : beaten)
    for (int64_t i = label + 1; i < n; i++)
        beaten |= x[i] > best;
    return !beaten;
}

static float xent_row(const struct dt_xent_args *a, int64_t r)
{
    const float *x = dt_view_at(&a->logits, r, 0);
    void *dx = dt_view_at(&a->dlogits, r, 0);
    int32_t label = a->labels[r];
    if (a->right)
        a->right[r] = label != DT_LABEL_IGNORED && is_right(x, a->vocab, label);
    if (label == DT_LABEL_IGNORED) {
        if (dx)
            memset(dx, 0, (size_t)(a->logits.cols * dt_dtype_size(a->dlogits.dtype)));
        return 0.0f;
    }
    struct softmax s = reduce_row(x, a->vocab);
    float loss = (float)(log(s.sum) + (double)s.max - (double)x[label]);
    if (!dx)
        return loss;
    // p - 1 at the label, from fp32 logits before they are overwritten
    float p = dt_expf(x[label] - s.max) * (float)(1.0 / s.sum);
    float scale = (float)((double)a->scale / s.sum);
    gradient_row(a, x, s.max, scale, dx);
    dt_store(dx, label, a->scale * (p - 1.0f), a->dlogits.dtype == DT_BF16);
    return loss;
}

DT_OP_CPU(xent)
{
    float *losses = args->losses ? args->losses : args->workspace;
#pragma omp parallel for schedule(static, ROWS) num_threads(device->threads)
    for (int64_t r = 0; r < args->logits.rows; r++)
        losses[r] = xent_row(args, r);
    for (int64_t r = 0; r < args->logits.rows; r++) {
        args->sum->loss += (double)losses[r];
        args->sum->counted += args->labels[r] != DT_LABEL_IGNORED;
        if (args->right)
            args->sum->metrics[1] += args->right[r];
    }
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(xent)
{
    return args->logits.rows * (int64_t)sizeof(float);
}
