// The Mamba-2 block [Dao & Gu 2024, section 7]:
//   z, x', dt     = in_proj(h)                   x, B, C = silu(conv1d(x'))
//   y             = ssd(x, dt, A, B, C, D)       n = RMSNorm(y · silu(z))
//   out           = out_proj(n)
// E = expand · d_model channels in H = E / head_dim heads of P, N states, G groups of B and C,
// K taps, W = E + 2GN channels of the convolution, M = B·L rows. z, x' and dt are columns of one
// array, and so are x, B and C, without copies. model.recompute: `scan` keeps z, x', dt and
// recomputes the rest; `block` keeps nothing.
#include "base/rng.h"
#include "base/round.h"
#include "model/mamba.h"

#include <math.h>

// Bytes of a cache line, to which rows are padded, since in_proj's widths are no multiple of it.
enum { LINE = 64 };

// The arrays of a pass, with M rows of storage type.
struct arrays {
    struct dt_view zxdt, n;      // [M, E + W + H], [M, E]
    struct dt_view z, x_in, dt;  // columns of zxdt
    struct dt_view xbc, x, b, c; // [M, W], its columns
    struct dt_view y;            // [M, E]
};

struct mamba2 {
    struct dt_projected projected;
    int64_t E, H, P, N, G, W, chunk;
    float dt_min, dt_max;
    int reset;     // batch array
    int ssm_state; // [B, H, P, N] fp32
    struct dt_conv conv;
    int gated_norm, a_log, d_skip, dt_bias; // rows of the table
    struct arrays forward;   // needed by backward; shared between layers if recomputed
    struct arrays gradients; // gradients of `forward`, shared by all layers; n's is y's
    float *states;           // [B, ceil(L / chunk), H, N, P] fp32
    float *rstd;             // [M, G] of the gated norm
};

struct values {
    int64_t head_dim, n_groups;
    double dt_min, dt_max; // step sizes; dt_max 0: no limit
};

static const struct dt_config_key fields[] = {
    DT_FIELD_AUTO(struct values, head_dim, 1, DT_SSD_HEAD_MAX,
                  "channels of a head; auto: 64, or all inner channels if those are fewer",
                  .json = "head_dim"),
    DT_FIELD_AUTO(struct values, n_groups, 1, 0x1p20, "groups of heads that share B and C; auto: 1",
                  .json = "n_groups"),
    DT_FIELD(REAL, struct values, dt_min, "0", 0, 1e30, "smallest step size", .json = "dt_min"),
    DT_FIELD(REAL, struct values, dt_max, "0", 0, 1e30, "largest step size; 0: no limit",
             .json = "dt_max"),
    {0},
};
DT_KIND_VALUES(values)

static void resolve(struct dt_model_config *config, int64_t length)
{
    (void)length;
    if (values(config)->head_dim == 0)
        values(config)->head_dim = dt_min_i64(64, dt_mamba_inner(config));
    if (values(config)->n_groups == 0)
        values(config)->n_groups = 1;
}

static dt_status check(const struct dt_model_config *config)
{
    int64_t E = dt_mamba_inner(config), heads = E / values(config)->head_dim;
    if (E % values(config)->head_dim != 0)
        return DT_FAIL(DT_USER, "set it in the [model] section",
                       "model.head_dim is %lld, which does not divide expand * d_model = %lld",
                       (long long)values(config)->head_dim, (long long)E);
    if (heads % values(config)->n_groups != 0)
        return DT_FAIL(DT_USER, "set it in the [model] section",
                       "model.n_groups is %lld, which does not divide the %lld heads",
                       (long long)values(config)->n_groups, (long long)heads);
    if (values(config)->dt_max > 0 && values(config)->dt_max < values(config)->dt_min)
        return DT_FAIL(DT_USER, "set it in the [model] section",
                       "model.dt_max is %g, less than dt_min = %g", values(config)->dt_max,
                       values(config)->dt_min);
    return DT_OK;
}

