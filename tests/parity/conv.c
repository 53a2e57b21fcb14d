// The convolution with SiLU: each K, channels that are and are not whole vectors, whole and partial
// tiles, resets at and near tile borders, which are read one by one and in words, and sequences
// shorter than K - 1.
#include "parity.h"

struct shape {
    int64_t batch, length, channels, taps;
    dt_dtype type;
    bool x0, wide, accumulate; // wide: strides larger than rows
    enum resets resets;
    unsigned dx; // DH_LAST: has dx_last; DH0: has dx0
};

// ---- the double-precision form

// A problem in dense doubles. x has K - 1 rows of x0 before the L rows of each sequence.
struct values {
    int64_t B, L, D, K;
    const uint8_t *reset;
    double *x, *weight, *bias;
};

// Element (t, d) of a sequence's x, t >= 1 - K.
static double *x_at(const struct values *v, int64_t b, int64_t t, int64_t d)
{
    return &v->x[(b * (v->L + v->K - 1) + t + v->K - 1) * v->D + d];
}

static int64_t x_size(const struct values *v)
{
    return v->B * (v->L + v->K - 1) * v->D;
}

static struct values make_values(const struct dt_conv1d_silu_inputs *in)
{
    int64_t D = in->x.cols, K = in->taps, size = dt_dtype_size(in->x.dtype);
    struct values v = {.B = in->batch,
                       .L = in->length,
                       .D = D,
                       .K = K,
                       .reset = in->reset,
                       .weight = dense_array(in->weight, D * K),
                       .bias = dense_array(in->bias, D)};
    v.x = zeros(x_size(&v));
    for (int64_t b = 0; b < v.B; b++)
        for (int64_t t = 1 - K; t < v.L; t++)
            for (int64_t d = 0; d < D; d++)
                *x_at(&v, b, t, d) = t >= 0   ? get_at(&in->x, b * v.L + t, d)
                                     : in->x0 ? get((const char *)in->x0 + b * (K - 1) * D * size,
                                                    in->x.dtype, (K - 1 + t) * D + d)
                                              : 0.0;
    return v;
}

// Input t - lag counts for output t unless a document starts in (t - lag, t].
static bool counts(const struct values *v, int64_t b, int64_t t, int64_t lag)
{
    for (int64_t i = 0; v->reset && i < lag && t - i >= 0; i++)
        if (v->reset[b * v->L + t - i])
            return false;
    return true;
}

static double sum_at(const struct values *v, int64_t b, int64_t t, int64_t d)
{
    double s = v->bias[d];
    for (int64_t lag = 0; lag < v->K; lag++)
        if (counts(v, b, t, lag))
            s += v->weight[d * v->K + v->K - 1 - lag] * *x_at(v, b, t - lag, d);
    return s;
}

// Returns the input of v that is element i of [B, K - 1, D]. With `last` that is an element of
// x_last, NULL if a reset cuts it off; otherwise one of x0.
static double *kept_at(const struct values *v, double *x, int64_t i, bool last)
{
    int64_t row = i / v->D % (v->K - 1), b = i / v->D / (v->K - 1), t = row - (v->K - 1);
    struct values of = *v;
    of.x = x;
    t += last ? v->L : 0;
    return last && !counts(v, b, v->L - 1, v->L - 1 - t) ? NULL : x_at(&of, b, t, i % v->D);
}

static int64_t kept_size(const struct values *v)
{
    return v->B * (v->K - 1) * v->D;
}

REFERENCE(conv1d_silu_forward)
{
    struct values v = make_values(&a->in);
    for (int64_t i = 0; i < v.B * v.L * v.D; i++) {
        double s = sum_at(&v, i / v.D / v.L, i / v.D % v.L, i % v.D);
        set_at(&a->y, i / v.D, i % v.D, s * sigmoid(s));
    }
    for (int64_t i = 0; a->x_last && i < kept_size(&v); i++) {
        const double *x = kept_at(&v, v.x, i, true);
        set(a->x_last, a->in.x.dtype, i, x ? *x : 0.0);
    }
    return DT_OK;
}

