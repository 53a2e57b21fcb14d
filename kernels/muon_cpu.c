// The parts of Muon on the CPU: blocks of elements shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { BLOCK = 16384 };

static const float first = 3.4445f, second = -4.7750f, third = 2.0315f;

DT_CLONES static void momentum_block(const struct dt_muon_args *args, int64_t from, int64_t n)
{
    float *restrict m = args->m + from, *restrict u = args->u + from;
    const float keep = args->momentum, take = 1.0f - keep, scale = args->control->grad_scale;
    for (int64_t i = 0; i < n; i++) {
        float g = take * (u[i] * scale);
        m[i] = keep * m[i] + g;
        u[i] = keep * m[i] + g;
    }
}

DT_INLINE void start(const float *restrict u, void *restrict x, float scale, int64_t n, bool bf16)
{
    for (int64_t i = 0; i < n; i++)
        dt_store(x, i, u[i] * scale, bf16);
}

DT_CLONES static void start_block(const struct dt_muon_args *args, int64_t from, int64_t n)
{
    const float scale = (float)(1.0 / fmax(sqrt(*args->sum), 1e-7));
    char *x = (char *)args->x + from * dt_dtype_size(args->type);
    DT_STORAGE_SWITCH(args->type, bf16, start(args->u + from, x, scale, n, bf16));
}

DT_INLINE void polynomial(const void *restrict gram, const void *restrict square, void *restrict p,
                          int64_t n, bool bf16)
{
    for (int64_t i = 0; i < n; i++)
        dt_store(p, i, second * dt_load(gram, i, bf16) + third * dt_load(square, i, bf16), bf16);
}

// A row of p.
DT_CLONES static void polynomial_row(const struct dt_muon_args *args, int64_t row)
{
    const int64_t side = args->side, at = row * side * dt_dtype_size(args->type);
    const char *gram = (const char *)args->gram + at, *square = (const char *)args->square + at;
    char *p = (char *)args->p + at;
    bool is_bf16 = args->type == DT_BF16;
    DT_STORAGE_SWITCH(args->type, bf16, polynomial(gram, square, p, side, bf16));
    dt_store(p, row,
             first + (second * dt_load(gram, row, is_bf16) + third * dt_load(square, row, is_bf16)),
             is_bf16);
}

DT_INLINE void apply(const struct dt_muon_args *args, const void *restrict x, int64_t from,
                     int64_t n, bool bf16)
{
    float *restrict weight = args->weight + from;
    const float lr = args->control->lr, keep = 1.0f - lr * args->decay, rate = lr * args->rate;
    for (int64_t i = 0; i < n; i++)
        weight[i] = keep * weight[i] - rate * dt_load(x, i, bf16);
    for (int64_t i = 0; args->copy && i < n; i++)
        args->copy[from + i] = dt_f32_to_bf16(weight[i]);
    for (int64_t i = 0; args->average && i < n; i++)
        args->average[from + i] +=
            (1.0f - args->average_decay) * (weight[i] - args->average[from + i]);
}

DT_CLONES static void apply_block(const struct dt_muon_args *args, int64_t from, int64_t n)
{
    const char *x = (const char *)args->x + from * dt_dtype_size(args->type);
    DT_STORAGE_SWITCH(args->type, bf16, apply(args, x, from, n, bf16));
}

DT_OP_CPU(muon)
{
    static void (*const parts[])(const struct dt_muon_args *, int64_t, int64_t) = {
        [DT_MUON_MOMENTUM] = momentum_block,
        [DT_MUON_START] = start_block,
        [DT_MUON_APPLY] = apply_block,
    };
    const bool rows = args->part == DT_MUON_POLYNOMIAL;
    int64_t blocks = rows ? args->side : dt_ceil_div(args->n, BLOCK);
    if ((args->part == DT_MUON_MOMENTUM || args->part == DT_MUON_APPLY) && args->control->skip)
        return DT_OK;
#pragma omp parallel for num_threads(device->threads) if (blocks > 1 && args->n > BLOCK)
    for (int64_t b = 0; b < blocks; b++) {
        if (rows)
            polynomial_row(args, b);
        else
            parts[args->part](args, b * BLOCK, dt_min_i64(BLOCK, args->n - b * BLOCK));
    }
    return DT_OK;
}
