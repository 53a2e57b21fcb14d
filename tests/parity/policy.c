// The ops of a policy: the losses of its outputs, each kind alone and all together, and biases.
// Outputs with columns of no output before, between and after them, a padded stride, one row, rows
// without a mask, with all and with none counted, label smoothing, and one class more than a warp.
#include "parity.h"

#include <math.h>
#include <string.h>

struct shape {
    int64_t rows, pad;   // columns after the last output
    const char *outputs; // c, b, r, h: a kind of output; '.': a column of none
    int64_t width;       // of each
    dt_dtype type;
    bool gradient, in_place;
    int counted; // of four rows; 4: no mask
    float smoothing, spread;
};

// One output at one row: the loss, the measure, and the gradient of the loss.
static void one_output(const struct dt_output_slice *o, const double *z, const double *t,
                       double *loss, double *measure, double *dz)
{
    double n = o->width, smoothing = (double)o->smoothing, max = -INFINITY, sum = 0.0;
    *loss = *measure = 0.0;
    if (o->kind == DT_OUTPUT_CATEGORICAL) {
        int64_t best = 0, label = (int64_t)t[0];
        for (int64_t i = 0; i < o->width; i++)
            best = z[i] > max ? i : best, max = fmax(z[i], max);
        for (int64_t i = 0; i < o->width; i++)
            sum += exp(z[i] - max);
        *loss = log(sum) + max;
        *measure = best == label;
        for (int64_t i = 0; i < o->width; i++) {
            double q = (1 - smoothing) * (i == label) + smoothing / n;
            *loss -= q * z[i];
            dz[i] = exp(z[i] - max) / sum - q;
        }
        return;
    }
    for (int64_t i = 0; i < o->width; i++) {
        double q = (1 - smoothing) * t[i] + smoothing / 2, e = z[i] - t[i], small = fabs(e) <= 1;
        if (o->kind == DT_OUTPUT_BERNOULLI) {
            *loss += (fmax(z[i], 0) + log1p(exp(-fabs(z[i]))) - q * z[i]) / n;
            *measure += ((z[i] > 0) == (t[i] > 0.5)) / n;
            dz[i] = (1 / (1 + exp(-z[i])) - q) / n;
        } else if (o->kind == DT_OUTPUT_REGRESSION) {
            *loss += e * e / n;
            dz[i] = 2 * e / n;
        } else {
            *loss += (small != 0.0 ? e * e / 2 : fabs(e) - 0.5) / n;
            dz[i] = (small != 0.0 ? e : copysign(1.0, e)) / n;
        }
        if (o->kind != DT_OUTPUT_BERNOULLI)
            *measure += fabs(e) / n;
    }
}

REFERENCE(policy_loss)
{
    int64_t width = a->logits.cols;
    double *dx = zeros(width), z[512], t[512], dz[512];
    float *logits = malloc((size_t)width * sizeof *logits); // dlogits may be logits
    for (int64_t r = 0; r < a->logits.rows; r++) {
        memcpy(logits, dt_view_at(&a->logits, r, 0), (size_t)width * sizeof *logits);
        memset(dx, 0, (size_t)width * sizeof *dx);
        bool counted = !a->mask || a->mask[r];
        for (int64_t k = 0; k < a->n && counted; k++) {
            const struct dt_output_slice *o = &a->outputs[k];
            double loss, measure;
            for (int64_t i = 0; i < o->width; i++) {
                bool has = o->kind != DT_OUTPUT_CATEGORICAL || i == 0;
                z[i] = (double)(logits[o->first + i] + a->bias[o->first + i]);
                t[i] = has ? get_at(&a->targets, r, o->target + i) : 0;
            }
            one_output(o, z, t, &loss, &measure, dz);
            a->sum->loss += (double)o->weight * loss;
            a->sum->metrics[DT_OUTPUT_METRICS * k] += loss;
            a->sum->metrics[DT_OUTPUT_METRICS * k + 1] += measure;
            a->sum->metrics[DT_OUTPUT_METRICS * k + 2] += 1;
            for (int64_t i = 0; i < o->width; i++)
                dx[o->first + i] = (double)a->scale * (double)o->weight * dz[i];
        }
        a->sum->counted += counted;
        struct dt_view row = dt_view_rows(a->dlogits, r, r + 1);
        store_view(&row, dx);
    }
    free(logits);
    return DT_OK;
}

