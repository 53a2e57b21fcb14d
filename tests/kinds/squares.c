// A head with a squared error: y = h · Wᵀ, and a position's loss is ½ Σ (y - target)², or nothing
// where the first target is NaN. It reads "targets" [B, L, TARGET_WIDTH] f32 and has no logits. No
// op computes squares, so the host does in a loop: this works on the CPU only, and not when memory
// is measured.
#include "samples.h"

#include "model/kinds.h"

#include <math.h>

struct squares {
    struct dt_part part;
    struct dt_linear linear; // squares.weight [TARGET_WIDTH, d]
    int targets;
    struct dt_view y, dy; // [M, TARGET_WIDTH] fp32, storage
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct squares *s = (struct squares *)part;
    int64_t d = build->config->d_model, shape[] = {TARGET_WIDTH, d};
    s->linear = (struct dt_linear){.in = d, .out = TARGET_WIDTH};
    s->linear.row = dt_params_add(build->params, dt_init_uniform, 1 / sqrt((double)d), TARGET_WIDTH,
                                  2, shape, "squares.weight");
    s->targets = dt_build_array(build, "targets", DT_F32, TARGET_WIDTH, false);
    part->flops = 6.0 * TARGET_WIDTH * (double)d;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct squares *s = (struct squares *)part;
    s->y = dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, TARGET_WIDTH, DT_F32);
    if (plan->shape.training)
        s->dy = dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, TARGET_WIDTH,
                             plan->net->config->storage);
}

static void square(const struct squares *s, const struct dt_pass *pass, double scale,
                   struct dt_loss_sum *sum)
{
    const float *targets = pass->input.arrays[s->targets], *y = s->y.data;
    for (int64_t i = 0; i < pass->rows * TARGET_WIDTH; i++) {
        bool ignored = isnan(targets[i / TARGET_WIDTH * TARGET_WIDTH]);
        float error = ignored ? 0 : y[i] - targets[i], dy = (float)scale * error;
        sum->loss += 0.5 * (double)error * (double)error;
        sum->counted += !ignored && i % TARGET_WIDTH == 0;
        if (scale > 0 && s->dy.dtype == DT_F32)
            ((float *)s->dy.data)[i] = dy;
        else if (scale > 0)
            ((dt_bf16 *)s->dy.data)[i] = dt_f32_to_bf16(dy);
    }
}

static dt_status loss(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                      struct dt_view dh, double scale, struct dt_loss_sum *sum)
{
    const struct squares *s = (struct squares *)part;
    DT_TRY(dt_linear_forward(pass, s->linear, h, dt_view_rows(s->y, 0, h.rows)));
    if (!pass->measured)
        square(s, pass, scale, sum);
    if (!(scale > 0))
        return DT_OK;
    return dt_linear_backward(pass, s->linear, h, dt_view_rows(s->dy, 0, h.rows), dh);
}

const struct dt_head_kind squares_head = {
    .kind = {.name = "squares", .size = sizeof(struct squares), .create = create, .plan = plan},
    .loss = loss,
};
