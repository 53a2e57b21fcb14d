// What stem, blocks and head share inside the model room: the net (weights, gradients, workspace),
// the memory plan, linear layers, and the small interface of each kind. Other kinds slot in beside
// these.
#pragma once

#include "model/model.h"

// Weights and gradients as the parts see them. Pointers are NULL while memory is being measured.
struct dt_net {
    const struct dt_backend *backend;
    const struct dt_model_config *config;
    const struct dt_params *params;
    float *weights;   // masters
    void *matrices;   // what GEMM and look-up read: bf16 copies, or the masters themselves
    float *gradients; // NULL: no training
    void *workspace;
    int64_t workspace_bytes;
};

// Memory being planned: the same code first measures on arenas without memory, then places.
struct dt_plan {
    struct dt_net *net;
    struct dt_model_shape shape;
    struct dt_arena kept;    // lives from forward to backward
    struct dt_arena scratch; // shared by all layers
    struct dt_arena logits;
    int64_t workspace; // bytes: the most that any op asks for
};
void dt_plan_workspace(struct dt_plan *plan, int64_t bytes);

static inline int64_t dt_net_storage_size(const struct dt_net *net)
{
    return dt_dtype_size(net->config->storage);
}
// Row `row` of the table: fp32 master, storage form, gradient. NULL where the array is not there
// (yet).
const float *dt_net_weight(const struct dt_net *net, int row);
const void *dt_net_matrix(const struct dt_net *net, int row);
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

// The stem: token embedding. Row: backbone.embeddings.weight.
int dt_stem_params(const struct dt_model_config *config, struct dt_params *params);
void dt_stem_plan(struct dt_plan *plan, int row);
dt_status dt_stem_forward(const struct dt_pass *pass, int row, float *residual);
// `shared`: the head wrote its part of the same row before.
dt_status dt_stem_backward(const struct dt_pass *pass, int row, const float *dresidual,
                           bool shared);

// What flows between blocks; buffers belong to the model.
struct dt_flow {
    const float *residual_in; // [M, d] fp32: the stream before x is added
    float *residual; // [M, d] fp32: with x added; kept for backward. NULL forward: there is no x
    void *x;   // [M, d] storage: the block before's output (NULL: none), backward: its gradient
    void *out; // [M, d] storage: this block's output
    float *dresidual; // [M, d] fp32, backward: gradient of the stream, in and out
};

// A block kind. Block objects are made by `create` once a layer and know their rows and memory.
struct dt_block;
struct dt_block_kind {
    const char *name;
    // Appends the rows of layer `layer` in the order in which its backward finishes them.
    struct dt_block *(*create)(const struct dt_model_config *config, int64_t layer,
                               struct dt_params *params);
    void (*destroy)(struct dt_block *block);
    // Takes kept memory and, into scratch, what all layers share: the model releases scratch
    // between layers.
    void (*plan)(struct dt_block *block, struct dt_plan *plan);
    dt_status (*forward)(struct dt_block *block, const struct dt_pass *pass,
                         const struct dt_flow *flow);
    // In: flow->x the gradient of the block's output, dresidual. Out: flow->x the gradient of the
    // block before's output, dresidual updated.
    dt_status (*backward)(struct dt_block *block, const struct dt_pass *pass,
                          const struct dt_flow *flow);
    double (*flops_per_token)(const struct dt_model_config *config); // of training
};
struct dt_block {
    const struct dt_block_kind *kind;
    int64_t layer;
};
extern const struct dt_block_kind dt_mamba_block;

// The head: final norm and tied (or own) language-model head with its loss, a tile of rows at a
// time.
struct dt_head {
    int norm;                // row of backbone.norm_f.weight
    struct dt_linear linear; // lm_head.weight, or the embedding where tied
    int64_t tile;            // rows of a tile of logits
    int64_t width;           // padded vocabulary
    void *h, *dh;            // [M, d] storage: final normed states, their gradient
    float *rstd;             // [M]
    float *logits;           // [tile, width] fp32
    void *dlogits;           // [tile, width] storage; the logits themselves in fp32
};
// Appends lm_head (untied) and the norm; linear.row is set later where the embedding is shared.
void dt_head_params(struct dt_head *head, const struct dt_model_config *config,
                    struct dt_params *params);
void dt_head_plan(struct dt_head *head, struct dt_plan *plan);
dt_status dt_head_forward(struct dt_head *head, const struct dt_pass *pass,
                          const struct dt_flow *flow);
// scale > 0: gradients too; flow->dresidual and flow->x then hold the gradient that blocks go on
// from.
dt_status dt_head_loss(struct dt_head *head, const struct dt_pass *pass, const struct dt_flow *flow,
                       double scale, struct dt_loss_sum *sum);
