// The optimizer's state and its step: the gradient norm, the numbers that vary from step to step
// (update_control), and one fused AdamW pass. Everything is on the device; the host sends the
// learning rate and later reads the control struct. Sharded, a rank has the states of its own
// pieces of the flat arrays; the buckets bring it the gradients of these pieces, and bring every
// rank the weights of all.
#pragma once

#include "checkpoint/optimizer_states.h"
#include "comm/buckets.h"
#include "model/model.h"

// AdamW with decoupled decay. grad_clip is the largest norm of the gradients (0: any), ema the
// decay of the moving average of the weights (0: there is none).
struct dt_optimizer_config {
    float beta1, beta2, eps, weight_decay, grad_clip, ema;
};

struct dt_optimizer {
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_optimizer_states states; // device memory
    struct dt_buckets *buckets;        // borrowed; NULL: the states are not sharded
    float *lr;                         // one: the caller writes it before a step
    struct dt_loss_sum *sum;           // one: the global batch's loss
    struct dt_update_control *control; // one
    double *sum_squares;               // one
    double *norms;                     // [n_norms] the sum of each norm block
    int64_t n_norms;
    struct dt_adamw_span *spans;
    int64_t n_spans;
    struct dt_optimizer_config config;
};

// Which states are kept for each parameter, without their arrays.
struct dt_optimizer_states dt_optimizer_states(const struct dt_optimizer_config *config);
// Bytes of the states of `elements`, for the memory plan.
int64_t dt_optimizer_bytes(int64_t elements, const struct dt_optimizer_config *config);
// `pieces` of the flat arrays, which are borrowed: those that this rank updates. Where it fails,
// destroy it all the same.
dt_status dt_optimizer_create(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer_config *config,
                              const struct dt_pieces *pieces, struct dt_optimizer *optimizer);
void dt_optimizer_destroy(struct dt_optimizer *optimizer); // zeros are fine
// Sets what bias correction and skipping resume from.
dt_status dt_optimizer_restore(struct dt_optimizer *optimizer, int64_t updates,
                               int64_t skipped_in_a_row);
// The moving average starts as the weights are now; nothing where there is none.
dt_status dt_optimizer_start_ema(struct dt_optimizer *optimizer);
// Swaps the weights (the model's bf16 copies included) and their moving average; a second call
// undoes it. Called between steps: the gradients are zero afterwards. Sharded: by all ranks
// together.
dt_status dt_optimizer_swap_ema(struct dt_optimizer *optimizer, struct dt_stream *stream);
// Computes norm and control, when the gradients (sharded: of these pieces) and optimizer->sum are
// those of the whole global batch and optimizer->lr is the step's. `expected`: the batch's tokens.
dt_status dt_optimizer_control(struct dt_optimizer *optimizer, double expected,
                               struct dt_stream *stream);
// Updates the weights, after dt_optimizer_control. Sharded: of this rank's pieces, and
// dt_buckets_gather must follow before others are read.
dt_status dt_optimizer_update(struct dt_optimizer *optimizer, struct dt_stream *stream);
