// AdamW on the CPU: one pass over weight, moments and gradient, in blocks shared among the threads.
// A block walks its spans; inside a span decay and rate are constants.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { BLOCK = 16384 };

struct step {
    float beta1, beta2, eps;
    float grad_scale;
    float rate;       // lr / bias1
    float root_scale; // 1 / sqrt(bias2)
};

DT_INLINE void update(const struct dt_adamw_args *args, struct step s, float keep, int64_t from,
                      int64_t n, bool copy)
{
    float *restrict weight = args->weight + from, *restrict m = args->m + from,
                    *restrict v = args->v + from;
    const float *restrict grad = args->grad + from;
    dt_bf16 *restrict rounded = copy ? args->copy + from : NULL;
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * s.grad_scale;
        float mean = s.beta1 * m[i] + (1.0f - s.beta1) * g;
        float square = s.beta2 * v[i] + (1.0f - s.beta2) * (g * g);
        float w = keep * weight[i] - s.rate * mean / (sqrtf(square) * s.root_scale + s.eps);
        m[i] = mean;
        v[i] = square;
        weight[i] = w;
        if (copy)
            rounded[i] = dt_f32_to_bf16(w);
    }
}

DT_CLONES static void update_span(const struct dt_adamw_args *args, struct step s, float keep,
                                  int64_t from, int64_t n)
{
    args->copy ? update(args, s, keep, from, n, true) : update(args, s, keep, from, n, false);
}

// Called per piece of a block, whose weights are still in cache.
DT_CLONES static void update_average(const struct dt_adamw_args *args, int64_t from, int64_t n)
{
    const float *restrict weight = args->weight + from;
    float *restrict average = args->average + from;
    const float rate = 1.0f - args->average_decay;
    for (int64_t i = 0; i < n; i++)
        average[i] += rate * (weight[i] - average[i]);
}

static void update_block(const struct dt_adamw_args *args, struct step s, int64_t from, int64_t end)
{
    float lr = args->control->lr;
    int64_t low = 0, high = args->n_spans - 1; // the span of element `from` is among these
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (args->spans[middle].end > args->first + from)
            high = middle;
        else
            low = middle + 1;
    }
    for (const struct dt_adamw_span *span = &args->spans[low]; from < end; span++) {
        int64_t stop = dt_min_i64(end, span->end - args->first);
        struct step own = s;
        own.rate *= span->lr;
        update_span(args, own, 1.0f - lr * span->decay, from, stop - from);
        if (args->average)
            update_average(args, from, stop - from);
        from = stop;
    }
}

DT_OP_CPU(adamw)
{
    const struct dt_update_control *c = args->control;
    if (c->skip || args->n == 0)
        return DT_OK;
    if (args->spans[args->n_spans - 1].end < args->first + args->n)
        return DT_FAIL(DT_MACHINE, "the spans come from the parameter table",
                       "adamw: the last span ends at %lld, before n = %lld",
                       (long long)args->spans[args->n_spans - 1].end,
                       (long long)(args->first + args->n));
    struct step s = {.beta1 = args->beta1,
                     .beta2 = args->beta2,
                     .eps = args->eps,
                     .grad_scale = c->grad_scale,
                     .rate = c->lr / c->bias1,
                     .root_scale = 1.0f / sqrtf(c->bias2)};
    int64_t blocks = dt_ceil_div(args->n, BLOCK);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        update_block(args, s, b * BLOCK, dt_min_i64(args->n, (b + 1) * BLOCK));
    return DT_OK;
}