// ln(uniform(1, 16)) [state-spaces/mamba, mamba2.py].
static float init_a_log(const struct dt_param *row, int64_t i, struct dt_philox *rng)
{
    (void)row, (void)i;
    return (float)log(1.0 + 15.0 * (double)dt_philox_uniform(rng));
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct mamba2 *m = (struct mamba2 *)part;
    const struct dt_model_config *config = build->config;
    int64_t d = config->d_model, E = m->E = dt_mamba_inner(config),
            P = m->P = values(config)->head_dim, N = m->N = dt_mamba_values(config)->d_state,
            G = m->G = values(config)->n_groups, H = m->H = E / P, W = m->W = E + 2 * G * N;
    m->dt_min = (float)values(config)->dt_min;
    m->dt_max = values(config)->dt_max > 0 ? (float)values(config)->dt_max : INFINITY;
    double deep = 1 / sqrt((double)(E * config->n_layer));
    m->projected.out = dt_build_projection(build, part, "mixer.out_proj.weight", E, d, deep);
    m->gated_norm = dt_build_row(build, part, "mixer.norm.weight", dt_init_one, 0, 1, &E);
    m->a_log = dt_build_row(build, part, "mixer.A_log", init_a_log, 0, 1, &H);
    m->d_skip = dt_build_row(build, part, "mixer.D", dt_init_one, 0, 1, &H);
    m->dt_bias = dt_build_row(build, part, "mixer.dt_bias", dt_mamba_init_dt_bias,
                              dt_mamba_dt_scale(config), 1, &H);
    m->ssm_state = dt_build_state(build, part, "ssm_state", DT_F32, E * N);
    m->conv = dt_build_conv(
        build, part, W, dt_mamba_values(config)->d_conv); // after ssm_state, the order in memory
    m->projected.in =
        dt_build_projection(build, part, "mixer.in_proj.weight", d, E + W + H, 1 / sqrt((double)d));
    m->reset = dt_build_array(build, "reset", DT_U8, 1, true);
    // SSD, as the recurrence: 5·E·N forward (a product and a sum for each of decay and output, a
    // product for the input), twice that backward.
    part->flops += 3 * 5 * (double)E * (double)N;
}

static struct arrays plan_arrays(const struct mamba2 *m, struct dt_plan *plan, enum dt_memory block,
                                 enum dt_memory scan)
{
    int64_t E = m->E, W = m->W, BC = m->G * m->N;
    struct arrays a = {.zxdt = dt_plan_aligned(plan, block, E + W + m->H, LINE),
                       .xbc = dt_plan_aligned(plan, scan, W, LINE),
                       .y = dt_plan_aligned(plan, scan, E, LINE)};
    a.z = dt_view_cols(a.zxdt, 0, E), a.x_in = dt_view_cols(a.zxdt, E, E + W);
    a.dt = dt_view_cols(a.zxdt, E + W, E + W + m->H);
    a.x = dt_view_cols(a.xbc, 0, E), a.b = dt_view_cols(a.xbc, E, E + BC);
    a.c = dt_view_cols(a.xbc, E + BC, W);
    return a;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct mamba2 *m = (struct mamba2 *)part;
    m->chunk = plan->net->backend->op->ssd_chunk;
    m->forward = plan_arrays(m, plan, plan->block, plan->scan);
    m->forward.n = dt_plan_aligned(plan, plan->scan, m->E, LINE);
    m->rstd = dt_plan_view(plan, plan->scan, plan->rows, m->G, DT_F32).data;
    if (!plan->shape.training)
        return;
    int64_t chunks = plan->shape.sequences * dt_ceil_div(plan->shape.length, m->chunk);
    m->gradients = plan_arrays(m, plan, DT_MEMORY_SCRATCH, DT_MEMORY_SCRATCH);
    m->gradients.n = m->gradients.y;
    m->states = dt_plan_view(plan, plan->scan, chunks, m->E * m->N, DT_F32).data;
}

static struct dt_ssd_inputs ssd_inputs(const struct mamba2 *m, const struct dt_pass *pass)
{
    const struct arrays *a = &m->forward;
    return (struct dt_ssd_inputs){
        .batch = pass->input.sequences,
        .length = pass->input.length,
        .heads = m->H,
        .groups = m->G,
        .chunk = m->chunk,
        .dt_min = m->dt_min,
        .dt_max = m->dt_max,
        .x = a->x,
        .dt = a->dt,
        .b = a->b,
        .c = a->c,
        .a_log = dt_net_weight(pass->net, m->a_log),
        .d_skip = dt_net_weight(pass->net, m->d_skip),
        .dt_bias = dt_net_weight(pass->net, m->dt_bias),
        .h0 = dt_pass_state(pass, &m->projected.part, pass->before, m->ssm_state),
        .reset = pass->input.arrays[m->reset]};
}

