// Softmax cross-entropy against the formulas of its header in double: padded vocabularies, ignored
// rows, gradients in place and apart, extreme and non-finite logits; gradients against finite
// differences too.
#include "op_fixture.h"

struct problem {
    int64_t rows, vocab, width;
    dt_dtype type;
    bool in_place, gradient, losses;
    double spread; // of the logits
};

struct result {
    float *logits;
    int32_t *labels;
    void *dlogits;
    float *losses;
    int64_t stride, d_stride;
    struct dt_loss_sum sum;
};

static const double scale = 0.37;

static int32_t *random_labels(int64_t rows, int64_t vocab)
{
    struct dt_philox rng = dt_philox_init(5, 1, 0);
    int32_t *labels = guarded(rows * 4);
    for (int64_t r = 0; r < rows; r++)
        labels[r] = r % 5 == 3 ? DT_LABEL_IGNORED : (int32_t)dt_philox_below(&rng, (uint64_t)vocab);
    return labels;
}

// What lies past the vocabulary is NaN here: it may not be read as a logit.
static struct result run(const struct problem *p, int threads)
{
    struct dt_backend backend = open_cpu(threads);
    struct result t = {.stride = p->width + 4, .sum = {10.0, 3.0}};
    t.d_stride = p->in_place ? t.stride : p->width + 8;
    t.logits = normal_rows(DT_F32, p->rows, p->vocab, t.stride, p->spread, 1);
    t.labels = random_labels(p->rows, p->vocab);
    t.dlogits = p->in_place ? t.logits : guarded(p->rows * t.d_stride * dt_dtype_size(p->type));
    t.losses = guarded(p->rows * 4);
    struct dt_xent_args args = {.rows = p->rows,
                                .vocab = p->vocab,
                                .width = p->width,
                                .logits = t.logits,
                                .logits_stride = t.stride,
                                .labels = t.labels,
                                .scale = (float)scale,
                                .dtype = p->type,
                                .dlogits = p->gradient ? t.dlogits : NULL,
                                .dlogits_stride = t.d_stride,
                                .losses = p->losses ? t.losses : NULL,
                                .sum = &t.sum};
    RUN_WITH_WORKSPACE(xent, &backend, &args);
    dt_backend_close(&backend);
    return t;
}

static void free_result(struct result *t)
{
    if ((void *)t->logits != t->dlogits)
        release(t->dlogits, "dlogits");
    release(t->logits, "logits");
    release(t->labels, "labels");
    release(t->losses, "losses");
}

static double log_sum_exp(const double *x, int64_t n)
{
    double max = x[0], sum = 0.0;
    for (int64_t v = 1; v < n; v++)
        max = fmax(max, x[v]);
    for (int64_t v = 0; v < n; v++)
        sum += exp(x[v] - max);
    return max + log(sum);
}

static double *as_double(const float *x, int64_t n)
{
    double *y = malloc((size_t)n * sizeof *y);
    for (int64_t i = 0; i < n && y; i++)
        y[i] = (double)x[i];
    return y;
}

// A probability: exp (1.2 units), a product, a sum of fp32 pieces: 1e-6 of itself, then storage's
// rounding. At the label p - 1 is rounded relative to 1.
static int64_t wrong_gradients(const struct problem *p, const struct result *t, int64_t r,
                               const double *x, double lse)
{
    int64_t wrong = 0;
    for (int64_t v = 0; v < p->width; v++) {
        double got = get(t->dlogits, p->type, r * t->d_stride + v), want;
        if (t->labels[r] == DT_LABEL_IGNORED || v >= p->vocab) {
            wrong += got != 0.0;
            continue;
        }
        want = scale * (exp(x[v] - lse) - (v == t->labels[r] ? 1.0 : 0.0));
        double tolerance =
            (1e-6 + 0x1p-23 * fabs(x[v] - lse) + rounding(p->type)) * fabs(want) + 1e-38;
        if (v == t->labels[r])
            tolerance += scale * 1e-6;
        wrong += !(fabs(got - want) <= tolerance);
    }
    return wrong;
}

static void check_result(const struct problem *p, const struct result *t)
{
    float *logits = normal_rows(DT_F32, p->rows, p->vocab, t->stride, p->spread, 1);
    double sum = 10.0, counted = 3.0;
    int64_t wrong_losses = 0, wrong = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        double *x = as_double(logits + r * t->stride, p->vocab), lse = log_sum_exp(x, p->vocab);
        bool ignored = t->labels[r] == DT_LABEL_IGNORED;
        double loss = ignored ? 0.0 : lse - x[t->labels[r]];
        sum += loss;
        counted += !ignored;
        // a loss is a difference of numbers as large as the logits, in fp32 at the end
        if (p->losses)
            wrong_losses += !(fabs((double)t->losses[r] - loss) <= 1e-6 * fmax(1.0, loss));
        if (p->gradient)
            wrong += wrong_gradients(p, t, r, x, lse);
        free(x);
    }
    CHECK_INT(wrong_losses, 0);
    CHECK_INT(wrong, 0);
    CHECK_NEAR(t->sum.loss, sum, 1e-6);
    CHECK(t->sum.counted == counted, "%g counted, not %g", t->sum.counted, counted);
    if (p->gradient)
        CHECK(gaps_fresh(t->dlogits, p->type, p->rows, p->width, t->d_stride),
              "wrote between rows");
    if (!p->in_place)
        CHECK(same_bits(logits, t->logits), "the logits changed");
    release(logits, "logits");
}

