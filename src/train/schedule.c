// Warm-up and decay of the learning rate.
#include "train/schedule.h"

#include <math.h>

struct dt_lr_schedule dt_lr_schedule(const struct dt_settings *settings, int64_t steps)
{
    struct dt_lr_schedule s = {.kind = (enum dt_schedule)settings->optim.schedule,
                               .lr = settings->optim.lr,
                               .min_lr = settings->optim.min_lr,
                               .steps = steps,
                               .warmup_steps = settings->optim.warmup_steps,
                               .decay_steps = settings->optim.decay_steps};
    if (s.min_lr < 0)
        s.min_lr = 0.1 * s.lr;
    if (s.decay_steps < 0)
        s.decay_steps = (int64_t)llround(0.2 * (double)steps);
    return s;
}

double dt_lr_at(const struct dt_lr_schedule *s, int64_t step)
{
    double t = (double)step, w = (double)s->warmup_steps, n = (double)s->steps;
    if (step <= s->warmup_steps)
        return s->lr * t / w;
    double f = (t - w) / (n - w);
    switch (s->kind) {
    case DT_SCHEDULE_COSINE:
        return s->min_lr + (s->lr - s->min_lr) * (1 + cos(M_PI * f)) / 2;
    case DT_SCHEDULE_LINEAR:
        return s->lr + (s->min_lr - s->lr) * f;
    case DT_SCHEDULE_WSD: {
        double left = (n - t) / (double)s->decay_steps; // 1 where decay begins, 0 at the last step
        return left >= 1 || s->decay_steps == 0 ? s->lr : s->min_lr + (s->lr - s->min_lr) * left;
    }
    case DT_SCHEDULE_CONSTANT:
        break;
    }
    return s->lr;
}
