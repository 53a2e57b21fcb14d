// What a head adds up over the tiles and micro-batches of a batch, in device memory; all-reduced as
// doubles, of which the first two are always there.
#pragma once

enum { DT_OUTPUTS_MAX = 32, DT_METRICS_MAX = 2 * DT_OUTPUTS_MAX };

struct dt_loss_sum {
    double loss;    // Σ loss_r over counted rows, in nats
    double counted; // rows counted
    // Of output k, summed over the same rows: its loss at 2k, its measure (accuracy or absolute
    // error) at 2k + 1. A language model has none.
    double metrics[DT_METRICS_MAX];
};
