// The Mamba-1 block [Gu & Dao 2023, section 3.4]:
//   x', z      = in_proj(h)                          u = silu(conv1d(x'))
//   dt, B, C   = x_proj(u)                           delta = dt_proj(dt)
//   with model.mixer_rms_eps: an RMSNorm, without weights, of each of dt, B and C before that
//                [FalconMamba: Zuo et al. 2024]
//   y          = scan(u, delta, A, B, C, D) · silu(z)     out = out_proj(y)
// E = expand · d_model channels, N states, K taps, R = dt_rank, M = B·L rows. x' and z are halves
// of one array of 2E columns, dt, B and C slices of one of R + 2N columns, without copies.
// model.recompute: `scan` keeps x', z and recomputes the rest; `block` keeps nothing.
#include "model/mamba.h"

#include "base/rng.h"
#include "base/round.h"

#include <math.h>

// The arrays of a pass, with M rows of storage type.
struct arrays {
    struct dt_view xz, y;         // [M, 2E], [M, E]
    struct dt_view x, z;          // halves of xz
    struct dt_view u, delta;      // [M, E]
    struct dt_view dbc, dt, b, c; // [M, R + 2N], columns of it
};

struct mamba {
    struct dt_projected projected;
    int64_t E, N, R, chunk;
    int reset;     // batch array
    int ssm_state; // [B, E, N] fp32
    struct dt_linear x_proj, dt_proj;
    struct dt_conv conv;
    int a_log, d_skip, dt_bias; // rows of the table
    float norm_eps;             // for dt, B and C; 0: no norms
    float *dt_rstd, *bc_rstd;   // [M], [M, 2]; NULL: no backward follows
    struct arrays forward;      // needed by backward; shared between layers if recomputed
    struct arrays gradients;    // gradients of `forward`, shared by all layers
    float *states;              // [B, ceil(L / chunk), N, E] fp32
    float *s;                   // [M, E] fp32, or NULL: recomputed by backward
};

static const struct dt_config_key shared_fields[] = {
    DT_FIELD(WHOLE, struct dt_mamba_values, d_state, "16", 1, DT_SCAN_STATES_MAX, "SSM state size",
             .json = "state_size"),
    DT_FIELD(WHOLE, struct dt_mamba_values, d_conv, "4", 1, DT_CONV1D_TAPS_MAX, "conv kernel size",
             .json = "conv_kernel"),
    DT_FIELD(WHOLE, struct dt_mamba_values, expand, "2", 1, 64,
             "inner channels as a multiple of d_model", .json = "expand"),
    DT_FIELD(REAL, struct dt_mamba_values, dt_init_min, "0", 0, 1,
             "step sizes begin between this and 100 times this, so that states keep up to 1 / "
             "dt_init_min positions; 0: 0.001, as published"),
    {0},
};
const struct dt_kind_keys dt_mamba_keys = {shared_fields, sizeof(struct dt_mamba_values)};

struct dt_mamba_values *dt_mamba_values(const struct dt_model_config *config)
{
    return dt_model_own(config, &dt_mamba_keys);
}

int64_t dt_mamba_inner(const struct dt_model_config *config)
{
    return dt_mamba_values(config)->expand * config->d_model;
}

struct values {
    int64_t dt_rank;
    double mixer_rms_eps;
};

static const struct dt_config_key fields[] = {
    DT_FIELD_AUTO(struct values, dt_rank, 1, 0x1p20,
                  "rank of the step-size projection; auto: d_model / 16, rounded up",
                  .json = "time_step_rank"),
    DT_FIELD(REAL, struct values, mixer_rms_eps, "0", 0, 1,
             "epsilon of RMSNorms of dt, B and C, as FalconMamba has them (1e-6); 0: no norms",
             .json = "mixer_rms_eps"),
    {0},
};
DT_KIND_VALUES(values)

static void resolve(struct dt_model_config *config, int64_t length)
{
    (void)length;
    if (values(config)->dt_rank == 0)
        values(config)->dt_rank = dt_ceil_div(config->d_model, 16);
}

static dt_status check(const struct dt_model_config *config)
{
    return values(config)->dt_rank <= dt_mamba_inner(config)
               ? DT_OK
               : DT_FAIL(DT_USER, "set it in the [model] section",
                         "model.dt_rank is %lld, more than expand * d_model = %lld",
                         (long long)values(config)->dt_rank, (long long)dt_mamba_inner(config));
}

float dt_mamba_init_a_log(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)rng;
    return (float)log((double)(i % row->shape[row->n_dims - 1] + 1));
}

// softplus(bias) is log-uniform [state-spaces/mamba, mamba_simple.py].
float dt_mamba_init_dt_bias(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)i;
    const double low = log(0.001 * (double)row->init_scale),
                 high = log(0.1 * (double)row->init_scale);
    double step = exp(low + (high - low) * (double)dt_philox_uniform(rng));
    return (float)(step + log(-expm1(-step)));
}

