// Residual addition and RMSNorm on the CPU. Threads share blocks of rows, which depend on the shape
// alone. Backward keeps a partial dweight per block; the partials are added in order at the end.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>
#include <string.h>

enum {
    ROWS = 64,        // rows per block at least
    MAX_BLOCKS = 256, // bounds the partial sums
    COLUMNS = 256,    // columns per block of dweight
    LANES = 16,       // lanes of a row's sum
};

// Writes r = residual + x to `out` (may be NULL) and returns Σ r². A fixed lane adds each r²,
// whatever vector width suits x, so that backward recomputes rows without x bitwise identically.
DT_INLINE float add_row(const float *residual, const void *x, float *out, int64_t width, bool bf16)
{
    float lanes[LANES] = {0};
    for (int64_t i = 0; i < width; i += LANES) {
        int64_t n = dt_min_i64(LANES, width - i);
#pragma omp simd
        for (int64_t l = 0; l < n; l++) {
            float r = x ? residual[i + l] + dt_load(x, i + l, bf16) : residual[i + l];
            if (out)
                out[i + l] = r;
            lanes[l] += r * r;
        }
    }
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++)
            lanes[l] += lanes[l + half];
    return lanes[0];
}

DT_INLINE void scale_row(const float *residual, const void *x, const float *weight, float rstd,
                         void *y, int64_t width, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        float r = x ? residual[i] + dt_load(x, i, bf16) : residual[i];
        dt_store(y, i, r * rstd * weight[i], bf16);
    }
}

// x and out are constants in each call, so that the loops have no branches.
DT_INLINE float sum_row(const float *residual, const void *x, float *out, int64_t width, bool bf16)
{
    if (x && out)
        return add_row(residual, x, out, width, bf16);
    if (x)
        return add_row(residual, x, NULL, width, bf16);
    if (out)
        return add_row(residual, NULL, out, width, bf16);
    return add_row(residual, NULL, NULL, width, bf16);
}

DT_INLINE void forward_row(const struct dt_rmsnorm_residual_forward_args *a, int64_t row, bool bf16)
{
    int64_t width = a->y.cols;
    const float *residual = a->residual + row * width;
    const void *x = dt_view_at(&a->x, row, 0);
    void *y = dt_view_at(&a->y, row, 0);
    float *out = a->residual_out ? a->residual_out + row * width : NULL;
    float sum = sum_row(residual, x, out, width, bf16);
    float rstd = 1.0f / sqrtf(sum / (float)width + a->eps);
    if (a->rstd)
        a->rstd[row] = rstd;
    if (out) // may be residual, to which x was added by now
        scale_row(out, NULL, a->weight, rstd, y, width, bf16);
    else if (x)
        scale_row(residual, x, a->weight, rstd, y, width, bf16);
    else
        scale_row(residual, NULL, a->weight, rstd, y, width, bf16);
}

DT_CLONES static void forward_rows(const struct dt_rmsnorm_residual_forward_args *a, int64_t from,
                                   int64_t end)
{
    for (int64_t row = from; row < end; row++)
        DT_STORAGE_SWITCH(a->y.dtype, bf16, forward_row(a, row, bf16));
}

DT_OP_CPU(rmsnorm_residual_forward)
{
    int64_t blocks = dt_ceil_div(args->y.rows, ROWS);
#pragma omp parallel for num_threads(device->threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++)
        forward_rows(args, b * ROWS, dt_min_i64(args->y.rows, (b + 1) * ROWS));
    return DT_OK;
}

// Returns Σ_i dy_i w_i n_i; adds dy_i n_i to the partial dweight.
DT_INLINE float weight_row(const void *dy, const float *restrict residual,
                           const float *restrict weight, float rstd, float *restrict partial,
                           int64_t width, bool bf16)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < width; i++) {
        float dn = dt_load(dy, i, bf16) * (residual[i] * rstd);
        partial[i] += dn;
        sum += dn * weight[i];
    }
    return sum;
}

DT_INLINE void input_row(const void *dy, const float *restrict residual,
                         const float *restrict weight, float rstd, float mean, float *restrict dr,
                         void *restrict dx, int64_t width, bool first, bool bf16)
{
#pragma omp simd
    for (int64_t i = 0; i < width; i++) {
        float g = dt_load(dy, i, bf16) * weight[i];
        float d = rstd * (g - residual[i] * rstd * mean);
        d = first ? d : d + dr[i];
        dr[i] = d;
        if (dx)
            dt_store(dx, i, d, bf16);
    }
}

DT_INLINE void backward_row(const struct dt_rmsnorm_residual_backward_args *a, int64_t row,
                            float *partial, bool bf16)
{
    int64_t width = a->dy.cols;
    const void *dy = dt_view_at(&a->dy, row, 0);
    const float *residual = a->residual + row * width;
    float *dr = a->dresidual + row * width, rstd = a->rstd[row];
    void *dx = dt_view_at(&a->dx, row, 0);
    float sum = weight_row(dy, residual, a->weight, rstd, partial, width, bf16);
    float mean = sum / (float)width;
    if (a->first)
        input_row(dy, residual, a->weight, rstd, mean, dr, dx, width, true, bf16);
    else
        input_row(dy, residual, a->weight, rstd, mean, dr, dx, width, false, bf16);
}

DT_CLONES static void backward_rows(const struct dt_rmsnorm_residual_backward_args *a,
                                    float *partial, int64_t from, int64_t end)
{
    for (int64_t row = from; row < end; row++)
        DT_STORAGE_SWITCH(a->dy.dtype, bf16, backward_row(a, row, partial, bf16));
}

DT_CLONES static void add_dweight(const struct dt_rmsnorm_residual_backward_args *a, int64_t blocks,
                                  int64_t from, int64_t end)
{
    dt_add_blocks(a->dweight, a->workspace, blocks, a->dy.cols, from, end, a->accumulate);
}

DT_OP_CPU(rmsnorm_residual_backward)
{
    int64_t rows = dt_block_rows(args->dy.rows, ROWS, MAX_BLOCKS),
            blocks = dt_ceil_div(args->dy.rows, rows);
    int threads = device->threads;
#pragma omp parallel for num_threads(threads) if (blocks > 1)
    for (int64_t b = 0; b < blocks; b++) {
        float *partial = (float *)args->workspace + b * args->dy.cols;
        memset(partial, 0, (size_t)args->dy.cols * sizeof *partial);
        backward_rows(args, partial, b * rows, dt_min_i64(args->dy.rows, (b + 1) * rows));
    }
#pragma omp parallel for num_threads(threads) if (args->dy.cols > COLUMNS)
    for (int64_t from = 0; from < args->dy.cols; from += COLUMNS)
        add_dweight(args, blocks, from, dt_min_i64(args->dy.cols, from + COLUMNS));
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(rmsnorm_residual_backward)
{
    int64_t rows = dt_block_rows(args->dy.rows, ROWS, MAX_BLOCKS);
    return dt_ceil_div(args->dy.rows, rows) * args->dy.cols * (int64_t)sizeof(float);
}
