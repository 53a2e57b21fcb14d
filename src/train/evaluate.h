// Validation: the mean loss over the validation shards in file order, every window once.
#pragma once

#include "job/job.h"
#include "train/carry.h"

// At most `max_batches` batches (0: all). Every rank evaluates its slots; all get the global sums.
// All work is queued on `stream`; the host waits for its end. `carry` is used where the job carries
// state: its `next` is overwritten.
dt_status dt_evaluate(const struct dt_job *job, struct dt_model *model, struct dt_input *input,
                      struct dt_carry *carry, int64_t max_batches, struct dt_stream *stream,
                      struct dt_loss_sum *total);
