// Scores of a policy's heads in an evaluation, besides mean losses: balanced accuracy, F1, area
// under the ROC curve (AUC); mean absolute error, root mean square error, R². scores.c has a table
// of them. They are computed from the predictions of all ranks by exact sums and sorting, so their
// bits depend only on the predictions, not on which rank made which.
//
// Rows count with their weight; NaN targets do not count. A head with classes is one column of
// `size` classes (categorical), or a column of two classes per number (bernoulli); its score is the
// mean over its columns:
//   balanced_accuracy   the mean, over the classes that targets have, of the share that is found
//   f1                  2 TP / (2 TP + FP + FN): with two classes that of class 1, with more the
//                       mean over the classes that targets or predictions have
//   auc                 the probability that a row of a class has a higher score for it than a row
//                       of another class, ties counted half. With two classes that of class 1, by
//                       the difference of logits; with more the mean over the classes that some
//                       rows have and some do not, each by the logarithm of its probability
// Other heads predict numbers t by y:
//   mae, rmse           mean |y - t|, and the root of mean (y - t)², over all columns
//   r2                  1 - Σ (y - t)² / Σ (t - mean t)², the mean over columns whose t varies
// Predictions are those at temperature 0. A score that is undefined, or whose predictions are not
// finite, is NaN.
#pragma once

#include "comm/comm.h"
#include "model/model.h"

enum {
    DT_SCORES_MAX = 4,         // per head
    DT_CONFUSION_CLASSES = 20, // heads with more classes have no confusion matrix
};

// An AUC needs all scores at the end: 8 bytes per row and class (one for two classes) on the row's
// rank, and again on rank 0 for one class at a time. A head that would need more than this on all
// ranks together has no AUC.
#define DT_SCORES_BYTES (INT64_C(1) << 30)
// Bytes for all heads on a rank with `rows` of the `all` rows.
int64_t dt_scores_bytes(const struct dt_outputs *outputs, int64_t rows, int64_t all);
// Warns about heads that will have no AUC.
void dt_scores_warn(const struct dt_outputs *outputs, int64_t all);

struct dt_scores;
// Borrows `outputs`. At most `all` rows may be added on all ranks together.
dt_status dt_scores_create(const struct dt_outputs *outputs, int64_t all, struct dt_scores **out);
void dt_scores_destroy(struct dt_scores *scores); // NULL is fine
// Adds a row to output k: predicted [width], targets [target_width], weight >= 0.
dt_status dt_scores_add(struct dt_scores *scores, int k, const float *predicted,
                        const float *targets, double weight);
// Ends the counting. Collective. Afterwards rank 0 has the scores of all rows; the other ranks have
// them without AUC.
dt_status dt_scores_finish(struct dt_scores *scores, struct dt_comm *comm);

struct dt_named_number {
    const char *name;
    double value;
};
// Lists the scores of output k and returns their number.
int dt_scores_of(const struct dt_scores *scores, int k, struct dt_named_number list[DT_SCORES_MAX]);
// The confusion matrix of output k, [target classes, predicted classes], as sums of row weights;
// NULL: not categorical, or more than DT_CONFUSION_CLASSES classes.
const double *dt_scores_confusion(const struct dt_scores *scores, int k);
