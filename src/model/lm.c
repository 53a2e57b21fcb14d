// The head of a language model: final RMSNorm, logits (tied to the embedding or not) and loss.
// Reads "labels" [B, L] i32. Logits exist a tile of rows at a time, so their memory
// does not grow with the batch; a tile's gradient goes back through the head at once.
#include "model/kinds.h"

enum { TILE_ROWS_MIN = 128, TILE_ROWS_MAX = 4096 };

struct lm {
    struct dt_part part;
    struct dt_norm norm;     // backbone.norm_f.weight
    struct dt_linear linear; // lm_head.weight, or the embedding where tied
    int labels;
    int64_t tile;  // rows of a tile of logits
    int64_t width; // padded vocabulary
    void *h, *dh;  // [M, d] storage: final normed states, their gradient
    float *logits; // [tile, width]
    void *dlogits; // [tile, width] storage; the logits themselves in fp32
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct lm *lm = (struct lm *)part;
    const struct dt_model_config *c = build->config;
    struct dt_params *params = build->params;
    lm->width = dt_model_padded_vocab(c);
    lm->linear = (struct dt_linear){.in = c->d_model, .out = lm->width};
    if (c->tie_embeddings)
        dt_params_share(params, "backbone.embeddings.weight", &lm->linear.row);
    else
        lm->linear.row = dt_params_add(params, DT_INIT_NORMAL, 0.02, lm->width, 2,
                                       (int64_t[]){c->vocab_size, c->d_model}, "lm_head.weight");
    lm->norm.row =
        dt_params_add(params, DT_INIT_ONE, 0, c->d_model, 1, &c->d_model, "backbone.norm_f.weight");
    lm->norm.last = true;
    lm->labels = dt_build_array(build, "labels", DT_I32, 1, false);
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

static struct dt_xent_args xent_args(const struct lm *lm, const struct dt_net *net, int64_t rows,
                                     double scale)
{
    return (struct dt_xent_args){.rows = rows,
                                 .vocab = net->config->vocab_size,
                                 .width = lm->width,
                                 .logits = lm->logits,
                                 .logits_stride = lm->width,
                                 .scale = (float)scale,
                                 .dtype = net->config->storage,
                                 .dlogits = scale > 0 ? lm->dlogits : NULL,
                                 .dlogits_stride = lm->width,
                                 .workspace = net->workspace,
                                 .workspace_bytes = net->workspace_bytes};
}

// Whole tiles and the last one, then the two forms that inference asks for: the last position of
// each sequence (rows length * d apart) and unpadded logits.
static void plan_products(const struct lm *lm, struct dt_plan *plan)
{
    int64_t d = plan->net->config->d_model;
    struct dt_linear unpadded = lm->linear;
    unpadded.out = plan->net->config->vocab_size;
    for (int last = 0; last < 2; last++) {
        int64_t tile = last ? plan->rows % lm->tile : lm->tile;
        if (tile == 0)
            break;
        dt_linear_plan(plan, lm->linear, tile, d, lm->width, DT_F32);
        dt_linear_plan_forward(plan, unpadded, tile, d, unpadded.out, DT_F32);
    }
    dt_linear_plan_forward(plan, lm->linear, plan->shape.sequences, plan->shape.length * d,
                           lm->width, DT_F32);
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct lm *lm = (struct lm *)part;
    int64_t d = plan->net->config->d_model;
    enum dt_dtype storage = plan->net->config->storage;
    lm->tile = tile_rows(plan->net, lm->width, &plan->shape);
    lm->h = dt_plan_take(plan, &plan->kept, plan->rows, d, storage);
    lm->norm.rstd = dt_plan_take(plan, &plan->kept, plan->rows, 1, DT_F32);
    lm->logits = dt_plan_take(plan, &plan->logits, lm->tile, lm->width, DT_F32);
    if (!plan->shape.training)
        return;
    lm->dlogits = storage == DT_F32
                      ? (void *)lm->logits
                      : dt_plan_take(plan, &plan->logits, lm->tile, lm->width, storage);
    lm->dh = dt_plan_take(plan, &plan->scratch, plan->rows, d, storage);
}

static void plan_workspace(struct dt_part *part, struct dt_plan *plan)
{
    const struct lm *lm = (struct lm *)part;
    struct dt_xent_args xent = xent_args(lm, plan->net, lm->tile, 1);
    plan_products(lm, plan);
    dt_plan_workspace(plan, dt_xent_workspace(plan->net->backend, &xent));
    dt_norm_plan_workspace(plan, &lm->norm);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass,
                         const struct dt_flow *flow)
{
    const struct lm *lm = (struct lm *)part;
    return dt_norm_forward(pass, &lm->norm, flow, lm->h);
}

// Gradients of one tile: dW (+)= dlogitsᵀ · h, dh = dlogits · W.
static dt_status tile_backward(struct lm *lm, const struct dt_pass *pass, int64_t row, int64_t rows,
                               bool accumulate)
{
    const struct dt_net *net = pass->net;
    int64_t d = net->config->d_model;
    DT_TRY(dt_linear_backward_weight(net, lm->linear, rows, lm->dlogits, lm->width,
                                     dt_net_at(net, lm->h, row * d), d, accumulate, pass->stream));
    return dt_linear_backward_input(net, lm->linear, rows, lm->dlogits, lm->width,
                                    dt_net_at(net, lm->dh, row * d), d, pass->stream);
}

static dt_status loss(struct dt_part *part, const struct dt_pass *pass, const struct dt_flow *flow,
                      double scale, struct dt_loss_sum *sum)
{
    struct lm *lm = (struct lm *)part;
    const struct dt_net *net = pass->net;
    const int32_t *labels = pass->input->arrays[lm->labels];
    int64_t d = net->config->d_model;
    for (int64_t row = 0; row < pass->rows; row += lm->tile) {
        int64_t rows = pass->rows - row < lm->tile ? pass->rows - row : lm->tile;
        DT_TRY(dt_linear_forward(net, lm->linear, rows, dt_net_at(net, lm->h, row * d), d,
                                 lm->logits, lm->width, DT_F32, pass->stream));
        struct dt_xent_args xent = xent_args(lm, net, rows, scale);
        xent.labels = labels + row;
        xent.sum = sum;
        DT_TRY(dt_xent(net->backend, &xent, pass->stream));
        if (scale > 0)
            DT_TRY(tile_backward(lm, pass, row, rows, pass->accumulate || row > 0));
    }
    return scale > 0 ? dt_norm_backward(pass, &lm->norm, flow, lm->dh) : DT_OK;
}

static dt_status last_logits(struct dt_part *part, const struct dt_pass *pass, const float **logits,
                             int64_t *stride)
{
    const struct lm *lm = (struct lm *)part;
    int64_t B = pass->input->sequences, L = pass->input->length, d = pass->net->config->d_model;
    *logits = lm->logits;
    *stride = lm->width;
    return dt_linear_forward(pass->net, lm->linear, B, dt_net_at(pass->net, lm->h, (L - 1) * d),
                             L * d, lm->logits, lm->width, DT_F32, pass->stream);
}

static dt_status logits(struct dt_part *part, const struct dt_pass *pass, float *out)
{
    const struct lm *lm = (struct lm *)part;
    int64_t d = pass->net->config->d_model;
    struct dt_linear unpadded = lm->linear;
    unpadded.out = pass->net->config->vocab_size;
    for (int64_t row = 0; row < pass->rows; row += lm->tile) {
        int64_t n = pass->rows - row < lm->tile ? pass->rows - row : lm->tile;
        DT_TRY(dt_linear_forward(pass->net, unpadded, n, dt_net_at(pass->net, lm->h, row * d), d,
                                 out + row * unpadded.out, unpadded.out, DT_F32, pass->stream));
    }
    return DT_OK;
}

// GEMM: 2 FLOPs a weight forward, 4 backward.
static double flops_per_token(const struct dt_model_config *config)
{
    return 6 * (double)config->vocab_size * (double)config->d_model;
}

const struct dt_head_kind dt_lm_head = {
    .kind = {.name = "lm",
             .size = sizeof(struct lm),
             .create = create,
             .plan = plan,
             .plan_workspace = plan_workspace,
             .flops_per_token = flops_per_token},
    .forward = forward,
    .loss = loss,
    .last_logits = last_logits,
    .logits = logits,
};
