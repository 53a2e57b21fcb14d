// The least that a call of an op must move and compute, from its arguments: for benchmarks and
// estimates.
#pragma once

#include "backend/backend.h"

// Counted for the algorithm used: arrays that it reads and writes once each (weights and partial
// sums that stay in caches are left out), and its arithmetic.
struct dt_op_cost {
    double bytes;
    double flops;     // additions, multiplications …; not those inside exponentials
    double lanes;     // fp32 vector operations, per element; a multiply-add counts once
    double exps;      // of kernels/math_cpu.h
    double exp2s;     // of the scan's recurrence, which are cheaper
    const char *name; // of the rows of a profile; NULL: the op's
    bool gemm;        // flops are done by matrix units, at the rate of GEMM on `type`
    enum dt_dtype type;
    char shape[64]; // "8x512x1024, 4 taps"; "" while the thread's ops are timed and
                    // nobody listens (op_times.h)
};

// What the machine can do at most, as `dtrain bench` measures it.
struct dt_machine_limits {
    double copy;                // bytes read and written a second
    double gemm_f32, gemm_bf16; // FLOPs a second
    double exps, exp2s;         // a second
    double lanes;               // fp32 vector operations a second
};

// The largest of the bytes over copy bandwidth, the exponentials over the exponential rate, and the
// arithmetic over the rate of GEMM (for other ops: the vector operations over the rate at which
// they are issued).
struct dt_op_floor {
    double seconds;
    const char *bound; // by what: "copy", "exp", "issue", "gemm"
};
struct dt_op_floor dt_op_floor(const struct dt_op_cost *cost,
                               const struct dt_machine_limits *limits);

// dt_NAME_cost: of the pointers in args only NULL or not matters; none is followed.
#define DT_OP_COST(op)                                                                             \
    struct dt_op_cost dt_##op##_cost(const struct dt_backend *backend,                             \
                                     const struct dt_##op##_args *a);
DT_OPS(DT_OP_COST)
#undef DT_OP_COST
