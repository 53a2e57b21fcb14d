// Elements in storage (fp32 or bf16) read and written as fp32, for loops that are compiled once per
// type: `bf16` is a constant where these are inlined, so the choice costs nothing.
#pragma once

#include "kernels/math_cpu.h"

#include "base/dtype.h"

#include <stdbool.h>

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

// Element `offset` of an array in storage.
DT_INLINE const void *dt_in(const void *x, int64_t offset, dt_dtype type)
{
    return (const char *)x + offset * (type == DT_BF16 ? 2 : 4);
}

DT_INLINE void *dt_out(void *y, int64_t offset, dt_dtype type)
{
    return (char *)y + offset * (type == DT_BF16 ? 2 : 4);
}

DT_INLINE int64_t dt_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

DT_INLINE int64_t dt_min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
