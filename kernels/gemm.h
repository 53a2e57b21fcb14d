// C[m, n] (+)= op(A)[m, k] · op(B)[k, n], row-major, fp32 accumulation; fp32 never becomes TF32.
//
// op(X) = X or its transpose: with trans_a, A is stored [k, m]; with trans_b, B is stored [n, k].
// A linear layer y = x·Wᵀ with W [out, in] has trans_b; its dx = dy·W has neither; its dW = dyᵀ·x
// has trans_a. Any of m, n, k may be 1; k = 0 is refused. C overlaps neither A nor B. No bit of C
// depends on the number of threads.
// A batch is `batch` products of one shape: the operands of each begin a_step, b_step and c_step
// elements after those of the one before. A step of 0 shares A or B; the Cs do not overlap.
//
// With at most DT_GEMM_FEW_ROWS rows, A as stored and B transposed (a linear layer in play), the
// CPU gives a row of C the same bits whatever the other rows are.
//
// dtypes: (a, b, c) = (f32, f32, f32), (bf16, bf16, bf16) or (bf16, bf16, f32); and, where the
// backend has them (dt_op_table.int8), (int8, int8, f32 or bf16): C[i, j] = a_scale[i] · b_scale[j]
// · Σ a b with an exact sum, A as stored, B transposed, =, one product, k up to DT_GEMM_INT8_K.
#pragma once

#include "base/view.h"

#include <stdbool.h>
#include <stdint.h>

enum { DT_GEMM_BATCH_MAX = 65535, DT_GEMM_FEW_ROWS = 8, DT_GEMM_INT8_K = 1 << 17 };

struct dt_gemm_args {
    struct dt_view a; // [m, k], or [k, m] with trans_a; in
    struct dt_view b; // [k, n], or [n, k] with trans_b; in
    struct dt_view c; // [m, n]; = or, with accumulate, +=
    bool trans_a, trans_b, accumulate;
    int64_t batch; // products, DT_GEMM_BATCH_MAX at most; 0: one, and steps are not read
    int64_t a_step, b_step, c_step;
    const float *a_scale, *b_scale; // [m], [n] of int8 (kernels/quantize.h); in
    void *workspace;
    int64_t workspace_bytes;
};

// k; m and n are C's rows and columns.
static inline int64_t dt_gemm_k(const struct dt_gemm_args *args)
{
    return args->trans_a ? args->a.rows : args->a.cols;
}

static inline int64_t dt_gemm_batch(const struct dt_gemm_args *args)
{
    return args->batch > 0 ? args->batch : 1;
}

// Product i of the batch, on its own.
static inline struct dt_gemm_args dt_gemm_product(const struct dt_gemm_args *args, int64_t i)
{
    struct dt_gemm_args one = *args;
    one.batch = 0;
    if (i > 0) {
        one.a.data = (char *)one.a.data + i * args->a_step * dt_dtype_size(one.a.dtype);
        one.b.data = (char *)one.b.data + i * args->b_step * dt_dtype_size(one.b.dtype);
        one.c.data = (char *)one.c.data + i * args->c_step * dt_dtype_size(one.c.dtype);
    }
    return one;
}
