// The convolution with SiLU against a plain double-precision form of kernels/conv1d_silu.h, over
// awkward shapes: y, x_last and every gradient; directional derivatives; guard bands; the same bits
// with 1, 2 and 3 threads; a sequence cut in two; NaN in is NaN out, but not past a reset.
#include "conv_op.h"

// Dense doubles. x holds K - 1 rows of x0 before the L rows of each sequence.
struct values {
    double *x, *weight, *bias;
};

static double *zeros(int64_t n)
{
    double *x = calloc((size_t)n + 1, sizeof *x);
    if (!x)
        exit(1);
    return x;
}

static int64_t input_size(const struct problem *p, int i)
{
    const int64_t size[] = {p->batch * (p->length + p->taps - 1) * p->channels,
                            p->channels * p->taps, p->channels};
    return size[i];
}

static double **input(struct values *v, int i)
{
    double **all[] = {&v->x, &v->weight, &v->bias};
    return all[i];
}

static struct values make_values(const struct problem *p)
{
    return (struct values){zeros(input_size(p, 0)), zeros(input_size(p, 1)),
                           zeros(input_size(p, 2))};
}

static void free_values(struct values *v)
{
    for (int i = 0; i < 3; i++)
        free(*input(v, i));
}

// Element (t, d) of a sequence's x, t >= 1 - K.
static int64_t x_at(const struct problem *p, int64_t b, int64_t t, int64_t d)
{
    int64_t keep = p->taps - 1;
    return ((b * (p->length + keep)) + t + keep) * p->channels + d;
}

// Input t - lag counts for output t unless a document starts in (t - lag, t].
static bool counts(const struct problem *p, const uint8_t *reset, int64_t b, int64_t t, int64_t lag)
{
    for (int64_t i = 0; reset && i < lag && t - i >= 0; i++)
        if (reset[b * p->length + t - i])
            return false;
    return true;
}

static double sum_at(const struct problem *p, const struct values *v, const uint8_t *reset,
                     int64_t b, int64_t t, int64_t d)
{
    double s = v->bias[d];
    for (int64_t lag = 0; lag < p->taps; lag++)
        if (counts(p, reset, b, t, lag))
            s += v->weight[d * p->taps + p->taps - 1 - lag] * v->x[x_at(p, b, t - lag, d)];
    return s;
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static void reference_forward(const struct problem *p, const struct values *v, const uint8_t *reset,
                              double *y)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = 0; t < p->length; t++)
            for (int64_t d = 0; d < p->channels; d++) {
                double s = sum_at(p, v, reset, b, t, d);
                y[(b * p->length + t) * p->channels + d] = s * sigmoid(s);
            }
}

// Gradients of Σ dy y; the rows of g->x before t = 0 are not asked of the op.
static void reference_backward(const struct problem *p, const struct values *v,
                               const uint8_t *reset, const double *dy, struct values *g)
{
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = 0; t < p->length; t++)
            for (int64_t d = 0; d < p->channels; d++) {
                double s = sum_at(p, v, reset, b, t, d), gate = sigmoid(s);
                double ds =
                    dy[(b * p->length + t) * p->channels + d] * gate * (1.0 + s * (1.0 - gate));
                g->bias[d] += ds;
                for (int64_t lag = 0; lag < p->taps; lag++) {
                    int64_t w = d * p->taps + p->taps - 1 - lag, x = x_at(p, b, t - lag, d);
                    if (!counts(p, reset, b, t, lag))
                        continue;
                    g->weight[w] += ds * v->x[x];
                    g->x[x] += ds * v->weight[w];
                }
            }
}

static void run(struct op *op, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    check_ok(dt_conv1d_silu_forward(&backend, &op->forward, NULL), "forward");
    RUN_WITH_WORKSPACE(conv1d_silu_backward, &backend, &op->backward);
    dt_backend_close(&backend);
}

