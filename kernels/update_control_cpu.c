// The step's control struct on the CPU. Compiled without the flags of loops, since it must handle
// NaN and infinity.
#include "kernels/cpu.h"

#include <math.h>

static double bias(float beta, int64_t updates)
{
    return -expm1((double)updates * log((double)beta)); // 1 - beta^updates; beta 0 gives 1
}

DT_OP_CPU(update_control)
{
    struct dt_update_control *c = args->control;
    double counted = args->sum->counted, clip = (double)args->grad_clip;
    double correction = args->expected / counted;
    c->loss = args->sum->loss / counted;
    c->counted = counted;
    c->grad_norm = sqrt(*args->sum_squares) * correction;
    c->lr = *args->lr;
    double scale = clip > 0.0 ? fmin(1.0, clip / (c->grad_norm + 1e-6)) : 1.0;
    c->grad_scale = (float)(correction * scale);
    c->skip = !(counted > 0.0 && isfinite(c->loss) && isfinite(c->grad_norm));
    c->skipped_in_a_row = c->skip ? c->skipped_in_a_row + 1 : 0;
    if (c->skip)
        return DT_OK;
    c->updates++;
    c->bias1 = (float)bias(args->beta1, c->updates);
    c->bias2 = (float)bias(args->beta2, c->updates);
    return DT_OK;
}