static void test_problem(const struct problem *p)
{
    struct result one = run(p, 1);
    check_result(p, &one);
    for (int threads = 2; threads <= 3; threads++) {
        struct result t = run(p, threads);
        CHECK(memcmp(&one.sum, &t.sum, sizeof t.sum) == 0 && same_bits(one.dlogits, t.dlogits) &&
                  same_bits(one.losses, t.losses),
              "other bits with %d threads", threads);
        free_result(&t);
    }
    free_result(&one);
}

static void test_size(int64_t rows, int64_t vocab, int64_t width, double spread)
{
    struct problem p = {
        .rows = rows, .vocab = vocab, .width = width, .spread = spread, .losses = true};
    test_problem(&p); // the loss alone
    p.gradient = true;
    test_problem(&p);
    p.losses = false;
    p.type = DT_BF16;
    test_problem(&p);
    p.type = DT_F32;
    p.in_place = true;
    test_problem(&p);
}

// Central differences of Σ loss in double along a random direction of the logits.
static void test_direction(void)
{
    struct problem p = {.rows = 11, .vocab = 29, .width = 32, .gradient = true, .spread = 2.0};
    struct result t = run(&p, 2);
    float *direction = normal_rows(DT_F32, p.rows, p.vocab, t.stride, 1.0, 8);
    double got = 0.0, want = 0.0, step = 1e-5;
    for (int64_t r = 0; r < p.rows; r++) {
        if (t.labels[r] == DT_LABEL_IGNORED)
            continue;
        double *x = as_double(t.logits + r * t.stride, p.vocab);
        for (int64_t v = 0; v < p.vocab; v++)
            x[v] += step * (double)direction[r * t.stride + v];
        want += (log_sum_exp(x, p.vocab) - x[t.labels[r]]) / (2.0 * step);
        for (int64_t v = 0; v < p.vocab; v++)
            x[v] -= 2.0 * step * (double)direction[r * t.stride + v];
        want -= (log_sum_exp(x, p.vocab) - x[t.labels[r]]) / (2.0 * step);
        for (int64_t v = 0; v < p.vocab; v++)
            got += get(t.dlogits, DT_F32, r * t.d_stride + v) * (double)direction[r * t.stride + v];
        free(x);
    }
    CHECK_NEAR(got, want * scale,
               1e-5); // fp32 gradients; the differences themselves are good to 1e-9
    release(direction, "direction");
    free_result(&t);
}

static double loss_with(float value, int64_t column, int32_t label)
{
    enum { VOCAB = 100 };
    struct dt_backend backend = open_cpu(1);
    struct dt_loss_sum sum = {0};
    float *logits = normal(VOCAB, 1.0, 3);
    logits[column] = value;
    struct dt_xent_args args = {.rows = 1,
                                .vocab = VOCAB,
                                .width = VOCAB,
                                .logits = logits,
                                .logits_stride = VOCAB,
                                .labels = &label,
                                .scale = 1.0f,
                                .sum = &sum};
    RUN_WITH_WORKSPACE(xent, &backend, &args);
    RELEASE(logits);
    dt_backend_close(&backend);
    return sum.loss;
}

static void test_not_finite(void)
{
    for (int64_t column = 0; column < 100; column += 9) {
        CHECK(isnan(loss_with(NAN, column, 50)), "a NaN logit %lld is lost", (long long)column);
        CHECK(!isfinite(loss_with(INFINITY, column, 50)), "an infinite logit is lost");
    }
    CHECK(isfinite(loss_with(-INFINITY, 7, 50)), "-inf is a masked logit, the loss stays finite");
    CHECK(!isfinite(loss_with(-INFINITY, 50, 50)), "a masked label has an infinite loss");
    CHECK_NEAR(loss_with(1e30f, 50, 50), 0.0, 1e-6);
    CHECK_NEAR(loss_with(1e30f, 51, 50) / 1e30, 1.0, 1e-6);
}

int main(void)
{
    test_size(1, 1, 1, 1.0);
    test_size(7, 2, 5, 1.0);
    test_size(33, 77, 80, 3.0);
    test_size(20, 256, 256, 10.0);
    test_size(9, 5000, 5008, 3.0); // more than one span of fp32 sums
    test_size(6, 40, 40, 60.0);    // most probabilities underflow
    test_direction();
    test_not_finite();
    return test_end();
}
