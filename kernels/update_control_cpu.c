// The step's control struct on the CPU. Compiled without the loops' flags: it must see NaN and
// infinity.
#include "kernels/cpu.h"

#include <math.h>

static double bias(float beta, int64_t updates)
{
    return -expm1((double)updates * log((double)beta)); // 1 - beta^updates; beta 0 gives 1
}

static void count_update(struct dt_update_control *c, const struct dt_update_control_args *args)
{
    if (c->skip) {
        c->skipped_in_a_row++;
        return;
    }
    c->skipped_in_a_row = 0;
    c->updates++;
    c->bias1 = (float)bias(args->beta1, c->updates);
    c->bias2 = (float)bias(args->beta2, c->updates);
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
    count_update(c, args);
    return DT_OK;
}
