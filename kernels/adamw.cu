// AdamW on CUDA, one pass. A thread handles four neighbours with 16-byte accesses (8 for the bf16
// copy); the tail, and unaligned arrays, are handled one by one. A block first finds the spans of
// its elements, usually one, and its threads search only these. Bytes per element: 28 for weight, m
// and v in and out and the gradient in, 2 for the copy and 8 for the average. The floor is that
// over copy bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256, EACH = 4 };

struct step {
    float beta1, beta2, eps, grad_scale, lr;
    float rate;       // lr / bias1
    float root_scale; // 1 / sqrt(bias2)
};

DT_DEVICE step load_step(const dt_adamw_args *args)
{
    const dt_update_control *c = args->control;
    return {args->beta1,      args->beta2,           args->eps, c->grad_scale, c->lr,
            c->lr / c->bias1, 1.0f / sqrtf(c->bias2)};
}

// The span among low … high that element i lies in.
DT_DEVICE int64_t find_span(const dt_adamw_span *spans, int64_t low, int64_t high, int64_t i)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (spans[middle].end > i)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

// Elements i … i + N, the first of which lies in span `span`.
template <int N>
DT_DEVICE void update_some(const dt_adamw_args *a, const step *s, int64_t span, int64_t i)
{
    float w[N], m[N], v[N], g[N];
    dt_load<N>(a->weight + i, w);
    dt_load<N>(a->m + i, m);
    dt_load<N>(a->v + i, v);
    dt_load<N>(a->grad + i, g);
#pragma unroll
    for (int k = 0; k < N; k++) {
        while (span + 1 < a->n_spans && a->spans[span].end <= a->first + i + k)
            span++;
        const float x = g[k] * s->grad_scale, decay = a->spans[span].decay,
                    rate = s->rate * a->spans[span].lr;
        m[k] = s->beta1 * m[k] + (1.0f - s->beta1) * x;
        v[k] = s->beta2 * v[k] + (1.0f - s->beta2) * (x * x);
        w[k] = (1.0f - s->lr * decay) * w[k] - rate * m[k] / (sqrtf(v[k]) * s->root_scale + s->eps);
    }
    dt_store<N>(a->weight + i, w);
    dt_store<N>(a->m + i, m);
    dt_store<N>(a->v + i, v);
    if (a->copy)
        dt_store<N>(a->copy + i, w);
    if (!a->average)
        return;
    dt_load<N>(a->average + i, g);
#pragma unroll
    for (int k = 0; k < N; k++)
        g[k] += (1.0f - a->average_decay) * (w[k] - g[k]);
    dt_store<N>(a->average + i, g);
}

template <int N>
__global__ static void __launch_bounds__(THREADS, 4) adamw_kernel(dt_adamw_args args)
{
    if (args.control->skip)
        return;                     // the whole grid
    DT_SHARED(int64_t, spans, [2]); // spans of the block's first and last element
    int64_t first = (int64_t)blockIdx.x * THREADS * EACH;
    int64_t last = dt_least(first + THREADS * EACH, args.n) - 1;
    if (threadIdx.x % DT_WARP == 0 && threadIdx.x < 2 * DT_WARP)
        spans[threadIdx.x / DT_WARP] = find_span(args.spans, 0, args.n_spans - 1,
                                                 args.first + (threadIdx.x == 0 ? first : last));
    __syncthreads();
    int64_t i = first + threadIdx.x * EACH;
    if (i > last)
        return;
    step s = load_step(&args);
    int64_t span = find_span(args.spans, spans[0], spans[1], args.first + i);
    if (N == EACH && i + EACH - 1 <= last) {
        update_some<N>(&args, &s, span, i);
        return;
    }
    for (int64_t k = i; k <= dt_least(i + EACH - 1, last); k++)
        update_some<1>(&args, &s, span, k);
}

DT_OP_CUDA(adamw)
{
    if (args->n == 0)
        return DT_OK;
    const bool wide =
        dt_aligned<EACH>(args->weight, args->m, args->v, args->grad, args->copy, args->average);
    DT_WIDE_SWITCH(wide, N, EACH,
                   DT_LAUNCH((adamw_kernel<N>), dt_blocks(args->n, THREADS * EACH), THREADS, 0,
                             stream, *args));
    return DT_LAUNCHED("adamw");
}
