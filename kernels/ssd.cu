// Mamba-2's scan on CUDA: not built yet.
#include "kernels/device.cuh"

static dt_status missing(const char *op)
{
    return DT_FAIL(DT_MACHINE, "run.device = cpu has every op", "the cuda backend has no %s", op);
}

dt_status ssd_forward_cuda(struct dt_device *, const struct dt_ssd_forward_args *,
                           struct dt_stream *)
{
    return missing("ssd_forward");
}

dt_status ssd_backward_cuda(struct dt_device *, const struct dt_ssd_backward_args *,
                            struct dt_stream *)
{
    return missing("ssd_backward");
}

int64_t ssd_forward_cuda_workspace(struct dt_device *, const struct dt_ssd_forward_args *)
{
    return 0;
}

int64_t ssd_backward_cuda_workspace(struct dt_device *, const struct dt_ssd_backward_args *)
{
    return 0;
}
