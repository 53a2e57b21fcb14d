// Rounding to int8 on the CPU: rows shared among the threads.
#include "kernels/cpu.h"
#include "kernels/storage_cpu.h"

#include <math.h>

enum { ALONE = 1 << 14 }; // elements below which one thread is faster

// The largest |x|; NaN if a value is not finite. The bits of non-negative floats are ordered like
// the numbers, with infinity and NaN above all others.
DT_INLINE float largest(const void *x, int64_t n, bool bf16)
{
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = dt_bits_of_float(dt_load(x, i, bf16)) & 0x7fffffffu;
        most = bits > most ? bits : most;
    }
    return most < 0x7f800000u ? dt_float_of_bits(most) : NAN;
}

DT_INLINE float quantize_typed(const void *x, int64_t n, void *y, bool bytes, bool bf16)
{
    float most = largest(x, n, bf16), scale = most / 127.0f;
    float inverse = most >= DT_QUANTIZE_LEAST ? 127.0f / most : most * 0.0f; // NaN stays
    int8_t *q = y;
    if (bytes)
        for (int64_t i = 0; i < n; i++)
            q[i] = inverse == inverse ? (int8_t)__builtin_rintf(dt_load(x, i, bf16) * inverse) : 0;
    else
        for (int64_t i = 0; i < n; i++)
            dt_store(y, i, __builtin_rintf(dt_load(x, i, bf16) * inverse) * scale, bf16);
    return scale;
}

DT_CLONES static float quantize_row(const struct dt_quantize_args *args, int64_t i)
{
    const void *x = dt_view_at(&args->x, i, 0);
    void *y = dt_view_at(&args->y, i, 0);
    bool bytes = args->y.dtype == DT_I8;
    DT_STORAGE_SWITCH(args->x.dtype, bf16, return quantize_typed(x, args->x.cols, y, bytes, bf16));
}

DT_OP_CPU(quantize)
{
    int64_t rows = args->x.rows;
#pragma omp parallel for num_threads(device->threads) if (rows * args->x.cols > ALONE)
    for (int64_t i = 0; i < rows; i++) {
        float scale = quantize_row(args, i);
        if (args->scale)
            args->scale[i] = scale;
    }
    return DT_OK;
}
