// A stem for floats: the stream starts as samples · Wᵀ. It reads "samples" [B, L, SAMPLE_WIDTH]
// f32.
#include "samples.h"

#include "model/kinds.h"

#include <math.h>

struct samples {
    struct dt_part part;
    struct dt_linear linear; // samples.weight [d, SAMPLE_WIDTH]
    int samples;
    struct dt_view stored; // [M, SAMPLE_WIDTH]: the samples in storage type, unless that is f32
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct samples *f = (struct samples *)part;
    int64_t d = build->config->d_model, shape[] = {d, SAMPLE_WIDTH};
    f->linear = (struct dt_linear){.in = SAMPLE_WIDTH, .out = d};
    f->linear.row = dt_params_add(build->params, dt_init_uniform, 1 / sqrt(SAMPLE_WIDTH), d, 2,
                                  shape, "samples.weight");
    f->samples = dt_build_array(build, "samples", DT_F32, SAMPLE_WIDTH, false);
    part->flops = 4.0 * SAMPLE_WIDTH * (double)d;
}

static void plan(struct dt_part *part, struct dt_plan *plan)
{
    struct samples *f = (struct samples *)part;
    f->stored =
        dt_plan_view(plan, DT_MEMORY_SCRATCH, plan->rows, SAMPLE_WIDTH, plan->net->config->storage);
}

static struct dt_view input_of(const struct samples *f, const struct dt_pass *pass)
{
    return f->stored.dtype == DT_F32
               ? dt_view_of(pass->input.arrays[f->samples], pass->rows, SAMPLE_WIDTH, DT_F32)
               : dt_view_rows(f->stored, 0, pass->rows);
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view residual)
{
    const struct samples *f = (struct samples *)part;
    struct dt_cast_args cast = {.n = pass->rows * SAMPLE_WIDTH,
                                .x = pass->input.arrays[f->samples],
                                .x_type = DT_F32,
                                .y = f->stored.data,
                                .y_type = f->stored.dtype};
    if (f->stored.dtype != DT_F32)
        DT_TRY(DT_RUN(pass, cast, &cast));
    return dt_linear_forward(pass, f->linear, input_of(f, pass), residual);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass,
                          struct dt_view dresidual, struct dt_view dx)
{
    (void)dresidual;
    const struct samples *f = (struct samples *)part;
    return dt_linear_backward(pass, f->linear, input_of(f, pass), dx, (struct dt_view){0});
}

const struct dt_stem_kind samples_stem = {
    .kind = {.name = "samples", .size = sizeof(struct samples), .create = create, .plan = plan},
    .unit = "samples",
    .forward = forward,
    .backward = backward,
};
