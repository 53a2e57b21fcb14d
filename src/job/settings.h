// Declares the configuration of dtrain as a struct, and the table that describes it.
#pragma once

#include "base/config.h"
#include "comm/comm.h"
#include "model/config.h"

#include <stdbool.h>
#include <stdint.h>

typedef char dt_string[DT_CONFIG_STRING_MAX];

// The words of a choice, in the order of its enum.
#define DT_DEVICE_WORDS    "auto|cuda|cpu"
#define DT_PRECISION_WORDS "auto|bf16|fp32"
#define DT_TOGGLE_WORDS    "auto|true|false"
enum dt_device_choice { DT_DEVICE_AUTO, DT_DEVICE_CUDA, DT_DEVICE_CPU };
enum dt_precision_choice { DT_PRECISION_AUTO, DT_PRECISION_BF16, DT_PRECISION_FP32 };
enum dt_toggle { DT_TOGGLE_AUTO, DT_TOGGLE_TRUE, DT_TOGGLE_FALSE };
#define DT_SCHEDULE_WORDS "cosine|linear|constant|wsd|cosine_restarts"
enum dt_schedule {
    DT_SCHEDULE_COSINE,
    DT_SCHEDULE_LINEAR,
    DT_SCHEDULE_CONSTANT,
    DT_SCHEDULE_WSD,
    DT_SCHEDULE_RESTARTS,
};
#define DT_OPTIMIZER_WORDS "adamw|muon"
enum dt_optimizer_choice { DT_OPTIMIZER_ADAMW, DT_OPTIMIZER_MUON };
enum dt_comm_choice { DT_COMM_AUTO, DT_COMM_SELF, DT_COMM_MPI, DT_COMM_NCCL };
enum dt_wire_choice { DT_WIRE_FP32, DT_WIRE_BF16 };
enum dt_reduce_choice { DT_REDUCE_FAST, DT_REDUCE_REPRODUCIBLE };
#define DT_SHARD_WORDS "false|true|states|gradients|weights"
enum dt_shard_choice { DT_SHARD_FALSE, DT_SHARD_TRUE }; // further values: enum dt_sharding + 1
enum dt_console_choice { DT_CONSOLE_AUTO, DT_CONSOLE_PROGRESS, DT_CONSOLE_PLAIN };

// data.block of a new run. With larger blocks each slot of the batch stays in one neighbourhood of
// the data for that many steps, which costs quality (launch/README.md, "Shuffling").
enum { DT_NEW_BLOCK = 1 };

struct dt_settings {
    struct {
        dt_string name, dir, init_from, resume; // dir empty: runs/<name>
        int64_t seed, steps, epochs;            // steps and epochs: 0 if not given; one is required
        int64_t patience;                       // evaluations; 0: any
        int64_t threads;                        // 0: the cores shared among local ranks
        int device, precision, cuda_graph;
        bool share_device, allow_unequal_nodes;
    } run;
    struct dt_model_config model; // sizes are 0 if not given
    struct {
        dt_string train, val, tokenizer, episodes, inputs, targets, weights, mask, val_mask;
        int format;
        int64_t seq_len, batch, micro_batch;  // micro_batch 0: the rank's whole share
        int64_t block, prefetch, reset_token; // reset_token -1: none; block 0: auto, until the job
                                              // opened
        int64_t stride, time_axis;            // stride 0: auto, seq_len
        int64_t mixture_from;
        double val_fraction;
        bool shuffle, carry_state, reset_after, reverse_complement, verify, normalize,
            allow_changed;
    } data;
    struct {
        int name; // enum dt_optimizer_choice
        dt_string lr_groups;
        double momentum;
        double lr, min_lr; // min_lr negative: auto, 0.1 lr
        int schedule;
        int64_t warmup_steps, decay_steps; // decay_steps -1: auto, 0.2 steps
        int64_t restart_steps, restart_mult;
        double beta1, beta2, eps, weight_decay, grad_clip, ema;
        int64_t max_skipped, rollback;
        double spike;
        int shard; // enum dt_shard_choice
    } optim;
    struct {
        int backend, dtype, reduce, selftest;
        double bucket_mb; // 0: auto, until the job knows its model
        double timeout_s, start_timeout_s;
        int64_t verify_replicas, context;
    } comm;
    struct {
        int64_t every;
        double minutes;
        int64_t keep;
        bool best, on_signal;
    } checkpoint;
    struct {
        int64_t every, eval_every, eval_batches;
        bool tensorboard;
        int console;
        bool profile;
        dt_string limits, trace_steps;
    } log;
};

extern const struct dt_config_table dt_settings_table;

// optim.min_lr and optim.decay_steps with `auto` resolved for a run of `steps` steps.
static inline double dt_settings_min_lr(const struct dt_settings *s)
{
    return s->optim.min_lr < 0 ? 0.1 * s->optim.lr : s->optim.min_lr;
}
static inline int64_t dt_settings_decay_steps(const struct dt_settings *s, int64_t steps)
{
    return s->optim.decay_steps < 0 ? (steps + 2) / 5 : s->optim.decay_steps; // rounded
}

// The default of every key; 0 or empty if it has none.
void dt_settings_defaults(struct dt_settings *settings);
// comm.timeout_s and comm.start_timeout_s, which are needed before the communicator is open to
// share the settings: from this rank's view of file, environment and command line. The defaults if
// these have errors, which are reported later, or if path is NULL.
struct dt_comm_limits dt_settings_limits(const char *path, char *const *overrides, int n_overrides);
// A dt_config_check for conditions between keys that need only the configuration (warmup < steps,
// steps or epochs …). Checks that need data, ranks or a model are made where these are known.
void dt_settings_check(struct dt_problems *problems, const void *settings,
                       const struct dt_config *config);
// Checks that `ranks` can share the batch and split their shares into micro-batches.
dt_status dt_settings_check_batch(const struct dt_settings *settings,
                                  const struct dt_config *config, int64_t ranks);
// Checks that depend on the number of steps, which run.epochs gives only together with the data.
dt_status dt_settings_check_steps(const struct dt_settings *settings,
                                  const struct dt_config *config, int64_t steps);
