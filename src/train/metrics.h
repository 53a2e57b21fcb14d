// metrics.jsonl and the console. Rank 0 only. A line is written by one
// write(2), so that a killed job leaves at most one torn line, which a resumed run cuts off.
#pragma once

#include "base/error.h"
#include "job/settings.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_metrics;

struct dt_train_line {
    int64_t step, epoch, tokens; // tokens: cumulative
    double loss, grad_norm, lr;
    double step_ms, tokens_per_s, data_wait_ms, comm_wait_ms, memory_mb;
    double idle_ms; // the device stood still between the step before and this one
    bool skipped;
};

struct dt_metrics_config {
    const char *folder;
    int64_t resume_step; // lines of later steps are cut; 0: a new file
    int64_t first_step, steps;
    int64_t every; // plain console lines
    enum dt_console_choice console;
    double flops_per_token;
};

dt_status dt_metrics_open(const struct dt_metrics_config *config, struct dt_metrics **metrics);
// fsync, before a checkpoint is published: the file then has a line for each step it was trained,
// also after a power loss. A file that was removed or replaced while it was written is an error.
dt_status dt_metrics_sync(struct dt_metrics *metrics);
void dt_metrics_close(struct dt_metrics *metrics); // NULL is fine
dt_status dt_metrics_train(struct dt_metrics *metrics, const struct dt_train_line *line);
dt_status dt_metrics_eval(struct dt_metrics *metrics, int64_t step, double loss, int64_t tokens);
dt_status dt_metrics_checkpoint(struct dt_metrics *metrics, int64_t step, const char *path,
                                double stall_ms);
