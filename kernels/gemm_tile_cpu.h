// A tile of a matrix product in fp32, on the calling thread. Operands of bf16 are widened. The sum
// over k runs in order, so the bits depend on the tile and the kernel alone.
#pragma once

#include "kernels/gemm.h"
#include "kernels/onednn.h"

#ifdef __cplusplus
extern "C" {
#endif

struct dt_gemm_kernel; // the inner product for one instruction set

const struct dt_gemm_kernel *dt_gemm_kernel(enum dt_cpu_isa isa);

// Bytes of workspace for a tile of n columns.
int64_t dt_gemm_tile_workspace(const struct dt_gemm_kernel *kernel, int64_t n);

// As gemm.h; C is fp32, the workspace aligned to 64 bytes. Tiles up to about 512 x 512 are best.
void dt_gemm_tile(const struct dt_gemm_kernel *kernel, const struct dt_gemm_args *tile);

#ifdef __cplusplus
}
#endif