// Slices of the logits, targets of each row that its kind allows, and logits, `gap` beyond a row.
static void list_outputs(const struct shape *s, int64_t gap, struct dt_policy_loss_args *a)
{
    int64_t width = 0, target_width = 0;
    for (const char *kind = s->outputs; *kind; kind++) {
        if (*kind == '.') {
            width++;
            continue;
        }
        struct dt_output_slice *o = &a->outputs[a->n++];
        *o = (struct dt_output_slice){.kind = *kind == 'c'   ? DT_OUTPUT_CATEGORICAL
                                              : *kind == 'b' ? DT_OUTPUT_BERNOULLI
                                              : *kind == 'r' ? DT_OUTPUT_REGRESSION
                                                             : DT_OUTPUT_HUBER,
                                      .first = (int32_t)width,
                                      .width = (int32_t)s->width,
                                      .target = (int32_t)target_width,
                                      .weight = 0.5f * (float)a->n,
                                      .smoothing = s->smoothing};
        width += s->width;
        target_width += *kind == 'c' ? 1 : s->width;
    }
    width += s->pad;
    a->targets = normal_view(DT_F32, s->rows, target_width, target_width, 1.0, 2);
    a->logits = normal_view(DT_F32, s->rows, width, width + gap, (double)s->spread, 1);
    a->bias = normal(width, 1.0, 3);
    for (int64_t r = 0; r < s->rows; r++)
        for (int64_t k = 0; k < a->n; k++) {
            float *t = dt_view_at(&a->targets, r, a->outputs[k].target);
            if (a->outputs[k].kind == DT_OUTPUT_CATEGORICAL)
                *t = (float)((r * 7919 + k) % s->width);
            for (int64_t i = 0; i < s->width && a->outputs[k].kind == DT_OUTPUT_BERNOULLI; i++)
                t[i] = t[i] > 0;
        }
}

// As for xent; a sum over the columns of one output adds no more than a few roundings of fp32, of
// numbers as large as the logits, which are up to 4 `spread`.
static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "policy: rows %lld, outputs %s of %lld, pad %lld, %s%s%s, %d/4 counted, %g",
                     (long long)s->rows, s->outputs, (long long)s->width, (long long)s->pad,
                     dt_dtype_name(s->type), s->gradient ? " gradient" : "",
                     s->in_place ? " in place" : "", s->counted, (double)s->spread))
        return;
    const struct dt_loss_sum before = {.loss = 1.5, .counted = 2.0, .metrics = {1, 2, 3}};
    struct dt_policy_loss_args a = {.scale = 0.25f, .sum = guarded_copy(&before, sizeof before)};
    list_outputs(s, s->in_place ? 0 : 5, &a);
    uint8_t *mask = s->counted < 4 ? guarded(s->rows) : NULL;
    for (int64_t r = 0; mask && r < s->rows; r++)
        mask[r] = r * 3 % 4 < s->counted;
    a.mask = mask;
    if (s->gradient)
        a.dlogits =
            s->in_place ? a.logits : fresh_view(s->type, s->rows, a.logits.cols, a.logits.stride);
    double loss = 2e-6 * (1.0 + 4.0 * (double)s->spread);
    PARITY(p, policy_loss, &a, OUT(dlogits, .each = 1.2e-5, .floor = 0.02), OUT(sum, .each = loss));
}

REFERENCE(encode_targets)
{
    for (int64_t i = 0; i < a->out.rows * a->n; i++) {
        const struct dt_output_slice *o = &a->outputs[i % a->n];
        const float *t = dt_view_at(&a->targets, i / a->n, o->target);
        for (int64_t j = 0; j < o->width; j++)
            set_at(&a->out, i / a->n, o->first + j,
                   o->kind == DT_OUTPUT_CATEGORICAL ? j == (int64_t)t[0] : (double)t[j]);
    }
    return DT_OK;
}

// The same outputs; columns of none stay as they are.
static void compare_encoding(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "encode: rows %lld, outputs %s of %lld, pad %lld, %s", (long long)s->rows,
                     s->outputs, (long long)s->width, (long long)s->pad, dt_dtype_name(s->type)))
        return;
    struct dt_policy_loss_args loss = {0};
    list_outputs(s, 0, &loss);
    int64_t width = loss.logits.cols;
    struct dt_encode_targets_args a = {.n = loss.n,
                                       .targets = loss.targets,
                                       .out =
                                           normal_view(s->type, s->rows, width, width + 3, 1.0, 5)};
    memcpy(a.outputs, loss.outputs, sizeof a.outputs);
    PARITY(p, encode_targets, &a);
}

static void check_not_finite(struct parity *p)
{
    static const char kinds[] = "cbrh";
    if (!parity_case(p, "policy: logits that are not finite"))
        return;
    p->run_only = true;
    for (int kind = 0; kind < 4; kind++)
        for (int strange = 0; strange < 2; strange++) {
            const struct shape s = {1, 0, (char[]){kinds[kind], 0}, 40, DT_F32, 0, 0, 4, 0, 1};
            const struct dt_loss_sum none = {0};
            struct dt_policy_loss_args a = {.scale = 1, .sum = guarded_copy(&none, sizeof none)};
            list_outputs(&s, 0, &a);
            float *logits = a.logits.data, *targets = a.targets.data;
            logits[37] = strange ? INFINITY : NAN;
            targets[37 % a.targets.cols] = 0;
            PARITY(p, policy_loss, &a, OUT(sum, .each = 1));
            CHECK(!isfinite(a.sum->loss), "kind %c: a logit of %g is lost", kinds[kind],
                  (double)logits[37]);
        }
    p->run_only = false;
}