REFERENCE(conv1d_silu_backward)
{
    struct values v = make_values(&a->in), g = v;
    g.x = zeros(x_size(&v)), g.weight = zeros(v.D * v.K), g.bias = zeros(v.D);
    for (int64_t b = 0; b < v.B; b++)
        for (int64_t t = 0; t < v.L; t++)
            for (int64_t d = 0; d < v.D; d++) {
                double s = sum_at(&v, b, t, d), gate = sigmoid(s);
                double ds = get_at(&a->dy, b * v.L + t, d) * gate * (1.0 + s * (1.0 - gate));
                g.bias[d] += ds;
                for (int64_t lag = 0; lag < v.K; lag++)
                    if (counts(&v, b, t, lag)) {
                        int64_t w = d * v.K + v.K - 1 - lag;
                        g.weight[w] += ds * *x_at(&v, b, t - lag, d);
                        *x_at(&g, b, t - lag, d) += ds * v.weight[w];
                    }
            }
    for (int64_t i = 0; a->dx_last && i < kept_size(&v); i++) {
        double *x = kept_at(&v, g.x, i, true);
        if (x)
            *x += (double)a->dx_last[i];
    }
    for (int64_t i = 0; a->dx0 && i < kept_size(&v); i++)
        a->dx0[i] = (float)*kept_at(&v, g.x, i, false);
    for (int64_t row = 0; row < v.B * v.L; row++)
        for (int64_t d = 0; d < v.D; d++)
            set_at(&a->dx, row, d, *x_at(&g, row / v.L, row % v.L, d));
    store_array(a->dweight, v.D * v.K, g.weight, a->accumulate);
    store_array(a->dbias, v.D, g.bias, a->accumulate);
    return DT_OK;
}

static void y_of(const void *values, double *y)
{
    const struct values *v = values;
    for (int64_t i = 0; i < kept_size(v); i++) {
        const double *x = kept_at(v, v->x, i, true);
        y[v->B * v->L * v->D + i] = x ? *x : 0.0;
    }
    for (int64_t i = 0; i < v->B * v->L * v->D; i++) {
        double s = sum_at(v, i / v->D / v->L, i / v->D % v->L, i % v->D);
        y[i] = s * sigmoid(s);
    }
}

// ---- runs on the tested backend

struct op {
    struct dt_conv1d_silu_forward_args forward;
    struct dt_conv1d_silu_backward_args backward;
};

static int64_t stride_of(const struct shape *s, int64_t gap)
{
    return aligned_stride(s->type, s->channels + (s->wide ? gap : 0));
}

static struct op make_op(const struct shape *s)
{
    int64_t rows = s->batch * s->length, D = s->channels, K = s->taps, kept = s->batch * (K - 1);
    struct dt_conv1d_silu_inputs in = {
        .batch = s->batch,
        .length = s->length,
        .taps = K,
        .x = normal_view(s->type, rows, D, stride_of(s, 9), 1.0, 1),
        .weight = normal(D * K, 0.7, 2),
        .bias = normal(D, 0.5, 3),
        .x0 = s->x0 && K > 1 ? normal_rows(s->type, kept, D, D, 1.0, 4) : NULL,
        .reset = make_reset(s->batch, s->length, s->resets, 1)};
    return (struct op){{.in = in,
                        .y = fresh_view(s->type, rows, D, stride_of(s, 1)),
                        .x_last = K > 1 ? guarded(kept * D * dt_dtype_size(s->type)) : NULL},
                       {.in = in,
                        .dx_last = s->dx & DH_LAST && K > 1 ? normal(kept * D, 1.0, 8) : NULL,
                        .dx0 = s->dx & DH0 && K > 1 ? guarded(kept * D * 4) : NULL,
                        .dy = normal_view(s->type, rows, D, stride_of(s, 17), 1.0, 5),
                        .dx = fresh_view(s->type, rows, D, stride_of(s, 2)),
                        .dweight = gradient_array(D * K, s->accumulate, 6),
                        .dbias = gradient_array(D, s->accumulate, 7),
                        .accumulate = s->accumulate}};
}

// A result sums up to 8 products and has an exponential. Gradients sum over up to 600 tokens (a
// model: thousands) in another order. bf16 results may be rounded up or down.
static void forward(struct parity *p, struct dt_conv1d_silu_forward_args *a)
{
    double norm = p->is_cpu ? 1e-6 : 1e-5;
    PARITY(p, conv1d_silu_forward, a, OUT(y, .each = 1e-5, .norm = norm));
}

