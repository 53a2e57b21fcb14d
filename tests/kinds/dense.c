// A block that is one linear layer after its norm: r = residual + x, out = RMSNorm(r) · Wᵀ.
// model.recompute: `block` makes the norm again, other levels keep it.
#include "model/kinds.h"

#include <math.h>

struct dense {
    struct dt_part part;
    struct dt_norm norm;
    struct dt_linear linear;
    struct dt_view h, dh; // [M, d] storage
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct dense *b = (struct dense *)part;
    int64_t d = build->config->d_model;
    b->linear = dt_build_linear(build, part, "mixer.weight", d, d, 1 / sqrt((double)d));
    b->norm = dt_build_norm(build, part);
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct dense *b = (struct dense *)part;
    enum dt_memory memory = dt_plan_memory(plan, DT_RECOMPUTE_BLOCK);
    int64_t d = plan->net->config->d_model;
    b->h = dt_plan_view(plan, memory, plan->rows, d, plan->net->config->storage);
    b->norm.rstd = dt_plan_view(plan, memory, plan->rows, 1, DT_F32).data;
    if (plan->shape.training)
        b->dh = dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, d, plan->net->config->storage);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass,
                         const struct dt_flow *flow)
{
    const struct dense *b = (struct dense *)part;
    struct dt_view h = dt_view_rows(b->h, 0, pass->rows);
    DT_TRY(dt_norm_forward(pass, &b->norm, flow, h));
    return dt_linear_forward(pass, b->linear, h, flow->out);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass,
                          const struct dt_flow *flow)
{
    const struct dense *b = (struct dense *)part;
    struct dt_view h = dt_view_rows(b->h, 0, pass->rows), dh = dt_view_rows(b->dh, 0, pass->rows);
    if (pass->net->config->recompute >= DT_RECOMPUTE_BLOCK)
        DT_TRY(dt_norm_recompute(pass, &b->norm, flow, h));
    DT_TRY(dt_linear_backward(pass, b->linear, h, flow->x, dh));
    return dt_norm_backward(pass, &b->norm, flow, dh);
}

static double flops_per_token(const struct dt_model_config *config)
{
    return 6 * (double)config->d_model * (double)config->d_model;
}

const struct dt_block_kind dense_block = {
    .kind = {.name = "dense",
             .size = sizeof(struct dense),
             .create = create,
             .plan = plan,
             .flops_per_token = flops_per_token},
    .forward = forward,
    .backward = backward,
};
