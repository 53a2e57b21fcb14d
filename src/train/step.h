// One training step: loader_next → forward → backward (buckets are sent as they fill) → wait →
// adamw → report. Launching puts the whole step on the device's streams and returns; its outcome is
// collected later. So the host works a step ahead of a device that works by itself, and never waits
// inside a step (except for gradients that travel through it). Work that differs from step to step
// in nothing but data is captured as a graph once and launched as a whole. Training and
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
    int64_t bucket_bytes;      // of fp32 gradient
    enum dt_dtype wire;        // of gradients between ranks
    enum dt_sum_order order;   // of gradients and losses, over micro-batches and ranks
    bool between_devices;      // these are summed by the device communicator
    bool selftest;             // communicators are checked first
    enum dt_sharding shard;    // where there are several ranks
    bool graphs;               // where the device has them
    bool losses;               // of each sequence are reported, if the model keeps them
    struct dt_op_times *times; // borrowed; NULL: ops are not timed
    int64_t carry_steps; // carry state, which is zero again after this many steps; 0: carry nothing
};

// A step in flight.
struct dt_flight {
    struct dt_event *done; // the report has arrived
    double start;          // dt_seconds
    double lr, data_wait_ms;
    int graphs;
    bool timed;
    bool losses; // those of its positions have been copied to the host
};

// Variants of the work on a micro-batch differ in more than data: by its place in the step.
// Every batch of a run has the same arrays.
enum { DT_VARIANT_FIRST = 1, DT_VARIANT_LAST = 2, DT_VARIANT_GATHER = 4, DT_VARIANTS = 8 };

struct dt_variant {
    bool has_run;
    struct dt_graph *graph;
};

// Others use optimizer, input, carry, segments and stream; the rest belongs to step.c.
struct dt_stepper {
    struct dt_optimizer optimizer;
    struct dt_input input;
    struct dt_carry carry;
    struct dt_segments segments;
    struct dt_stream *stream; // of all work of a step
    struct dt_stepper_config config;
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_pieces pieces;  // that this rank updates
    struct dt_pieces masters; // rows that a pass reads in fp32, where storage is bf16
    struct dt_micro_tree tree;
    struct dt_buckets *buckets;
    struct dt_variant variants[DT_VARIANTS];
    struct dt_event *hold;          // what the next update waits for; NULL: nothing
    uint64_t *marks;                // times on the device's clock, device memory
    struct dt_step_report *reports; // [DT_STEPS_IN_FLIGHT], pinned
    struct dt_flight flights[DT_STEPS_IN_FLIGHT];
    float *losses;   // [DT_STEPS_IN_FLIGHT, positions], pinned; NULL: the model keeps none
    int32_t *labels; // of the same positions
    struct dt_loss_part *slots; // [sequences] of the step collected last
    int64_t launched, collected;
    int64_t step;        // launched last, for progress and messages
    bool incomplete;     // what forward reads of other ranks' weights is as before the last update
    bool stale;          // … and their masters are
    bool waits;          // for the first of them: the next wait is measured
    bool timing;         // the ops of the step that is being launched
    uint64_t last_end;   // mark END of the step collected last; 0: none
    double last_collect; // dt_seconds
};

// What is known of a step when its work is done.
struct dt_step_result {
    struct dt_update_control control;
    struct dt_loss_sum sum;
    double lr;
    double seconds;      // from its launch, or the end of the previous step if that is later
    double data_wait_ms; // the host waited for the loader
    double host_wait_ms; // the host waited for the device
    double comm_wait_ms; // the device was idle until gradients were summed over ranks, and sharded
                         // weights gathered: between devices, those that forward reads first
    double idle_ms;      // … between the end of the previous step and this one's first work
    int graphs;          // launched, of at most one for each micro-batch
    const struct dt_loss_part *slots; // of this rank's sequences, until the next is collected;
                                      // NULL: the model keeps no losses of positions
    bool timed; // its ops were: all steps on the CPU, some elsewhere, which use no graphs
};

// Adds what dt_stepper_create allocates for a model of these parameters.
dt_status dt_stepper_plan(const struct dt_backend *backend, const struct dt_params *params,
                          const struct dt_array_list *arrays,
                          const struct dt_stepper_config *config, struct dt_memory_plan *plan);
// Elements of each optimizer state that this rank will hold.
int64_t dt_stepper_held(const struct dt_params *params, const struct dt_stepper_config *config);
// Call it after something else has set the weights, or has swapped them with their average.
dt_status dt_stepper_weights_changed(struct dt_stepper *stepper);
// Completes a pass of a model whose weights are spread, which runs between steps on all ranks.
dt_status dt_stepper_begin_pass(struct dt_stepper *stepper, struct dt_pass *pass);
// Borrows backend and model; creates its own optimizer, buckets and input.
dt_status dt_stepper_create(const struct dt_backend *backend, struct dt_model *model,
                            const struct dt_stepper_config *config, struct dt_stepper **stepper);
// All ranks together, each after its create.
dt_status dt_stepper_connect(struct dt_stepper *stepper);
// NULL is fine. Waits for steps in flight.
void dt_stepper_destroy(struct dt_stepper *stepper);
// How many steps may be in flight: DT_STEPS_IN_FLIGHT where the device works by itself, else 1.
int dt_stepper_depth(const struct dt_stepper *stepper);

// Launches the step of the loader's next batch; `step` counts from 1.
dt_status dt_stepper_launch(struct dt_stepper *stepper, struct dt_loader *loader, int64_t step,
                            double lr);
// The update of the next step waits for this event, which is recorded: the weights and states are
// being copied until then.
void dt_stepper_hold(struct dt_stepper *stepper, struct dt_event *event);
// Where the optimizer is sharded, a rank has of other ranks' weights only what a forward pass
// reads: bf16 copies where storage is bf16. Between devices the next step gathers what this one
// updates, while its forward pass runs. Whoever else reads the weights or their moving average
// after a step calls this first, when no step is in flight and on all ranks together.
dt_status dt_stepper_complete(struct dt_stepper *stepper);
int dt_stepper_in_flight(const struct dt_stepper *stepper);
// Waits for the oldest step in flight.
dt_status dt_stepper_collect(struct dt_stepper *stepper, struct dt_step_result *result);
