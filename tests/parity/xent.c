// Softmax cross-entropy: vocabularies on both sides of a thread's and a block's share and up to
// what shared memory holds, padded, strided, aligned and not; ignored labels; gradients in place
// and in other memory; logits that are extreme or not finite.
#include "parity.h"

#ifdef PARITY_SIMT
#include "simt/simt_run.h"
#endif

struct shape {
    int64_t rows, vocab, width, gap; // gap: elements between the rows
    dt_dtype type;
    bool gradient, in_place, losses; // losses: also the number of right predictions
    double spread;                   // of the logits
    float strange;                   // if not 0, a logit of row 1
};

static double log_sum_exp(const float *x, int64_t n)
{
    double max = (double)x[0], sum = 0.0;
    for (int64_t v = 1; v < n; v++)
        max = (double)x[v] > max || isnan(x[v]) ? (double)x[v] : max;
    for (int64_t v = 0; v < n; v++)
        sum += exp((double)x[v] - max);
    return max + log(sum);
}

static bool is_right(const float *x, int64_t n, int32_t label)
{
    int64_t best = 0;
    for (int64_t v = 1; v < n; v++)
        best = x[v] > x[best] ? v : best;
    return best == label;
}

REFERENCE(xent)
{
    for (int64_t r = 0; r < a->logits.rows; r++) {
        int32_t label = a->labels[r];
        bool ignored = label == DT_LABEL_IGNORED;
        const float *x = dt_view_at(&a->logits, r, 0);
        double lse = log_sum_exp(x, a->vocab), loss = ignored ? 0.0 : lse - (double)x[label];
        a->sum->loss += loss, a->sum->counted += !ignored;
        if (a->right)
            a->sum->metrics[1] += a->right[r] = !ignored && is_right(x, a->vocab, label);
        store_array(a->losses ? a->losses + r : NULL, 1, &loss, false);
        for (int64_t v = 0; v < a->logits.cols && a->dlogits.data; v++) {
            double p = ignored || v >= a->vocab ? 0.0 : exp((double)x[v] - lse) - (v == label);
            set_at(&a->dlogits, r, v, (double)a->scale * p);
        }
    }
    return DT_OK;
}

// With many rows most labels are ignored, which costs little: those rows test the sum of the
// losses.
static int32_t *make_labels(const struct shape *s)
{
    int32_t *labels = guarded(s->rows * 4);
    for (int64_t r = 0; r < s->rows; r++)
        labels[r] = (s->rows > 100 ? r % 64 != 0 : r % 5 == 3)
                        ? DT_LABEL_IGNORED
                        : (int32_t)((r * 7919 + s->vocab - 1) % s->vocab);
    return labels;
}

struct values {
    const struct dt_xent_args *args;
    double *logits; // dense
};

// Computes the loss of all rows.
static void loss_of(const void *values, double *loss)
{
    const struct values *v = values;
    int64_t vocab = v->args->vocab;
    for (int64_t r = 0; r < v->args->logits.rows; r++) {
        const double *x = v->logits + r * vocab;
        double sum = 0.0;
        for (int64_t i = 0; i < vocab; i++)
            sum += exp(x[i]);
        if (v->args->labels[r] != DT_LABEL_IGNORED)
            *loss += (log(sum) - x[v->args->labels[r]]) * (double)v->args->scale;
    }
}

static void check_gradient(const struct parity *p, const struct dt_xent_args *a)
{
    struct dt_view logits = a->logits, gradient = a->dlogits,
                   one = dt_view_of(&(float){1}, 1, 1, DT_F32);
    logits.cols = gradient.cols = a->vocab;
    struct values v = {a, dense_view(&logits)};
    const struct objective objective = {.dy = &one, .forward = loss_of, .problem = &v};
    check_direction(p, "logits", v.logits, dense_view(&gradient), logits.rows * a->vocab,
                    &objective, 1e-5);
}

// Tolerance of a probability: exponentials of two kinds, each within 2 ulp; an fp32 sum in pieces;
// and 2^-23 of the difference of logits, which is at most 87 (beyond that the probability is 0).
// That is 1.2e-5 of the probability, be it small or large. At the label 1 is subtracted, so the
// error is relative to 1. A loss is a difference of numbers as large as logits.
static void run(struct parity *p, const struct shape *s)
{
    int64_t rows = s->rows, stride = s->width + s->gap;
    const struct dt_loss_sum before = {.loss = 1.5, .counted = 2.0};
    struct dt_view logits = normal_view(DT_F32, rows, s->vocab, stride, s->spread, 1);
    logits.cols = s->width;
    if (s->strange != 0.0f && rows > 1)
        ((float *)logits.data)[stride + s->vocab / 2] = s->strange;
    struct dt_xent_args a = {.vocab = s->vocab,
                             .logits = logits,
                             .labels = make_labels(s),
                             .scale = 0.25f,
                             .losses = s->losses ? guarded(rows * 4) : NULL,
                             .right = s->losses ? guarded(rows) : NULL,
                             .sum = guarded_copy(&before, sizeof before)};
    if (s->gradient)
        a.dlogits = s->in_place ? logits : fresh_view(s->type, rows, s->width, stride);
    double *floors = p->model ? NULL : zeros(rows * s->width);
    for (int64_t i = 0; floors && i < rows * s->width; i++)
        floors[i] = i % s->width == a.labels[i / s->width] ? 1.0 : 1e-33;
    PARITY(p, xent, &a, OUT(dlogits, .each = 1.2e-5, .floors = floors), OTHERS(.each = 4e-6));
    if (p->is_cpu && s->gradient && !s->in_place && s->type == DT_F32 && s->strange == 0.0f &&
        rows * s->vocab < 3000)
        check_gradient(p, &a);
}

