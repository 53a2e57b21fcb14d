// RMSNorm of a gated input on the CPU. Threads share blocks of rows, which depend on the shape
// alone. Backward keeps a partial dweight per block; the partials are added in order at the end.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 16,       // rows per block at least
    MAX_BLOCKS = 64, // bounds the partial sums
    STRIP = 4096,    // columns whose gates are kept from the first pass to the second
    AHEAD = 128,     // columns of the next row that are prefetched at a time in each pass over this
                     // row: prefetching a whole row at once would wait for memory
};

// g = x · silu(z) of n columns.
DT_INLINE void gate(const struct dt_gated_rmsnorm_forward_args *a, int64_t row, int64_t from,
                    int64_t n, float *restrict g, bool bf16)
{
    const void *x = dt_view_at(&a->x, row, from), *z = dt_view_at(&a->z, row, from);
    for (int64_t begin = 0; begin < n; begin += AHEAD) {
        int64_t end = dt_min_i64(begin + AHEAD, n);
        dt_prefetch_row(&a->x, row + 1, from + begin, end - begin);
        dt_prefetch_row(&a->z, row + 1, from + begin, end - begin);
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            g[i] = dt_load(x, i, bf16) * dt_siluf(dt_load(z, i, bf16));
    }
}

// One group of a row, a strip of its columns at a time. With several strips, the second pass
// recomputes the gate.
DT_INLINE void forward_group(const struct dt_gated_rmsnorm_forward_args *a, int64_t row,
                             int64_t group, bool bf16)
{
    int64_t width = a->x.cols / a->groups, begin = group * width, end = begin + width;
    float g[STRIP], sum = 0.0f;
    for (int64_t from = begin; from < end; from += STRIP) {
        int64_t n = dt_min_i64(STRIP, end - from);
        gate(a, row, from, n, g, bf16);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += g[i] * g[i];
    }
    float rstd = 1.0f / sqrtf(sum / (float)width + a->eps);
    if (a->rstd)
        a->rstd[row * a->groups + group] = rstd;
    for (int64_t from = begin; from < end; from += STRIP) {
        int64_t n = dt_min_i64(STRIP, end - from);
        const float *restrict weight = a->weight + from;
        void *y = dt_view_at(&a->y, row, from);
        if (width > STRIP)
            gate(a, row, from, n, g, bf16);
        for (int64_t start = 0; start < n; start += AHEAD) {
            int64_t stop = dt_min_i64(start + AHEAD, n);
            dt_prefetch_row(&a->y, row + 1, from + start, stop - start);
#pragma omp simd
            for (int64_t i = start; i < stop; i++)
                dt_store(y, i, g[i] * rstd * weight[i], bf16);
        }
    }
}

DT_CLONES static void forward_rows(const struct dt_gated_rmsnorm_forward_args *a, int64_t from,
                                   int64_t end)
{
    for (int64_t row = from; row < end; row++)
        for (int64_t group = 0; group < a->groups; group++)
            DT_STORAGE_SWITCH(a->x.dtype, bf16, forward_group(a, row, group, bf16));
}

DT_OP_CPU(gated_rmsnorm_forward)
{
    int64_t blocks = dt_ceil_div(args->x.rows, ROWS);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        forward_rows(args, b * ROWS, dt_min_i64(args->x.rows, (b + 1) * ROWS));
    return DT_OK;
}

// σ(z) of n columns.
DT_INLINE void sigmoid(const struct dt_gated_rmsnorm_backward_args *a, int64_t row, int64_t from,
                       int64_t n, float *restrict s, bool bf16)
{
    const void *z = dt_view_at(&a->z, row, from);
    for (int64_t begin = 0; begin < n; begin += AHEAD) {
        int64_t end = dt_min_i64(begin + AHEAD, n);
        dt_prefetch_row(&a->x, row + 1, from + begin, end - begin);
        dt_prefetch_row(&a->z, row + 1, from + begin, end - begin);
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            s[i] = dt_sigmoidf(dt_load(z, i, bf16));
    }
}

