// The minimum that a call of an op must move and compute, for benchmarks and estimates.
#pragma once

#include "backend/backend.h"

// Costs of the algorithm used: each array is read and written once (weights and partial sums that
// stay in caches do not count), plus its arithmetic.
struct dt_op_cost {
    double bytes;
    double flops;     // additions, multiplications …, except inside exponentials
    double lanes;     // fp32 vector operations, per element; a multiply-add counts once
    double exps;      // of kernels/math_cpu.h
    double exp2s;     // of the scan's recurrence, which are cheaper
    bool exp_unit;    // exponentials have a unit of their own, beside that of vector operations
    const char *name; // its row in a profile; NULL: the op's name
    bool gemm;        // matrix units do the flops, at GEMM's rate for `type`
    enum dt_dtype type;
    char shape[64]; // "8x512x1024, 4 taps"; "" while ops are timed without a listener (op_times.h)
};

// The machine's limits, as `dtrain bench` measures them.
struct dt_machine_limits {
    double copy;                // bytes read and written per second
    double gemm_f32, gemm_bf16; // FLOPs per second
    double exps, exp2s;         // per second
    double lanes;               // fp32 vector operations per second
};

// The largest of three times: bytes at copy bandwidth, exponentials at their rate, and arithmetic
// at GEMM's rate (other ops: vector operations at issue rate). Without a unit for exponentials,
// these and vector operations take turns: their times are added.
struct dt_op_floor {
    double seconds;
    const char *bound; // the largest: "copy", "exp", "issue", "gemm"; of a sum the larger part
};
struct dt_op_floor dt_op_floor(const struct dt_op_cost *cost,
                               const struct dt_machine_limits *limits);

// dt_NAME_cost: pointers in args are compared with NULL, but not followed.
#define DT_OP_COST(op)                                                                             \
    struct dt_op_cost dt_##op##_cost(const struct dt_backend *backend,                             \
                                     const struct dt_##op##_args *a);
DT_OPS(DT_OP_COST)
#undef DT_OP_COST
