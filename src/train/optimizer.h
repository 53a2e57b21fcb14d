// The optimizer's state and its step: the gradient norm, the numbers that vary from step to step
// (update_control), and one fused AdamW pass. Everything is on the device; the host sends the
// learning rate and later reads the control struct. Sharded, a rank has the states of its own
// pieces of the flat arrays; the buckets bring it the gradients of these pieces, and bring every
// rank the weights of all.
//
// With `muon` the matrices (dt_param.matrix: hidden weights of two dimensions; not embeddings,
// heads, convolutions and A_log) are updated by Muon (kernels/muon.h) and all else by AdamW:
//   exp_avg = momentum; U = Nesterov's look-ahead, in the gradient's place
//   X = U / ‖U‖, then five times X = (a I + b G + c G²) X with G = X·Xᵀ, in storage type, where
//   a, b, c = 3.4445, -4.7750, 2.0315 [Keller Jordan et al. 2024]; Xᵀ·X on the right if r > c
//   w = w - lr · decay · w - lr · 0.2 sqrt(max(r, c)) · X      [Liu et al. 2025, "Moonlight"]
// The factor gives an update the size of AdamW's, so that one learning rate serves both; µP and
// optim.lr[PATTERN] change it by row. That is torch.optim.Muon with match_rms_adamw.
// Sharded, momentum is a matter of elements, and each rank has that of its pieces. Then the buckets
// bring every rank U whole, each rank makes those matrices orthogonal of which it holds a piece,
// and updates its pieces. So a matrix is computed by its owner, by two where a piece ends in it,
// from the same numbers in the same order: the bits do not depend on ranks or shards.
#pragma once

#include "checkpoint/optimizer_states.h"
#include "comm/buckets.h"
#include "model/model.h"

// AdamW with decoupled decay. grad_clip is the largest norm of the gradients (0: any), ema the
// decay of the moving average of the weights (0: there is none).
// The rest is Muon's, and `groups` and `lr` those of dt_params_rates.
struct dt_optimizer_config {
    float beta1, beta2, eps, weight_decay, grad_clip, ema;
    bool keeps_weights; // the masters of the pieces are its own: a state "weights"
    bool muon;
    float momentum;
    const char *groups; // borrowed; NULL: none
    double lr;          // the peak, that rates of groups are relative to
};

// Scratch memory of the iterations, for the largest matrix: x and its successor, and the square
// matrices gram, square and p, of storage type; workspace of the products.
struct dt_muon_scratch {
    void *x[2], *gram, *square, *p, *workspace;
    double *sum, *sums; // of squares: of a matrix, and of its norm blocks
    int64_t elements, side, workspace_bytes;
};

struct dt_optimizer {
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_optimizer_states states; // device memory
    struct dt_buckets *buckets;        // borrowed; NULL: the states are not sharded
    float *gradients;        // of the pieces, compact, where the model's are a ring; else NULL
    dt_bf16 *copies;         // of the state "weights", where storage is bf16
    float *lr;               // one: the caller writes it before a step
    struct dt_loss_sum *sum; // one: the global batch's loss
    struct dt_update_control *control; // one
    double *sum_squares;               // one
    double *norms;                     // [n_norms] the sum of each norm block
    int64_t n_norms;
    struct dt_adamw_span *spans;
    int64_t n_spans;
    struct dt_param_rate *rates; // [rows]
    struct dt_muon_scratch muon;
    struct dt_optimizer_config config;
};

// Which states are kept for each parameter, without their arrays.
struct dt_optimizer_states dt_optimizer_states(const struct dt_optimizer_config *config);
// Elements of all states of a rank that holds `held` of the parameters, at most, for the memory
// plan.
int64_t dt_optimizer_elements(const struct dt_params *params, int64_t held,
                              const struct dt_optimizer_config *config);
// Bytes of Muon's scratch memory, for the memory plan; 0 without it.
dt_status dt_optimizer_scratch(const struct dt_backend *backend, const struct dt_params *params,
                               enum dt_dtype storage, const struct dt_optimizer_config *config,
                               int64_t *bytes);
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
// Rounds the state "weights" to bf16 again, if there is one, after something else has changed it.
dt_status dt_optimizer_refresh(struct dt_optimizer *optimizer, struct dt_stream *stream);
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
