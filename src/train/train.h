// The training loop: loader_next → forward → backward (buckets leave as they fill) → wait → adamw →
// metrics.
#pragma once

#include "job/job.h"

// Trains the job to its end, or until a signal stops it (then too a checkpoint is there and DT_OK
// returned).
// dt_signals_install comes before it.
dt_status dt_train(struct dt_job *job);
