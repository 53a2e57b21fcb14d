// The arguments of a Mamba block's ops, made by one function each for running, for making again in
// backward, and for planning; and the plan of its memory.
#include "model/mamba.h"

static struct dt_conv1d_silu_inputs conv_inputs(const struct mamba *m, const struct dt_net *net,
                                                const struct dt_model_input *input)
{
    int64_t rows = input->sequences * input->length;
    struct dt_view xz = dt_view_of(m->xz, rows, 2 * m->E, net->config->storage);
    return (struct dt_conv1d_silu_inputs){.batch = input->sequences,
                                          .length = input->length,
                                          .taps = m->K,
                                          .x = dt_view_cols(xz, 0, m->E),
                                          .weight = dt_net_weight(net, m->conv_weight),
                                          .bias = dt_net_weight(net, m->conv_bias),
                                          .reset = input->arrays[m->reset]};
}

struct dt_conv1d_silu_forward_args mamba_conv_args(const struct mamba *m, const struct dt_net *net,
                                                   const struct dt_model_input *input)
{
    struct dt_conv1d_silu_inputs in = conv_inputs(m, net, input);
    return (struct dt_conv1d_silu_forward_args){.in = in,
                                                .y = dt_view_of(m->u, in.x.rows, m->E, in.x.dtype)};
}

struct dt_conv1d_silu_backward_args mamba_conv_backward_args(const struct mamba *m,
                                                             const struct dt_net *net,
                                                             const struct dt_model_input *input)
{
    struct dt_conv1d_silu_inputs in = conv_inputs(m, net, input);
    struct dt_view dxz = dt_view_of(m->dxz, in.x.rows, 2 * m->E, in.x.dtype);
    return (struct dt_conv1d_silu_backward_args){.in = in,
                                                 .dy =
                                                     dt_view_of(m->du, in.x.rows, m->E, in.x.dtype),
                                                 .dx = dt_view_cols(dxz, 0, m->E),
                                                 .dweight = dt_net_gradient(net, m->conv_weight),
                                                 .dbias = dt_net_gradient(net, m->conv_bias),
                                                 .workspace = net->workspace,
                                                 .workspace_bytes = net->workspace_bytes};
}

// Columns of dt|B|C, or of its gradient: B, then C.
static struct dt_view b_of(const struct mamba *m, struct dt_view dbc)
{
    return dt_view_cols(dbc, m->R, m->R + m->N);
}

static struct dt_view c_of(const struct mamba *m, struct dt_view dbc)
{
    return dt_view_cols(dbc, m->R + m->N, m->R + 2 * m->N);
}

struct dt_scan_forward_args mamba_scan_args(const struct mamba *m, const struct dt_net *net,
                                            const struct dt_model_input *input)
{
    int64_t rows = input->sequences * input->length;
    enum dt_dtype storage = net->config->storage;
    struct dt_view xz = dt_view_of(m->xz, rows, 2 * m->E, storage);
    struct dt_view dbc = dt_view_of(m->dbc, rows, m->slices, storage);
    return (struct dt_scan_forward_args){.in = {.batch = input->sequences,
                                                .length = input->length,
                                                .chunk = m->chunk,
                                                .u = dt_view_of(m->u, rows, m->E, storage),
                                                .delta = dt_view_of(m->delta, rows, m->E, storage),
                                                .z = dt_view_cols(xz, m->E, 2 * m->E),
                                                .b = b_of(m, dbc),
                                                .c = c_of(m, dbc),
                                                .a_log = dt_net_weight(net, m->a_log),
                                                .d_skip = dt_net_weight(net, m->d_skip),
                                                .dt_bias = dt_net_weight(net, m->dt_bias),
                                                .reset = input->arrays[m->reset]},
                                         .y = dt_view_of(m->y, rows, m->E, storage),
                                         .states = m->states,
                                         .workspace = net->workspace,
                                         .workspace_bytes = net->workspace_bytes};
}

struct dt_scan_backward_args mamba_scan_backward_args(const struct mamba *m,
                                                      const struct dt_net *net,
                                                      const struct dt_model_input *input)
{
    const struct dt_scan_inputs in = mamba_scan_args(m, net, input).in;
    int64_t rows = in.u.rows;
    enum dt_dtype storage = in.u.dtype;
    struct dt_view dxz = dt_view_of(m->dxz, rows, 2 * m->E, storage);
    struct dt_view ddbc = dt_view_of(m->ddbc, rows, m->slices, storage);
    return (struct dt_scan_backward_args){.in = in,
                                          .states = m->states,
                                          .dy = dt_view_of(m->dy, rows, m->E, storage),
                                          .du = dt_view_of(m->du, rows, m->E, storage),
                                          .ddelta = dt_view_of(m->ddelta, rows, m->E, storage),
                                          .dz = dt_view_cols(dxz, m->E, 2 * m->E),
                                          .db = b_of(m, ddbc),
                                          .dc = c_of(m, ddbc),
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
