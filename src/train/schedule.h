// The learning rate of a step.
#pragma once

#include "job/settings.h"

#include <stdint.h>

// step 1 … steps. With w warm-up steps: lr · t / w up to w, then with f = (t - w) / (steps - w):
//   cosine    min_lr + (lr - min_lr) · (1 + cos(π f)) / 2
//   linear    lr + (min_lr - lr) · f
//   constant  lr
//   wsd       lr until the last decay_steps, then linear to min_lr
//   cosine_restarts   as cosine, with f = (t - w - s) / p in a period of p steps after step w + s
// The first period has restart_steps steps, each later one restart_mult times as many as the one
// before [Loshchilov & Hutter 2017]. A period ends at min_lr, and the next one starts near lr.
struct dt_lr_schedule {
    enum dt_schedule kind;
    double lr, min_lr;
    int64_t steps, warmup_steps, decay_steps, restart_steps, restart_mult;
};

// For a run of `steps` steps.
struct dt_lr_schedule dt_lr_schedule(const struct dt_settings *settings, int64_t steps);
double dt_lr_at(const struct dt_lr_schedule *schedule, int64_t step);
