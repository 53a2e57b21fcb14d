// Declares what the parts of a model work with: the net (weights, gradients, workspace), the memory
// plan, the pass, and the layers that many of them have (linear, convolution).
#pragma once

#include "model/model.h"

struct dt_part; // kinds.h

// A row of the table where each is kept by itself (shape.play), in the types in which a measured
// pass has read it.
struct dt_net_row {
    bool reads_stored;
    float *weight; // where the table's row says reads_master
    void *stored;  // bf16
};

// Weights and gradients as the parts see them. Pointers are NULL while memory is being measured.
struct dt_net {
    struct dt_int8 *int8; // [rows of the table] of linear layers; NULL: none multiplies int8
    const struct dt_backend *backend;
    const struct dt_model_config *config;
    struct dt_params *params;
    struct dt_net_row *rows; // of shape.play; NULL: the arrays that follow
    float *weights;          // masters
    void *stored;     // in storage type, for GEMM and embedding: rounded to bf16, or the masters
    float *gradients; // NULL: no training
    void *workspace;
    int64_t workspace_bytes;
};
// The fp32 master of a row of the table, the row in storage type, and its gradient. NULL if there
// is no such array.
const float *dt_net_weight(const struct dt_net *net, int row);
const void *dt_net_stored(const struct dt_net *net, int row);
float *dt_net_gradient(const struct dt_net *net, int row);

// Memory being planned: the same code first measures on arenas without memory, then places.
struct dt_plan {
    struct dt_net *net;
    struct dt_model_shape shape;
    int64_t rows; // M = B·L
    // These say where arrays that backward needs are placed: in activations or, if model.recompute
    // computes them again, in scratch. `scan` is for arrays that follow from a block's input
    // projection, `block` for all others within a block.
    enum dt_memory block, scan;
    struct dt_arena arenas[DT_MEMORY_COUNT];
    bool too_large; // more than any machine has
};
// [rows, cols] of `type`.
struct dt_view dt_plan_view(struct dt_plan *plan, enum dt_memory memory, int64_t rows, int64_t cols,
                            enum dt_dtype type);
// [M, cols] in storage type, whose rows begin at multiples of `bytes`.
struct dt_view dt_plan_aligned(struct dt_plan *plan, enum dt_memory memory, int64_t cols,
                               int64_t bytes);

// Keeps the first M rows, the pass's, of each array of a struct that has only views.
void dt_pass_rows(const struct dt_pass *pass, void *arrays, size_t size);
// The rows of each sequence's last position in an array of a pass's M rows: B rows, L apart.
struct dt_view dt_pass_last(const struct dt_pass *pass, struct dt_view view);
// Array `index` of a block's states from the pass's first sequence on, of pass->before or after;
// NULL if `state` is NULL, or the array is empty.
void *dt_pass_state(const struct dt_pass *pass, const struct dt_part *block,
                    const struct dt_model_state *state, int index);
// Type and width of the gradient of an array of a state.
struct dt_array_spec dt_state_gradient(const struct dt_array_spec *state);
// dt_pass_state for the gradients of states, pass->dafter or dbefore.
float *dt_pass_gradient(const struct dt_pass *pass, const struct dt_part *block,
                        const struct dt_model_state *gradient, int index);
// Tells the relay of a pass, if there is one, that a part is about to read array `index` of
// `before` or of its gradient `dafter`, or has written array `index` of `after` or `dbefore`. What
// backward recomputes moves no states.
enum dt_relayed { DT_BEFORE, DT_AFTER, DT_GRADIENT_AFTER, DT_GRADIENT_BEFORE };
dt_status dt_pass_relay(const struct dt_pass *pass, const struct dt_part *part, int index,
                        enum dt_relayed what);
dt_status dt_pass_relay_all(const struct dt_pass *pass, const struct dt_part *part,
                            enum dt_relayed what); // all arrays of the part
