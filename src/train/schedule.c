// Computes the learning rate of a step: warm-up, then decay.
#include "train/schedule.h"

#include <math.h>

struct dt_lr_schedule dt_lr_schedule(const struct dt_settings *settings, int64_t steps)
{
    return (struct dt_lr_schedule){.kind = (enum dt_schedule)settings->optim.schedule,
                                   .lr = settings->optim.lr,
                                   .min_lr = dt_settings_min_lr(settings),
                                   .steps = steps,
                                   .warmup_steps = settings->optim.warmup_steps,
                                   .decay_steps = dt_settings_decay_steps(settings, steps),
                                   .restart_steps = settings->optim.restart_steps,
                                   .restart_mult = settings->optim.restart_mult};
}

// The fraction of its period that is done `step` >= 1 steps after warm-up.
static double part_of_period(const struct dt_lr_schedule *s, int64_t step)
{
    int64_t period = s->restart_steps;
    if (s->restart_mult == 1)
        return (double)((step - 1) % period + 1) / (double)period;
    while (step > period) { // few iterations, since periods grow
        step -= period;
        period *= s->restart_mult;
    }
    return (double)step / (double)period;
}

static double cosine(double lr, double min, double f)
{
    return min + (lr - min) * (1 + cos(M_PI * f)) / 2;
}

double dt_lr_at(const struct dt_lr_schedule *s, int64_t step)
{
    const double t = (double)step, w = (double)s->warmup_steps, n = (double)s->steps;
    const double lr = s->lr, min = s->min_lr, decay = (double)s->decay_steps;
    if (step <= s->warmup_steps)
        return lr * t / w;
    if (s->kind == DT_SCHEDULE_RESTARTS)
        return cosine(lr, min, part_of_period(s, step - s->warmup_steps));
    const double f = (t - w) / (n - w);
    const double left = (n - t) / decay; // 1 at the start of decay, 0 at the last step
    const double rates[] = {
        [DT_SCHEDULE_COSINE] = cosine(lr, min, f),
        [DT_SCHEDULE_LINEAR] = lr + (min - lr) * f,
        [DT_SCHEDULE_CONSTANT] = lr,
        [DT_SCHEDULE_WSD] = left < 1 ? min + (lr - min) * left : lr, // also lr if decay is 0
    };
    return rates[s->kind];
}
