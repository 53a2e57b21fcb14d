// How many standard deviations a step's loss is above earlier losses: loss_z in metrics.jsonl, by
// which optim.rollback judges. The statistics are part of the trainer state, so a resumed run
// judges in the same way.
#pragma once

#include "checkpoint/checkpoint.h"

// NaN in the first 20 steps, or if the loss is not finite.
double dt_loss_z(const struct dt_loss_statistics *statistics, double loss);
// Counts the loss of another step: mean and variance of the first 100 steps, then weighted by
// 0.99^age. A loss further than `limit` deviations from the mean counts as `limit` deviations; a
// non-finite loss does not count.
void dt_loss_count(struct dt_loss_statistics *statistics, double loss, double limit);
