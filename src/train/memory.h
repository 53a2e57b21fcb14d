// The memory that a rank's training needs, known before any is allocated: by category, whether it
// fits on the device, and which settings would fit.
#pragma once

#include "job/job.h"
#include "train/step.h"

// The configuration of this rank's steps.
struct dt_stepper_config dt_job_stepper(const struct dt_job *job);

// Adds what this rank's training allocates: model, optimizer, input, gradients between ranks,
// batches and the snapshot.
dt_status dt_job_memory(const struct dt_job *job, struct dt_memory_plan *plan);
// Bytes of the device's memory that are reserved for what no plan counts: code that is loaded in
// the first steps, graphs, NCCL. 0 for unified memory.
int64_t dt_job_reserved_memory(const struct dt_job *job, const struct dt_device_info *info);
// Fills in job->model.segment where it is auto: with the fewest segments of a window that fit, the
// same on all ranks; checks it otherwise. All ranks together, before anything is planned.
dt_status dt_job_settle_segment(struct dt_job *job);
// DT_MACHINE where the plan is more than the device has free after that, or, on CPUs, more than the
// host has for its ranks. The error names the largest categories and the settings that would fit.
// Called before the job allocates.
dt_status dt_job_check_memory(const struct dt_job *job);
// Checks what training needs of this rank's host and device: NCCL where it is used, and memory.
dt_status dt_train_check_resources(const struct dt_job *job);

// The search for settings depends on neither device nor job.
struct dt_fit {
    enum dt_recompute recompute;
    int64_t micro_batch, bytes;
};
// Gives the bytes that these settings need.
typedef dt_status (*dt_fit_plan)(void *context, enum dt_recompute recompute, int64_t micro_batch,
                                 int64_t *bytes);
// For each kind of recomputation, in order of its cost, the largest divisor of `local_batch` as
// micro-batch that needs at most `free` bytes; omitted where a cheaper kind allows as much. With
// DT_SUM_TREE the micro-batches of a rank are a power of two.
dt_status dt_fit_search(dt_fit_plan plan, void *context, int64_t local_batch,
                        enum dt_sum_order order, int64_t free,
                        struct dt_fit found[DT_RECOMPUTE_BLOCK + 1], int *n_found);
