// A backend whose ops are the CUDA kernels run on the host: memory and checks are the CPU's.
#pragma once

#include "op_fixture.h"
#include "simt_run.h"

#include "backend/backend.h"

extern const struct dt_op_table simt_op_table;

static inline struct dt_backend open_simt(void)
{
    struct dt_backend backend = open_cpu(1);
    backend.op = &simt_op_table;
    return backend;
}

// Elements of two arrays of one shape and type that differ by more than `tolerance`, relative to
// what is larger of 1 and the CPU's value. A NaN is a difference unless both are.
static inline int64_t differences(const void *got, const void *want, dt_dtype type, int64_t rows,
                                  int64_t width, int64_t stride, double tolerance)
{
    int64_t wrong = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++) {
            double g = get(got, type, r * stride + i), w = get(want, type, r * stride + i);
            wrong += isnan(w) ? !isnan(g) : !(fabs(g - w) <= tolerance * fmax(1.0, fabs(w)));
        }
    return wrong;
}
