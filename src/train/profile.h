// Where the time of a run went: a table by phase, op, collective and thread, over all ranks, in
// the manner of PETSc's -log_view. At the end and on SIGUSR2 it is written to profile.txt and,
// for programs, profile.json in the run's folder, and its largest rows are logged. The counters
// are those of base/trace.h.
#pragma once

#include "backend/op_times.h"
#include "job/job.h"

struct dt_profile {
    const struct dt_job *job;
    struct dt_machine_limits limits; // of log.limits
    struct dt_op_times *times;       // NULL: nothing is counted (log.profile, log.trace_steps)
    double start;                    // dt_seconds
    int64_t steps, timed_steps;      // since then; those whose ops were timed
    int64_t batches, timed_batches;  // of validation
    int64_t first, last;             // log.trace_steps; 0: none
    bool keeps;                      // spans for the timeline
};

// Adds what dt_profile_open allocates, and rank 0 to write the table.
void dt_profile_plan(const struct dt_job *job, struct dt_memory_plan *plan);
// Starts to count spans.
dt_status dt_profile_open(const struct dt_job *job, struct dt_profile *profile);
void dt_profile_close(struct dt_profile *profile);
// Call these around each step. While a step that is traced is in flight, no other one is.
void dt_profile_begin_step(struct dt_profile *profile, int64_t step);
bool dt_profile_traces(const struct dt_profile *profile, int64_t step);
// Writes the timeline after the last traced step, or if the run ends. All ranks together.
dt_status dt_profile_end_step(struct dt_profile *profile, int64_t step, bool run_ends);
// Writes the table of the run so far. All ranks together; does nothing with log.profile = false.
dt_status dt_profile_write(const struct dt_profile *profile);
