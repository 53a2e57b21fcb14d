// Normalising on the CPU: rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <string.h>

enum { ALONE = 1 << 14 }; // elements below which one thread is faster

DT_INLINE void normalize_typed(const struct dt_normalize_args *a, const void *x, void *y,
                               bool bytes, bool bf16)
{
    const float *restrict mean = a->mean, *restrict deviation = a->deviation;
#pragma omp simd
    for (int64_t i = 0; i < a->x.cols; i++) {
        float value = bytes ? (float)((const uint8_t *)x)[i] : ((const float *)x)[i];
        dt_store(y, i, (value - mean[i]) / deviation[i], bf16);
    }
}

DT_CLONES static void normalize_row(const struct dt_normalize_args *a, int64_t row)
{
    const void *x = dt_view_at(&a->x, row, 0);
    void *y = dt_view_at(&a->y, row, 0);
    if (a->keep && !a->keep[row])
        memset(y, 0, (size_t)(a->y.cols * dt_dtype_size(a->y.dtype)));
    else
        DT_STORAGE_SWITCH(a->y.dtype, bf16,
                          a->x.dtype == DT_U8 ? normalize_typed(a, x, y, true, bf16)
                                              : normalize_typed(a, x, y, false, bf16));
}

DT_OP_CPU(normalize)
{
    int64_t rows = args->x.rows;
#pragma omp parallel for num_threads(device->threads) if (rows * args->x.cols > ALONE)
    for (int64_t row = 0; row < rows; row++)
        normalize_row(args, row);
    return DT_OK;
}
