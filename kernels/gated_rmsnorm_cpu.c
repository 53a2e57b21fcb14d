// RMSNorm of a gated input on the CPU. A thread takes blocks of rows; the blocks depend on the
// shape alone. Backward keeps a partial dweight a block, and they are added in order at the end.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 16,       // of a block at least
    MAX_BLOCKS = 64, // bounds the partial sums
};

static int64_t block_rows(int64_t rows)
{
    int64_t n = dt_ceil_div(rows, MAX_BLOCKS);
    return n > ROWS ? n : ROWS;
}

// One group of a row; the gate is computed again where the row is scaled, which costs less than
// keeping it.
DT_INLINE void forward_group(const struct dt_gated_rmsnorm_forward_args *a, int64_t row,
                             int64_t group, bool bf16)
{
    int64_t width = a->x.cols / a->groups, from = group * width;
    const void *x = dt_view_at(&a->x, row, from), *z = dt_view_at(&a->z, row, from);
    const float *weight = a->weight + from;
    void *y = dt_view_at(&a->y, row, from);
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        float g = dt_load(x, i, bf16) * dt_siluf(dt_load(z, i, bf16));
        sum += g * g;
    }
    float rstd = 1.0f / sqrtf(sum / (float)width + a->eps);
    if (a->rstd)
        a->rstd[row * a->groups + group] = rstd;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        float g = dt_load(x, i, bf16) * dt_siluf(dt_load(z, i, bf16));
        dt_store(y, i, g * rstd * weight[i], bf16);
    }
}

DT_CLONES static void forward_rows(const struct dt_gated_rmsnorm_forward_args *a, int64_t from,
                                   int64_t end)
{
    for (int64_t row = from; row < end; row++)
        for (int64_t group = 0; group < a->groups; group++)
            if (a->x.dtype == DT_BF16)
                forward_group(a, row, group, true);
            else
                forward_group(a, row, group, false);
}

dt_status gated_rmsnorm_forward_cpu(struct dt_device *device,
                                    const struct dt_gated_rmsnorm_forward_args *args,
                                    struct dt_stream *stream)
{
    (void)stream;
    int64_t blocks = dt_ceil_div(args->x.rows, ROWS);
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        forward_rows(args, b * ROWS, dt_min_i64(args->x.rows, (b + 1) * ROWS));
    return DT_OK;
}

DT_INLINE void backward_group(const struct dt_gated_rmsnorm_backward_args *a, int64_t row,
                              int64_t group, float *restrict partial, bool bf16)
{
    int64_t width = a->x.cols / a->groups, from = group * width;
    const void *x = dt_view_at(&a->x, row, from), *z = dt_view_at(&a->z, row, from),
               *dy = dt_view_at(&a->dy, row, from);
    const float *restrict weight = a->weight + from;
    void *dx = dt_view_at(&a->dx, row, from), *dz = dt_view_at(&a->dz, row, from);
    float rstd = a->rstd[row * a->groups + group], sum = 0.0f;
    partial += from;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        float n = dt_load(x, i, bf16) * dt_siluf(dt_load(z, i, bf16)) * rstd;
        float dn = dt_load(dy, i, bf16) * n;
        partial[i] += dn;
        sum += dn * weight[i];
    }
    float mean = sum / (float)width;
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        float x_i = dt_load(x, i, bf16), z_i = dt_load(z, i, bf16), s = dt_sigmoidf(z_i);
        float dg = rstd * (dt_load(dy, i, bf16) * weight[i] - x_i * z_i * s * rstd * mean);
        dt_store(dx, i, dg * z_i * s, bf16);
        dt_store(dz, i, dg * x_i * s * (1.0f + z_i * (1.0f - s)), bf16);
    }
}

DT_CLONES static void backward_rows(const struct dt_gated_rmsnorm_backward_args *a, float *partial,
                                    int64_t from, int64_t end)
{
    for (int64_t row = from; row < end; row++)
        for (int64_t group = 0; group < a->groups; group++)
            if (a->x.dtype == DT_BF16)
                backward_group(a, row, group, partial, true);
            else
                backward_group(a, row, group, partial, false);
}

DT_CLONES static void add_partial(const struct dt_gated_rmsnorm_backward_args *a, int64_t blocks)
{
    const float *partial = a->workspace;
    if (!a->accumulate)
        memset(a->dweight, 0, (size_t)a->x.cols * sizeof *a->dweight);
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < a->x.cols; i++)
            a->dweight[i] += partial[b * a->x.cols + i];
}

dt_status gated_rmsnorm_backward_cpu(struct dt_device *device,
                                     const struct dt_gated_rmsnorm_backward_args *args,
                                     struct dt_stream *stream)
{
    (void)stream;
    int64_t rows = block_rows(args->x.rows), blocks = dt_ceil_div(args->x.rows, rows);
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++) {
        float *partial = (float *)args->workspace + b * args->x.cols;
        memset(partial, 0, (size_t)args->x.cols * sizeof *partial);
        backward_rows(args, partial, b * rows, dt_min_i64(args->x.rows, (b + 1) * rows));
    }
    add_partial(args, blocks);
    return DT_OK;
}

int64_t gated_rmsnorm_backward_cpu_workspace(struct dt_device *device,
                                             const struct dt_gated_rmsnorm_backward_args *args)
{
    (void)device;
    int64_t blocks = dt_ceil_div(args->x.rows, block_rows(args->x.rows));
    return blocks * args->x.cols * (int64_t)sizeof(float);
}
