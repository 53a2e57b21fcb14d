// Access to numbers of any storage type as doubles.
#pragma once

#include "base/dtype.h"

#include <math.h>
#include <stdint.h>

static inline double get(const void *x, dt_dtype type, int64_t i)
{
    switch (type) {
    case DT_BF16:
        return (double)dt_bf16_to_f32(((const dt_bf16 *)x)[i]);
    case DT_F64:
        return ((const double *)x)[i];
    case DT_I8:
        return ((const int8_t *)x)[i];
    case DT_U8:
        return ((const uint8_t *)x)[i];
    case DT_I32:
        return ((const int32_t *)x)[i];
    case DT_I64:
    case DT_U64:
        return (double)((const int64_t *)x)[i];
    default:
        return (double)((const float *)x)[i];
    }
}

static inline void set(void *x, dt_dtype type, int64_t i, double value)
{
    switch (type) {
    case DT_BF16:
        ((dt_bf16 *)x)[i] = dt_f32_to_bf16((float)value);
        break;
    case DT_F64:
        ((double *)x)[i] = value;
        break;
    case DT_I8:
        ((int8_t *)x)[i] = (int8_t)fmax(-127, fmin(127, rint(value)));
        break;
    case DT_U8:
        ((uint8_t *)x)[i] = (uint8_t)fmax(0, fmin(255, rint(value)));
        break;
    case DT_I32:
        ((int32_t *)x)[i] = (int32_t)value;
        break;
    case DT_I64:
        ((int64_t *)x)[i] = (int64_t)value;
        break;
    default:
        ((float *)x)[i] = (float)value;
    }
}
