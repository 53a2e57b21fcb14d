// The table of the CUDA ops that exist, compiled for the host.
#include "simt_backend.h"

#include "kernels/cuda.h"

#define SLOT(name)           .name = name##_cuda
#define WORKSPACE_SLOT(name) SLOT(name), .name##_workspace = name##_cuda_workspace

const struct dt_op_table simt_op_table = {
    .name = "simt",
    SLOT(embed_forward),
    WORKSPACE_SLOT(embed_backward),
    SLOT(bias_forward),
    WORKSPACE_SLOT(bias_backward),
    SLOT(rmsnorm_residual_forward),
    WORKSPACE_SLOT(rmsnorm_residual_backward),
    SLOT(conv1d_silu_forward),
    WORKSPACE_SLOT(conv1d_silu_backward),
    WORKSPACE_SLOT(scan_forward),
    WORKSPACE_SLOT(scan_backward),
    WORKSPACE_SLOT(attention_forward),
    WORKSPACE_SLOT(attention_backward),
    WORKSPACE_SLOT(rnn_forward),
    WORKSPACE_SLOT(rnn_backward),
    SLOT(silu_gate_forward),
    SLOT(silu_gate_backward),
    WORKSPACE_SLOT(policy_loss),
    WORKSPACE_SLOT(xent),
    WORKSPACE_SLOT(sum_squares),
    SLOT(update_control),
    SLOT(adamw),
    SLOT(cast),
    SLOT(accumulate),
    SLOT(commit),
    SLOT(stamp),
    SLOT(spin),
};
