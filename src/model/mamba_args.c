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
                                                .reset = input->reset,
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
                                                 .reset = input->reset,
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
                                         .reset = input->reset,
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

struct dt_rmsnorm_residual_forward_args mamba_norm_args(const struct mamba *m,
                                                        const struct dt_net *net, int64_t rows)
{
    return (struct dt_rmsnorm_residual_forward_args){.rows = rows,
                                                     .width = m->d,
                                                     .dtype = net->config->storage,
                                                     .eps = (float)net->config->norm_eps,
                                                     .x_stride = m->d,
                                                     .weight = dt_net_weight(net, m->norm),
                                                     .y = m->h,
                                                     .y_stride = m->d,
                                                     .rstd = m->rstd};
}

struct dt_rmsnorm_residual_backward_args
mamba_norm_backward_args(const struct mamba *m, const struct dt_net *net, int64_t rows)
{
    return (struct dt_rmsnorm_residual_backward_args){.rows = rows,
                                                      .width = m->d,
                                                      .dtype = net->config->storage,
                                                      .dy = m->dh,
                                                      .dy_stride = m->d,
                                                      .rstd = m->rstd,
                                                      .weight = dt_net_weight(net, m->norm),
                                                      .dx_stride = m->d,
                                                      .dweight = dt_net_gradient(net, m->norm),
                                                      .workspace = net->workspace,
                                                      .workspace_bytes = net->workspace_bytes};
}

static void plan_workspace(const struct mamba *m, struct dt_plan *plan)
{
    const struct dt_net *net = plan->net;
    const struct dt_backend *backend = net->backend;
    struct dt_model_input input = {.sequences = plan->shape.sequences,
                                   .length = plan->shape.length};
    int64_t rows = input.sequences * input.length;
    struct dt_scan_forward_args scan = mamba_scan_args(m, net, &input);
    dt_plan_workspace(plan, dt_scan_forward_workspace(backend, &scan));
    enum dt_dtype storage = net->config->storage;
    dt_linear_plan(plan, m->in_proj, rows, m->d, 2 * m->E, storage);
    dt_linear_plan(plan, m->x_proj, rows, m->E, m->slices, storage);
    dt_linear_plan(plan, m->dt_proj, rows, m->slices, m->E, storage);
    dt_linear_plan(plan, m->out_proj, rows, m->E, m->d, storage);
    if (!plan->shape.training)
        return;
    struct dt_scan_backward_args scan_backward = mamba_scan_backward_args(m, net, &input);
    struct dt_conv1d_silu_backward_args conv = mamba_conv_backward_args(m, net, &input);
    struct dt_rmsnorm_residual_backward_args norm = mamba_norm_backward_args(m, net, rows);
    dt_plan_workspace(plan, dt_scan_backward_workspace(backend, &scan_backward));
    dt_plan_workspace(plan, dt_conv1d_silu_backward_workspace(backend, &conv));
    dt_plan_workspace(plan, dt_rmsnorm_residual_backward_workspace(backend, &norm));
}

void mamba_plan(struct dt_block *block, struct dt_plan *plan)
{
    struct mamba *m = (struct mamba *)block;
    const struct dt_net *net = plan->net;
    int64_t B = plan->shape.sequences, L = plan->shape.length, M = B * L,
            size = dt_net_storage_size(net);
    enum dt_recompute recompute =
        plan->shape.training ? net->config->recompute : DT_RECOMPUTE_BLOCK;
    struct dt_arena *border = recompute >= DT_RECOMPUTE_BLOCK ? &plan->scratch : &plan->kept;
    struct dt_arena *inner = recompute >= DT_RECOMPUTE_SCAN ? &plan->scratch : &plan->kept;
    m->chunk = net->backend->op->scan_chunk;
    m->slices = dt_net_stride(net, m->R + 2 * m->N);
    m->h = dt_arena_take(border, M * m->d * size);
    m->rstd = dt_arena_take(border, M * 4);
    m->xz = dt_arena_take(border, M * 2 * m->E * size);
    m->u = dt_arena_take(inner, M * m->E * size);
    m->dbc = dt_arena_take(inner, M * m->slices * size);
    m->delta = dt_arena_take(inner, M * m->E * size);
    m->y = dt_arena_take(inner, M * m->E * size);
    if (plan->shape.training) {
        int64_t chunks = (L + m->chunk - 1) / m->chunk;
        m->states = dt_arena_take(inner, B * chunks * m->N * m->E * 4);
        m->dxz = dt_arena_take(&plan->scratch, M * 2 * m->E * size);
        m->du = dt_arena_take(&plan->scratch, M * m->E * size);
        m->ddbc = dt_arena_take(&plan->scratch, M * m->slices * size);
        m->ddelta = dt_arena_take(&plan->scratch, M * m->E * size);
        m->dy = dt_arena_take(&plan->scratch, M * m->E * size);
        m->dh = dt_arena_take(&plan->scratch, M * m->d * size);
    }
    plan_workspace(m, plan);
}
