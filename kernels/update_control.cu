// The step's control struct on CUDA: one thread, a few dozen double operations, so that the host
// does not wait for loss and norm.
#include "kernels/device.cuh"

DT_DEVICE float bias(float beta, int64_t updates)
{
    return (float)-expm1((double)updates * log((double)beta)); // 1 - beta^updates; beta 0 gives 1
}

// NaN and infinity compare false.
DT_DEVICE bool is_finite(double x)
{
    return fabs(x) <= 1.7976931348623157e308;
}

__global__ static void update_control_kernel(dt_update_control_args args)
{
    dt_update_control c = *args.control;
    double counted = args.sum->counted, clip = (double)args.grad_clip;
    double correction = args.expected / counted;
    c.loss = args.sum->loss / counted;
    c.counted = counted;
    c.grad_norm = sqrt(*args.sum_squares) * correction;
    c.lr = *args.lr;
    double scale = clip > 0.0 ? fmin(1.0, clip / (c.grad_norm + 1e-6)) : 1.0;
    c.grad_scale = (float)(correction * scale);
    c.skip = !(counted > 0.0 && is_finite(c.loss) && is_finite(c.grad_norm));
    c.skipped_in_a_row = c.skip ? c.skipped_in_a_row + 1 : 0;
    c.updates += !c.skip;
    if (!c.skip) {
        c.bias1 = bias(args.beta1, c.updates);
        c.bias2 = bias(args.beta2, c.updates);
    }
    *args.control = c;
}

DT_OP_CUDA(update_control)
{
    DT_LAUNCH((update_control_kernel), 1, 1, 0, stream, *args);
    return DT_LAUNCHED("update_control");
}
