// One training step: loader_next → forward → backward (buckets are sent as they fill) → wait →
// adamw → report. Launching a step puts all its work on the device's streams and returns; the
// result is collected later. So the host is one step ahead of an asynchronous device and never
// waits inside a step, except for gradients that are sent through the host. Work that differs
// between steps only in data is captured as a graph once and launched as a whole. Training and
// `dtrain bench` run the same steps.
#pragma once

#include "backend/op_times.h"
#include "comm/buckets.h"
#include "train/carry.h"
#include "train/input.h"
#include "train/metrics.h"
#include "train/micro_tree.h"
#include "train/optimizer.h"
#include "train/segments.h"

enum { DT_STEPS_IN_FLIGHT = 2 }; // at most

struct dt_stepper_config {
    struct dt_comm *comm;         // borrowed
    struct dt_input_config batch; // this rank's share
    int64_t tokens;               // of the global batch
    struct dt_optimizer_config optimizer;
    enum dt_dtype storage;     // of the model
    int64_t bucket_bytes;      // bytes of fp32 gradient
    enum dt_dtype wire;        // type of gradients between ranks
    enum dt_sum_order order;   // order of the sums over micro-batches and ranks
    bool between_devices;      // the device communicator sums them
    bool selftest;             // check communicators first
    enum dt_sharding shard;    // with several ranks
    bool graphs;               // if the device has them
    struct dt_op_times *times; // borrowed; NULL: ops are not timed
    int64_t carry_steps;       // carry state, reset after this many steps; 0: carry nothing
};

// A step in flight.
struct dt_flight {
    struct dt_event *done; // the report has arrived
    double start;          // dt_seconds
    double lr, data_wait_ms;
    int graphs;
    bool timed;
    bool losses; // losses of its positions have been copied to the host
};

// Variants of a micro-batch's work, by its position in the step. Every batch of a run has the same
// arrays.
enum { DT_VARIANT_FIRST = 1, DT_VARIANT_LAST = 2, DT_VARIANT_GATHER = 4, DT_VARIANTS = 8 };

struct dt_variant {
    bool has_run;
    struct dt_graph *graph;
};

// Other files use optimizer, input, carry, segments and stream; the rest is private to step.c.
struct dt_stepper {
    struct dt_optimizer optimizer;
    struct dt_input input;
    struct dt_carry carry;
    struct dt_segments segments;
    struct dt_stream *stream; // for all work of a step
    struct dt_stepper_config config;
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_pieces pieces;  // pieces that this rank updates
    struct dt_pieces masters; // rows that a pass reads in fp32, with bf16 storage
    struct dt_micro_tree tree;
    struct dt_buckets *buckets;
    struct dt_variant variants[DT_VARIANTS];
    struct dt_event *hold;          // the next update waits for it; or NULL
    uint64_t *marks;                // device timestamps, device memory
    struct dt_step_report *reports; // [DT_STEPS_IN_FLIGHT], pinned
    struct dt_flight flights[DT_STEPS_IN_FLIGHT];
    float *losses;              // [DT_STEPS_IN_FLIGHT, positions], pinned; NULL: not kept
    int32_t *labels;            // labels of the same positions
    struct dt_loss_part *slots; // [sequences], of the last collected step
    int64_t launched, collected;
    int64_t step;        // last launched step, for progress and messages
    bool incomplete;     // other ranks' weights, as forward reads them, are outdated
    bool stale;          // … and so are their master weights
    bool waits;          // measure the next wait for them
    bool timing;         // time the ops of the step being launched
    uint64_t last_end;   // mark END of the last collected step; 0: none
    double last_collect; // dt_seconds
};

// Result of a finished step.
struct dt_step_result {
    struct dt_update_control control;
    struct dt_loss_sum sum;
    double lr;
    double seconds;      // from its launch or, if later, the end of the previous step
    double data_wait_ms; // the host waited for the loader
    double host_wait_ms; // the host waited for the device
    double comm_wait_ms; // the device was idle until gradients were summed and sharded weights
                         // gathered (between devices: those that forward reads first)
    double idle_ms;      // … from the end of the previous step to this one's first work
    int graphs;          // graphs launched, at most one per micro-batch
    const struct dt_loss_part *slots; // of this rank's sequences, until the next step is collected;
                                      // NULL: the model keeps no losses of positions
    bool timed; // its ops were timed: always on the CPU, elsewhere in some steps, without graphs
};

// Adds the memory of dt_stepper_create for a model with these parameters.
dt_status dt_stepper_plan(const struct dt_backend *backend, const struct dt_params *params,
                          const struct dt_array_list *arrays,
                          const struct dt_stepper_config *config, struct dt_memory_plan *plan);
// Elements of each optimizer state on this rank.
int64_t dt_stepper_held(const struct dt_params *params, const struct dt_stepper_config *config);
// Call after the weights were set, or swapped with their average, from outside.
dt_status dt_stepper_weights_changed(struct dt_stepper *stepper);
// Prepares a pass between steps, on all ranks, of a model whose weights are spread.
dt_status dt_stepper_begin_pass(struct dt_stepper *stepper, struct dt_pass *pass);
// Borrows backend and model; creates its own optimizer, buckets and input.
dt_status dt_stepper_create(const struct dt_backend *backend, struct dt_model *model,
                            const struct dt_stepper_config *config, struct dt_stepper **stepper);
// Collective; each rank calls it after create.
dt_status dt_stepper_connect(struct dt_stepper *stepper);
// NULL is fine. Waits for steps in flight.
void dt_stepper_destroy(struct dt_stepper *stepper);
// How many steps may be in flight: DT_STEPS_IN_FLIGHT if the device is asynchronous, else 1.
int dt_stepper_depth(const struct dt_stepper *stepper);

// Launches the step of the loader's next batch; `step` counts from 1.
dt_status dt_stepper_launch(struct dt_stepper *stepper, struct dt_loader *loader, int64_t step,
                            double lr);
// Makes the next step's update wait for this recorded event, until which weights and states are
// being copied.
void dt_stepper_hold(struct dt_stepper *stepper, struct dt_event *event);
// If the optimizer is sharded, a rank has only what a forward pass reads of other ranks' weights
// (with bf16 storage: bf16 copies), and between devices the next step gathers this step's updates
// during its forward pass. Call this before anything else reads the weights or their moving
// average. Collective, with no step in flight.
dt_status dt_stepper_complete(struct dt_stepper *stepper);
int dt_stepper_in_flight(const struct dt_stepper *stepper);
// Waits for the oldest step in flight.
dt_status dt_stepper_collect(struct dt_stepper *stepper, struct dt_step_result *result);
