// The arguments of a Mamba block's ops, made by one function each for running, for making again in
// backward, and for planning; and the plan of its memory.
#include "model/mamba.h"

struct dt_conv1d_silu_forward_args mamba_conv_args(const struct mamba *m, const struct dt_net *net,
                                                   const struct dt_model_input *input)
{
    return (struct dt_conv1d_silu_forward_args){.batch = input->sequences,
                                                .length = input->length,
                                                .channels = m->E,
                                                .taps = m->K,
                                                .dtype = net->config->storage,
                                                .x = m->xz,
                                                .x_stride = 2 * m->E,
                                                .weight = dt_net_weight(net, m->conv_weight),
                                                .bias = dt_net_weight(net, m->conv_bias),
                                                .reset = input->arrays[m->reset],
                                                .y = m->u,
                                                .y_stride = m->E};
}

struct dt_conv1d_silu_backward_args mamba_conv_backward_args(const struct mamba *m,
                                                             const struct dt_net *net,
                                                             const struct dt_model_input *input)
{
    return (struct dt_conv1d_silu_backward_args){.batch = input->sequences,
                                                 .length = input->length,
                                                 .channels = m->E,
                                                 .taps = m->K,
                                                 .dtype = net->config->storage,
                                                 .x = m->xz,
                                                 .x_stride = 2 * m->E,
                                                 .weight = dt_net_weight(net, m->conv_weight),
                                                 .bias = dt_net_weight(net, m->conv_bias),
                                                 .reset = input->arrays[m->reset],
                                                 .dy = m->du,
                                                 .dy_stride = m->E,
                                                 .dx = m->dxz,
                                                 .dx_stride = 2 * m->E,
                                                 .dweight = dt_net_gradient(net, m->conv_weight),
                                                 .dbias = dt_net_gradient(net, m->conv_bias),
                                                 .workspace = net->workspace,
                                                 .workspace_bytes = net->workspace_bytes};
}

struct dt_scan_forward_args mamba_scan_args(const struct mamba *m, const struct dt_net *net,
                                            const struct dt_model_input *input)
{
    return (struct dt_scan_forward_args){.batch = input->sequences,
                                         .length = input->length,
                                         .channels = m->E,
                                         .state = m->N,
                                         .chunk = m->chunk,
                                         .dtype = net->config->storage,
                                         .u = m->u,
                                         .u_stride = m->E,
                                         .delta = m->delta,
                                         .delta_stride = m->E,
                                         .z = dt_net_at(net, m->xz, m->E),
                                         .z_stride = 2 * m->E,
                                         .b = dt_net_at(net, m->dbc, m->R),
                                         .b_stride = m->slices,
                                         .c = dt_net_at(net, m->dbc, m->R + m->N),
                                         .c_stride = m->slices,
                                         .a_log = dt_net_weight(net, m->a_log),
                                         .d_skip = dt_net_weight(net, m->d_skip),
                                         .dt_bias = dt_net_weight(net, m->dt_bias),
                                         .reset = input->arrays[m->reset],
                                         .y = m->y,
                                         .y_stride = m->E,
                                         .states = m->states,
                                         .workspace = net->workspace,
                                         .workspace_bytes = net->workspace_bytes};
}

struct dt_scan_backward_args mamba_scan_backward_args(const struct mamba *m,
                                                      const struct dt_net *net,
                                                      const struct dt_model_input *input)
{
    const struct dt_scan_forward_args f = mamba_scan_args(m, net, input);
    return (struct dt_scan_backward_args){.batch = f.batch,
                                          .length = f.length,
                                          .channels = f.channels,
                                          .state = f.state,
                                          .chunk = f.chunk,
                                          .dtype = f.dtype,
                                          .u = f.u,
                                          .u_stride = f.u_stride,
                                          .delta = f.delta,
                                          .delta_stride = f.delta_stride,
                                          .z = f.z,
                                          .z_stride = f.z_stride,
                                          .b = f.b,
                                          .b_stride = f.b_stride,
                                          .c = f.c,
                                          .c_stride = f.c_stride,
                                          .a_log = f.a_log,
                                          .d_skip = f.d_skip,
                                          .dt_bias = f.dt_bias,
                                          .reset = f.reset,
                                          .states = f.states,
                                          .dy = m->dy,
                                          .dy_stride = m->E,
                                          .du = m->du,
                                          .du_stride = m->E,
                                          .ddelta = m->ddelta,
                                          .ddelta_stride = m->E,
                                          .dz = dt_net_at(net, m->dxz, m->E),
                                          .dz_stride = 2 * m->E,
                                          .db = dt_net_at(net, m->ddbc, m->R),
                                          .db_stride = m->slices,
                                          .dc = dt_net_at(net, m->ddbc, m->R + m->N),
                                          .dc_stride = m->slices,
                                          .da_log = dt_net_gradient(net, m->a_log),
                                          .dd_skip = dt_net_gradient(net, m->d_skip),
                                          .ddt_bias = dt_net_gradient(net, m->dt_bias),
                                          .workspace = net->workspace,
                                          .workspace_bytes = net->workspace_bytes};
}

