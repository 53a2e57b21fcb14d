// What the kernels use of this CPU. The environment variable DTRAIN_MAX_ISA lowers it, to plain,
// avx2, avx512 or avx512_bf16: bits of a run depend on it, and all ranks must have the same.
#pragma once

#include "base/error.h"

#include <stdbool.h>

// Each has the ones before it.
enum dt_cpu_isa { DT_ISA_PLAIN, DT_ISA_AVX2, DT_ISA_AVX512, DT_ISA_AVX512_BF16, DT_ISA_COUNT };

// Checks DTRAIN_MAX_ISA; called before anything else here.
dt_status dt_cpu_isa_open(void);
enum dt_cpu_isa dt_cpu_isa(void);
const char *dt_cpu_isa_name(void); // "avx512 bf16"

// Whether a training step with bf16 storage is faster. The instruction set decides, so that every
// start on a machine and every rank decides alike. Measured at d_model 256, L 512, against fp32:
// with AVX2 the products of a step take 2 % less time, all else 10 % less; with AVX-512 but without
// its bf16 instructions products take up to 8 % more.
static inline bool dt_cpu_prefers_bf16(void)
{
    return dt_cpu_isa() == DT_ISA_AVX512_BF16 || dt_cpu_isa() == DT_ISA_AVX2;
}
