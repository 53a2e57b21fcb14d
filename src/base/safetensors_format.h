// The reader and the writer of safetensors files share these limits, and the names and sizes of
// element types.
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    DT_SAFETENSORS_PREFIX = 8,                     // bytes of the length word
    DT_SAFETENSORS_HEADER_MAX = 100 * 1000 * 1000, // bytes, as the reference implementation has it
};

struct dt_safetensors_type {
    const char *name; // as files spell it
    int bits;         // of one element
    dt_dtype dtype;   // DT_DTYPE_COUNT: known to the format, not to dtrain
};

const struct dt_safetensors_type *dt_safetensors_type_of(dt_dtype dtype);
// Product of the dimensions and bytes that they need; false where either overflows, a dimension is
// negative or the bits do not fill whole bytes.
bool dt_safetensors_measure(const struct dt_safetensors_type *type, const int64_t *shape,
                            int n_dims, int64_t *count, int64_t *bytes);
