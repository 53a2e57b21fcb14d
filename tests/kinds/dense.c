// A block kind that is one linear layer: out = h · Wᵀ.
#include "model/kinds.h"

#include <math.h>

struct dense {
    struct dt_part part;
    struct dt_linear linear;
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct dense *b = (struct dense *)part;
    int64_t d = build->config->d_model;
    b->linear = dt_build_linear(build, part, "mixer.weight", d, d, 1 / sqrt((double)d));
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                         struct dt_view out)
{
    return dt_linear_forward(pass, ((struct dense *)part)->linear, h, out);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                          struct dt_view dout, struct dt_view dh)
{
    return dt_linear_backward(pass, ((struct dense *)part)->linear, h, dout, dh);
}

const struct dt_block_kind dense_block = {
    .kind = {.name = "dense", .size = sizeof(struct dense), .create = create},
    .forward = forward,
    .backward = backward,
};