static void backward(struct parity *p, struct dt_conv1d_silu_backward_args *a)
{
    double norm = p->is_cpu ? 1e-6 : 1e-5, each = p->model ? 0.0 : 1e-5;
    PARITY(p, conv1d_silu_backward, a, OUT(dx, .each = 1e-5, .norm = norm),
           OTHERS(.each = each, .norm = norm));
}

static void check_directions(const struct parity *p, const struct dt_conv1d_silu_backward_args *a)
{
    struct values v = make_values(&a->in);
    int64_t kept = (v.K - 1) * v.D;
    const struct objective objective = {&a->dy, y_of, &v, dense_array(a->dx_last, kept_size(&v)),
                                        kept_size(&v)};
    for (int64_t b = 0; b < v.B; b++) {
        struct dt_view dx = dt_view_rows(a->dx, b * v.L, (b + 1) * v.L);
        check_direction(p, "x", x_at(&v, b, 0, 0), dense_view(&dx), v.L * v.D, &objective,
                        5.0 * stored(a->dx.dtype, 1e-6));
        if (a->dx0)
            check_direction(p, "x0", x_at(&v, b, 1 - v.K, 0), dense_array(a->dx0 + b * kept, kept),
                            kept, &objective, 5e-6);
    }
    check_direction(p, "weight", v.weight, dense_array(a->dweight, v.D * v.K), v.D * v.K,
                    &objective, 5e-6);
    check_direction(p, "bias", v.bias, dense_array(a->dbias, v.D), v.D, &objective, 5e-6);
}

static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "conv: B %d L %d D %d K %d %s%s%s%s, resets %d, dx %u", (int)s->batch,
                     (int)s->length, (int)s->channels, (int)s->taps, dt_dtype_name(s->type),
                     s->x0 ? " x0" : "", s->wide ? " wide" : "", s->accumulate ? " +=" : "",
                     s->resets, s->dx))
        return;
    struct op op = make_op(s);
    forward(p, &op.forward);
    backward(p, &op.backward);
    if (p->is_cpu && !s->accumulate)
        check_directions(p, &op.backward);
}

// A sequence in parts, the second of which is shorter than K - 1, gives the bits of the whole
// sequence. x_last of a part is x0 of the next.
static void check_carry(struct parity *p, enum resets resets)
{
    const struct shape s = {1, 45, 20, 6, DT_BF16, .x0 = true, .resets = resets};
    const int64_t begin[] = {0, 19, 21, 24, 45};
    if (!parity_case(p, "conv: a sequence in parts, resets %d", resets))
        return;
    struct op op = make_op(&s), parts = make_op(&s);
    p->run_only = true;
    forward(p, &op.forward);
    for (int i = 0; i < 4; i++) {
        struct dt_conv1d_silu_forward_args f = parts.forward;
        f.in.length = begin[i + 1] - begin[i];
        f.in.x = dt_view_rows(f.in.x, begin[i], begin[i + 1]);
        f.y = dt_view_rows(f.y, begin[i], begin[i + 1]);
        f.in.reset = f.in.reset ? f.in.reset + begin[i] : NULL;
        f.x_last = guarded(guarded_size(op.forward.x_last));
        forward(p, &f);
        parts.forward.in.x0 = parts.forward.x_last = f.x_last;
    }
    p->run_only = false;
    CHECK(same_bits(parts.forward.y.data, op.forward.y.data), "%s: y differs", p->text);
    CHECK(same_bits(parts.forward.x_last, op.forward.x_last), "%s: x_last differs", p->text);
}

