// The head: final RMSNorm, logits and loss. Logits exist a tile of rows at a time, so their memory
// does not grow with the batch; a tile's gradient goes back through the head at once.
#include "model/net.h"

enum { TILE_ROWS_MIN = 128, TILE_ROWS_MAX = 4096 };

void dt_head_params(struct dt_head *head, const struct dt_model_config *config,
                    struct dt_params *params)
{
    int64_t d = config->d_model, shape[] = {config->vocab_size, d};
    head->width = dt_model_padded_vocab(config);
    head->linear = (struct dt_linear){.row = -1, .in = d, .out = head->width};
    if (!config->tie_embeddings)
        head->linear.row =
            dt_params_add(params, DT_INIT_NORMAL, 0.02, head->width, 2, shape, "lm_head.weight");
    head->norm = dt_params_add(params, DT_INIT_ONE, 0, d, 1, &d, "backbone.norm_f.weight");
}

static int64_t tile_rows(const struct dt_net *net, int64_t width,
                         const struct dt_model_shape *shape)
{
    int64_t rows = shape->sequences * shape->length, tile = net->backend->op->logits_tile / width;
    tile = tile < TILE_ROWS_MIN ? TILE_ROWS_MIN : tile > TILE_ROWS_MAX ? TILE_ROWS_MAX : tile;
    tile = tile > rows ? rows : tile;
    return tile < shape->sequences ? shape->sequences
                                   : tile; // one row a sequence for the last logits
}

static struct dt_xent_args xent_args(const struct dt_head *head, const struct dt_net *net,
                                     int64_t rows, double scale)
{
    return (struct dt_xent_args){.rows = rows,
                                 .vocab = net->config->vocab_size,
                                 .width = head->width,
                                 .logits = head->logits,
                                 .logits_stride = head->width,
                                 .scale = (float)scale,
                                 .dtype = net->config->storage,
                                 .dlogits = scale > 0 ? head->dlogits : NULL,
                                 .dlogits_stride = head->width,
                                 .workspace = net->workspace,
                                 .workspace_bytes = net->workspace_bytes};
}

static struct dt_rmsnorm_residual_backward_args
norm_backward_args(const struct dt_head *head, const struct dt_net *net, int64_t rows)
{
    return (struct dt_rmsnorm_residual_backward_args){.rows = rows,
                                                      .width = net->config->d_model,
                                                      .dtype = net->config->storage,
                                                      .dy = head->dh,
                                                      .dy_stride = net->config->d_model,
                                                      .rstd = head->rstd,
                                                      .weight = dt_net_weight(net, head->norm),
                                                      .first = true,
                                                      .dx_stride = net->config->d_model,
                                                      .dweight = dt_net_gradient(net, head->norm),
                                                      .workspace = net->workspace,
                                                      .workspace_bytes = net->workspace_bytes};
}

// Whole tiles and the last one, then the two forms that inference asks for: the last position of
// each sequence (rows length * d apart) and unpadded logits.
static void plan_products(const struct dt_head *head, struct dt_plan *plan)
{
    int64_t d = plan->net->config->d_model, rows = plan->shape.sequences * plan->shape.length;
    struct dt_linear unpadded = head->linear;
    unpadded.out = plan->net->config->vocab_size;
    for (int last = 0; last < 2; last++) {
        int64_t tile = last ? rows % head->tile : head->tile;
        if (tile == 0)
            break;
        dt_linear_plan(plan, head->linear, tile, d, head->width, DT_F32);
        dt_linear_plan_forward(plan, unpadded, tile, d, unpadded.out, DT_F32);
    }
    dt_linear_plan_forward(plan, head->linear, plan->shape.sequences, plan->shape.length * d,
                           head->width, DT_F32);
}

