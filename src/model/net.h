// What the parts of a model work with: the net (weights, gradients, workspace), the memory plan,
// the passes, and the layers that many of them have (linear, norm).
#pragma once

#include "model/model.h"

// Weights and gradients as the parts see them. Pointers are NULL while memory is being measured.
struct dt_net {
    const struct dt_backend *backend;
    const struct dt_model_config *config;
    const struct dt_params *params;
    float *weights;   // masters
    void *stored;     // in storage type, what GEMM and look-up read: bf16 copies, or the masters
    float *gradients; // NULL: no training
    void *workspace;
    int64_t workspace_bytes;
};

// Memory being planned: the same code first measures on arenas without memory, then places.
struct dt_plan {
    struct dt_net *net;
    struct dt_model_shape shape;
    int64_t rows;            // B·L
    struct dt_arena kept;    // lives from forward to backward
    struct dt_arena scratch; // shared by all layers
    struct dt_arena logits;
    int64_t workspace; // bytes: the most that any op asks for
    bool too_large;    // no machine has so much
};
// [rows, cols] of `type` from one of the plan's arenas.
void *dt_plan_take(struct dt_plan *plan, struct dt_arena *arena, int64_t rows, int64_t cols,
                   enum dt_dtype type);
// Where goes what backward needs, if model.recompute from `level` on makes it again: kept, or
// scratch.
struct dt_arena *dt_plan_arena(struct dt_plan *plan, enum dt_recompute level);
void dt_plan_workspace(struct dt_plan *plan, int64_t bytes);

static inline int64_t dt_net_storage_size(const struct dt_net *net)
{
    return dt_dtype_size(net->config->storage);
}
// Row `row` of the table: fp32 master, storage form, gradient. NULL where the array is not there
// (yet).
const float *dt_net_weight(const struct dt_net *net, int row);
const void *dt_net_stored(const struct dt_net *net, int row);
float *dt_net_gradient(const struct dt_net *net, int row);

// `pointer` moved by `elements` of storage type; NULL stays NULL.
void *dt_net_at(const struct dt_net *net, const void *pointer, int64_t elements);
// Elements of a row of `width`, rounded up so that rows keep 16-byte alignment.
int64_t dt_net_stride(const struct dt_net *net, int64_t width);

// A linear layer without bias: y = x · Wᵀ, W [out, in] in row `row` of the table.
struct dt_linear {
    int row;
    int64_t in, out;
    bool adds; // its dx is added to one that is there
};
// y [rows, out] of storage type, or of fp32 with y_type DT_F32.
dt_status dt_linear_forward(const struct dt_net *net, struct dt_linear linear, int64_t rows,
                            const void *x, int64_t ldx, void *y, int64_t ldy, enum dt_dtype y_type,
                            struct dt_stream *stream);
// dx [rows, in] = or, where the layer adds, += dy · W.
dt_status dt_linear_backward_input(const struct dt_net *net, struct dt_linear linear, int64_t rows,
                                   const void *dy, int64_t lddy, void *dx, int64_t lddx,
                                   struct dt_stream *stream);
// dW [out, in] = or, with accumulate, += dyᵀ · x.
dt_status dt_linear_backward_weight(const struct dt_net *net, struct dt_linear linear, int64_t rows,
                                    const void *dy, int64_t lddy, const void *x, int64_t ldx,
                                    bool accumulate, struct dt_stream *stream);
// Asks for the workspace of the first, or of all three where the model is trained, at `rows` rows.
// The row strides are those of the calls: a product's workspace depends on them.
void dt_linear_plan_forward(struct dt_plan *plan, struct dt_linear linear, int64_t rows,
                            int64_t ldx, int64_t ldy, enum dt_dtype y_type);
void dt_linear_plan(struct dt_plan *plan, struct dt_linear linear, int64_t rows, int64_t ldx,
                    int64_t ldy, enum dt_dtype y_type);

// What a pass gives to every part.
struct dt_pass {
    const struct dt_net *net;
    const struct dt_model_input *input;
    int64_t rows;                        // M = B·L
    const struct dt_model_state *before; // or NULL
    struct dt_model_state *after;        // or NULL
    bool accumulate;                     // weight gradients: += instead of =
    dt_grad_ready grad_ready;            // or NULL
    void *context;
    struct dt_stream *stream;
};
dt_status dt_pass_ready(const struct dt_pass *pass, int row);

// What flows between blocks; buffers belong to the model.
struct dt_flow {
    const float *residual_in; // [M, d] fp32: the stream before x is added
    float *residual; // [M, d] fp32: with x added; kept for backward. NULL forward: there is no x
    void *x;   // [M, d] storage: the block before's output (NULL: none), backward: its gradient
    void *out; // [M, d] storage: this block's output
    float *dresidual; // [M, d] fp32, backward: gradient of the stream, in and out
};

// The RMSNorm that opens a block and a head: r = residual + x, h = r / rms(r) · w.
struct dt_norm {
    int row;
    float *rstd; // [M]
    bool last;   // of the network: its backward starts dresidual
};
// h [M, d] storage; r into flow->residual.
dt_status dt_norm_forward(const struct dt_pass *pass, const struct dt_norm *norm,
                          const struct dt_flow *flow, void *h);
// The same h again from r, in backward.
dt_status dt_norm_recompute(const struct dt_pass *pass, const struct dt_norm *norm,
                            const struct dt_flow *flow, void *h);
// From dh [M, d] storage: flow->dresidual += (last: =), and flow->x = it in storage.
dt_status dt_norm_backward(const struct dt_pass *pass, const struct dt_norm *norm,
                           const struct dt_flow *flow, const void *dh);
void dt_norm_plan_workspace(struct dt_plan *plan, const struct dt_norm *norm);
