// A block kind with a planted fault: a convolution that ignores where documents start.
#include "model/kinds.h"

struct leak {
    struct dt_part part;
    struct dt_conv conv;
};

static void create(struct dt_part *part, const struct dt_build *build)
{
    struct leak *b = (struct leak *)part;
    b->conv = dt_build_conv(build, part, build->config->d_model, 4);
}

static struct dt_pass without_documents(const struct leak *b, const struct dt_pass *pass)
{
    struct dt_pass blind = *pass;
    blind.input.arrays[b->conv.reset] = NULL;
    return blind;
}

static dt_status forward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                         struct dt_view out)
{
    const struct leak *b = (struct leak *)part;
    struct dt_pass blind = without_documents(b, pass);
    return dt_conv_forward(&blind, &b->conv, h, out, pass->after);
}

static dt_status backward(struct dt_part *part, const struct dt_pass *pass, struct dt_view h,
                          struct dt_view dout, struct dt_view dh)
{
    const struct leak *b = (struct leak *)part;
    struct dt_pass blind = without_documents(b, pass);
    return dt_conv_backward(&blind, &b->conv, h, dout, dh);
}

const struct dt_block_kind leak_block = {
    .kind = {.name = "leak", .size = sizeof(struct leak), .create = create},
    .forward = forward,
    .backward = backward,
};
