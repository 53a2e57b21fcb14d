// The CUDA forms of the ops: OP_cuda puts the work on `stream` and returns; arguments were checked
// above it, pointers are the device's. OP_cuda_workspace: the bytes it needs for these shapes. A
// struct dt_stream is what CUDA calls cudaStream_t.
#pragma once

#include "base/error.h"
#include "kernels/ops.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dt_device;
struct dt_stream;

#define DT_OP_CUDA(op)                                                                             \
    dt_status op##_cuda(struct dt_device *device, const struct dt_##op##_args *args,               \
                        struct dt_stream *stream);
#define DT_OP_CUDA_WORKSPACE(op)                                                                   \
    DT_OP_CUDA(op)                                                                                 \
    int64_t op##_cuda_workspace(struct dt_device *device, const struct dt_##op##_args *args);
DT_OPS_BY_WORKSPACE(DT_OP_CUDA_WORKSPACE, DT_OP_CUDA)
#undef DT_OP_CUDA
#undef DT_OP_CUDA_WORKSPACE

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
