// What a head adds up over the tiles and micro-batches of a batch, in device memory; all-reduced as
// doubles, of which the first two are always there.
#pragma once

enum { DT_OUTPUTS_MAX = 32, DT_OUTPUT_METRICS = 3 };
enum { DT_METRICS_MAX = DT_OUTPUT_METRICS * DT_OUTPUTS_MAX };

struct dt_loss_sum {
    double loss;    // Σ loss_r over counted rows, in nats
    double counted; // rows counted
    // Three sums for each output k, from DT_OUTPUT_METRICS · k on, over the rows where it has a
    // target: its loss, its measure (accuracy or absolute error), and the number of those rows. Of
    // a language model only metrics[1] is set, and in evaluation: how many counted rows are right.
    double metrics[DT_METRICS_MAX];
};
