// The memory that a rank's training needs, computed before allocation: by category, whether it fits
// on the device, and which settings would fit.
#pragma once

#include "job/job.h"
#include "train/step.h"

// The configuration of this rank's steps.
struct dt_stepper_config dt_job_stepper(const struct dt_job *job);

// Adds this rank's allocations for training: model, optimizer, input, gradients between ranks,
// batches and the snapshot.
dt_status dt_job_memory(const struct dt_job *job, struct dt_memory_plan *plan);
// Bytes of device memory reserved for what no plan counts: code loaded in the first steps, graphs,
// NCCL. 0 for unified memory.
int64_t dt_job_reserved_memory(const struct dt_job *job, const struct dt_device_info *info);
// Whether a micro-batch must be one sequence: windows are run in segments, but some blocks run over
// the whole window.
bool dt_job_takes_one_sequence(const struct dt_job *job);
// If job->model.segment is auto, chooses the fewest segments per window that fit, the same on all
// ranks; otherwise checks it. Collective, before anything is planned.
dt_status dt_job_settle_segment(struct dt_job *job);
// DT_MACHINE if the plan exceeds the device's free memory minus the reserve or, on CPUs, the host's
// memory for its ranks. The error names the largest categories and settings that would fit. Call
// before the job allocates.
dt_status dt_job_check_memory(const struct dt_job *job);
// Checks this rank's host and device for training: NCCL if used, and memory.
dt_status dt_train_check_resources(const struct dt_job *job);

// The search for settings is independent of device and job.
struct dt_fit {
    enum dt_recompute recompute;
    int64_t micro_batch, bytes;
};
// Computes the bytes that these settings need.
typedef dt_status (*dt_fit_plan)(void *context, enum dt_recompute recompute, int64_t micro_batch,
                                 int64_t *bytes);
// For each level of recomputation, in order of cost, finds the largest divisor of `local_batch` as
// micro-batch that needs at most `free` bytes; omits levels that allow no more than a cheaper one.
// With DT_SUM_TREE the number of micro-batches per rank is a power of two.
dt_status dt_fit_search(dt_fit_plan plan, void *context, int64_t local_batch,
                        enum dt_sum_order order, int64_t free,
                        struct dt_fit found[DT_RECOMPUTE_BLOCK + 1], int *n_found);
// Gives the bytes that segments of this length need; 0: the whole window.
typedef dt_status (*dt_segment_plan)(void *context, int64_t segment, int64_t *bytes);
struct dt_segment_choice {
    int64_t length; // of a window, in positions
    int64_t unit;   // segments are a multiple of this
    int64_t ranks;  // that share a window: each has as many segments
    int64_t free;   // bytes
};
// The longest segment that fits into `free` bytes; `length` where the whole window fits. Where
// nothing fits, the segment that needs the fewest bytes: the shortest is not always it, since each
// border keeps a state, which is large where attention sees far. *bytes: what *segment needs.
// *segment is 0 where ranks cannot share the window.
dt_status dt_fit_segment(dt_segment_plan plan, void *context,
                         const struct dt_segment_choice *choice, int64_t *segment, int64_t *bytes);
