// The least that a call of an op must move and compute, from its arguments: for benchmarks and
// estimates.
#pragma once

#include "backend/backend.h"

// Counted for the algorithm used: arrays that it reads and writes once each (weights and partial
// sums that stay in caches are left out), and its arithmetic.
struct dt_op_cost {
    double bytes;
    double flops; // additions, multiplications …; not those inside exponentials
    double lanes; // fp32 vector operations, per element; a multiply-add counts once
    double exps;  // of kernels/math_cpu.h
    double exp2s; // of the scan's recurrence, which are cheaper
    bool gemm;    // flops are done by matrix units, at the rate of GEMM on `type`; lanes are 0
    enum dt_dtype type;
    char shape[64]; // "8x512x1024, 4 taps"
};

// dt_NAME_cost: of the pointers in args only NULL or not matters; none is followed.
#define DT_OP_COST(op)                                                                             \
    struct dt_op_cost dt_##op##_cost(const struct dt_backend *backend,                             \
                                     const struct dt_##op##_args *a);
DT_OPS(DT_OP_COST)
#undef DT_OP_COST
