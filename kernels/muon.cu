// The parts of Muon on CUDA. A thread handles four neighbours with 16-byte accesses (8 in bf16);
// the tail, and unaligned arrays, are handled one by one. Bytes per element: momentum 16, start 8
// (6 in bf16), polynomial 12 (6), apply 12 (10), copy 2, average 8. The floor is that over copy
// bandwidth.
#include "kernels/device.cuh"

enum { THREADS = 256, EACH = 4 };

template <int N> DT_DEVICE void momentum_some(const dt_muon_args *a, int64_t i)
{
    const float keep = a->momentum, take = 1.0f - keep, scale = a->control->grad_scale;
    float m[N], u[N];
    dt_load<N>(a->m + i, m);
    dt_load<N>(a->u + i, u);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float g = take * (u[k] * scale);
        m[k] = keep * m[k] + g;
        u[k] = keep * m[k] + g;
    }
    dt_store<N>(a->m + i, m);
    dt_store<N>(a->u + i, u);
}

template <int N, class T> DT_DEVICE void start_some(const dt_muon_args *a, int64_t i)
{
    const float scale = (float)(1.0 / fmax(sqrt(*a->sum), 1e-7));
    float u[N];
    dt_load<N>(a->u + i, u);
#pragma unroll
    for (int k = 0; k < N; k++)
        u[k] *= scale;
    dt_store<N>((T *)a->x + i, u);
}

template <int N, class T> DT_DEVICE void polynomial_some(const dt_muon_args *a, int64_t i)
{
    float gram[N], square[N];
    dt_load<N>((const T *)a->gram + i, gram);
    dt_load<N>((const T *)a->square + i, square);
#pragma unroll
    for (int k = 0; k < N; k++) {
        const bool diagonal = (i + k) / a->side == (i + k) % a->side;
        gram[k] = (diagonal ? 3.4445f : 0.0f) + (-4.7750f * gram[k] + 2.0315f * square[k]);
    }
    dt_store<N>((T *)a->p + i, gram);
}

template <int N, class T> DT_DEVICE void apply_some(const dt_muon_args *a, int64_t i)
{
    const float lr = a->control->lr, keep = 1.0f - lr * a->decay, rate = lr * a->rate;
    float w[N], x[N];
    dt_load<N>(a->weight + i, w);
    dt_load<N>((const T *)a->x + i, x);
#pragma unroll
    for (int k = 0; k < N; k++)
        w[k] = keep * w[k] - rate * x[k];
    dt_store<N>(a->weight + i, w);
    if (a->copy)
        dt_store<N>(a->copy + i, w);
    if (!a->average)
        return;
    dt_load<N>(a->average + i, x);
#pragma unroll
    for (int k = 0; k < N; k++)
        x[k] += (1.0f - a->average_decay) * (w[k] - x[k]);
    dt_store<N>(a->average + i, x);
}

template <int PART, int N, class T> DT_DEVICE void some(const dt_muon_args *a, int64_t i)
{
    if constexpr (PART == DT_MUON_MOMENTUM)
        momentum_some<N>(a, i);
    else if constexpr (PART == DT_MUON_START)
        start_some<N, T>(a, i);
    else if constexpr (PART == DT_MUON_POLYNOMIAL)
        polynomial_some<N, T>(a, i);
    else
        apply_some<N, T>(a, i);
}

template <int PART, int N, class T>
__global__ static void __launch_bounds__(THREADS) muon_kernel(dt_muon_args args)
{
    if ((PART == DT_MUON_MOMENTUM || PART == DT_MUON_APPLY) && args.control->skip)
        return; // the whole grid
    int64_t from = dt_thread_index() * EACH, end = dt_least(from + EACH, args.n);
    if (N == EACH && from + EACH <= args.n) {
        some<PART, N, T>(&args, from);
        return;
    }
    for (int64_t i = from; i < end; i++)
        some<PART, 1, T>(&args, i);
}

template <int PART, class T> static void launch(const dt_muon_args *args, dt_stream *stream)
{
    const bool wide = dt_aligned<EACH>(args->m, args->u, args->weight, args->copy, args->average,
                                       (const T *)args->x, (const T *)args->gram,
                                       (const T *)args->square, (const T *)args->p);
    DT_WIDE_SWITCH(wide, N, EACH,
                   DT_LAUNCH((muon_kernel<PART, N, T>), dt_blocks(args->n, THREADS * EACH), THREADS,
                             0, stream, *args));
}

template <class T> static void launch_part(const dt_muon_args *args, dt_stream *stream)
{
    switch (args->part) {
    case DT_MUON_MOMENTUM:
        return launch<DT_MUON_MOMENTUM, T>(args, stream);
    case DT_MUON_START:
        return launch<DT_MUON_START, T>(args, stream);
    case DT_MUON_POLYNOMIAL:
        return launch<DT_MUON_POLYNOMIAL, T>(args, stream);
    case DT_MUON_APPLY:
        return launch<DT_MUON_APPLY, T>(args, stream);
    }
}

DT_OP_CUDA(muon)
{
    if (args->n == 0)
        return DT_OK;
    DT_STORAGE_SWITCH(args->type, T, launch_part<T>(args, stream));
    return DT_LAUNCHED("muon");
}