static struct values input_values(const struct problem *p, const struct op *op)
{
    struct values v = make_values(p);
    int64_t keep = p->taps - 1, D = p->channels;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = -keep; t < p->length; t++)
            for (int64_t d = 0; d < D; d++) {
                double *x = &v.x[x_at(p, b, t, d)];
                if (t >= 0)
                    *x = get_at(&op->forward.in.x, b * p->length + t, d);
                else if (op->forward.in.x0)
                    *x = get(op->forward.in.x0, p->type, ((b + 1) * keep + t) * D + d);
            }
    for (int64_t i = 0; i < D * p->taps; i++)
        v.weight[i] = (double)op->forward.in.weight[i];
    for (int64_t i = 0; i < D; i++)
        v.bias[i] = (double)op->forward.in.bias[i];
    return v;
}

// The op's gradients, 0 for x before t = 0; `before`: what dweight and dbias were.
static struct values gradient_values(const struct problem *p, const struct op *op,
                                     const struct values *before)
{
    struct values g = make_values(p);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t t = 0; t < p->length; t++)
            for (int64_t d = 0; d < p->channels; d++)
                g.x[x_at(p, b, t, d)] = get_at(&op->backward.dx, b * p->length + t, d);
    for (int64_t i = 0; i < p->channels * p->taps; i++)
        g.weight[i] = (double)op->backward.dweight[i] - (before ? before->weight[i] : 0.0);
    for (int64_t i = 0; i < p->channels; i++)
        g.bias[i] = (double)op->backward.dbias[i] - (before ? before->bias[i] : 0.0);
    return g;
}

// Relative error of a tensor in the 2-norm; NaN where a value is NaN.
static double distance(const double *got, const double *want, int64_t n)
{
    double error = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(error / (size + 1e-30));
}

// fp32: a few roundings, sums over some hundred tokens; bf16 outputs are rounded once, by 2^-9 at
// most and half of that in the mean.
static double tolerance(dt_dtype type)
{
    return type == DT_BF16 ? 2.5e-3 : 1e-6;
}

// x_last holds bits of x and x0, and zeros before the last reset.
static void check_x_last(const struct problem *p, const struct op *op, const struct values *v,
                         const char *name)
{
    int64_t keep = p->taps - 1, D = p->channels, wrong = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t i = 0; i < keep; i++)
            for (int64_t d = 0; d < D; d++) {
                int64_t t = p->length - keep + i;
                bool whole = counts(p, op->forward.in.reset, b, p->length - 1, p->length - 1 - t);
                double want = whole ? v->x[x_at(p, b, t, d)] : 0.0;
                wrong += get(op->forward.x_last, p->type, (b * keep + i) * D + d) != want;
            }
    CHECK(wrong == 0, "%s: %d elements of x_last are wrong", name, (int)wrong);
}

static void check_forward(const struct problem *p, const struct op *op, const struct values *v,
                          const char *name)
{
    int64_t rows = p->batch * p->length, D = p->channels;
    double *want = zeros(rows * D), *got = zeros(rows * D);
    reference_forward(p, v, op->forward.in.reset, want);
    for (int64_t i = 0; i < rows * D; i++)
        got[i] = get_at(&op->forward.y, i / D, i % D);
    double error = distance(got, want, rows * D);
    CHECK(error <= tolerance(p->type), "%s: y is off by %g", name, error);
    CHECK(view_gaps_fresh(&op->forward.y) && view_gaps_fresh(&op->backward.dx),
          "%s: written between rows", name);
    check_x_last(p, op, v, name);
    free(want);
    free(got);
}

