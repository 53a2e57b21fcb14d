// Predictions of whole segments (episodes, streams of tokens, rows of pairs) of a job's data.val,
// into one HDF5 file that mirrors the groups of the data (data/h5_predictions.h).
//
// A segment is predicted in windows of data.seq_len; the recurrent state is zero at its start and
// carried from window to window. A group is a few segments of similar length that run side by side.
// Groups depend only on the data and the configuration, so the bits do not depend on the number of
// ranks; rank r of R predicts groups r, r + R, … Finished groups are marked in the file, so the
// same command continues after a kill, on any number of ranks.
#pragma once

#include "data/h5_predictions.h"
#include "job/job.h"

struct dt_predict_options {
    const char *output;
    bool force;  // replace an existing output
    bool ema;    // use the moving average of the weights
    bool hidden; // also write what the heads read
    bool draw;   // also draw values of the heads; conditioned heads see these
    double temperature;
    int64_t seed;
};

enum { DT_PREDICT_COLUMNS = 3 * DT_OUTPUTS_MAX + 1 };
enum dt_prediction {
    DT_PREDICT_VALUES, // logits, parameters
    DT_PREDICT_PROBABILITIES,
    DT_PREDICT_DRAWN,
    DT_PREDICT_HIDDEN,
    DT_PREDICT_TOKENS, // log-probabilities
};

// What the job will predict; the same on all ranks except for the paths of `file`, which only rank
// 0 has.
struct dt_predict_plan {
    struct dt_job *job;
    struct dt_predict_options options;
    const char *source; // the weights: a checkpoint or a Hugging Face directory
    struct dt_outputs outputs;
    int64_t streams, length; // per pass
    int n_columns;           // arrays of a segment, or of all segments that share datasets
    struct dt_predict_column {
        enum dt_prediction what;
        int output;
        int64_t width;
    } columns[DT_PREDICT_COLUMNS];
    int64_t n_segments, n_groups, rows; // rows: total
    struct dt_predict_segment {
        int64_t shard, window, rows;
        int64_t number; // index in the order of the data
        int64_t first;  // its first row in the arrays
        int64_t array;  // the first of its n_columns arrays
        int64_t label;  // a label's row is this many after its token's
    } * segments;       // longest first; group g has `streams` of them from g * streams on
    struct dt_prediction_file file;
};

// Collective. Free the plan even if this fails.
dt_status dt_predict_prepare(struct dt_job *job, const struct dt_predict_options *options,
                             struct dt_predict_plan *plan);
void dt_predict_free(struct dt_predict_plan *plan); // zeros are fine
// How many segments are predicted side by side; `vocab` is 0 without logits of tokens.
int64_t dt_predict_streams(int64_t n_segments, int64_t length, int64_t vocab);
// Bytes of all numbers in the output, on rank 0.
int64_t dt_predict_bytes(const struct dt_predict_plan *plan);
// Predicts and writes everything that the output does not have yet. Collective; an error may be
// only one rank's.
dt_status dt_predict(struct dt_predict_plan *plan);
