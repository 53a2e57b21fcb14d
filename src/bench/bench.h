// Private to `dtrain bench`: its options, the training step that is measured, and the clock that
// collects times.
#pragma once

#include "job/settings.h"
#include "model/model.h"
#include "train/step.h"

#include <stdbool.h>
#include <stdint.h>

struct dt_bench_options {
    bool step, play, reader, comm; // what to measure; none: every op
    bool json, warm, int8;
    int model;          // value of --model; 0: none
    const char *heads;  // NULL: a language model
    int64_t frame_size; // for a policy
    const char *layers; // NULL: n_layer times mamba
    int64_t d_model, n_layer, vocab, d_state;
    int64_t seq_len, batch;
    int64_t micro_batch; // in sequences; 0: the whole batch
    int64_t threads;     // 0: all cores that this process may use
    int device;          // enum dt_device_choice
    int precision;       // enum dt_precision_choice
    int recompute;       // enum dt_recompute
    int cuda_graph;      // enum dt_toggle
    double seconds;      // to measure for; 0: the default
    const char *file;    // --reader: an existing shard, or NULL
    // --comm
    bool pairs;               // every pair of ranks instead
    const char *first, *last; // sizes: "8", "1G"
    int64_t factor;           // ratio of successive sizes
    int collective;           // enum dt_operation + 1; 0: all
    int type;                 // index in "fp32|bf16|fp64|int64"
    int64_t max_memory;       // MiB per rank; 0: half of the free memory
};

dt_status dt_bench_ops(const struct dt_bench_options *options);
dt_status dt_bench_step(const struct dt_bench_options *options);
dt_status dt_bench_play(const struct dt_bench_options *options);
dt_status dt_bench_reader(const struct dt_bench_options *options);
// Collective. DT_MACHINE if a result was wrong.
dt_status dt_bench_comm(struct dt_comm *comm, const struct dt_bench_options *options);

// The learning rate of every step. A run with optim.schedule = constant and this optim.lr makes the
// same steps, if its other settings are the options and otherwise defaults.
#define DT_BENCH_LEARNING_RATE 1e-3

// The model described by the options, with fp32 storage.
dt_status dt_bench_model(const struct dt_bench_options *options, struct dt_model_config *model);

// A model in training on synthetic tokens or frames in one process. It has pointers into itself and
// must not be moved.
struct dt_bench_rig {
    struct dt_comm *comm; // of this process only
    struct dt_backend backend;
    struct dt_device_info info;
    struct dt_model *model;
    struct dt_stepper *stepper;
    struct dt_dataset *dataset;
    struct dt_loader *loader;
    int64_t batch, micro, length; // sequences per step and per micro-batch, tokens per sequence
    struct dt_op_times *times;    // only with `times_ops`
    dt_bf16 *spare;               // only with `times_ops`: [elements of the weights], on the device
    int64_t steps;                // launched so far
};

// If this fails, nothing stays open.
dt_status dt_bench_rig_open(const struct dt_bench_options *options, bool times_ops,
                            struct dt_bench_rig *rig);
void dt_bench_rig_close(struct dt_bench_rig *rig);
dt_status dt_bench_rig_launch(struct dt_bench_rig *rig); // the next step (dt_stepper_launch)

// FLOPs of the steps that dt_bench_estimate times: a fraction of a second. Tests lower it.
extern double dt_bench_step_flops;

// Seconds of one rank of the job, alone on its CPUs, for a step's forward and backward passes and
// its update, measured now in a few steps of the same model on synthetic data. Long steps are
// shortened to *tokens tokens.
struct dt_job;
dt_status dt_bench_estimate(const struct dt_job *job, double *seconds, int64_t *tokens);

// Durations of repeated measurements, in seconds.
enum { DT_BENCH_REPEATS = 1 << 13 };
struct dt_bench_clock {
    double started; // includes the time between repeats
    int64_t n;
    double seconds[DT_BENCH_REPEATS];
};
void dt_bench_start(struct dt_bench_clock *clock);
// Records nothing beyond DT_BENCH_REPEATS.
void dt_bench_note(struct dt_bench_clock *clock, double seconds);
// Whether another repeat is due: at least `least` repeats, then until `seconds` have passed.
bool dt_bench_more(const struct dt_bench_clock *clock, int64_t least, double seconds);
double dt_bench_best(const struct dt_bench_clock *clock);
double dt_bench_median(const struct dt_bench_clock *clock);
double dt_bench_median_of(double *list, int64_t n); // sorts it; 0 where n is 0