// Gradient along a random direction against a central difference of the reference in double.
static void check_direction(const struct problem *p, const struct op *op, const struct values *v,
                            struct values *gradient, const double *dy, int which, const char *name)
{
    const double step = 1e-5;
    int64_t n = input_size(p, which), n_y = p->batch * p->length * p->channels;
    struct dt_philox rng = dt_philox_init(77, (uint32_t)which, 0);
    struct values low = *v, high = *v;
    double *y_low = zeros(n_y), *y_high = zeros(n_y), *g = *input(gradient, which);
    double *down = zeros(n), *up = zeros(n), analytic = 0.0, numeric = 0.0, size = 0.0;
    for (int64_t i = 0; i < n; i++) {
        bool before = which == 0 && i / p->channels % (p->length + p->taps - 1) < p->taps - 1;
        double along = before ? 0.0 : (double)dt_philox_normal(&rng); // x0 stays
        up[i] = (*input(&high, which))[i] + step * along;
        down[i] = (*input(&low, which))[i] - step * along;
        analytic += along * g[i];
        size += g[i] * g[i];
    }
    *input(&low, which) = down;
    *input(&high, which) = up;
    reference_forward(p, &low, op->forward.in.reset, y_low);
    reference_forward(p, &high, op->forward.in.reset, y_high);
    for (int64_t i = 0; i < n_y; i++)
        numeric += dy[i] * (y_high[i] - y_low[i]) / (2.0 * step);
    // A random direction meets the gradient with about its norm.
    CHECK(fabs(analytic - numeric) <= 5.0 * tolerance(p->type) * sqrt(size),
          "%s: along input %d the op's gradient gives %g, differences %g", name, which, analytic,
          numeric);
    free(y_low);
    free(y_high);
    free(down);
    free(up);
}

static void check_backward(const struct problem *p, const struct op *op, const struct values *v,
                           const struct values *before, const char *name)
{
    int64_t n_y = p->batch * p->length * p->channels;
    struct values want = make_values(p), got = gradient_values(p, op, before);
    double *dy = zeros(n_y);
    for (int64_t i = 0; i < n_y; i++)
        dy[i] = get_at(&op->backward.dy, i / p->channels, i % p->channels);
    reference_backward(p, v, op->forward.in.reset, dy, &want);
    for (int64_t b = 0; b < p->batch; b++)
        memset(&want.x[x_at(p, b, 1 - p->taps, 0)], 0,
               (size_t)((p->taps - 1) * p->channels) * sizeof(double));
    for (int i = 0; i < 3; i++) {
        double error = distance(*input(&got, i), *input(&want, i), input_size(p, i));
        CHECK(error <= tolerance(i == 0 ? p->type : DT_F32), "%s: gradient %d is off by %g", name,
              i, error);
        check_direction(p, op, v, &got, dy, i, name);
    }
    free_values(&want);
    free_values(&got);
    free(dy);
}

static void check_problem(const struct problem *p)
{
    char name[128];
    struct op op = make_op(p);
    struct values v = input_values(p, &op), before = gradient_values(p, &op, NULL);
    describe(p, name, sizeof name);
    run(&op, 2);
    check_forward(p, &op, &v, name);
    check_backward(p, &op, &v, p->accumulate ? &before : NULL, name);
    free_values(&v);
    free_values(&before);
    free_op(&op);
}

static void test_threads(void)
{
    const struct problem p = {3, 77, 100, 4, DT_F32, .x0 = true, .resets = MANY};
    struct op op[3];
    for (int i = 0; i < 3; i++) {
        op[i] = make_op(&p);
        run(&op[i], i + 1);
        CHECK(same_bits(op[i].forward.y.data, op[0].forward.y.data), "%d threads: y differs",
              i + 1);
        CHECK(same_bits(op[i].forward.x_last, op[0].forward.x_last), "%d threads: x_last", i + 1);
        CHECK(same_bits(op[i].backward.dx.data, op[0].backward.dx.data), "%d threads: dx differs",
              i + 1);
        CHECK(same_bits(op[i].backward.dweight, op[0].backward.dweight), "%d threads: dweight",
              i + 1);
        CHECK(same_bits(op[i].backward.dbias, op[0].backward.dbias), "%d threads: dbias", i + 1);
    }
    for (int i = 0; i < 3; i++)
        free_op(&op[i]);
}