DT_INLINE void backward_group(const struct dt_gated_rmsnorm_backward_args *a, int64_t row,
                              int64_t group, float *restrict partial, bool bf16)
{
    int64_t width = a->x.cols / a->groups, begin = group * width, end = begin + width;
    float rstd = a->rstd[row * a->groups + group], s[STRIP], sum = 0.0f;
    for (int64_t from = begin; from < end; from += STRIP) {
        int64_t n = dt_min_i64(STRIP, end - from);
        const void *x = dt_view_at(&a->x, row, from), *z = dt_view_at(&a->z, row, from),
                   *dy = dt_view_at(&a->dy, row, from);
        const float *restrict weight = a->weight + from;
        float *restrict part = partial + from;
        sigmoid(a, row, from, n, s, bf16);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) {
            float g = dt_load(x, i, bf16) * dt_load(z, i, bf16) * s[i];
            float dn = dt_load(dy, i, bf16) * g * rstd;
            part[i] += dn;
            sum += dn * weight[i];
        }
    }
    float mean = sum / (float)width;
    for (int64_t from = begin; from < end; from += STRIP) {
        int64_t n = dt_min_i64(STRIP, end - from);
        const void *x = dt_view_at(&a->x, row, from), *z = dt_view_at(&a->z, row, from),
                   *dy = dt_view_at(&a->dy, row, from);
        const float *restrict weight = a->weight + from;
        void *dx = dt_view_at(&a->dx, row, from), *dz = dt_view_at(&a->dz, row, from);
        if (width > STRIP)
            sigmoid(a, row, from, n, s, bf16);
        for (int64_t start = 0; start < n; start += AHEAD) {
            int64_t stop = dt_min_i64(start + AHEAD, n);
            dt_prefetch_row(&a->dy, row + 1, from + start, stop - start);
            dt_prefetch_row(&a->dz, row + 1, from + start, stop - start);
#pragma omp simd
            for (int64_t i = start; i < stop; i++) {
                float x_i = dt_load(x, i, bf16), z_i = dt_load(z, i, bf16), silu = z_i * s[i];
                float dg = rstd * (dt_load(dy, i, bf16) * weight[i] - x_i * silu * rstd * mean);
                dt_store(dx, i, dg * silu, bf16);
                dt_store(dz, i, dg * x_i * s[i] * (1.0f + z_i * (1.0f - s[i])), bf16);
            }
        }
    }
}

DT_CLONES static void backward_rows(const struct dt_gated_rmsnorm_backward_args *a, float *partial,
                                    int64_t from, int64_t end)
{
    for (int64_t row = from; row < end; row++)
        for (int64_t group = 0; group < a->groups; group++)
            DT_STORAGE_SWITCH(a->x.dtype, bf16, backward_group(a, row, group, partial, bf16));
}

DT_CLONES static void add_dweight(const struct dt_gated_rmsnorm_backward_args *a, int64_t blocks)
{
    dt_add_blocks(a->dweight, a->workspace, blocks, a->x.cols, 0, a->x.cols, a->accumulate);
}

DT_OP_CPU(gated_rmsnorm_backward)
{
    int64_t rows = dt_block_rows(args->x.rows, ROWS, MAX_BLOCKS),
            blocks = dt_ceil_div(args->x.rows, rows);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++) {
        float *partial = (float *)args->workspace + b * args->x.cols;
        memset(partial, 0, (size_t)args->x.cols * sizeof *partial);
        backward_rows(args, partial, b * rows, dt_min_i64(args->x.rows, (b + 1) * rows));
    }
    add_dweight(args, blocks);
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(gated_rmsnorm_backward)
{
    int64_t rows = dt_block_rows(args->x.rows, ROWS, MAX_BLOCKS);
    return dt_ceil_div(args->x.rows, rows) * args->x.cols * (int64_t)sizeof(float);
}
