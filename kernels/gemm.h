// C[m, n] (+)= op(A)[m, k] · op(B)[k, n], row-major, fp32 accumulation; fp32 never becomes TF32.
//
// op(X) = X or its transpose: with trans_a, A is stored [k, m]; with trans_b, B is stored [n, k].
// A linear layer y = x·Wᵀ with W [out, in] has trans_b; its dx = dy·W has neither; its dW = dyᵀ·x
// has trans_a. Any of m, n, k may be 1; k = 0 is refused. C overlaps neither A nor B. No bit of C
// depends on the number of threads.
#pragma once

#include "base/dtype.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_gemm_args {
    int64_t m, n, k;
    const void *a; // [m, k], or [k, m] with trans_a; in
    int64_t lda;   // elements between rows as stored
    enum dt_dtype a_type;
    bool trans_a;
    const void *b; // [k, n], or [n, k] with trans_b; in
    int64_t ldb;
    enum dt_dtype b_type;
    bool trans_b;
    void *c; // [m, n]; = or, with accumulate, +=
    int64_t ldc;
    enum dt_dtype c_type;
    bool accumulate;
    const float *a_scale, *b_scale, *c_scale; // room for FP8: one factor each, NULL for now
    void *workspace;
    int64_t workspace_bytes;
};
// dtypes: (a, b, c) = (f32, f32, f32), (bf16, bf16, bf16) or (bf16, bf16, f32).