static dt_status convolve_and_scan(struct dt_projected *part, const struct dt_pass *pass,
                                   const struct dt_model_state *after)
{
    const struct mamba2 *m = (struct mamba2 *)part;
    const struct arrays *a = &m->forward;
    const struct dt_net *net = pass->net;
    struct dt_ssd_forward_args ssd = {.in = ssd_inputs(m, pass),
                                      .y = a->y,
                                      .h_last =
                                          dt_pass_state(pass, &part->part, after, m->ssm_state),
                                      .states = m->states};
    struct dt_gated_rmsnorm_forward_args norm = {.groups = m->G,
                                                 .eps = (float)net->config->norm_eps,
                                                 .x = a->y,
                                                 .z = a->z,
                                                 .weight = dt_net_weight(net, m->gated_norm),
                                                 .y = a->n,
                                                 .rstd = m->rstd};
    DT_TRY(dt_conv_forward(pass, &m->conv, a->x_in, a->xbc, after));
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_BEFORE));
    DT_TRY(DT_RUN(pass, ssd_forward, &ssd));
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_AFTER));
    return DT_RUN(pass, gated_rmsnorm_forward, &norm);
}

// The gradient of y overwrites that of n.
static dt_status inner_backward(struct dt_projected *part, const struct dt_pass *pass)
{
    const struct mamba2 *m = (struct mamba2 *)part;
    const struct arrays *a = &m->forward, *g = &m->gradients;
    const struct dt_net *net = pass->net;
    struct dt_gated_rmsnorm_backward_args norm = {.groups = m->G,
                                                  .x = a->y,
                                                  .z = a->z,
                                                  .weight = dt_net_weight(net, m->gated_norm),
                                                  .rstd = m->rstd,
                                                  .dy = g->n,
                                                  .dx = g->y,
                                                  .dz = g->z,
                                                  .dweight = dt_net_gradient(net, m->gated_norm)};
    struct dt_ssd_backward_args ssd = {
        .in = ssd_inputs(m, pass),
        .states = m->states,
        .dh_last = dt_pass_gradient(pass, &part->part, pass->dafter, m->ssm_state),
        .dy = g->y,
        .dx = g->x,
        .ddt = g->dt,
        .db = g->b,
        .dc = g->c,
        .dh0 = dt_pass_gradient(pass, &part->part, pass->dbefore, m->ssm_state),
        .da_log = dt_net_gradient(net, m->a_log),
        .dd_skip = dt_net_gradient(net, m->d_skip),
        .ddt_bias = dt_net_gradient(net, m->dt_bias)};
    DT_TRY(DT_RUN(pass, gated_rmsnorm_backward, &norm));
    DT_TRY(dt_pass_ready(pass, m->gated_norm));
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_GRADIENT_AFTER));
    DT_TRY(DT_RUN(pass, ssd_backward, &ssd));
    DT_TRY(dt_pass_relay(pass, &part->part, m->ssm_state, DT_GRADIENT_BEFORE));
    DT_TRY(dt_pass_ready(pass, m->a_log));
    DT_TRY(dt_pass_ready(pass, m->d_skip));
    DT_TRY(dt_pass_ready(pass, m->dt_bias));
    return dt_conv_backward(pass, &m->conv, a->x_in, g->xbc, g->x_in);
}

const struct dt_block_kind dt_mamba2_block = {
    .kind = {.name = "mamba2",
             .size = sizeof(struct mamba2),
             .keys = {&dt_mamba_keys, &keys},
             .resolve = resolve,
             .check = check,
             .create = create,
             .plan = plan},
    .forward = dt_projected_forward,
    .backward = dt_projected_backward,
    .arrays = offsetof(struct mamba2, forward),
    .arrays_size = sizeof(struct arrays),
    .inner = convolve_and_scan,
    .inner_backward = inner_backward,
};
