// Element types and their conversions. dtrain stores fp32 or bf16; the other types occur in files
// and batches.
#pragma once

#include <stdint.h>
#include <string.h>

typedef enum dt_dtype {
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_F64,
    DT_U8,
    DT_U16,
    DT_U32,
    DT_U64,
    DT_I32,
    DT_I64,
    DT_I8,
    DT_I16,
    DT_DTYPE_COUNT
} dt_dtype;

typedef uint16_t dt_bf16; // the upper half of an fp32

static inline int64_t dt_dtype_size(dt_dtype type)
{
    static const int64_t size[DT_DTYPE_COUNT] = {4, 2, 2, 8, 1, 2, 4, 8, 4, 8, 1, 2};
    return size[type];
}

static inline const char *dt_dtype_name(dt_dtype type)
{
    static const char *const name[DT_DTYPE_COUNT] = {"fp32",  "bf16",   "fp16",   "fp64",
                                                     "uint8", "uint16", "uint32", "uint64",
                                                     "int32", "int64",  "int8",   "int16"};
    return type < DT_DTYPE_COUNT ? name[type] : "of an unknown type";
}

static inline float dt_bf16_to_f32(dt_bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

// Rounds to nearest, ties to even; a NaN becomes a quiet NaN.
static inline dt_bf16 dt_f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
    return (dt_bf16)((x != x ? quiet : rounded) >> 16);
}

// IEEE binary16 to fp32, exact, and branch-free so that loops vectorise: a multiplication adjusts
// the exponent, of subnormal numbers too; infinity and NaN are fixed afterwards.
static inline float dt_f16_to_f32(uint16_t x)
{
    uint32_t magnitude = (uint32_t)(x & 0x7fffu) << 13, sign = (uint32_t)(x & 0x8000u) << 16, bits;
    float y;
    memcpy(&y, &magnitude, sizeof y);
    y *= 0x1p112f;
    memcpy(&bits, &y, sizeof bits);
    bits = (magnitude >= 0x0f800000u ? magnitude | 0x7f800000u : bits) | sign;
    memcpy(&y, &bits, sizeof y);
    return y;
}
