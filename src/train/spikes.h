// How far a step's loss is above those before it, in standard deviations: what metrics.jsonl calls
// loss_z, and optim.rollback judges by. The statistics are part of the trainer state, so a resumed
// run judges alike.
#pragma once

#include "checkpoint/checkpoint.h"

// NaN in the first 20 steps, and where the loss is not finite.
double dt_loss_z(const struct dt_loss_statistics *statistics, double loss);
// Counts the loss of one more step: mean and variance of the first 100, after that weighted by
// 0.99^age. A loss further from the mean than `limit` deviations counts as `limit` of them; one
// that is not finite does not count.
void dt_loss_count(struct dt_loss_statistics *statistics, double loss, double limit);
