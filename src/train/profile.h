// The profile of a run: time by phase, op, collective and thread, over all ranks, like PETSc's
// -log_view. At the end and on SIGUSR2 it is written to profile.txt and profile.json in the run's
// folder, and its largest rows are logged. The counters are those of base/trace.h.
#pragma once

#include "backend/op_times.h"
#include "job/job.h"

struct dt_profile {
    const struct dt_job *job;
    struct dt_machine_limits limits; // of log.limits
    struct dt_op_times *times;       // NULL: ops are not counted (log.profile, log.trace_steps)
    double start;                    // dt_seconds
    int64_t steps, timed_steps;      // steps since then; steps whose ops were timed
    int64_t batches, timed_batches;  // the same for validation batches
    int64_t first, last;             // log.trace_steps; 0: none
    bool keeps;                      // spans are kept for the timeline
};

// Adds the memory of dt_profile_open and, on rank 0, of writing the table.
void dt_profile_plan(const struct dt_job *job, struct dt_memory_plan *plan);
// Starts counting spans.
dt_status dt_profile_open(const struct dt_job *job, struct dt_profile *profile);
void dt_profile_close(struct dt_profile *profile);
// Call these around each step. A traced step must be the only one in flight.
void dt_profile_begin_step(struct dt_profile *profile, int64_t step);
bool dt_profile_traces(const struct dt_profile *profile, int64_t step);
// Writes the timeline after the last traced step, or if the run ends. Collective.
dt_status dt_profile_end_step(struct dt_profile *profile, int64_t step, bool run_ends);
// Writes the table of the run so far. Collective; a no-op with log.profile = false.
dt_status dt_profile_write(const struct dt_profile *profile);
