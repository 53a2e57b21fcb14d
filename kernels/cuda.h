// The CUDA implementations of the ops. DT_OP_CUDA(scan_forward) declares scan_forward_cuda, which
// launches the work on `stream` and returns: its caller has checked the arguments, and pointers are
// device pointers. DT_OP_CUDA_WORKSPACE(scan_forward) declares scan_forward_cuda_workspace, which
// returns the bytes that it needs for these shapes. A struct dt_stream is what CUDA calls
// cudaStream_t.
#pragma once

#include "kernels/ops.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DT_OP_CUDA(op)           DT_OP_HEAD(op, cuda)
#define DT_OP_CUDA_WORKSPACE(op) DT_OP_WORKSPACE_HEAD(op, cuda)
#define DECLARE(op)              DT_OP_CUDA(op);
#define DECLARE_BOTH(op)                                                                           \
    DT_OP_CUDA(op);                                                                                \
    DT_OP_CUDA_WORKSPACE(op);
DT_OPS_BY_WORKSPACE(DECLARE_BOTH, DECLARE)
#undef DECLARE
#undef DECLARE_BOTH

// built.cu. A kernel to pass to cudaFuncGetAttributes: a device that cannot run it can run none of
// this build.
const void *dt_cuda_kernel(void);
void dt_cuda_architectures(char *text, size_t size); // of this build: "sm_80, sm_90"

// scan_forward.cu, scan_backward.cu. How many blocks of the kernel for N = 16, bf16, two channels
// per lane fit on an SM of the current device; 0: not known. scan_cut.h states the expected number.
int dt_cuda_scan_forward_held(void);
int dt_cuda_scan_backward_held(int64_t *shared_bytes); // per block

#ifdef __cplusplus
}
#endif