void dt_head_plan(struct dt_head *head, struct dt_plan *plan)
{
    const struct dt_net *net = plan->net;
    int64_t rows = plan->shape.sequences * plan->shape.length, size = dt_net_storage_size(net);
    head->tile = tile_rows(net, head->width, &plan->shape);
    head->h = dt_arena_take(&plan->kept, rows * net->config->d_model * size);
    head->rstd = dt_arena_take(&plan->kept, rows * 4);
    head->logits = dt_arena_take(&plan->logits, head->tile * head->width * 4);
    plan_products(head, plan);
    struct dt_xent_args xent = xent_args(head, net, head->tile, 1);
    dt_plan_workspace(plan, dt_xent_workspace(net->backend, &xent));
    if (!plan->shape.training)
        return;
    bool apart = net->config->storage != DT_F32;
    head->dlogits =
        apart ? dt_arena_take(&plan->logits, head->tile * head->width * size) : head->logits;
    head->dh = dt_arena_take(&plan->scratch, rows * net->config->d_model * size);
    struct dt_rmsnorm_residual_backward_args norm = norm_backward_args(head, net, rows);
    dt_plan_workspace(plan, dt_rmsnorm_residual_backward_workspace(net->backend, &norm));
}

dt_status dt_head_forward(struct dt_head *head, const struct dt_pass *pass,
                          const struct dt_flow *flow)
{
    const struct dt_net *net = pass->net;
    int64_t d = net->config->d_model;
    struct dt_rmsnorm_residual_forward_args args = {.rows = pass->rows,
                                                    .width = d,
                                                    .dtype = net->config->storage,
                                                    .eps = (float)net->config->norm_eps,
                                                    .residual = flow->residual_in,
                                                    .x = flow->x,
                                                    .x_stride = d,
                                                    .weight = dt_net_weight(net, head->norm),
                                                    .residual_out = flow->residual,
                                                    .y = head->h,
                                                    .y_stride = d,
                                                    .rstd = head->rstd};
    return dt_rmsnorm_residual_forward(net->backend, &args, pass->stream);
}

// Gradients of one tile: dW (+)= dlogitsᵀ · h, dh = dlogits · W.
static dt_status tile_backward(struct dt_head *head, const struct dt_pass *pass, int64_t row,
                               int64_t rows, bool accumulate)
{
    const struct dt_net *net = pass->net;
    int64_t d = net->config->d_model;
    DT_TRY(dt_linear_backward_weight(net, head->linear, rows, head->dlogits, head->width,
                                     dt_net_at(net, head->h, row * d), d, accumulate,
                                     pass->stream));
    return dt_linear_backward_input(net, head->linear, rows, head->dlogits, head->width,
                                    dt_net_at(net, head->dh, row * d), d, pass->stream);
}

dt_status dt_head_loss(struct dt_head *head, const struct dt_pass *pass, const struct dt_flow *flow,
                       double scale, struct dt_loss_sum *sum)
{
    const struct dt_net *net = pass->net;
    int64_t d = net->config->d_model;
    for (int64_t row = 0; row < pass->rows; row += head->tile) {
        int64_t rows = pass->rows - row < head->tile ? pass->rows - row : head->tile;
        DT_TRY(dt_linear_forward(net, head->linear, rows, dt_net_at(net, head->h, row * d), d,
                                 head->logits, head->width, DT_F32, pass->stream));
        struct dt_xent_args xent = xent_args(head, net, rows, scale);
        xent.labels = pass->input->labels + row;
        xent.sum = sum;
        DT_TRY(dt_xent(net->backend, &xent, pass->stream));
        if (scale > 0)
            DT_TRY(tile_backward(head, pass, row, rows, pass->accumulate || row > 0));
    }
    if (!(scale > 0))
        return DT_OK;
    struct dt_rmsnorm_residual_backward_args norm = norm_backward_args(head, net, pass->rows);
    norm.residual = flow->residual;
    norm.dresidual = flow->dresidual;
    norm.dx = flow->x;
    norm.accumulate = pass->accumulate;
    return dt_rmsnorm_residual_backward(net->backend, &norm, pass->stream);
}
