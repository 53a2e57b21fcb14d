// Validation: the mean loss over the validation shards in file order, every window once; and the
// scores of a policy's heads.
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
    struct dt_stepper *stepper; // in training: the weights may be spread; NULL: they are not
    struct dt_input *input;
    struct dt_carry *carry; // used where the job carries state: its `next` is overwritten
    struct dt_segments *segments;
    int64_t max_batches; // of each source of data.val; 0: all
    struct dt_stream *stream;
    struct dt_op_times *times; // NULL: ops are not timed
    struct dt_scores *scores;  // filled and finished; NULL: not wanted
    // With by_position the host reads each position's loss of a language model. The losses are
    // added to positions [seq_len] and documents [DT_DOCUMENT_CLASSES], the place k of documents of
    // more than 2^(k-1) and up to 2^k tokens, which all shards must have; each may be NULL.
    bool by_position;
    struct dt_loss_part *positions, *documents;
    // The result.
    struct dt_loss_sum total;
    struct dt_loss_part sources[DT_SOURCES_MAX]; // of each source of data.val
    double right[DT_SOURCES_MAX];                // by_position: right predictions of each source
    // by_position: windows with a counted label, and those of them where all such are right.
    struct dt_window_counts {
        double counted, right;
    } windows;
    int64_t batches, timed; // those whose ops were timed
};
// Every rank evaluates its slots; all get the global sums. All work is queued on `stream`; the host
// waits for its end.
dt_status dt_evaluate(struct dt_evaluation *evaluation);
// Adds the host memory that this rank needs for scores.
dt_status dt_evaluation_plan(const struct dt_job *job, struct dt_memory_plan *plan);
// Warns of heads whose scores will be incomplete.
dt_status dt_evaluation_warn(const struct dt_job *job);
// Scores to be filled by an evaluation of the job's model, for dt_scores_destroy; NULL: its outputs
// have no measures.
dt_status dt_evaluation_scores(const struct dt_job *job, const struct dt_model *model,
                               struct dt_scores **scores);
