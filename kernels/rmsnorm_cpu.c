// RMSNorm without weights on the CPU, a row at a time.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

DT_INLINE float forward_group(void *x, int64_t n, float eps, bool bf16)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += dt_load(x, i, bf16) * dt_load(x, i, bf16);
    float rstd = 1.0f / sqrtf(sum / (float)n + eps);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dt_store(x, i, dt_load(x, i, bf16) * rstd, bf16);
    return rstd;
}

DT_CLONES static void forward_row(const struct dt_rmsnorm_forward_args *a, int64_t row)
{
    int64_t width = a->x.cols / a->groups;
    for (int64_t group = 0; group < a->groups; group++) {
        void *x = dt_view_at(&a->x, row, group * width);
        float rstd;
        DT_STORAGE_SWITCH(a->x.dtype, bf16, rstd = forward_group(x, width, a->eps, bf16));
        if (a->rstd)
            a->rstd[row * a->groups + group] = rstd;
    }
}

DT_OP_CPU(rmsnorm_forward)
{
#pragma omp parallel for num_threads(device->threads)
    for (int64_t row = 0; row < args->x.rows; row++)
        forward_row(args, row);
    return DT_OK;
}

DT_INLINE void backward_group(const void *x, void *dx, int64_t n, float rstd, bool bf16)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += dt_load(dx, i, bf16) * dt_load(x, i, bf16);
    float mean = sum / (float)n;
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dt_store(dx, i, rstd * (dt_load(dx, i, bf16) - dt_load(x, i, bf16) * mean), bf16);
}

DT_CLONES static void backward_row(const struct dt_rmsnorm_backward_args *a, int64_t row)
{
    int64_t width = a->n.cols / a->groups;
    for (int64_t group = 0; group < a->groups; group++) {
        const void *n = dt_view_at(&a->n, row, group * width);
        void *dx = dt_view_at(&a->dx, row, group * width);
        float rstd = a->rstd[row * a->groups + group];
        DT_STORAGE_SWITCH(a->n.dtype, bf16, backward_group(n, dx, width, rstd, bf16));
    }
}

DT_OP_CPU(rmsnorm_backward)
{
#pragma omp parallel for num_threads(device->threads)
    for (int64_t row = 0; row < args->n.rows; row++)
        backward_row(args, row);
    return DT_OK;
}
