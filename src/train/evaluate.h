// Validation: the mean loss over all windows of the validation shards in file order, and the scores
// of a policy's heads.
#pragma once

#include "backend/op_times.h"
#include "job/job.h"
#include "train/carry.h"
#include "train/metrics.h"
#include "train/scores.h"
#include "train/step.h"

enum { DT_DOCUMENT_CLASSES = 63 }; // no file has more than 2^62 tokens

struct dt_evaluation {
    const struct dt_job *job;
    struct dt_model *model;
    struct dt_stepper *stepper; // in training, where weights may be spread; NULL: they are not
    struct dt_input *input;
    struct dt_carry *carry; // used if the job carries state; its `next` is overwritten
    struct dt_segments *segments;
    int64_t max_batches; // per source of data.val; 0: all
    struct dt_stream *stream;
    struct dt_op_times *times; // NULL: ops are not timed
    struct dt_scores *scores;  // filled and finished; may be NULL
    // With by_position the host reads the loss of each position of a language model and adds it to
    // positions [seq_len] and documents [DT_DOCUMENT_CLASSES]; either may be NULL. Class k is for
    // documents of more than 2^(k-1) and up to 2^k tokens; all shards must have documents.
    bool by_position;
    struct dt_loss_part *positions, *documents;
    // Results:
    struct dt_loss_sum total;
    struct dt_loss_part sources[DT_SOURCES_MAX]; // per source of data.val
    double right[DT_SOURCES_MAX];                // by_position: right predictions per source
    // by_position: windows with a counted label, and those in which all counted labels are right.
    struct dt_window_counts {
        double counted, right;
    } windows;
    int64_t batches, timed; // batches; batches whose ops were timed
};
// Every rank evaluates its slots; all ranks get the global sums. All work is queued on `stream`,
// and the host waits for it.
dt_status dt_evaluate(struct dt_evaluation *evaluation);
// Adds the host memory that this rank needs for scores.
dt_status dt_evaluation_plan(const struct dt_job *job, struct dt_memory_plan *plan);
// Warns about heads whose scores will be incomplete.
dt_status dt_evaluation_warn(const struct dt_job *job);
// Creates scores for an evaluation of the job's model, to be freed by dt_scores_destroy; NULL: its
// outputs have no measures.
dt_status dt_evaluation_scores(const struct dt_job *job, const struct dt_model *model,
                               struct dt_scores **scores);