// Parts of a sequence (the second shorter than K - 1), x_last going in as x0, give the bits of the
// whole.
static void check_carry(enum resets resets)
{
    const struct problem p = {1, 45, 20, 6, DT_BF16, .x0 = true, .resets = resets};
    const int64_t begin[] = {0, 19, 21, 24, 45};
    struct op op = make_op(&p);
    struct dt_backend backend = open_cpu(1);
    check_ok(dt_conv1d_silu_forward(&backend, &op.forward, NULL), "whole");
    dt_bf16 *last[5];
    struct dt_view y = op.forward.y;
    const void *x0 = op.forward.in.x0;
    y.data = guarded(guarded_size(y.data));
    for (int i = 0; i < 4; i++) {
        struct dt_conv1d_silu_forward_args f = op.forward;
        last[i] = guarded(guarded_size(op.forward.x_last));
        f.in.length = begin[i + 1] - begin[i];
        f.in.x = dt_view_rows(f.in.x, begin[i], begin[i + 1]);
        f.y = dt_view_rows(y, begin[i], begin[i + 1]);
        f.in.reset = f.in.reset ? f.in.reset + begin[i] : NULL;
        f.in.x0 = x0, f.x_last = last[i];
        check_ok(dt_conv1d_silu_forward(&backend, &f, NULL), "part");
        x0 = last[i];
    }
    CHECK(same_bits(y.data, op.forward.y.data), "y in parts differs (resets %d)", (int)resets);
    CHECK(same_bits(last[3], op.forward.x_last), "x_last in parts differs (resets %d)",
          (int)resets);
    for (int i = 0; i < 4; i++)
        RELEASE(last[i]);
    RELEASE(y.data);
    dt_backend_close(&backend);
    free_op(&op);
}

// A NaN in x reaches the K outputs of its channel that see it and the 2 K - 1 dx that these see,
// dweight and dbias; nothing past a reset. K is not one of the loops' own 4 and 8.
static void test_nan(void)
{
    const int64_t D = 16;
    struct problem p = {1, 40, D, 3, DT_F32, .x0 = true, .resets = NO_RESETS};
    struct op op = make_op(&p);
    ((uint32_t *)op.forward.in.x.data)[29 * D + 5] = 0xff8001ffu;
    run(&op, 1);
    CHECK_INT(nans(op.forward.y.data, DT_F32, 0, 40 * D), 3);
    CHECK_INT(nans(op.backward.dx.data, DT_F32, 0, 40 * D), 5);
    CHECK_INT(nans(op.backward.dweight, DT_F32, 5 * 3, 3), 3);
    CHECK_INT(nans(op.backward.dbias, DT_F32, 5, 1), 1);
    free_op(&op);
    p.resets = IN_A_ROW;
    op = make_op(&p);
    ((float *)op.forward.in.x.data)[29 * D + 5] = NAN;
    run(&op, 1);
    CHECK_INT(nans(op.forward.y.data, DT_F32, 0, 40 * D), 1);
    CHECK_INT(nans(op.backward.dx.data, DT_F32, 30 * D, 10 * D), 0);
    CHECK_INT(nans(op.forward.x_last, DT_F32, 0, 2 * D), 0);
    free_op(&op);
}

int main(void)
{
    const struct problem problems[] = {
        {1, 1, 5, 4, DT_F32, .x0 = true, .wide = true},
        {2, 2, 16, 8, DT_F32, .x0 = true, .resets = AT_END},
        {3, 1, 7, 3, DT_F32, .x0 = true, .resets = AT_ZERO},
        {1, 2, 3, 4, DT_F32, .x0 = false},
        {2, 77, 48, 4, DT_F32, .x0 = true, .wide = true, .accumulate = true, .resets = MANY},
        {1, 77, 100, 1, DT_F32, .wide = true, .resets = IN_A_ROW},
        {1, 77, 5, 2, DT_F32, .x0 = true, .resets = IN_A_ROW},
        {2, 33, 300, 5, DT_F32, .x0 = true, .resets = IN_A_ROW},
        {2, 65, 48, 6, DT_F32, .accumulate = true, .resets = AT_ZERO},
        {17, 35, 130, 7, DT_F32, .x0 = true, .wide = true, .resets = MANY},
        {2, 77, 100, 4, DT_BF16, .x0 = true, .wide = true, .resets = MANY},
        {1, 3, 5, 8, DT_BF16, .x0 = true, .accumulate = true, .resets = AT_ZERO},
    };
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_problem(&problems[i]);
    test_threads();
    for (int resets = NO_RESETS; resets <= AT_END; resets++)
        check_carry((enum resets)resets);
    test_nan();
    return test_end();
}
