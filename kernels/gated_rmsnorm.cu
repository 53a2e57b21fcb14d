// RMSNorm of a gated input on CUDA: not built yet.
#include "kernels/device.cuh"

static dt_status missing(const char *op)
{
    return DT_FAIL(DT_MACHINE, "run.device = cpu has every op", "the cuda backend has no %s", op);
}

dt_status gated_rmsnorm_forward_cuda(struct dt_device *,
                                     const struct dt_gated_rmsnorm_forward_args *,
                                     struct dt_stream *)
{
    return missing("gated_rmsnorm_forward");
}

dt_status gated_rmsnorm_backward_cuda(struct dt_device *,
                                      const struct dt_gated_rmsnorm_backward_args *,
                                      struct dt_stream *)
{
    return missing("gated_rmsnorm_backward");
}

int64_t gated_rmsnorm_backward_cuda_workspace(struct dt_device *,
                                              const struct dt_gated_rmsnorm_backward_args *)
{
    return 0;
}