double dt_mamba_dt_scale(const struct dt_model_config *config)
{
    double least = dt_mamba_values(config)->dt_init_min;
    return least > 0 ? least / 0.001 : 1;
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct mamba *m = (struct mamba *)part;
    const struct dt_model_config *config = build->config;
    int64_t d = config->d_model, E = m->E = dt_mamba_inner(config),
            N = m->N = dt_mamba_values(config)->d_state, R = m->R = values(config)->dt_rank;
    double deep = 1 / sqrt((double)(E * config->n_layer));
    m->norm_eps = (float)values(config)->mixer_rms_eps;
    m->projected.out = dt_build_projection(build, part, "mixer.out_proj.weight", E, d, deep);
    m->a_log =
        dt_build_row(build, part, "mixer.A_log", dt_mamba_init_a_log, 0, 2, (int64_t[]){E, N});
    dt_params_keep(build->params, m->a_log);
    m->d_skip = dt_build_row(build, part, "mixer.D", dt_init_one, 0, 1, &E);
    m->dt_bias = dt_build_row(build, part, "mixer.dt_proj.bias", dt_mamba_init_dt_bias,
                              dt_mamba_dt_scale(config), 1, &E);
    m->dt_proj = dt_build_linear(build, part, "mixer.dt_proj.weight", R, E, 1 / sqrt((double)R));
    m->x_proj =
        dt_build_linear(build, part, "mixer.x_proj.weight", E, R + 2 * N, 1 / sqrt((double)E));
    m->x_proj.adds = true; // adds to the scan's part of u's gradient
    m->ssm_state = dt_build_state(build, part, "ssm_state", DT_F32, E * N);
    m->conv = dt_build_conv(
        build, part, E, dt_mamba_values(config)->d_conv); // after ssm_state, the order in memory
    m->projected.in =
        dt_build_projection(build, part, "mixer.in_proj.weight", d, 2 * E, 1 / sqrt((double)d));
    m->reset = dt_build_array(build, "reset", DT_U8, 1, true);
    // Scan: 9·E·N forward (decay, input and output of a state, as state-spaces/mamba counts), twice
    // that backward.
    part->flops += 3 * 9 * (double)E * (double)N;
}

static struct arrays plan_arrays(const struct mamba *m, struct dt_plan *plan, enum dt_memory block,
                                 enum dt_memory scan)
{
    enum dt_dtype storage = plan->net->config->storage;
    int64_t M = plan->rows, E = m->E, N = m->N, R = m->R;
    struct arrays a = {.xz = dt_plan_view(plan, block, M, 2 * E, storage),
                       .u = dt_plan_view(plan, scan, M, E, storage),
                       .delta = dt_plan_view(plan, scan, M, E, storage),
                       .y = dt_plan_view(plan, scan, M, E, storage),
                       .dbc = dt_plan_aligned(plan, scan, R + 2 * N, 16)};
    a.x = dt_view_cols(a.xz, 0, E), a.z = dt_view_cols(a.xz, E, 2 * E);
    a.dt = dt_view_cols(a.dbc, 0, R), a.b = dt_view_cols(a.dbc, R, R + N);
    a.c = dt_view_cols(a.dbc, R + N, R + 2 * N);
    return a;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct mamba *m = (struct mamba *)part;
    m->chunk = plan->net->backend->op->scan_chunk;
    m->forward = plan_arrays(m, plan, plan->block, plan->scan);
    if (!plan->shape.training)
        return;
    int64_t chunks = plan->shape.sequences * dt_ceil_div(plan->shape.length, m->chunk);
    m->gradients = plan_arrays(m, plan, DT_MEMORY_SCRATCH, DT_MEMORY_SCRATCH);
    m->states = dt_plan_view(plan, plan->scan, chunks, m->N * m->E, DT_F32).data;
    if (m->norm_eps > 0) {
        m->dt_rstd = dt_plan_view(plan, plan->scan, plan->rows, 1, DT_F32).data;
        m->bc_rstd = dt_plan_view(plan, plan->scan, plan->rows, 2, DT_F32).data;
    }
    if (plan->net->backend->op->scan_keeps_s)
        m->s = dt_plan_view(plan, plan->scan, plan->rows, m->E, DT_F32).data;
}

static struct dt_scan_inputs scan_inputs(const struct mamba *m, const struct dt_pass *pass)
{
    const struct arrays *a = &m->forward;
    return (struct dt_scan_inputs){
        .batch = pass->input.sequences,
        .length = pass->input.length,
        .chunk = m->chunk,
        .u = a->u,
        .delta = a->delta,
        .z = a->z,
        .b = a->b,
        .c = a->c,
        .a_log = dt_net_weight(pass->net, m->a_log),
        .d_skip = dt_net_weight(pass->net, m->d_skip),
        .dt_bias = dt_net_weight(pass->net, m->dt_bias),
        .h0 = dt_pass_state(pass, &m->projected.part, pass->before, m->ssm_state),
        .reset = pass->input.arrays[m->reset]};
}

