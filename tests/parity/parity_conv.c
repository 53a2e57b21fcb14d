// The convolution at a model's shapes, with resets and x0.
#include "parity.h"

#include "unit/conv_op.h"

int parity_conv(struct parity *p, const struct parity_sizes *s)
{
    char name[128];
    const struct problem problem = {s->batch,      s->length,  s->inner,     s->taps,
                                    s->type,       .x0 = true, .wide = true, .accumulate = true,
                                    .resets = MANY};
    struct op op = make_op(&problem);
    struct dt_conv1d_silu_forward_args *f = &op.forward;
    struct dt_conv1d_silu_backward_args *b = &op.backward;
    int64_t rows = s->batch * s->length, E = s->inner, K = s->taps;
    // Sums of K products and another exponential; sums over all tokens in another order. bf16:
    // results on either side of a rounding, 2^-8 of a few elements.
    const double near = 1e-5, stored = s->type == DT_BF16 ? 2e-3 : near;
    describe(&problem, name, sizeof name);
    const struct parity_field forward[] = {
        FIELD_IN(conv1d_silu_forward, in.x.data),
        FIELD_IN(conv1d_silu_forward, in.weight),
        FIELD_IN(conv1d_silu_forward, in.bias),
        FIELD_IN(conv1d_silu_forward, in.x0),
        FIELD_IN(conv1d_silu_forward, in.reset),
        FIELD_OUT(conv1d_silu_forward, y.data, s->type, rows, E, f->y.stride, stored, 0),
        FIELD_OUT(conv1d_silu_forward, x_last, s->type, s->batch * (K - 1), E, E, 0.0, 0),
        {0}};
    const struct parity_field backward[] = {
        FIELD_IN(conv1d_silu_backward, in.x.data),
        FIELD_IN(conv1d_silu_backward, in.weight),
        FIELD_IN(conv1d_silu_backward, in.bias),
        FIELD_IN(conv1d_silu_backward, in.x0),
        FIELD_IN(conv1d_silu_backward, in.reset),
        FIELD_IN(conv1d_silu_backward, dy.data),
        FIELD_OUT(conv1d_silu_backward, dx.data, s->type, rows, E, b->dx.stride, stored, 0),
        FIELD_OUT(conv1d_silu_backward, dweight, DT_F32, E, K, K, near, 0),
        FIELD_OUT(conv1d_silu_backward, dbias, DT_F32, 1, E, E, near, 0),
        FIELD_WORKSPACE(conv1d_silu_backward),
        {0}};
    parity_compare(p, PARITY_conv1d_silu_forward, forward, f, name);
    parity_compare(p, PARITY_conv1d_silu_backward, backward, b, name);
    free_op(&op);
    return test_end();
}
