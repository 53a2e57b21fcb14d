// C[m, n] (+)= op(A)[m, k] · op(B)[k, n], row-major, fp32 accumulation; fp32 never becomes TF32.
//
// op(X) = X or its transpose: with trans_a, A is stored [k, m]; with trans_b, B is stored [n, k].
// A linear layer y = x·Wᵀ with W [out, in] has trans_b; its dx = dy·W has neither; its dW = dyᵀ·x
// has trans_a. m, n and k are at least 1. C overlaps neither A nor B. No bit of C depends on the
// number of threads. With `batch`, the op makes that many products of one shape, whose operands lie
// a_step, b_step and c_step elements apart. A step of 0 shares A or B; the Cs do not overlap.
//
// In the forward form (A as stored, B transposed) the bits of an element of C on the CPU do not
// depend on sizes, strides, batch or its place in C. `play` allows a second order of the sum, with
// the same guarantee, for at most DT_GEMM_FEW_ROWS rows: a linear layer of inference, bound by
// reading B.
//
// dtypes: (a, b, c) = (f32, f32, f32), (bf16, bf16, bf16) or (bf16, bf16, f32); and, where the
// backend has them (dt_op_table.int8), (int8, int8, f32 or bf16): C[i, j] = a_scale[i] · b_scale[j]
// · Σ a b with an exact sum, A as stored, B transposed, =, one product, k up to DT_GEMM_INT8_K.
#pragma once

#include "base/view.h"

#include <stdbool.h>

enum { DT_GEMM_BATCH_MAX = 65535, DT_GEMM_FEW_ROWS = 8, DT_GEMM_INT8_K = 1 << 17 };

struct dt_gemm_args {
    struct dt_view a, b, c;
    bool trans_a, trans_b, accumulate, play;
    int64_t batch; // 0: one product; steps are not read
    int64_t a_step, b_step, c_step;
    const float *a_scale, *b_scale; // for int8 (kernels/quantize.h)
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

// Product i of the batch.
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

// clang-format off
#define DT_ROWS_gemm                                                                   \
    TYPE(A, a.dtype, DT_I8) TYPE(B, b.dtype, DT_I8)                                    \
    STORAGE(C, c.dtype)                                                                \
    LET(int8, A == DT_I8)                                                              \
    DEMAND(A == B && (A != DT_F32 || C == A) && (!int8 || backend->op->int8),          \
    "unsupported a.dtype %s, b.dtype %s, c.dtype %s",                                  \
    dt_dtype_name(A), dt_dtype_name(B), dt_dtype_name(C))                              \
    SIZE(m, c.rows) SIZE(n, c.cols)                                                    \
    LIMIT(k, dt_gemm_k(a), 1, int8 ? DT_GEMM_INT8_K : DT_SIZE_MAX)                     \
    RANGE(trans_a, trans_a, 0, !int8)                                                  \
    RANGE(trans_b, trans_b, int8, 1)                                                   \
    RANGE(accumulate, accumulate, 0, !int8)                                            \
    RANGE(play, play, 0, !a->trans_a && a->trans_b)                                    \
    RANGE(batch, batch, 0, int8 ? 1 : DT_GEMM_BATCH_MAX)                               \
    RANGE(a_step, a_step, 0, DT_COUNT_MAX)                                             \
    RANGE(b_step, b_step, 0, DT_COUNT_MAX)                                             \
    RANGE(c_step, c_step, batch > 1, DT_COUNT_MAX)                                     \
    ARRAY(IN,                       trans_a ? k : m, trans_a ? m : k, A,      a)       \
    ARRAY(IN,                       trans_b ? n : k, trans_b ? k : n, B,      b)       \
    ARRAY(SUM,                      m,               n,               C,      c)       \
    ARRAY(IN | CACHED | NEED(int8), 1,               m,               DT_F32, a_scale) \
    ARRAY(IN | CACHED | NEED(int8), 1,               n,               DT_F32, b_scale) \
    APART(c, a) APART(c, b)
// clang-format on
