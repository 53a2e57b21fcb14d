// Sums that a head accumulates in device memory over the tiles and micro-batches of a batch. They
// are all-reduced as doubles; every head has the first two.
#pragma once

enum { DT_OUTPUTS_MAX = 32, DT_OUTPUT_METRICS = 3 };
enum { DT_METRICS_MAX = DT_OUTPUT_METRICS * DT_OUTPUTS_MAX };

struct dt_loss_sum {
    double loss;    // Σ loss_r over counted rows, in nats
    double counted; // rows counted
    // Output k has three sums, from DT_OUTPUT_METRICS · k on, over the rows in which it has a
    // target: loss, measure (accuracy or absolute error), number of rows. A language model sets
    // only metrics[1], in evaluation: how many counted rows are right.
    double metrics[DT_METRICS_MAX];
};
