// `dtrain bench` inside: its options, the training step that is measured, times and costs.
#pragma once

#include "model/model.h"
#include "train/optimizer.h"
#include "train/settings.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_bench_options {
    bool step, reader; // what is measured; neither: every op
    bool json, warm;
    int64_t model; // place in the table of models, where --model was given
    int64_t d_model, n_layer, vocab, d_state;
    int64_t seq_len, batch;
    int64_t micro_batch; // sequences; 0: the whole batch
    int64_t threads;     // 0: all cores that this process may use
    int64_t device;      // enum dt_device_choice
    int64_t precision;   // enum dt_precision_choice
    int64_t recompute;   // enum dt_recompute
    double seconds;      // to measure for; 0: what suits
    const char *file;    // --reader: an existing shard, or NULL
};

dt_status dt_bench_ops(const struct dt_bench_options *options);
dt_status dt_bench_step(const struct dt_bench_options *options);
dt_status dt_bench_reader(const struct dt_bench_options *options);

// A model in training on synthetic tokens, one process. It points into itself: not to be moved.
struct dt_bench_rig {
    struct dt_backend backend;
    struct dt_device_info info;
    struct dt_model *model;
    struct dt_optimizer optimizer;
    int64_t batch, micro, length; // sequences of a step and of a micro-batch, tokens of a sequence
    int32_t *ids, *labels;        // [batch, length], device memory
    int32_t *tokens;              // [batch, length + 1], host memory
    dt_bf16 *spare;               // [elements of the weights], device memory; with `wrap` only
    uint64_t steps;               // taken so far; each has tokens of its own
    char *algorithms;             // of GEMM, as the device chose them; NULL: none
};

// wrap: gives the ops that the model calls in place of the backend's, or NULL. Nothing is left open
// where this fails.
typedef const struct dt_op_table *(*dt_bench_wrap)(const struct dt_op_table *below);
dt_status dt_bench_rig_open(const struct dt_bench_options *options, dt_bench_wrap wrap,
                            struct dt_bench_rig *rig);
void dt_bench_rig_close(struct dt_bench_rig *rig);
// Lets the device choose a GEMM algorithm for each shape that it was told since.
dt_status dt_bench_rig_choose(struct dt_bench_rig *rig);
dt_status dt_bench_rig_draw(struct dt_bench_rig *rig); // the next step's tokens
dt_status dt_bench_rig_step(struct dt_bench_rig *rig); // forward, loss, backward, update

// Durations of the repeats of one thing, in seconds.
enum { DT_BENCH_REPEATS = 1 << 13 };
struct dt_bench_clock {
    double started; // what is done between the repeats counts towards the time to measure for
    int64_t n;
    double seconds[DT_BENCH_REPEATS];
};
void dt_bench_start(struct dt_bench_clock *clock);
void dt_bench_note(struct dt_bench_clock *clock, double seconds);
// Whether another repeat is due: `least` of them at least, then until `seconds` have gone by.
bool dt_bench_more(const struct dt_bench_clock *clock, int64_t least, double seconds);
double dt_bench_best(const struct dt_bench_clock *clock);
double dt_bench_median(const struct dt_bench_clock *clock);
