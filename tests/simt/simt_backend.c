// The table of the CUDA ops that exist, compiled for the host.
#include "simt_backend.h"

#include "kernels/cuda.h"

#define SLOT(name) .name = name##_cuda, .name##_workspace = name##_cuda_workspace

const struct dt_op_table simt_op_table = {
    .name = "simt",
    SLOT(embed_forward),
    SLOT(embed_backward),
    SLOT(rmsnorm_residual_forward),
    SLOT(rmsnorm_residual_backward),
    SLOT(conv1d_silu_forward),
    SLOT(conv1d_silu_backward),
    SLOT(scan_forward),
    SLOT(scan_backward),
    SLOT(xent),
    SLOT(sum_squares),
    SLOT(update_control),
    SLOT(adamw),
    SLOT(cast),
    SLOT(accumulate),
    SLOT(stamp),
    SLOT(spin),
};
