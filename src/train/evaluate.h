// Validation: the mean loss over the validation shards in file order, every window once.
#pragma once

#include "backend/op_times.h"
#include "job/job.h"
#include "train/carry.h"

struct dt_evaluation {
    const struct dt_job *job;
    struct dt_model *model;
    struct dt_input *input;
    struct dt_carry *carry; // used where the job carries state: its `next` is overwritten
    int64_t max_batches;    // 0: all
    struct dt_stream *stream;
    struct dt_op_times *times; // NULL: ops are not timed
    // The result.
    struct dt_loss_sum total;
    int64_t batches, timed; // those whose ops were timed
};
// Every rank evaluates its slots; all get the global sums. All work is queued on `stream`; the host
// waits for its end.
dt_status dt_evaluate(struct dt_evaluation *evaluation);