// A NaN in x reaches the K outputs of its channel that see it, the 2 K - 1 elements of dx that
// these see, dweight and dbias, and nothing beyond a reset. At token 29 this crosses a border of
// tiles.
static void check_nan(struct parity *p, int64_t K, int64_t D, enum resets resets)
{
    const struct shape s = {1, 40, D, K, DT_F32, .x0 = true, .resets = resets};
    bool passes = resets == NO_RESETS;
    if (!parity_case(p, "conv: a NaN, K %d, D %d, resets %d", (int)K, (int)D, resets))
        return;
    struct op op = make_op(&s);
    int64_t at = 29 * op.forward.in.x.stride + 2, n_y = 40 * op.forward.y.stride,
            n_dx = 40 * op.backward.dx.stride;
    ((uint32_t *)op.forward.in.x.data)[at] = 0xff8001ffu;
    p->run_only = true;
    forward(p, &op.forward);
    backward(p, &op.backward);
    p->run_only = false;
    CHECK_INT(count_nans(op.forward.y.data, DT_F32, 0, n_y), passes ? K : 1);
    CHECK_INT(count_nans(op.backward.dweight, DT_F32, 2 * K, K), K);
    CHECK_INT(count_nans(op.backward.dweight, DT_F32, 0, D * K), K);
    CHECK_INT(count_nans(op.backward.dbias, DT_F32, 0, D), 1);
    if (passes)
        CHECK_INT(count_nans(op.backward.dx.data, DT_F32, 0, n_dx), 2 * K - 1);
    else
        CHECK_INT(count_nans(op.backward.dx.data, DT_F32, 30 * op.backward.dx.stride,
                             n_dx - 30 * op.backward.dx.stride),
                  0);
    CHECK_INT(count_nans(op.forward.x_last, DT_F32, 0, (K - 1) * D), 0);
}

void parity_conv(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 5, 4, DT_F32, .x0 = true, .wide = true, .dx = DH_LAST | DH0},
        {2, 2, 16, 8, DT_F32, .x0 = true, .resets = AT_END},
        {3, 1, 7, 3, DT_F32, .x0 = true, .resets = AT_ZERO, .dx = DH_LAST | DH0},
        {1, 2, 3, 4, DT_F32, .x0 = false, .dx = DH_LAST | DH0},
        {2, 77, 48, 4, DT_F32, .x0 = true, .wide = true, .accumulate = true, .resets = MANY,
         .dx = DH0},
        {2, 130, 132, 4, DT_F32, .x0 = true, .resets = IN_A_ROW, .dx = DH_LAST | DH0},
        {1, 64, 20, 4, DT_F32, .resets = AT_ZERO},
        {1, 77, 100, 1, DT_F32, .wide = true, .resets = IN_A_ROW, .dx = DH_LAST | DH0},
        {1, 77, 5, 2, DT_F32, .x0 = true, .resets = IN_A_ROW, .dx = DH_LAST},
        {2, 33, 300, 5, DT_F32, .x0 = true, .resets = IN_A_ROW, .dx = DH_LAST | DH0},
        {2, 65, 48, 6, DT_F32, .accumulate = true, .resets = AT_ZERO, .dx = DH_LAST | DH0},
        {9, 67, 130, 7, DT_F32, .x0 = true, .wide = true, .resets = MANY},
        {17, 35, 130, 7, DT_F32, .x0 = true, .resets = MANY, .dx = DH_LAST | DH0},
        {2, 77, 100, 4, DT_BF16, .x0 = true, .wide = true, .resets = MANY, .dx = DH_LAST | DH0},
        {2, 70, 136, 4, DT_BF16, .x0 = true, .accumulate = true, .resets = MANY, .dx = DH0},
        {1, 66, 24, 5, DT_BF16, .x0 = true, .resets = IN_A_ROW, .dx = DH_LAST | DH0},
        {1, 3, 5, 8, DT_BF16, .x0 = true, .accumulate = true, .resets = AT_ZERO},
        // Resets are read four at a time.
        {2, 136, 24, 4, DT_BF16, .x0 = true, .wide = true, .resets = MANY, .dx = DH_LAST | DH0},
        {2, 68, 12, 5, DT_F32, .resets = IN_A_ROW, .dx = DH_LAST},
    };
    static const int64_t nan[][2] = {{4, 16}, {4, 4}, {3, 16}, {2, 8}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (int k = 0; k < 4 && p->model; k++)
        compare(p,
                &(struct shape){1 + k % 2, MODEL_LENGTH, MODEL_INNER, MODEL_TAPS,
                                k / 2 ? DT_BF16 : DT_F32, true, true, true, MANY, DH_LAST | DH0});
    for (int resets = NO_RESETS; resets < RESETS; resets++)
        check_carry(p, (enum resets)resets);
    for (int i = 0; i < 4; i++) {
        check_nan(p, nan[i][0], nan[i][1], NO_RESETS);
        check_nan(p, nan[i][0], nan[i][1], IN_A_ROW);
    }
}