void mamba_plan(struct dt_part *part, struct dt_plan *plan)
{
    struct mamba *m = (struct mamba *)part;
    const struct dt_net *net = plan->net;
    int64_t B = plan->shape.sequences, L = plan->shape.length, M = plan->rows;
    enum dt_dtype storage = net->config->storage;
    struct dt_arena *border = dt_plan_arena(plan, DT_RECOMPUTE_BLOCK),
                    *inner = dt_plan_arena(plan, DT_RECOMPUTE_SCAN), *scratch = &plan->scratch;
    m->chunk = net->backend->op->scan_chunk;
    m->slices = dt_net_stride(net, m->R + 2 * m->N);
    m->h = dt_plan_take(plan, border, M, m->d, storage);
    m->norm.rstd = dt_plan_take(plan, border, M, 1, DT_F32);
    m->xz = dt_plan_take(plan, border, M, 2 * m->E, storage);
    m->u = dt_plan_take(plan, inner, M, m->E, storage);
    m->dbc = dt_plan_take(plan, inner, M, m->slices, storage);
    m->delta = dt_plan_take(plan, inner, M, m->E, storage);
    m->y = dt_plan_take(plan, inner, M, m->E, storage);
    if (!plan->shape.training)
        return;
    int64_t chunks = (L + m->chunk - 1) / m->chunk;
    m->states = dt_plan_take(plan, inner, B * chunks, m->N * m->E, DT_F32);
    m->dxz = dt_plan_take(plan, scratch, M, 2 * m->E, storage);
    m->du = dt_plan_take(plan, scratch, M, m->E, storage);
    m->ddbc = dt_plan_take(plan, scratch, M, m->slices, storage);
    m->ddelta = dt_plan_take(plan, scratch, M, m->E, storage);
    m->dy = dt_plan_take(plan, scratch, M, m->E, storage);
    m->dh = dt_plan_take(plan, scratch, M, m->d, storage);
}

void mamba_plan_workspace(struct dt_part *part, struct dt_plan *plan)
{
    struct mamba *m = (struct mamba *)part;
    const struct dt_net *net = plan->net;
    const struct dt_backend *backend = net->backend;
    struct dt_model_input input = {.sequences = plan->shape.sequences,
                                   .length = plan->shape.length};
    struct dt_scan_forward_args scan = mamba_scan_args(m, net, &input);
    dt_plan_workspace(plan, dt_scan_forward_workspace(backend, &scan));
    enum dt_dtype storage = net->config->storage;
    dt_linear_plan(plan, m->in_proj, plan->rows, m->d, 2 * m->E, storage);
    dt_linear_plan(plan, m->x_proj, plan->rows, m->E, m->slices, storage);
    dt_linear_plan(plan, m->dt_proj, plan->rows, m->slices, m->E, storage);
    dt_linear_plan(plan, m->out_proj, plan->rows, m->E, m->d, storage);
    dt_norm_plan_workspace(plan, &m->norm);
    if (!plan->shape.training)
        return;
    struct dt_scan_backward_args scan_backward = mamba_scan_backward_args(m, net, &input);
    struct dt_conv1d_silu_backward_args conv = mamba_conv_backward_args(m, net, &input);
    dt_plan_workspace(plan, dt_scan_backward_workspace(backend, &scan_backward));
    dt_plan_workspace(plan, dt_conv1d_silu_backward_workspace(backend, &conv));
}
