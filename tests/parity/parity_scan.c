// The scan at a model's shapes, with resets and h0, at strides wider than rows, as x_proj's slices
// have them.
#include "parity.h"

#include "unit/scan_op.h"

int parity_scan(struct parity *p, const struct parity_sizes *s)
{
    char name[128];
    const struct problem problem = {
        s->batch, s->length,  s->inner,     s->state,           p->cuda.op->scan_chunk,
        s->type,  .h0 = true, .wide = true, .accumulate = true, .resets = MANY};
    struct op op = make_op(&problem);
    struct dt_scan_forward_args *f = &op.forward;
    struct dt_scan_backward_args *b = &op.backward;
    int64_t rows = s->batch * s->length, E = s->inner, N = s->state;
    int64_t chunks = (s->length - 1) / f->in.chunk + 1;
    // Each form is within 5e-6 of a double at a few hundred tokens (tests/unit/test_scan.c); other
    // exponentials of 2 ulp, segments started from products of them, and sums over thousands of
    // channels and tokens in another order add some. bf16: results on either side of a rounding,
    // 2^-8 of a few elements.
    const double near = 3e-5, stored = s->type == DT_BF16 ? 2e-3 : near;
    describe(&problem, name, sizeof name);
    const struct parity_field forward[] = {
        FIELD_IN(scan_forward, in.u.data),
        FIELD_IN(scan_forward, in.delta.data),
        FIELD_IN(scan_forward, in.z.data),
        FIELD_IN(scan_forward, in.b.data),
        FIELD_IN(scan_forward, in.c.data),
        FIELD_IN(scan_forward, in.a_log),
        FIELD_IN(scan_forward, in.d_skip),
        FIELD_IN(scan_forward, in.dt_bias),
        FIELD_IN(scan_forward, in.h0),
        FIELD_IN(scan_forward, in.reset),
        FIELD_OUT(scan_forward, y.data, s->type, rows, E, f->y.stride, stored, 0),
        FIELD_OUT(scan_forward, h_last, DT_F32, s->batch * E, N, N, near, 0),
        FIELD_OUT(scan_forward, states, DT_F32, s->batch * chunks * N, E, E, near, 0),
        FIELD_WORKSPACE(scan_forward),
        {0}};
    const struct parity_field backward[] = {
        FIELD_IN(scan_backward, in.u.data),
        FIELD_IN(scan_backward, in.delta.data),
        FIELD_IN(scan_backward, in.z.data),
        FIELD_IN(scan_backward, in.b.data),
        FIELD_IN(scan_backward, in.c.data),
        FIELD_IN(scan_backward, in.a_log),
        FIELD_IN(scan_backward, in.d_skip),
        FIELD_IN(scan_backward, in.dt_bias),
        FIELD_IN(scan_backward, in.reset),
        FIELD_IN(scan_backward, states),
        FIELD_IN(scan_backward, dy.data),
        FIELD_OUT(scan_backward, du.data, s->type, rows, E, b->du.stride, stored, 0),
        FIELD_OUT(scan_backward, ddelta.data, s->type, rows, E, b->ddelta.stride, stored, 0),
        FIELD_OUT(scan_backward, dz.data, s->type, rows, E, b->dz.stride, stored, 0),
        FIELD_OUT(scan_backward, db.data, s->type, rows, N, b->db.stride, stored, 0),
        FIELD_OUT(scan_backward, dc.data, s->type, rows, N, b->dc.stride, stored, 0),
        FIELD_OUT(scan_backward, da_log, DT_F32, E, N, N, near, 0),
        FIELD_OUT(scan_backward, dd_skip, DT_F32, 1, E, E, near, 0),
        FIELD_OUT(scan_backward, ddt_bias, DT_F32, 1, E, E, near, 0),
        FIELD_WORKSPACE(scan_backward),
        {0}};
    parity_compare(p, PARITY_scan_forward, forward, f, name);
    parity_compare(p, PARITY_scan_backward, backward, b, name); // from the CPU's states
    free_op(&op);
    return test_end();
}
