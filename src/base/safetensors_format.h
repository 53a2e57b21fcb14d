// Limits, and names and sizes of element types, for the reader and the writer of safetensors files.
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_SAFETENSORS_PREFIX = 8,                     // bytes of the header length
    DT_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, // bytes, as in the reference implementation
};

struct dt_safetensors_type {
    const char *name; // as spelled in files
    int bits;         // per element
    dt_dtype dtype;   // DT_DTYPE_COUNT: dtrain does not support it
};

const struct dt_safetensors_type *dt_safetensors_type_of(dt_dtype dtype);
// The product of the dimensions and the bytes that they need; false if either overflows, a
// dimension is negative or the bits do not fill whole bytes.
bool dt_safetensors_measure(const struct dt_safetensors_type *type, const int64_t *shape,
                            int n_dims, int64_t *count, int64_t *bytes);