// B and C as one view.
static struct dt_view b_and_c(const struct mamba *m, const struct arrays *a)
{
    return dt_view_cols(a->dbc, m->R, m->R + 2 * m->N);
}

static dt_status normalize(const struct mamba *m, const struct dt_pass *pass)
{
    const struct arrays *a = &m->forward;
    struct dt_rmsnorm_forward_args dt = {1, m->norm_eps, a->dt, m->dt_rstd},
                                   bc = {2, m->norm_eps, b_and_c(m, a), m->bc_rstd};
    DT_TRY(DT_RUN(pass, rmsnorm_forward, &dt));
    return DT_RUN(pass, rmsnorm_forward, &bc);
}

static dt_status normalize_backward(const struct mamba *m, const struct dt_pass *pass)
{
    const struct arrays *a = &m->forward, *g = &m->gradients;
    struct dt_rmsnorm_backward_args dt = {1, a->dt, m->dt_rstd, g->dt},
                                    bc = {2, b_and_c(m, a), m->bc_rstd, b_and_c(m, g)};
    DT_TRY(DT_RUN(pass, rmsnorm_backward, &dt));
    return DT_RUN(pass, rmsnorm_backward, &bc);
}

static dt_status convolve_and_scan(struct dt_projected *part, const struct dt_pass *pass,
                                   const struct dt_model_state *after)
{
    const struct mamba *m = (struct mamba *)part;
    const struct arrays *a = &m->forward;
    struct dt_scan_forward_args scan = {.in = scan_inputs(m, pass),
                                        .y = a->y,
                                        .h_last =
                                            dt_pass_state(pass, &part->part, after, m->ssm_state),
                                        .states = m->states,
                                        .s = m->s};
    DT_TRY(dt_conv_forward(pass, &m->conv, a->x, a->u, after));
    DT_TRY(dt_linear_forward(pass, m->x_proj, a->u, a->dbc));
    if (m->norm_eps > 0)
        DT_TRY(normalize(m, pass));
    DT_TRY(dt_linear_forward(pass, m->dt_proj, a->dt, a->delta));
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_BEFORE));
    DT_TRY(DT_RUN(pass, scan_forward, &scan));
    return dt_pass_relay(pass, &part->part, m->ssm_state, DT_AFTER);
}

static dt_status inner_backward(struct dt_projected *part, const struct dt_pass *pass)
{
    const struct mamba *m = (struct mamba *)part;
    const struct arrays *a = &m->forward, *g = &m->gradients;
    const struct dt_net *net = pass->net;
    struct dt_scan_backward_args scan = {
        .in = scan_inputs(m, pass),
        .states = m->states,
        .s = m->s,
        .dh_last = dt_pass_gradient(pass, &part->part, pass->dafter, m->ssm_state),
        .dy = g->y,
        .du = g->u,
        .ddelta = g->delta,
        .dz = g->z,
        .db = g->b,
        .dc = g->c,
        .dh0 = dt_pass_gradient(pass, &part->part, pass->dbefore, m->ssm_state),
        .da_log = dt_net_gradient(net, m->a_log),
        .dd_skip = dt_net_gradient(net, m->d_skip),
        .ddt_bias = dt_net_gradient(net, m->dt_bias)};
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_GRADIENT_AFTER));
    DT_TRY(DT_RUN(pass, scan_backward, &scan));
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_GRADIENT_BEFORE));
    DT_TRY(dt_pass_ready(pass, m->a_log));
    DT_TRY(dt_pass_ready(pass, m->d_skip));
    DT_TRY(dt_pass_ready(pass, m->dt_bias));
    DT_TRY(dt_linear_backward(pass, m->dt_proj, a->dt, g->delta, g->dt));
    if (m->norm_eps > 0)
        DT_TRY(normalize_backward(m, pass));
    DT_TRY(dt_linear_backward(pass, m->x_proj, a->u, g->dbc, g->u)); // adds to the scan's part
    return dt_conv_backward(pass, &m->conv, a->x, g->u, g->x);
}

const struct dt_block_kind dt_mamba_block = {
    .kind = {.name = "mamba",
             .size = sizeof(struct mamba),
             .keys = {&dt_mamba_keys, &keys},
             .resolve = resolve,
             .check = check,
             .create = create,
             .plan = plan},
    .forward = dt_projected_forward,
    .backward = dt_projected_backward,
    .arrays = offsetof(struct mamba, forward),
    .arrays_size = sizeof(struct arrays),
    .inner = convolve_and_scan,
    .inner_backward = inner_backward,
};
