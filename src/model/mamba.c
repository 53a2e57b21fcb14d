// The Mamba-1 block [Gu & Dao 2023, section 3.4], with its prenorm:
//   r          = residual + x                        h = RMSNorm(r)
//   x', z      = in_proj(h)                          u = silu(conv1d(x'))
//   dt, B, C   = x_proj(u)                           delta = dt_proj(dt)
//   y          = scan(u, delta, A, B, C, D) · silu(z)     out = out_proj(y)
// E = expand · d_model channels, N states, K taps, R = dt_rank, M = B·L rows. x' and z are halves
// of one array of 2E columns, dt, B and C slices of one of R + 2N: none is copied apart.
#include "model/mamba.h"

#include <math.h>
#include <stdlib.h>

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

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct mamba *m = (struct mamba *)part;
    const struct dt_model_config *config = build->config;
    struct dt_params *params = build->params;
    int64_t layer = part->layer;
    int64_t d = config->d_model, E = dt_model_inner(config), N = config->d_state,
            K = config->d_conv;
    int64_t R = config->dt_rank;
    double taps = 1 / sqrt((double)K);
    m->d = d, m->E = E, m->N = N, m->K = K, m->R = R;
    m->out_proj =
        add_linear(params, layer, "out_proj", E, d, 1 / sqrt((double)(E * config->n_layer)));
    m->a_log = add_vector(params, DT_INIT_A_LOG, 0, layer, "mixer.A_log", 2, (int64_t[]){E, N});
    m->d_skip = add_vector(params, DT_INIT_ONE, 0, layer, "mixer.D", 1, &E);
    m->dt_bias = add_vector(params, DT_INIT_DT_BIAS, 0, layer, "mixer.dt_proj.bias", 1, &E);
    m->dt_proj = add_linear(params, layer, "dt_proj", R, E, 1 / sqrt((double)R));
    m->x_proj = add_linear(params, layer, "x_proj", E, R + 2 * N, 1 / sqrt((double)E));
    m->x_proj.adds = true; // the scan gives the rest of u's gradient
    m->conv_weight = add_vector(params, DT_INIT_UNIFORM, taps, layer, "mixer.conv1d.weight", 3,
                                (int64_t[]){E, 1, K});
    m->conv_bias = add_vector(params, DT_INIT_UNIFORM, taps, layer, "mixer.conv1d.bias", 1, &E);
    m->in_proj = add_linear(params, layer, "in_proj", d, 2 * E, 1 / sqrt((double)d));
    m->norm.row = add_vector(params, DT_INIT_ONE, 0, layer, "norm.weight", 1, &d);
    m->reset = dt_build_array(build, "reset", DT_U8, 1, true);
    m->ssm_state = dt_array_list_add(&part->states, "ssm_state", DT_F32, E * N, false);
    m->conv_state =
        dt_array_list_add(&part->states, "conv_state", config->storage, (K - 1) * E, false);
}

// x_proj, dt_proj and scan behind the convolution; `after` is NULL when this is made a second time.
static dt_status convolve_and_scan(struct mamba *m, const struct dt_pass *pass,
                                   struct dt_model_state *after)
{
    const struct dt_net *net = pass->net;
    enum dt_dtype storage = net->config->storage;
    int64_t layer = m->part.layer;
    struct dt_conv1d_silu_forward_args conv = mamba_conv_args(m, net, pass->input);
    conv.in.x0 = dt_model_state_array(pass->before, layer, m->conv_state);
    conv.x_last = dt_model_state_array(after, layer, m->conv_state);
    DT_TRY(dt_conv1d_silu_forward(net->backend, &conv, pass->stream));
    DT_TRY(dt_linear_forward(net, m->x_proj, pass->rows, m->u, m->E, m->dbc, m->slices, storage,
                             pass->stream));
    DT_TRY(dt_linear_forward(net, m->dt_proj, pass->rows, m->dbc, m->slices, m->delta, m->E,
                             storage, pass->stream));
    struct dt_scan_forward_args scan = mamba_scan_args(m, net, pass->input);
    scan.in.h0 = dt_model_state_array(pass->before, layer, m->ssm_state);
    scan.h_last = dt_model_state_array(after, layer, m->ssm_state);
    return dt_scan_forward(net->backend, &scan, pass->stream);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass,
                         const struct dt_flow *flow)
{
    struct mamba *m = (struct mamba *)part;
    const struct dt_net *net = pass->net;
    enum dt_dtype storage = net->config->storage;
    DT_TRY(dt_norm_forward(pass, &m->norm, flow, m->h));
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
        DT_TRY(dt_norm_recompute(pass, &m->norm, flow, m->h));
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
    DT_TRY(dt_linear_backward_input(net, m->out_proj, pass->rows, dout, m->d, m->dy, m->E,
                                    pass->stream));
    struct dt_scan_backward_args scan = mamba_scan_backward_args(m, net, pass->input);
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
    DT_TRY(dt_linear_backward_input(net, m->dt_proj, M, m->ddelta, m->E, m->ddbc, m->slices,
                                    pass->stream));
    DT_TRY(dt_linear_backward_weight(net, m->x_proj, M, m->ddbc, m->slices, m->u, m->E,
                                     pass->accumulate, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->x_proj.row));
    return dt_linear_backward_input(net, m->x_proj, M, m->ddbc, m->slices, m->du, m->E,
                                    pass->stream);
}

static dt_status backward_input(struct mamba *m, const struct dt_pass *pass,
                                const struct dt_flow *flow)
{
    const struct dt_net *net = pass->net;
    int64_t M = pass->rows;
    struct dt_conv1d_silu_backward_args conv = mamba_conv_backward_args(m, net, pass->input);
    conv.in.x0 = dt_model_state_array(pass->before, m->part.layer, m->conv_state);
    conv.accumulate = pass->accumulate;
    DT_TRY(dt_conv1d_silu_backward(net->backend, &conv, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->conv_weight));
    DT_TRY(dt_pass_ready(pass, m->conv_bias));
    DT_TRY(dt_linear_backward_weight(net, m->in_proj, M, m->dxz, 2 * m->E, m->h, m->d,
                                     pass->accumulate, pass->stream));
    DT_TRY(dt_pass_ready(pass, m->in_proj.row));
    DT_TRY(
        dt_linear_backward_input(net, m->in_proj, M, m->dxz, 2 * m->E, m->dh, m->d, pass->stream));
    return dt_norm_backward(pass, &m->norm, flow, m->dh);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass,
                          const struct dt_flow *flow)
{
    struct mamba *m = (struct mamba *)part;
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
    .kind = {.name = "mamba",
             .size = sizeof(struct mamba),
             .create = create,
             .plan = mamba_plan,
             .plan_workspace = mamba_plan_workspace,
             .flops_per_token = flops_per_token},
    .forward = forward,
    .backward = backward,
};