// Of equal maxima the first counts.
static void check_ties(struct parity *p)
{
    const struct shape s = {11, 0, "c", 5, DT_F32, 0, 0, 4, 0, 0};
    const struct dt_loss_sum none = {0};
    if (!parity_case(p, "policy: equal logits"))
        return;
    struct dt_policy_loss_args a = {.scale = 1, .sum = guarded_copy(&none, sizeof none)};
    list_outputs(&s, 0, &a);
    a.bias = normal(a.logits.cols, 0.0, 3);
    PARITY(p, policy_loss, &a, OUT(sum, .each = 1e-6));
    CHECK(a.sum->metrics[1] == 3, "%g of 11 targets are 0, not 3", a.sum->metrics[1]);
}

REFERENCE(bias_forward)
{
    int64_t n = a->y.cols;
    for (int64_t i = 0; i < a->y.rows * n; i++)
        ((float *)a->y.data)[i / n * a->y.stride + i % n] += a->bias[i % n];
    return DT_OK;
}

REFERENCE(bias_backward)
{
    for (int64_t i = 0; i < a->dy.cols; i++) {
        double sum = a->accumulate ? (double)a->dbias[i] : 0.0;
        for (int64_t r = 0; r < a->dy.rows; r++)
            sum += get_at(&a->dy, r, i);
        a->dbias[i] = (float)sum;
    }
    return DT_OK;
}

// 256 numbers near 1 add up to about 16, each addition with an error of up to 2^-24 of that: 256 of
// them make about 2^-24 · 16 · 16 = 1.5e-5, a sixteenth of sqrt(256) times 1.5e-5, and more rows as
// much more as the square root says.
static void compare_bias(struct parity *p, int64_t rows, int64_t width, int64_t gap, dt_dtype type,
                         bool accumulate)
{
    if (!parity_case(p, "bias: rows %lld, width %lld, gap %lld, %s%s", (long long)rows,
                     (long long)width, (long long)gap, dt_dtype_name(type),
                     accumulate ? " +=" : ""))
        return;
    struct dt_bias_forward_args forward = {
        .bias = normal(width, 1.0, 1), .y = normal_view(DT_F32, rows, width, width + gap, 1.0, 2)};
    struct dt_bias_backward_args backward = {
        .dy = normal_view(type, rows, width, width + gap, 1.0, 3),
        .dbias = gradient_array(width, accumulate, 4),
        .accumulate = accumulate};
    PARITY(p, bias_forward, &forward);
    PARITY(p, bias_backward, &backward, OUT(dbias, .each = 4e-6, .floor = sqrt((double)rows)));
}

void parity_policy(struct parity *p)
{
    static const struct shape shapes[] = {
        {1, 0, "c", 2, DT_F32, 1, 0, 4, 0.0f, 1.0f},
        {7, 3, "b", 1, DT_BF16, 1, 0, 3, 0.0f, 2.0f},
        {9, 1, ".r", 3, DT_F32, 1, 1, 3, 0.0f, 2.0f},
        {66, 2, "h.", 5, DT_BF16, 1, 0, 2, 0.0f, 1.0f},
        {33, 7, "bccc.c", 17, DT_F32, 1, 1, 3, 0.1f, 3.0f},
        {33, 7, "c.brh", 9, DT_BF16, 1, 0, 3, 0.1f, 3.0f},
        {5, 0, "ccc", 33, DT_F32, 0, 0, 4, 0.25f, 3.0f},
        {4, 0, "cb", 257, DT_F32, 1, 0, 4, 0.0f, 10.0f},
        {8, 1, "cbrh", 4, DT_F32, 1, 0, 0, 0.0f, 1.0f},
        {1030, 3, "rhbc", 2, DT_F32, 1, 0, 3, 0.0f, 1.0f},
        {3, 0, "cccccccccccccccccccccccccccccccc", 3, DT_BF16, 1, 0, 4, 0.0f, 1.0f},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++) {
        compare(p, &shapes[i]);
        compare_encoding(p, &shapes[i]);
    }
    if (!p->model) {
        check_not_finite(p);
        check_ties(p);
    }
    for (int type = 0; type < 2 && p->model; type++)
        compare(p, &(struct shape){256 * 60, 0, "bccccc", 17, type ? DT_BF16 : DT_F32, 1, 0, 3,
                                   0.0f, 3.0f});
    static const int64_t biases[][3] = {{1, 1, 0},   {2, 33, 3},    {257, 31, 0},
                                        {700, 5, 1}, {512, 264, 8}, {3, 1000, 24}};
    for (size_t i = 0; i < sizeof biases / sizeof *biases && !p->model; i++)
        compare_bias(p, biases[i][0], biases[i][1], biases[i][2], i % 2 ? DT_BF16 : DT_F32,
                     i % 3 == 1);
    if (p->model)
        compare_bias(p, MODEL_LENGTH, MODEL_WIDTH, 0, DT_BF16, true);
}
