// The Mamba-1 block [Gu & Dao 2023, section 3.4], with its prenorm:
//   r          = residual + x                        h = RMSNorm(r)
//   x', z      = in_proj(h)                          u = silu(conv1d(x'))
//   dt, B, C   = x_proj(u)                           delta = dt_proj(dt)
//   y          = scan(u, delta, A, B, C, D) · silu(z)     out = out_proj(y)
// E = expand · d_model channels, N states, K taps, R = dt_rank, M = B·L rows. x' and z are halves
// of one array of 2E columns, dt, B and C slices of one of R + 2N: none is copied apart.
#include "model/net.h"

#include <math.h>
#include <stdlib.h>

struct mamba {
    struct dt_block block;
    int64_t d, E, N, K, R, chunk;
    int64_t slices; // row stride of dt|B|C and its gradient
    int norm, conv_weight, conv_bias, dt_bias, a_log, d_skip;
    struct dt_linear in_proj, x_proj, dt_proj, out_proj;
    // Made by forward, needed by backward; shared between layers where they are made again.
    void *h;       // [M, d] storage
    float *rstd;   // [M]
    void *xz;      // [M, 2E] storage
    void *u;       // [M, E] storage
    void *dbc;     // [M, slices] storage: dt, B, C
    void *delta;   // [M, E] storage
    void *y;       // [M, E] storage
    float *states; // [B, ceil(L / chunk), N, E] fp32
    // Gradients, shared by all layers.
    void *dxz, *du, *ddbc, *ddelta, *dy, *dh;
};

static struct dt_linear add_linear(struct dt_params *params, int64_t layer, const char *name,
                                   int64_t in, int64_t out, double scale)
{
    int64_t shape[] = {out, in};
    int row = dt_params_add(params, DT_INIT_UNIFORM, scale, out, 2, shape,
                            "backbone.layers.%d.mixer.%s.weight", (int)layer, name);
    return (struct dt_linear){.row = row, .in = in, .out = out};
}

static int add_vector(struct dt_params *params, enum dt_init init, double scale, int64_t layer,
                      const char *name, int n_dims, const int64_t *shape)
{
    return dt_params_add(params, init, scale, shape[0], n_dims, shape, "backbone.layers.%d.%s",
                         (int)layer, name);
}

static struct dt_block *create(const struct dt_model_config *config, int64_t layer,
                               struct dt_params *params)
{
    struct mamba *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    int64_t d = config->d_model, E = dt_model_inner(config), N = config->d_state,
            K = config->d_conv;
    int64_t R = config->dt_rank;
    double taps = 1 / sqrt((double)K);
    m->block = (struct dt_block){.kind = &dt_mamba_block, .layer = layer};
    m->d = d, m->E = E, m->N = N, m->K = K, m->R = R, m->chunk = DT_SCAN_CHUNK_CPU;
    m->out_proj =
        add_linear(params, layer, "out_proj", E, d, 1 / sqrt((double)(E * config->n_layer)));
    m->a_log = add_vector(params, DT_INIT_A_LOG, 0, layer, "mixer.A_log", 2, (int64_t[]){E, N});
    m->d_skip = add_vector(params, DT_INIT_ONE, 0, layer, "mixer.D", 1, &E);
    m->dt_bias = add_vector(params, DT_INIT_DT_BIAS, 0, layer, "mixer.dt_proj.bias", 1, &E);
    m->dt_proj = add_linear(params, layer, "dt_proj", R, E, 1 / sqrt((double)R));
    m->x_proj = add_linear(params, layer, "x_proj", E, R + 2 * N, 1 / sqrt((double)E));
    m->conv_weight = add_vector(params, DT_INIT_UNIFORM, taps, layer, "mixer.conv1d.weight", 3,
                                (int64_t[]){E, 1, K});
    m->conv_bias = add_vector(params, DT_INIT_UNIFORM, taps, layer, "mixer.conv1d.bias", 1, &E);
    m->in_proj = add_linear(params, layer, "in_proj", d, 2 * E, 1 / sqrt((double)d));
    m->norm = add_vector(params, DT_INIT_ONE, 0, layer, "norm.weight", 1, &d);
    return &m->block;
}

static void destroy(struct dt_block *block)
{
    free(block);
}

// The args of each op, one function for forward and backward's second making, for running and
// planning.

