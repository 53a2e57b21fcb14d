// Elements in storage (fp32 or bf16) read and written as fp32, one by one or a row at a time, for
// cloned loops.
#pragma once

#include "kernels/math_cpu.h"

#include "base/round.h"
#include "base/view.h"

#include <stdbool.h>

// Runs the statement with `bf16` as a constant: loops that it inlines do not choose again.
#define DT_STORAGE_SWITCH(type, bf16, ...)                                                         \
    do {                                                                                           \
        if ((type) == DT_BF16) {                                                                   \
            const bool bf16 = true;                                                                \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            const bool bf16 = false;                                                               \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

DT_INLINE float dt_load(const void *x, int64_t i, bool bf16)
{
    return bf16 ? dt_bf16_to_f32(((const dt_bf16 *)x)[i]) : ((const float *)x)[i];
}

DT_INLINE void dt_store(void *y, int64_t i, float value, bool bf16)
{
    if (bf16)
        ((dt_bf16 *)y)[i] = dt_f32_to_bf16(value);
    else
        ((float *)y)[i] = value;
}

// out[0, count) = in[0, count), out[count, padded) = 0.
DT_INLINE void dt_load_row(dt_dtype type, const void *in, int64_t count, int64_t padded,
                           float *restrict out)
{
    if (type == DT_BF16)
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = dt_load(in, i, true);
    else
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = dt_load(in, i, false);
    for (int64_t i = count; i < padded; i++)
        out[i] = 0.0f;
}

// out[0, count) = in[0, count), rounded to storage.
DT_INLINE void dt_store_row(dt_dtype type, const float *restrict in, int64_t count, void *out)
{
    if (type == DT_BF16)
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dt_store(out, i, in[i], true);
    else
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            dt_store(out, i, in[i], false);
}
