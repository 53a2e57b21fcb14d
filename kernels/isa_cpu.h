// The instruction set that the kernels use on this CPU. The environment variable DTRAIN_MAX_ISA
// limits it to plain, avx2, avx512, avx512_bf16 or amx_bf16. The bits of a run depend on it, so all
// ranks must have the same.
#pragma once

#include "base/error.h"

#include <stdbool.h>

// Each includes the ones before it.
enum dt_cpu_isa {
    DT_ISA_PLAIN,
    DT_ISA_AVX2,
    DT_ISA_AVX512,
    DT_ISA_AVX512_BF16,
    DT_ISA_AMX_BF16, // a matrix unit, for bf16
    DT_ISA_COUNT
};

// Checks DTRAIN_MAX_ISA. Call before any other function of this header.
dt_status dt_cpu_isa_open(void);
enum dt_cpu_isa dt_cpu_isa(void);
const char *dt_cpu_isa_name(void); // "avx512 bf16"

// Whether a training step is faster with bf16 storage. Decided by instruction set alone, so that
// all starts and ranks agree. Measured at d_model 256, L 512, against fp32: with AVX2 the products
// of a step take 2 % less time, the rest 10 % less; with AVX-512 but no bf16 instructions products
// take up to 8 % more.
static inline bool dt_cpu_prefers_bf16(void)
{
    return dt_cpu_isa() >= DT_ISA_AVX512_BF16 || dt_cpu_isa() == DT_ISA_AVX2;
}