static struct dt_conv1d_silu_forward_args conv_args(const struct mamba *m, const struct dt_net *net,
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

static struct dt_conv1d_silu_backward_args conv_backward_args(const struct mamba *m,
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

static struct dt_scan_forward_args scan_args(const struct mamba *m, const struct dt_net *net,
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

static struct dt_scan_backward_args scan_backward_args(const struct mamba *m,
                                                       const struct dt_net *net,
                                                       const struct dt_model_input *input)
{
    const struct dt_scan_forward_args f = scan_args(m, net, input);
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

static struct dt_rmsnorm_residual_forward_args norm_args(const struct mamba *m,
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

static struct dt_rmsnorm_residual_backward_args
norm_backward_args(const struct mamba *m, const struct dt_net *net, int64_t rows)
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
    struct dt_scan_forward_args scan = scan_args(m, net, &input);
    dt_plan_workspace(plan, dt_scan_forward_workspace(backend, &scan));
    const struct dt_linear linears[] = {m->in_proj, m->x_proj, m->dt_proj, m->out_proj};
    for (int i = 0; i < 4; i++)
        dt_linear_plan(plan, linears[i], rows, net->config->storage);
    if (!plan->shape.training)
        return;
    struct dt_scan_backward_args scan_backward = scan_backward_args(m, net, &input);
    struct dt_conv1d_silu_backward_args conv = conv_backward_args(m, net, &input);
    struct dt_rmsnorm_residual_backward_args norm = norm_backward_args(m, net, rows);
    dt_plan_workspace(plan, dt_scan_backward_workspace(backend, &scan_backward));
    dt_plan_workspace(plan, dt_conv1d_silu_backward_workspace(backend, &conv));
    dt_plan_workspace(plan, dt_rmsnorm_residual_backward_workspace(backend, &norm));
}

static void plan(struct dt_block *block, struct dt_plan *plan)
{
    struct mamba *m = (struct mamba *)block;
    const struct dt_net *net = plan->net;
    int64_t B = plan->shape.sequences, L = plan->shape.length, M = B * L,
            size = dt_net_storage_size(net);
    enum dt_recompute recompute =
        plan->shape.training ? net->config->recompute : DT_RECOMPUTE_BLOCK;
    struct dt_arena *border = recompute >= DT_RECOMPUTE_BLOCK ? &plan->scratch : &plan->kept;
    struct dt_arena *inner = recompute >= DT_RECOMPUTE_SCAN ? &plan->scratch : &plan->kept;
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

// x_proj, dt_proj and scan behind the convolution; `after` is NULL when this is made a second time.
static dt_status convolve_and_scan(struct mamba *m, const struct dt_pass *pass,
                                   struct dt_model_state *after)
{
    const struct dt_net *net = pass->net;
    enum dt_dtype storage = net->config->storage;
    int64_t layer = m->block.layer;
    struct dt_conv1d_silu_forward_args conv = conv_args(m, net, pass->input);
    conv.x0 = pass->before ? dt_model_state_conv(pass->before, layer) : NULL;
    conv.x_last = after ? dt_model_state_conv(after, layer) : NULL;
    DT_TRY(dt_conv1d_silu_forward(net->backend, &conv, pass->stream));
    DT_TRY(dt_linear_forward(net, m->x_proj, pass->rows, m->u, m->E, m->dbc, m->slices, storage,
                             pass->stream));
    DT_TRY(dt_linear_forward(net, m->dt_proj, pass->rows, m->dbc, m->slices, m->delta, m->E,
                             storage, pass->stream));
    struct dt_scan_forward_args scan = scan_args(m, net, pass->input);
    scan.h0 = pass->before ? dt_model_state_scan(pass->before, layer) : NULL;
    scan.h_last = after ? dt_model_state_scan(after, layer) : NULL;
    return dt_scan_forward(net->backend, &scan, pass->stream);
}

static dt_status forward(struct dt_block *block, const struct dt_pass *pass,
                         const struct dt_flow *flow)
{
    struct mamba *m = (struct mamba *)block;
    const struct dt_net *net = pass->net;
    enum dt_dtype storage = net->config->storage;
    struct dt_rmsnorm_residual_forward_args norm = norm_args(m, net, pass->rows);
    norm.residual = flow->residual_in;
    norm.x = flow->x;
    norm.residual_out = flow->residual;
    DT_TRY(dt_rmsnorm_residual_forward(net->backend, &norm, pass->stream));
    DT_TRY(dt_linear_forward(net, m->in_proj, pass->rows, m->h, m->d, m->xz, 2 * m->E, storage,
                             pass->stream));
    DT_TRY(convolve_and_scan(m, pass, pass->after));
    return dt_linear_forward(net, m->out_proj, pass->rows, m->y, m->E, flow->out, m->d, storage,
                             pass->stream);
}

// Makes again what forward did not keep.
static dt_status recompute(struct mamba *m, const struct dt_pass *pass, const struct dt_flow *flow)
{
    const struct dt_net *net = pass->net;
    enum dt_recompute level = net->config->recompute;
    if (level >= DT_RECOMPUTE_BLOCK) {
        struct dt_rmsnorm_residual_forward_args norm = norm_args(m, net, pass->rows);
        norm.residual = flow->residual;
        DT_TRY(dt_rmsnorm_residual_forward(net->backend, &norm, pass->stream));
        DT_TRY(dt_linear_forward(net, m->in_proj, pass->rows, m->h, m->d, m->xz, 2 * m->E,
                                 net->config->storage, pass->stream));
    }
    return level >= DT_RECOMPUTE_SCAN ? convolve_and_scan(m, pass, NULL) : DT_OK;
}

static dt_status backward_scan(struct mamba *m, const struct dt_pass *pass, const void *dout)
{
    const struct dt_net *net = pass->net;
    DT_TRY(dt_linear_backward_weight(net, m->out_proj, pass->rows, dout, m->d, m->y, m->E,
                                     pass->accumulate, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->out_proj.row));
    DT_TRY(dt_linear_backward_input(net, m->out_proj, pass->rows, dout, m->d, m->dy, m->E, false,
                                    pass->stream));
    struct dt_scan_backward_args scan = scan_backward_args(m, net, pass->input);
    scan.accumulate = pass->accumulate;
    DT_TRY(dt_scan_backward(net->backend, &scan, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->a_log));
    DT_TRY(dt_pass_ready(pass, m->d_skip));
    return dt_pass_ready(pass, m->dt_bias);
}

// From the gradients of delta, B and C to that of u, which has the scan's part already.
static dt_status backward_projections(struct mamba *m, const struct dt_pass *pass)
{
    const struct dt_net *net = pass->net;
    int64_t M = pass->rows;
    DT_TRY(dt_linear_backward_weight(net, m->dt_proj, M, m->ddelta, m->E, m->dbc, m->slices,
                                     pass->accumulate, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->dt_proj.row));
    DT_TRY(dt_linear_backward_input(net, m->dt_proj, M, m->ddelta, m->E, m->ddbc, m->slices, false,
                                    pass->stream));
    DT_TRY(dt_linear_backward_weight(net, m->x_proj, M, m->ddbc, m->slices, m->u, m->E,
                                     pass->accumulate, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->x_proj.row));
    return dt_linear_backward_input(net, m->x_proj, M, m->ddbc, m->slices, m->du, m->E, true,
                                    pass->stream);
}

static dt_status backward_input(struct mamba *m, const struct dt_pass *pass,
                                const struct dt_flow *flow)
{
    const struct dt_net *net = pass->net;
    int64_t M = pass->rows;
    struct dt_conv1d_silu_backward_args conv = conv_backward_args(m, net, pass->input);
    conv.x0 = pass->before ? dt_model_state_conv(pass->before, m->block.layer) : NULL;
    conv.accumulate = pass->accumulate;
    DT_TRY(dt_conv1d_silu_backward(net->backend, &conv, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->conv_weight));
    DT_TRY(dt_pass_ready(pass, m->conv_bias));
    DT_TRY(dt_linear_backward_weight(net, m->in_proj, M, m->dxz, 2 * m->E, m->h, m->d,
                                     pass->accumulate, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->in_proj.row));
    DT_TRY(dt_linear_backward_input(net, m->in_proj, M, m->dxz, 2 * m->E, m->dh, m->d, false,
                                    pass->stream));
    struct dt_rmsnorm_residual_backward_args norm = norm_backward_args(m, net, M);
    norm.residual = flow->residual;
    norm.dresidual = flow->dresidual;
    norm.dx = flow->x;
    norm.accumulate = pass->accumulate;
    DT_TRY(dt_rmsnorm_residual_backward(net->backend, &norm, pass->stream));
    return dt_pass_ready(pass, m->norm);
}

static dt_status backward(struct dt_block *block, const struct dt_pass *pass,
                          const struct dt_flow *flow)
{
    struct mamba *m = (struct mamba *)block;
    DT_TRY(recompute(m, pass, flow));
    DT_TRY(backward_scan(m, pass, flow->x));
    DT_TRY(backward_projections(m, pass));
    return backward_input(m, pass, flow);
}

// GEMM: 2 FLOPs a weight forward, 4 backward. Scan: 9·E·N forward (decay, input and output of a
// state, as state-spaces/mamba counts), twice that backward.
static double flops_per_token(const struct dt_model_config *config)
{
    double d = (double)config->d_model, E = (double)dt_model_inner(config),
           N = (double)config->d_state;
    double R = (double)config->dt_rank;
    return 6 * (d * 2 * E + E * (R + 2 * N) + R * E + E * d) + 3 * 9 * E * N;
}

const struct dt_block_kind dt_mamba_block = {
    .name = "mamba",
    .create = create,
    .destroy = destroy,
    .plan = plan,
    .forward = forward,
    .backward = backward,
    .flops_per_token = flops_per_token,
};
