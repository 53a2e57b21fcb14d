// The stem: token embedding opens the residual stream in fp32.
#include "model/net.h"

int dt_stem_params(const struct dt_model_config *config, struct dt_params *params)
{
    int64_t shape[] = {config->vocab_size, config->d_model};
    return dt_params_add(params, DT_INIT_NORMAL, 0.02, dt_model_padded_vocab(config), 2, shape,
                         "backbone.embeddings.weight");
}

static struct dt_embed_backward_args backward_args(const struct dt_net *net, int row, int64_t rows)
{
    return (struct dt_embed_backward_args){.rows = rows,
                                           .width = net->config->d_model,
                                           .vocab = dt_model_padded_vocab(net->config),
                                           .dtable = dt_net_gradient(net, row),
                                           .workspace = net->workspace,
                                           .workspace_bytes = net->workspace_bytes};
}

void dt_stem_plan(struct dt_plan *plan, int row)
{
    if (!plan->shape.training)
        return;
    struct dt_embed_backward_args args =
        backward_args(plan->net, row, plan->shape.sequences * plan->shape.length);
    dt_plan_workspace(plan, dt_embed_backward_workspace(plan->net->backend, &args));
}

dt_status dt_stem_forward(const struct dt_pass *pass, int row, float *residual)
{
    const struct dt_net *net = pass->net;
    struct dt_embed_forward_args args = {.rows = pass->rows,
                                         .width = net->config->d_model,
                                         .vocab = dt_model_padded_vocab(net->config),
                                         .dtype = net->config->storage,
                                         .ids = pass->input->ids,
                                         .table = dt_net_matrix(net, row),
                                         .out = residual};
    return dt_embed_forward(net->backend, &args, pass->stream);
}

dt_status dt_stem_backward(const struct dt_pass *pass, int row, const float *dresidual, bool shared)
{
    struct dt_embed_backward_args args = backward_args(pass->net, row, pass->rows);
    args.ids = pass->input->ids;
    args.dout = dresidual;
    args.accumulate = shared || pass->accumulate;
    DT_TRY(dt_embed_backward(pass->net->backend, &args, pass->stream));
    return dt_pass_ready(pass, row);
}
