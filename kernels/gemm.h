// C[m, n] (+)= op(A)[m, k] · op(B)[k, n], row-major, fp32 accumulation; fp32 never becomes TF32.
//
// op(X) = X or its transpose: with trans_a, A is stored [k, m]; with trans_b, B is stored [n, k].
// A linear layer y = x·Wᵀ with W [out, in] has trans_b; its dx = dy·W has neither; its dW = dyᵀ·x
// has trans_a. Any of m, n, k may be 1; k = 0 is refused. C overlaps neither A nor B. No bit of C
// depends on the number of threads.
// dtypes: (a, b, c) = (f32, f32, f32), (bf16, bf16, bf16) or (bf16, bf16, f32).
#pragma once

#include "base/view.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_gemm_args {
    struct dt_view a; // [m, k], or [k, m] with trans_a; in
    struct dt_view b; // [k, n], or [n, k] with trans_b; in
    struct dt_view c; // [m, n]; = or, with accumulate, +=
    bool trans_a, trans_b, accumulate;
    void *workspace;
    int64_t workspace_bytes;
};

// k; m and n are C's rows and columns.
static inline int64_t dt_gemm_k(const struct dt_gemm_args *args)
{
    return args->trans_a ? args->a.rows : args->a.cols;
}
