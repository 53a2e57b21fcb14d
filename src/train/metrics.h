// A run reports events, which every sink writes (metrics.jsonl, TensorBoard, the console). A sink
// is one file, sink_NAME.c, and one row of sinks.c. Only rank 0 has sinks.
#pragma once

#include "base/error.h"
#include "data/mixture.h"
#include "job/settings.h"
#include "train/scores.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Loss of a source of a mixture, or of a sequence.
struct dt_loss_part {
    double loss, counted; // sums, as in struct dt_loss_sum
};

enum dt_metric_kind {
    DT_METRIC_TRAIN = 1,
    DT_METRIC_EVAL = 2,
    DT_METRIC_CHECKPOINT = 4,
    DT_METRIC_ROLLBACK = 8
};

// Fields are named as in metrics.jsonl; metrics.c lists the fields of each kind of event.
struct dt_metric_event {
    enum dt_metric_kind kind;
    int64_t step, epoch;
    int64_t tokens; // train: trained so far; eval: counted
    double loss, perplexity, grad_norm, lr;
    double accuracy;              // share of counted labels that are the most likely token
    bool has_perplexity, has_ema; // perplexity and accuracy; ema_loss
    double ema_loss;              // eval: of the moving average of the weights
    double step_ms, data_wait_ms, comm_wait_ms;
    double tokens_per_s; // without padding, by its average share
    double idle_ms;      // device idle time between the previous step and this one
    double memory_mb;
    double loss_z; // train: standard deviations above the losses before it (spikes.h)
    bool skipped;
    int64_t from;         // rollback: the step from which it returned to `step`
    const char *left_out; // rollback: all batches left out: "12:15 40:41"
    const char *path;     // checkpoint: its path
    double stall_ms;      // how long training waited for the checkpoint
    double write_ms;      // from the snapshot to the complete checkpoint
    // Train and eval of a policy: names and sums of its heads; else NULL.
    const struct dt_outputs *heads;
    const struct dt_loss_sum *sum;
    const struct dt_scores *scores; // eval: of the heads; or NULL
    // Train and eval of a mixture: its sources, their losses (NULL: the head has no losses of
    // single sequences) and, in train, how often the run has read each source so far (else NULL).
    int n_sources;
    const struct dt_source *sources;
    const struct dt_loss_part *losses;
    const double *epochs;
};

// What every sink and `dtrain eval` report for head k: means over positions with a target.
struct dt_head_metrics {
    const char *name;
    double loss;
    const char *measure; // "accuracy" or "error"
    double value;        // its value
};
static inline struct dt_head_metrics dt_head_metrics(const struct dt_outputs *heads,
                                                     const struct dt_loss_sum *sum, int k)
{
    const struct dt_output *head = &heads->list[k];
    const double *sums = &sum->metrics[DT_OUTPUT_METRICS * k];
    double n = sums[2] > 0 ? sums[2] : (double)NAN; // 0 / 0 has a sign on some machines
    return (struct dt_head_metrics){head->name, sums[0] / n, head->measure, sums[1] / n};
}

// Lists everything that an event says about head k: loss, measure, scores. Returns the count.
enum { DT_HEAD_NUMBERS = 2 + DT_SCORES_MAX };
int dt_head_numbers(const struct dt_outputs *heads, const struct dt_loss_sum *sum,
                    const struct dt_scores *scores, int k,
                    struct dt_named_number list[DT_HEAD_NUMBERS]);

// Lists everything that an event says about source i. Returns the count.
enum { DT_SOURCE_NUMBERS = 3 };
int dt_source_numbers(const struct dt_metric_event *event, int i,
                      struct dt_named_number list[DT_SOURCE_NUMBERS]);

struct dt_metric_field {
    const char *name;
    unsigned kinds; // bits of the events that have it
    enum { DT_VALUE_INT, DT_VALUE_NUMBER, DT_VALUE_FLAG, DT_VALUE_TEXT } type;
    size_t offset;     // in struct dt_metric_event
    size_t only_if;    // offset of the flag without which it is omitted; 0: always written
    const char *group; // TensorBoard group instead of the event's name; or NULL
};

extern const struct dt_metric_field dt_metric_fields[]; // the last has no name
const char *dt_metric_name(enum dt_metric_kind kind);
bool dt_metric_has(const struct dt_metric_event *event, const struct dt_metric_field *field);

struct dt_metrics_config {
    const char *folder;
    int64_t resume_step; // later steps are removed from existing files; 0: new files
    int64_t first_step, steps;
    int64_t every; // steps between plain console lines, and between TensorBoard's points
    bool tensorboard;
    enum dt_console_choice console;
    const struct dt_config *settings; // for TensorBoard's table of settings; or NULL
    double flops_per_token;
    const char *unit; // name of positions: "tokens"
};

// If a run does not use the sink, open leaves *state NULL, and no other function is called.
struct dt_metric_sink {
    dt_status (*open)(const struct dt_metrics_config *config, void **state);
    dt_status (*write)(void *state, const struct dt_metric_event *event);
    dt_status (*sync)(void *state); // NULL: nothing to sync
    void (*close)(void *state);
};

extern const struct dt_metric_sink *const dt_metric_sinks[]; // sinks.c; the last is NULL

struct dt_metrics;
dt_status dt_metrics_open(const struct dt_metrics_config *config, struct dt_metrics **metrics);
// Writes an event to every sink; a no-op on other ranks (metrics NULL).
dt_status dt_metrics_write(struct dt_metrics *metrics, const struct dt_metric_event *event);
// Call before publishing a checkpoint, so that its steps are in the files even after a power loss.
dt_status dt_metrics_sync(struct dt_metrics *metrics);
void dt_metrics_close(struct dt_metrics *metrics); // NULL is fine
