// The stem of a language model: token embedding opens the residual stream in fp32.
// Reads "input_ids" [B, L] i32. Row: backbone.embeddings.weight [V, d].
#include "model/kinds.h"

struct tokens {
    struct dt_part part;
    int row, ids;
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct tokens *t = (struct tokens *)part;
    const struct dt_model_config *c = build->config;
    t->row = dt_params_add(build->params, DT_INIT_NORMAL, 0.02, dt_model_padded_vocab(c), 2,
                           (int64_t[]){c->vocab_size, c->d_model}, "backbone.embeddings.weight");
    t->ids = dt_build_array(build, "input_ids", DT_I32, 1, false);
}

static struct dt_embed_backward_args backward_args(const struct tokens *t, const struct dt_net *net,
                                                   int64_t rows)
{
    return (struct dt_embed_backward_args){.rows = rows,
                                           .width = net->config->d_model,
                                           .vocab = dt_model_padded_vocab(net->config),
                                           .dtable = dt_net_gradient(net, t->row),
                                           .workspace = net->workspace,
                                           .workspace_bytes = net->workspace_bytes};
}

static void plan_workspace(struct dt_part *part, struct dt_plan *plan)
{
    struct dt_embed_backward_args args =
        backward_args((struct tokens *)part, plan->net, plan->rows);
    if (plan->shape.training)
        dt_plan_workspace(plan, dt_embed_backward_workspace(plan->net->backend, &args));
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, float *residual)
{
    const struct tokens *t = (struct tokens *)part;
    const struct dt_net *net = pass->net;
    struct dt_embed_forward_args args = {.rows = pass->rows,
                                         .width = net->config->d_model,
                                         .vocab = dt_model_padded_vocab(net->config),
                                         .dtype = net->config->storage,
                                         .ids = pass->input->arrays[t->ids],
                                         .table = dt_net_stored(net, t->row),
                                         .out = residual};
    return dt_embed_forward(net->backend, &args, pass->stream);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass, const float *dresidual)
{
    const struct tokens *t = (struct tokens *)part;
    struct dt_embed_backward_args args = backward_args(t, pass->net, pass->rows);
    args.ids = pass->input->arrays[t->ids];
    args.dout = dresidual;
    args.accumulate = pass->accumulate || pass->net->params->rows[t->row].shared;
    DT_TRY(dt_embed_backward(pass->net->backend, &args, pass->stream));
    return dt_pass_ready(pass, t->row);
}

const struct dt_stem_kind dt_tokens_stem = {
    .kind = {.name = "tokens",
             .size = sizeof(struct tokens),
             .create = create,
             .plan_workspace = plan_workspace},
    .tokens = "input_ids",
    .forward = forward,
    .backward = backward,
};