// Exchanges array `index` of the part between ranks that share the window of a pass over all its
// positions (dt_block_kind.whole): `own` [ranks · own rows], which is cut into shares, for `all`,
// this rank's share of all rows in the order of the window and with the same stride, or back.
dt_status dt_pass_swap(const struct dt_pass *pass, const struct dt_part *part, int index,
                       bool spreads, struct dt_view own, void *all);
// Announces that the gradient of a row is complete.
dt_status dt_pass_ready(const struct dt_pass *pass, int row);
dt_status dt_pass_measure(const struct dt_pass *pass, int64_t workspace);
// Runs an op in a pass, or measures its workspace: each pass is first run without memory, so parts
// touch memory through ops only. The op's args get the workspace here, and whether weight gradients
// are added up (an op that always adds has said so already).
#define DT_RUN(pass, op, args)                                                                     \
    (dt_pass_give_##op(pass, args),                                                                \
     (pass)->measured ? dt_pass_measure(pass, dt_##op##_workspace((pass)->net->backend, args))     \
                      : dt_##op((pass)->net->backend, args, (pass)->stream))
#define DT_PASS_GIVE(op, ...)                                                                      \
    static inline void dt_pass_give_##op(const struct dt_pass *pass, struct dt_##op##_args *args)  \
    {                                                                                              \
        (void)pass, (void)args;                                                                    \
        __VA_ARGS__                                                                                \
    }
#define DT_PASS_GIVE_WORKSPACE(op, ...)                                                            \
    DT_PASS_GIVE(op, args->workspace = pass->net->workspace;                                       \
                 args->workspace_bytes = pass->net->workspace_bytes; __VA_ARGS__)
#define DT_PASS_GIVE_SUMS(op)                                                                      \
    DT_PASS_GIVE_WORKSPACE(op, args->accumulate = args->accumulate || pass->accumulate;)
DT_OPS_BY_CONTEXT(DT_PASS_GIVE_SUMS, DT_PASS_GIVE_WORKSPACE, DT_PASS_GIVE)

// A linear layer without bias: y = x · Wᵀ, W [out, in] in row `row` of the table.
struct dt_linear {
    int row;
    int64_t in, out;
    int64_t first; // W starts at this row of the tensor
    bool adds;     // dx += instead of =
    bool exact;    // forward is part of another op: never rounded to int8
    bool shared;   // by the direction before this one: dW +=
};
// x [rows, in] storage, y [rows, out] storage or fp32.
dt_status dt_linear_forward(const struct dt_pass *pass, struct dt_linear linear, struct dt_view x,
                            struct dt_view y);
// dW (+)= dyᵀ · x, which finishes the row, then dx = (adds: +=) dy · W, unless dx has no columns.
dt_status dt_linear_backward(const struct dt_pass *pass, struct dt_linear linear, struct dt_view x,
                             struct dt_view dy, struct dt_view dx);

// y [rows, cols] fp32 += elements `first` … of row `row`.
dt_status dt_add_bias(const struct dt_pass *pass, int row, int64_t first, struct dt_view y);
// The bias's gradient (+)= Σ over the rows of dy [rows, cols] fp32 or storage, which finishes the
// row.
dt_status dt_add_bias_backward(const struct dt_pass *pass, int row, struct dt_view dy);

// A causal convolution along the positions of each channel, then SiLU: y = silu(conv1d(x)).
struct dt_conv {
    const struct dt_part *block;
    int64_t taps;
    int weight, bias; // rows of the table
    int state;        // of the block: [B, K-1, channels] storage
    int reset;        // batch array
};
// x, y [M, channels] storage; the last inputs into `after`, unless that is NULL.
dt_status dt_conv_forward(const struct dt_pass *pass, const struct dt_conv *conv, struct dt_view x,
                          struct dt_view y, const struct dt_model_state *after);
// dx =, from dy; the gradients of weight and bias (+)=, which finishes the rows.
dt_status dt_conv_backward(const struct dt_pass *pass, const struct dt_conv *conv, struct dt_view x,
                           struct dt_view dy, struct dt_view dx);
