// The training loop: steps, validation, checkpoints, and the end of a run.
#pragma once

#include "job/job.h"

// Trains the job to its end, or until a signal stops it, which is also DT_OK. Call
// dt_signals_receive first.
dt_status dt_train(struct dt_job *job);
