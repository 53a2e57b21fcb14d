// The feed-forward block. Gated (model.mlp_gated), as SwiGLU [Shazeer 2020]:
//   g, u = gate_up_proj(h)     out = down_proj(f(g) ∘ u)
// or plain:
//   g = up_proj(h)             out = down_proj(f(g))
// f is model.mlp_activation (kernels/silu_gate.h).
// F = d_mlp channels, M = B·L rows. g and u are halves of one array of 2F columns, the rows of
// gate_up_proj's weight gate first. It reads single positions, so it has no state. model.recompute:
// `scan` keeps g, u; `block` keeps nothing.
#include "model/kinds.h"

#include "base/round.h"

#include <math.h>

struct arrays {
    struct dt_view gu, y; // [M, 2F] or [M, F]; [M, F]
    struct dt_view g, u;  // halves of gu; u.data NULL: no gate
};

struct mlp {
    struct dt_projected projected;
    int64_t F;
    bool gated;
    enum dt_activation f;
    struct arrays forward, gradients;
};

struct values {
    int64_t d_mlp;
    bool mlp_gated;
    enum dt_activation mlp_activation;
};

static const struct dt_config_key fields[] = {
    DT_FIELD_AUTO(struct values, d_mlp, 1, 0x1p22,
                  "inner channels; auto: 4 d_model, gated: 8/3 d_model, rounded up to 8",
                  .json = "d_mlp"),
    DT_FIELD(FLAG, struct values, mlp_gated, "true",
             "down(f(gate(x)) * up(x)); false: down(f(up(x)))", .json = "mlp_gated"),
    DT_FIELD(CHOICE, struct values, mlp_activation, "silu", DT_ACTIVATION_WORDS,
             "f of an mlp block; relu2: max(x, 0) squared", .json = "mlp_activation"),
    {0},
};
DT_KIND_VALUES(values)

static void resolve(struct dt_model_config *config, int64_t length)
{
    int64_t d = config->d_model;
    (void)length;
    struct values *v = values(config);
    if (v->d_mlp == 0) // a smaller width compensates for the gate's matrix [Shazeer 2020]
        v->d_mlp = v->mlp_gated ? dt_round_up(dt_ceil_div(8 * d, 3), 8) : 4 * d;
}

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct mlp *m = (struct mlp *)part;
    const struct dt_model_config *config = build->config;
    int64_t d = config->d_model, F = m->F = values(config)->d_mlp;
    m->gated = values(config)->mlp_gated;
    m->f = values(config)->mlp_activation;
    m->projected.out = dt_build_linear(build, part, "mixer.down_proj.weight", F, d,
                                       1 / sqrt((double)(F * config->n_layer)));
    m->projected.in = dt_build_linear(
        build, part, m->gated ? "mixer.gate_up_proj.weight" : "mixer.up_proj.weight", d,
        m->gated ? 2 * F : F, 1 / sqrt((double)d));
}

static struct arrays plan_arrays(const struct mlp *m, struct dt_plan *plan, enum dt_memory block,
                                 enum dt_memory scan)
{
    enum dt_dtype storage = plan->net->config->storage;
    struct arrays a = {.gu = dt_plan_view(plan, block, plan->rows, m->projected.in.out, storage),
                       .y = dt_plan_view(plan, scan, plan->rows, m->F, storage)};
    a.g = dt_view_cols(a.gu, 0, m->F);
    a.u = m->gated ? dt_view_cols(a.gu, m->F, 2 * m->F) : (struct dt_view){0};
    return a;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct mlp *m = (struct mlp *)part;
    m->forward = plan_arrays(m, plan, plan->block, plan->scan);
    if (plan->shape.training)
        m->gradients = plan_arrays(m, plan, DT_MEMORY_SCRATCH, DT_MEMORY_SCRATCH);
}

static dt_status activate(struct dt_projected *part, const struct dt_pass *pass,
                          const struct dt_model_state *after)
{
    const struct mlp *m = (struct mlp *)part;
    const struct arrays *a = &m->forward;
    (void)after;
    struct dt_silu_gate_forward_args args = {.f = m->f, .x = a->g, .u = a->u, .y = a->y};
    return DT_RUN(pass, silu_gate_forward, &args);
}

static dt_status inner_backward(struct dt_projected *part, const struct dt_pass *pass)
{
    const struct mlp *m = (struct mlp *)part;
    const struct arrays *a = &m->forward, *g = &m->gradients;
    struct dt_silu_gate_backward_args args = {
        .f = m->f, .x = a->g, .u = a->u, .dy = g->y, .dx = g->g, .du = g->u};
    return DT_RUN(pass, silu_gate_backward, &args);
}

const struct dt_block_kind dt_mlp_block = {
    .kind = {.name = "mlp",
             .size = sizeof(struct mlp),
             .keys = {&keys},
             .resolve = resolve,
             .create = create,
             .plan = plan},
    .forward = dt_projected_forward,
    .backward = dt_projected_backward,
    .arrays = offsetof(struct mlp, forward),
    .arrays_size = sizeof(struct arrays),
    .inner = activate,
    .inner_backward = inner_backward,
    .once = true,
};
