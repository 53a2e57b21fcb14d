// A stem of floats: the stream opens as frames · Wᵀ. Reads "frames" [B, L, FRAME_WIDTH] f32.
#include "frames.h"

#include "model/kinds.h"

#include <math.h>

struct frames {
    struct dt_part part;
    struct dt_linear linear; // frames.weight [d, FRAME_WIDTH]
    int frames;
    struct dt_view stored; // [M, FRAME_WIDTH]: the frames in storage type, where that is not f32
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct frames *f = (struct frames *)part;
    int64_t d = build->config->d_model, shape[] = {d, FRAME_WIDTH};
    f->linear = (struct dt_linear){.in = FRAME_WIDTH, .out = d};
    f->linear.row = dt_params_add(build->params, DT_INIT_UNIFORM, 1 / sqrt(FRAME_WIDTH), d, 2,
                                  shape, "frames.weight");
    f->frames = dt_build_array(build, "frames", DT_F32, FRAME_WIDTH, false);
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct frames *f = (struct frames *)part;
    f->stored =
        dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, FRAME_WIDTH, plan->net->config->storage);
}

static struct dt_view input_of(const struct frames *f, const struct dt_pass *pass)
{
    return f->stored.dtype == DT_F32
               ? dt_view_of(pass->input.arrays[f->frames], pass->rows, FRAME_WIDTH, DT_F32)
               : dt_view_rows(f->stored, 0, pass->rows);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass,
                         const struct dt_flow *flow)
{
    const struct frames *f = (struct frames *)part;
    struct dt_cast_args cast = {.n = pass->rows * FRAME_WIDTH,
                                .x = pass->input.arrays[f->frames],
                                .x_type = DT_F32,
                                .y = f->stored.data,
                                .y_type = f->stored.dtype};
    if (f->stored.dtype != DT_F32)
        DT_TRY(DT_RUN(pass, cast, &cast));
    return dt_linear_forward(pass, f->linear, input_of(f, pass), flow->residual);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass,
                          const struct dt_flow *flow)
{
    const struct frames *f = (struct frames *)part;
    return dt_linear_backward(pass, f->linear, input_of(f, pass), flow->x, (struct dt_view){0});
}

static double flops_per_token(const struct dt_model_config *config)
{
    return 4.0 * FRAME_WIDTH * (double)config->d_model;
}

const struct dt_stem_kind frames_stem = {
    .kind = {.name = "frames",
             .size = sizeof(struct frames),
             .create = create,
             .plan = plan,
             .flops_per_token = flops_per_token},
    .forward = forward,
    .backward = backward,
};
