// The CUDA forms of the ops. DT_OP_CUDA(scan_forward) is the head of scan_forward_cuda, which puts
// the work on `stream` and returns: arguments were checked above it, pointers are the device's.
// DT_OP_CUDA_WORKSPACE(scan_forward) is the head of scan_forward_cuda_workspace, the bytes that it
// needs for these shapes. A struct dt_stream is what CUDA calls cudaStream_t.
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

// built.cu. A kernel, as cudaFuncGetAttributes takes it: a device that cannot run this one has no
// code in this build at all.
const void *dt_cuda_kernel(void);
void dt_cuda_architectures(char *text, size_t size); // what there is code for: "sm_80, sm_90"

// scan_forward.cu, scan_backward.cu. Blocks that a multiprocessor of the current device holds of
// the kernel for N = 16, bf16, two channels a lane, for which scan_cut.h has the number; 0: not
// known.
int dt_cuda_scan_forward_held(void);
int dt_cuda_scan_backward_held(int64_t *shared_bytes); // of a block

#ifdef __cplusplus
}
#endif