static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "xent: rows %lld, vocab %lld, width %lld, gap %lld, %s%s%s%s spread %g, %g",
                     (long long)s->rows, (long long)s->vocab, (long long)s->width,
                     (long long)s->gap, dt_dtype_name(s->type), s->gradient ? " gradient" : "",
                     s->in_place ? " in place" : "", s->losses ? " losses" : "", s->spread,
                     (double)s->strange))
        return;
    run(p, s);
#ifdef PARITY_SIMT
    simt_set_shared_most(0); // a row is then read again instead of kept in shared memory
    p->one_run = true;
    if (!p->is_cpu)
        run(p, s);
    p->one_run = false;
    simt_set_shared_most(227 << 10);
#endif
}

static double loss_with(struct parity *p, float value, int64_t column, int32_t label)
{
    enum { VOCAB = 100 };
    const struct dt_loss_sum none = {0};
    float *logits = normal(VOCAB, 1.0, 3);
    logits[column] = value;
    struct dt_xent_args a = {.vocab = VOCAB,
                             .logits = dt_view_of(logits, 1, VOCAB, DT_F32),
                             .labels = guarded_copy(&label, sizeof label),
                             .scale = 1.0f,
                             .sum = guarded_copy(&none, sizeof none)};
    PARITY(p, xent, &a, OUT(sum, .each = 4e-6));
    return a.sum->loss;
}

static void check_not_finite(struct parity *p)
{
    if (!parity_case(p, "xent: logits that are not finite"))
        return;
    p->run_only = true;
    for (int64_t column = 0; column < 100; column += 9) {
        CHECK(isnan(loss_with(p, NAN, column, 50)), "a NaN logit %lld is lost", (long long)column);
        CHECK(!isfinite(loss_with(p, INFINITY, column, 50)), "an infinite logit is lost");
    }
    CHECK(isfinite(loss_with(p, -INFINITY, 7, 50)), "-inf is a masked logit, the loss is finite");
    CHECK(!isfinite(loss_with(p, -INFINITY, 50, 50)), "a masked label has an infinite loss");
    CHECK_NEAR(loss_with(p, 1e30f, 50, 50), 0.0, 1e-6);
    CHECK_NEAR(loss_with(p, 1e30f, 51, 50) / 1e30, 1.0, 1e-6);
    p->run_only = false;
}

void parity_xent(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 1, 1, 0, DT_F32, 1, 0, 1, 3.0, 0.0f},
        {7, 5, 8, 0, DT_BF16, 1, 0, 1, 3.0, 0.0f},
        {9, 8, 8, 8, DT_BF16, 1, 0, 0, 3.0, 0.0f},
        {6, 97, 104, 3, DT_F32, 1, 0, 1, 3.0, 0.0f},
        {5, 4095, 4096, 0, DT_BF16, 1, 0, 1, 3.0, 0.0f},
        {4, 4097, 4104, 0, DT_F32, 1, 1, 0, 3.0, 0.0f},
        {3, 9001, 9001, 0, DT_F32, 1, 1, 1, 3.0, 0.0f},
        {3, 12291, 12296, 0, DT_F32, 0, 0, 1, 3.0, 0.0f},
        {2, 28685, 28688, 4, DT_BF16, 1, 0, 1, 3.0, 0.0f}, // all vector loops, and one more element
        {1, 57856, 57856, 0, DT_F32, 1, 1, 1, 3.0, 0.0f},  // all of the shared memory
        {1030, 3, 4, 0, DT_F32, 0, 0, 0, 3.0, 0.0f},
        {50, 3, 4, 0, DT_F32, 0, 0, 1, 3.0, 0.0f},  // many predictions are right
        {50, 3, 4, 0, DT_BF16, 1, 0, 1, 0.0, 0.0f}, // all logits are equal
        {3, 700, 704, 0, DT_BF16, 1, 0, 1, 3.0, INFINITY},
        {3, 700, 704, 0, DT_F32, 1, 0, 1, 3.0, -INFINITY},
        {3, 700, 704, 0, DT_BF16, 1, 0, 1, 3.0, NAN},
        {3, 700, 704, 0, DT_F32, 1, 0, 1, 3.0, 1e30f},
        {6, 40, 40, 0, DT_F32, 1, 0, 1, 60.0, 0.0f}, // most probabilities underflow
    };
    // On the CPU: the loss alone; gradients in other memory, in bf16 and in place.
    static const int64_t sizes[][3] = {
        {1, 1, 1}, {7, 2, 5}, {33, 77, 80}, {20, 256, 256}, {9, 5000, 5008}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes && p->is_cpu; i++)
        for (int k = 0; k < 4; k++)
            compare(p, &(struct shape){sizes[i][0], sizes[i][1], sizes[i][2], 4,
                                       k == 2 ? DT_BF16 : DT_F32, k > 0, k == 3, k < 2,
                                       i == 3 ? 10.0 : 2.0, 0.0f});
    for (int k = 0; k < 2 && p->model; k++)
        compare(p, &(struct shape){MODEL_LENGTH, MODEL_VOCAB - 3, MODEL_VOCAB, 8,
                                   k ? DT_BF16 : DT_F32, 1, 0, 1, 3.0, 0.0f});
    check_not_finite(p);
}
