// Checks shared by the selective scan (scan.c) and state-space duality (ssd.c). Each file includes
// this header after it defines
//   name, input_name    of the op, and of its inputs with gradients: enum {…, C_, …, INPUTS}
//   SHOWS               a bit for each input whose gradient shows a NaN in any input
//   FORGET(forward)     makes forward keep nothing for backward
//   inputs_args, forward_args, backward_args
//   struct shape        with batch, length, type, h0, dh (DH_LAST, DH0), wide, accumulate
//   struct values       a problem in dense doubles, with in[INPUTS], h0[states]
#pragma once

struct op {
    forward_args forward;
    backward_args backward;
};

// The including file defines these: views and arrays in the order of struct values; the dense y of
// a problem, and its h_last.
static struct tensors inputs_of(const inputs_args *in);
static struct tensors gradients_of(const backward_args *a);
static struct values make_values(const inputs_args *in);
static void reference_y(const struct values *v, double *y, double *h_last);
static struct op make_op(const struct parity *p, const struct shape *s);
static void forward(struct parity *p, forward_args *a);
static void backward(struct parity *p, backward_args *a);
static double slope_tolerance(const struct parity *p, dt_dtype type, int input);

static struct dt_view input(const struct shape *s, int64_t width, int64_t gap, double scale,
                            uint32_t seed)
{
    return normal_view(s->type, s->batch * s->length, width,
                       aligned_stride(s->type, width + (s->wide ? gap : 0)), scale, seed);
}

static struct dt_view output(const struct shape *s, int64_t width, int64_t gap)
{
    return fresh_view(s->type, s->batch * s->length, width,
                      aligned_stride(s->type, width + (s->wide ? gap : 0)));
}

static void run(struct parity *p, struct op *op)
{
    p->run_only = true;
    forward(p, &op->forward);
    backward(p, &op->backward);
    p->run_only = false;
}

static void y_of(const void *values, double *y)
{
    const struct values *v = values;
    reference_y(v, y, y + v->outputs);
}

// Returns dh_last or dh0 of a case.
static const float *state_gradient(const struct shape *s, int64_t states)
{
    return s->dh & DH_LAST ? normal(states, 1.0, 14) : NULL;
}

static float *first_gradient(const struct shape *s, int64_t states)
{
    return s->dh & DH0 ? guarded(states * 4) : NULL;
}

static void check_directions(const struct parity *p, const backward_args *a)
{
    struct values v = make_values(&a->in);
    struct tensors g = gradients_of(a);
    const struct objective objective = {&a->dy, y_of, &v, dense_array(a->dh_last, v.states),
                                        v.states};
    for (int i = 0; i < INPUTS; i++)
        check_direction(p, input_name[i], v.in[i], dense_tensor(&g, i), tensor_size(&g, i),
                        &objective, 5.0 * slope_tolerance(p, a->dy.dtype, i));
    if (a->dh0)
        check_direction(p, "h0", v.h0, dense_array(a->dh0, v.states), v.states, &objective,
                        5.0 * slope_tolerance(p, a->dy.dtype, A_LOG));
}

static void check_near(const struct parity *p, const char *what, float got, float want,
                       double tolerance)
{
    CHECK(memcmp(&got, &want, sizeof got) == 0 || fabs((double)(got - want)) < tolerance,
          "%s: %s is %g, in one part %g", p->text, what, (double)got, (double)want);
}

// A sequence in two parts, where h_last of the first is h0 of the second in place, gives y and
// h_last of the whole sequence within the tolerance in fp32; 0: the same bits.
static void check_carry(struct parity *p, const struct shape *s, int64_t first, double tolerance)
{
    if (!parity_case(p, "%s: a sequence in two parts, the first of %d", name, (int)first))
        return;
    struct op whole = make_op(p, s), parts = make_op(p, s);
    run(p, &whole);
    int64_t state = guarded_size(whole.forward.h_last) / 4 / s->batch;
    float *h = guarded(state * 4);
    p->run_only = true;
    for (int64_t b = 0; b < s->batch; b++)
        for (int part = 0; part < 2; part++) {
            forward_args f = parts.forward;
            struct tensors views = inputs_of(&f.in);
            int64_t from = b * s->length + part * first,
                    to = part ? (b + 1) * s->length : from + first;
            for (int i = 0; i < views.n_views; i++)
                *(struct dt_view *)(uintptr_t)views.view[i] =
                    dt_view_rows(*views.view[i], from, to);
            f.y = dt_view_rows(f.y, from, to);
            f.in.batch = 1, f.in.length = to - from, f.in.reset += from;
            f.in.h0 = part ? h : f.in.h0 + b * state;
            f.h_last = h;
            FORGET(&f);
            forward(p, &f);
            for (int64_t i = 0; i < state && part; i++)
                check_near(p, "an element of h_last", h[i], whole.forward.h_last[b * state + i],
                           tolerance);
        }
    p->run_only = false;
    const struct dt_view *y = &parts.forward.y;
    for (int64_t i = 0; i < y->rows * y->cols; i++)
        check_near(p, "an element of y", (float)get_at(y, i / y->cols, i % y->cols),
                   (float)get_at(&whole.forward.y, i / y->cols, i % y->cols), tolerance);
}

// Without states for backward, h_last may be the memory of h0, with any segments.
static void check_h_last_over_h0(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "%s: h_last over h0, no states, L %d", name, (int)s->length))
        return;
    struct op whole = make_op(p, s), over = make_op(p, s);
    run(p, &whole);
    FORGET(&over.forward);
    over.forward.h_last = (float *)(uintptr_t)over.forward.in.h0;
    forward(p, &over.forward);
    CHECK(same_bits(over.forward.y.data, whole.forward.y.data), "%s: y differs", p->text);
    CHECK(same_bits(over.forward.h_last, whole.forward.h_last), "%s: h_last differs", p->text);
}

// A NaN with any payload in any input or in h0 must reach y and some gradient.
static void check_nan(struct parity *p, const struct shape *s, int which)
{
    if (!parity_case(p, "%s: a NaN in input %d, %s", name, which, dt_dtype_name(s->type)))
        return;
    struct op op = make_op(p, s);
    struct tensors in = inputs_of(&op.forward.in), g = gradients_of(&op.backward);
    bool is_view = which < in.n_views;
    void *at = (void *)(uintptr_t)(is_view          ? in.view[which]->data
                                   : which < INPUTS ? in.array[which - in.n_views].data
                                                    : op.forward.in.h0);
    if (is_view && s->type == DT_BF16)
        ((dt_bf16 *)at)[3] = 0x7f81;
    else
        ((uint32_t *)at)[3] = 0xff8001ffu;
    run(p, &op);
    int64_t seen = 0;
    for (int i = 0; i < INPUTS; i++)
        for (int64_t k = 0; k < tensor_size(&g, i) && SHOWS >> i & 1; k++)
            seen += isnan(dense_tensor(&g, i)[k]) != 0;
    CHECK(count_nans(dense_view(&op.forward.y), DT_F64, 0, op.forward.y.rows * op.forward.y.cols) >
              0,
          "%s: not in y", p->text);
    CHECK(seen > 0, "%s: in no gradient", p->text);
}
