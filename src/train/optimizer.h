// The optimizer's state and its step: the gradient norm, the numbers that vary from step to step
// (update_control), and one fused AdamW pass. Everything is on the device; the host sends the
// learning rate and later reads the control struct. If sharded, a rank has the states of its pieces
// of the flat arrays; the buckets bring it the gradients of these pieces, and bring all weights to
// every rank.
//
// With `muon` the matrices (dt_param.matrix: hidden weights of two dimensions; not embeddings,
// heads, convolutions and A_log) are updated by Muon (kernels/muon.h) and all other rows by AdamW:
//   exp_avg = momentum; U = Nesterov's look-ahead, in the gradient's place
//   X = U / ‖U‖, then five times X = (a I + b G + c G²) X with G = X·Xᵀ, in storage type, where
//   a, b, c = 3.4445, -4.7750, 2.0315 [Keller Jordan et al. 2024]; Xᵀ·X on the right if r > c
//   w = w - lr · decay · w - lr · 0.2 sqrt(max(r, c)) · X      [Liu et al. 2025, "Moonlight"]
// The factor gives updates the size of AdamW's, so that one learning rate serves both, as
// torch.optim.Muon does with match_rms_adamw; µP and optim.lr[PATTERN] change it by row. If
// sharded, each rank has the momentum of its pieces. The buckets then bring the whole of U to every
// rank, and each rank orthogonalises the matrices of which it has a piece and updates its pieces. A
// matrix on the border of two pieces is computed by both ranks, from the same numbers in the same
// order, so the bits do not depend on ranks or shards.
#pragma once

#include "checkpoint/optimizer_states.h"
#include "comm/buckets.h"
#include "model/model.h"

// AdamW with decoupled decay. grad_clip is the largest norm of the gradients (0: any), ema the
// decay of the moving average of the weights (0: none). `groups` and `lr`: see dt_params_rates. The
// rest is for Muon.
struct dt_optimizer_config {
    float beta1, beta2, eps, weight_decay, grad_clip, ema;
    bool keeps_weights; // the master weights of the pieces are a state "weights"
    bool muon;
    float momentum;
    const char *groups; // borrowed; NULL: none
    double lr;          // the peak, to which rates of groups are relative
};

// Scratch memory for the iterations on the largest matrix: x and its successor, and the square
// matrices gram, square and p, in storage type; workspace of the products.
struct dt_muon_scratch {
    void *x[2], *gram, *square, *p, *workspace;
    double *sum, *sums; // sums of squares of a matrix and of its norm blocks
    int64_t elements, side, workspace_bytes;
};

struct dt_optimizer {
    const struct dt_backend *backend;
    struct dt_model *model;
    struct dt_optimizer_states states; // device memory
    struct dt_buckets *buckets;        // borrowed; NULL: states are not sharded
    float *gradients;        // of the pieces, compact, if the model's are in a ring; else NULL
    dt_bf16 *copies;         // of the state "weights", with bf16 storage
    float *lr;               // [1], written by the caller before a step
    struct dt_loss_sum *sum; // [1], the global batch's loss
    struct dt_update_control *control; // one
    double *sum_squares;               // one
    double *norms;                     // [n_norms], a sum per norm block
    int64_t n_norms;
    struct dt_adamw_span *spans;
    int64_t n_spans;
    struct dt_param_rate *rates; // [rows]
    struct dt_muon_scratch muon;
    struct dt_optimizer_config config;
};

// The states kept per parameter, without arrays.
struct dt_optimizer_states dt_optimizer_states(const struct dt_optimizer_config *config);
// The most elements of all states of a rank with `held` parameters, for the memory plan.
int64_t dt_optimizer_elements(const struct dt_params *params, int64_t held,
                              const struct dt_optimizer_config *config);
// Bytes of Muon's scratch memory, for the memory plan; 0 without Muon.
dt_status dt_optimizer_scratch(const struct dt_backend *backend, const struct dt_params *params,
                               enum dt_dtype storage, const struct dt_optimizer_config *config,
                               int64_t *bytes);
// `pieces` (borrowed) of the flat arrays that this rank updates. Destroy it even if create fails.
dt_status dt_optimizer_create(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer_config *config,
                              const struct dt_pieces *pieces, struct dt_optimizer *optimizer);
void dt_optimizer_destroy(struct dt_optimizer *optimizer); // zeros are fine
// Sets the counts with which bias correction and skipping resume.
dt_status dt_optimizer_restore(struct dt_optimizer *optimizer, int64_t updates,
                               int64_t skipped_in_a_row);
// Sets the moving average to the current weights; a no-op without one.
dt_status dt_optimizer_start_ema(struct dt_optimizer *optimizer);
// Rounds the state "weights", if it exists, to bf16 again after it was changed from outside.
dt_status dt_optimizer_refresh(struct dt_optimizer *optimizer, struct dt_stream *stream);
// Swaps the weights (including bf16 copies) and their moving average; a second call undoes it. Call
// between steps; zeroes the gradients. Collective if sharded.
dt_status dt_optimizer_swap_ema(struct dt_optimizer *optimizer, struct dt_stream *stream);
// Computes norm and control. The gradients (if sharded, those of this rank's pieces) and
// optimizer->sum must be those of the global batch, and optimizer->lr that of the step. `expected`:
// the batch's tokens.
dt_status dt_optimizer_control(struct dt_optimizer *optimizer, double expected,
                               struct dt_stream *stream);
// Updates the weights; call after dt_optimizer_control. Sharded: updates this rank's pieces, and
// dt_buckets_gather must follow before other pieces are read.
dt_status dt_optimizer_update(struct dt_optimizer *optimizer, struct dt_stream *stream);
