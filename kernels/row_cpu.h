// Rows in storage type to fp32 and back, inlined into the cloned loops that use them.
#pragma once

#include "base/dtype.h"
#include "kernels/math_cpu.h"

// out[0, count) = base[offset, offset + count), out[count, padded) = 0.
DT_INLINE void dt_load_row(dt_dtype dtype, const void *base, int64_t offset, int64_t count,
                           int64_t padded, float *restrict out)
{
    if (dtype == DT_BF16) {
        const dt_bf16 *in = (const dt_bf16 *)base + offset;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = dt_bf16_to_f32(in[i]);
    } else {
        const float *in = (const float *)base + offset;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = in[i];
    }
    for (int64_t i = count; i < padded; i++)
        out[i] = 0.0f;
}

// base[offset, offset + count) = in[0, count), rounded to storage.
DT_INLINE void dt_store_row(dt_dtype dtype, void *base, int64_t offset, int64_t count,
                            const float *restrict in)
{
    if (dtype == DT_BF16) {
        dt_bf16 *out = (dt_bf16 *)base + offset;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = dt_f32_to_bf16(in[i]);
    } else {
        float *out = (float *)base + offset;
#pragma omp simd
        for (int64_t i = 0; i < count; i++)
            out[i] = in[i];
    }
}
