// The ops of a policy: the losses of its outputs, each kind alone and all together, and biases.
// There are columns of no output before, between and after the outputs, a padded stride, one row,
// rows without a mask and with all and with none counted, missing targets, weights, normalised
// targets, ranges, label smoothing, and one class more than a warp has lanes.
#include "parity.h"

#include <math.h>
#include <string.h>

enum { PARTS = 3 }; // components of a mixture; levels of quantiles

struct shape {
    int64_t rows, pad;   // pad: columns after the last output
    const char *outputs; // c, b, r, h, g, q: a kind of output, R, H, G with a range; '.': a column
                         // of none
    int64_t width;       // classes or columns of each output
    dt_dtype type;
    bool gradient, in_place;
    int counted; // how many of four rows count; 4: there is no mask
    float smoothing, spread;
    bool missing, weighted, scaled;
};

struct prediction {
    double y, slope;
};

static struct prediction predict(const struct dt_output_slice *o, double z)
{
    double low = (double)o->low, half = ((double)o->high - low) / 2;
    return half > 0 ? (struct prediction){low + half * (tanh(z) + 1), half / (cosh(z) * cosh(z))}
                    : (struct prediction){z, 1};
}

// An output at a row: its numbers z, its normalised targets t (NaN: missing), their deviations
// `unit`, and the results: the loss, the measure, and the gradient of the loss.
struct one {
    const double *z, *t, *unit;
    double present, loss, measure, *dz;
};

static void one_class(const struct dt_output_slice *o, struct one *one)
{
    double smoothing = (double)o->smoothing, max = -INFINITY, sum = 0.0;
    int64_t best = 0, label = (int64_t)one->t[0];
    for (int64_t i = 0; i < o->width; i++)
        best = one->z[i] > max ? i : best, max = fmax(one->z[i], max);
    for (int64_t i = 0; i < o->width; i++)
        sum += exp(one->z[i] - max);
    one->loss = log(sum) + max;
    one->measure = best == label;
    for (int64_t i = 0; i < o->width; i++) {
        double q = (1 - smoothing) * (i == label) + smoothing / o->width;
        one->loss -= q * one->z[i];
        one->dz[i] = exp(one->z[i] - max) / sum - q;
    }
}

static void one_mixture(const struct dt_output_slice *o, struct one *one)
{
    int64_t n = o->columns, best = 0;
    const double *means = one->z + PARTS, *spreads = means + PARTS * n;
    double prior[PARTS], joint[PARTS], sum = 0, total = 0;
    for (int64_t c = 0; c < PARTS; c++) {
        best = one->z[c] > one->z[best] ? c : best;
        sum += prior[c] = exp(one->z[c]);
    }
    for (int64_t c = 0; c < PARTS; c++) {
        joint[c] = log(prior[c] / sum);
        for (int64_t i = 0; i < n; i++) {
            double scale = softplus(spreads[c * n + i]) + 1e-4,
                   e = (predict(o, means[c * n + i]).y - one->t[i]) / scale;
            joint[c] -= isnan(one->t[i]) ? 0 : e * e / 2 + log(scale * sqrt(2 * M_PI));
        }
        total += exp(joint[c]);
    }
    one->loss = -log(total);
    for (int64_t c = 0; c < PARTS; c++) {
        double share = exp(joint[c]) / total;
        one->dz[c] = prior[c] / sum - share;
        for (int64_t i = 0; i < n; i++) {
            double s = spreads[c * n + i], scale = softplus(s) + 1e-4;
            struct prediction p = predict(o, means[c * n + i]);
            double e = (p.y - one->t[i]) / scale, there = !isnan(one->t[i]);
            one->dz[PARTS + c * n + i] = there != 0 ? share * e / scale * p.slope : 0;
            one->dz[PARTS + (PARTS + c) * n + i] =
                there != 0 ? share * (1 - e * e) / scale / (1 + exp(-s)) : 0;
            if (c == best && there != 0)
                one->measure += fabs(p.y - one->t[i]) * one->unit[i] / one->present;
        }
    }
}

static void one_levels(const struct dt_output_slice *o, struct one *one)
{
    for (int64_t at = 0; at < o->width; at++) {
        int64_t i = at % o->columns, j = at / o->columns;
        double u = one->t[i] - one->z[at], q = (double)o->levels[j];
        if (isnan(u))
            continue;
        one->loss += fmax(q * u, (q - 1) * u) / one->present / PARTS;
        one->dz[at] = (u < 0 ? 1 - q : -q) / one->present / PARTS;
        one->measure += j == 1 ? fabs(u) * one->unit[i] / one->present : 0; // levels[1] is 1/2
    }
}

static void one_output(const struct dt_output_slice *o, struct one *one)
{
    double n = one->present, smoothing = (double)o->smoothing;
    if (o->kind == DT_OUTPUT_CATEGORICAL)
        return one_class(o, one);
    if (o->kind == DT_OUTPUT_GMM)
        return one_mixture(o, one);
    if (o->kind == DT_OUTPUT_QUANTILE)
        return one_levels(o, one);
    for (int64_t i = 0; i < o->width; i++) {
        double z = one->z[i], t = one->t[i], q = (1 - smoothing) * t + smoothing / 2;
        struct prediction p = predict(o, z);
        double e = p.y - t, small = fabs(e) <= 1;
        if (isnan(t))
            continue;
        if (o->kind == DT_OUTPUT_BERNOULLI) {
            one->loss += (fmax(z, 0) + log1p(exp(-fabs(z))) - q * z) / n;
            one->measure += ((z > 0) == (t > 0.5)) / n;
            one->dz[i] = (1 / (1 + exp(-z)) - q) / n;
        } else if (o->kind == DT_OUTPUT_REGRESSION) {
            one->loss += e * e / n;
            one->dz[i] = 2 * e * p.slope / n;
        } else {
            one->loss += (small != 0.0 ? e * e / 2 : fabs(e) - 0.5) / n;
            one->dz[i] = (small != 0.0 ? e : copysign(1.0, e)) * p.slope / n;
        }
        if (o->kind != DT_OUTPUT_BERNOULLI)
            one->measure += fabs(e) * one->unit[i] / n;
    }
}

REFERENCE(policy_loss)
{
    int64_t width = a->logits.cols;
    double *dx = zeros(width), z[512], t[512], unit[512], dz[512];
    float *logits = malloc((size_t)width * sizeof *logits); // dlogits may be the same memory
    for (int64_t r = 0; r < a->logits.rows; r++) {
        const float *weights = dt_view_at(&a->weights, r, 0);
        memcpy(logits, dt_view_at(&a->logits, r, 0), (size_t)width * sizeof *logits);
        memset(dx, 0, (size_t)width * sizeof *dx);
        bool here = !a->mask || a->mask[r], counted = false;
        for (int64_t k = 0; k < a->n && here; k++) {
            const struct dt_output_slice *o = &a->outputs[k];
            struct one one = {.z = z, .t = t, .unit = unit, .dz = dz};
            double weight = weights ? (double)weights[1 + k] : 1;
            double *metrics = &a->sum->metrics[DT_OUTPUT_METRICS * k];
            bool numbers = o->kind != DT_OUTPUT_CATEGORICAL && o->kind != DT_OUTPUT_BERNOULLI;
            memset(dz, 0, sizeof dz);
            for (int64_t i = 0; i < o->width; i++)
                z[i] = (double)(logits[o->first + i] + a->bias[o->first + i]);
            for (int64_t i = 0; i < o->columns; i++) {
                bool scaled = numbers && a->mean;
                unit[i] = scaled ? (double)a->deviation[o->target + i] : 1;
                t[i] = get_at(&a->targets, r, o->target + i);
                t[i] = scaled ? (t[i] - (double)a->mean[o->target + i]) / unit[i] : t[i];
                one.present += !isnan(t[i]);
            }
            if (one.present == 0)
                continue;
            one_output(o, &one);
            counted = true;
            a->sum->loss += (double)o->weight * weight * one.loss;
            metrics[0] += weight * one.loss;
            metrics[1] += weight * one.measure;
            metrics[2] += weight;
            for (int64_t i = 0; i < o->width; i++)
                dx[o->first + i] = (double)a->scale * (double)o->weight * weight * dz[i];
        }
        a->sum->counted += !counted ? 0 : weights ? (double)weights[0] : 1;
        struct dt_view row = dt_view_rows(a->dlogits, r, r + 1);
        store_view(&row, dx);
    }
    free(logits);
    return DT_OK;
}

static enum dt_output_kind kind_of(char letter)
{
    switch (letter) {
    case 'c':
        return DT_OUTPUT_CATEGORICAL;
    case 'b':
        return DT_OUTPUT_BERNOULLI;
    case 'h':
    case 'H':
        return DT_OUTPUT_HUBER;
    case 'g':
    case 'G':
        return DT_OUTPUT_GMM;
    case 'q':
        return DT_OUTPUT_QUANTILE;
    default:
        return DT_OUTPUT_REGRESSION;
    }
}

// Makes targets that are valid for their kinds. Some rows miss all or some of them.
static void list_targets(const struct shape *s, const struct dt_output_slice *o, int64_t k,
                         const struct dt_view *targets)
{
    for (int64_t r = 0; r < s->rows; r++) {
        float *t = dt_view_at(targets, r, o->target);
        if (o->kind == DT_OUTPUT_CATEGORICAL)
            *t = (float)((r * 7919 + k) % s->width);
        for (int64_t i = 0; i < o->columns; i++) {
            t[i] = o->kind == DT_OUTPUT_BERNOULLI ? t[i] > 0 : t[i];
            if (s->missing && ((r + k) % 3 == 0 || (r * 5 + k + i) % 4 == 0))
                t[i] = NAN;
        }
    }
}

// Makes the slices of the logits, and logits with `gap` columns after each row. Deviations of
// mixtures are above 1/4: the smaller they are, the more a share of two components depends on
// rounding.
static void list_outputs(const struct shape *s, int64_t gap, struct dt_policy_loss_args *a)
{
    int64_t width = 0, target_width = 0;
    for (const char *letter = s->outputs; *letter; letter++) {
        if (*letter == '.') {
            width++;
            continue;
        }
        struct dt_output_slice *o = &a->outputs[a->n++];
        bool ranged = *letter >= 'A' && *letter <= 'Z';
        *o = (struct dt_output_slice){.kind = kind_of(*letter),
                                      .first = (int32_t)width,
                                      .width = (int32_t)s->width,
                                      .target = (int32_t)target_width,
                                      .columns = *letter == 'c' ? 1 : (int32_t)s->width,
                                      .parts = strchr("gGq", *letter) ? PARTS : 1,
                                      .median = *letter == 'q',
                                      .weight = 0.5f * (float)a->n,
                                      .smoothing = s->smoothing,
                                      .low = ranged ? -1.5f : 0,
                                      .high = ranged ? 0.5f : 0,
                                      .levels = {0.1f, 0.5f, 0.8f}};
        o->width = (int32_t)dt_output_width(o);
        width += o->width;
        target_width += o->columns;
    }
    width += s->pad;
    a->targets = normal_view(DT_F32, s->rows, target_width, target_width, 1.0, 2);
    a->logits = normal_view(DT_F32, s->rows, width, width + gap, (double)s->spread, 1);
    a->bias = normal(width, 1.0, 3);
    for (int64_t k = 0; k < a->n; k++) {
        const struct dt_output_slice *o = &a->outputs[k];
        list_targets(s, o, k, &a->targets);
        int64_t spreads = o->kind == DT_OUTPUT_GMM ? PARTS * o->columns : 0;
        for (int64_t i = o->first + o->width - spreads; i < o->first + o->width; i++) {
            ((float *)a->bias)[i] = 0.5f;
            for (int64_t r = 0; r < s->rows; r++)
                *(float *)dt_view_at(&a->logits, r, i) *= 0.4f / s->spread;
        }
    }
    if (s->scaled) {
        float *deviation = normal(target_width, 1.0, 7);
        a->mean = normal(target_width, 1.0, 6);
        for (int64_t i = 0; i < target_width; i++)
            deviation[i] = 0.5f + fabsf(deviation[i]);
        a->deviation = deviation;
    }
    if (s->weighted)
        a->weights = normal_view(DT_F32, s->rows, 1 + a->n, 2 + a->n, 1.0, 8);
    for (int64_t r = 0; r < s->rows && s->weighted; r++)
        for (int64_t k = 0; k <= a->n; k++) {
            float *weight = dt_view_at(&a->weights, r, k);
            *weight = (r + k) % 5 == 0 ? 0 : fabsf(*weight);
        }
}

// Tolerances as for xent. A sum over the columns of an output adds a few roundings of fp32 of
// numbers as large as the logits, which are up to 4 `spread`. A mixture's shares are exponentials
// of sums of up to some hundred, each rounded by 2^-24 of itself.
static void compare(struct parity *p, const struct shape *s)
{
    if (!parity_case(
            p, "policy: rows %lld, outputs %s of %lld, pad %lld, %s%s%s, %d/4 counted, %g%s%s%s",
            (long long)s->rows, s->outputs, (long long)s->width, (long long)s->pad,
            dt_dtype_name(s->type), s->gradient ? " gradient" : "", s->in_place ? " in place" : "",
            s->counted, (double)s->spread, s->missing ? ", missing targets" : "",
            s->weighted ? ", weights" : "", s->scaled ? ", normalised" : ""))
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
    bool mixture = strpbrk(s->outputs, "gG");
    double loss = 2e-6 * (1.0 + 4.0 * (double)s->spread), gradient = mixture ? 1e-4 : 1.2e-5;
    PARITY(p, policy_loss, &a, OUT(dlogits, .each = gradient, .floor = 0.02),
           OUT(sum, .each = loss));
}

REFERENCE(encode_targets)
{
    for (int64_t i = 0; i < a->out.rows * a->n; i++) {
        const struct dt_output_slice *o = &a->outputs[i % a->n];
        const float *targets = dt_view_at(&a->targets, i / a->n, 0);
        bool class = o->kind == DT_OUTPUT_CATEGORICAL;
        for (int64_t j = 0; j < o->width; j++) {
            int64_t column = class ? o->target : o->target + j;
            double t = (double)targets[column], x = t;
            if (a->mean && o->kind == DT_OUTPUT_REGRESSION)
                x = (t - (double)a->mean[column]) / (double)a->deviation[column];
            set_at(&a->out, i / a->n, o->first + j, isnan(t) ? 0 : class ? j == (int64_t)t : x);
        }
    }
    return DT_OK;
}

// Encodes classes and numbers. Columns that belong to no output stay as they are.
static void compare_encoding(struct parity *p, const struct shape *s)
{
    if (strpbrk(s->outputs, "gGq") ||
        !parity_case(p, "encode: rows %lld, outputs %s of %lld, pad %lld, %s%s%s",
                     (long long)s->rows, s->outputs, (long long)s->width, (long long)s->pad,
                     dt_dtype_name(s->type), s->missing ? ", missing targets" : "",
                     s->scaled ? ", normalised" : ""))
        return;
    struct dt_policy_loss_args loss = {0};
    list_outputs(s, 0, &loss);
    int64_t width = loss.logits.cols;
    struct dt_encode_targets_args a = {.n = loss.n,
                                       .targets = loss.targets,
                                       .mean = loss.mean,
                                       .deviation = loss.deviation,
                                       .out =
                                           normal_view(s->type, s->rows, width, width + 3, 1.0, 5)};
    memcpy(a.outputs, loss.outputs, sizeof a.outputs);
    // A number divided by a deviation is rounded twice; 0.5 is the smallest deviation.
    PARITY(p, encode_targets, &a, OUT(out, .each = 3e-7));
}

REFERENCE(decode_outputs)
{
    for (int64_t i = 0; i < a->z.rows * a->n; i++) {
        const struct dt_output_slice *o = &a->outputs[i % a->n];
        bool mixture = o->kind == DT_OUTPUT_GMM;
        bool logits = o->kind == DT_OUTPUT_CATEGORICAL || o->kind == DT_OUTPUT_BERNOULLI;
        for (int64_t j = mixture ? PARTS : 0; j < o->width && !logits; j++) {
            int64_t at = j - (mixture ? PARTS : 0), column = o->target + at % o->columns;
            double z = get_at(&a->z, i / a->n, o->first + j);
            double unit = a->mean ? (double)a->deviation[column] : 1,
                   mean = a->mean ? (double)a->mean[column] : 0;
            double y = mixture && at >= PARTS * o->columns ? (softplus(z) + 1e-4) * unit
                                                           : predict(o, z).y * unit + mean;
            set_at(&a->z, i / a->n, o->first + j, y);
        }
    }
    return DT_OK;
}

static void compare_decoding(struct parity *p, const struct shape *s)
{
    if (!parity_case(p, "decode: rows %lld, outputs %s of %lld, pad %lld%s", (long long)s->rows,
                     s->outputs, (long long)s->width, (long long)s->pad,
                     s->scaled ? ", normalised" : ""))
        return;
    struct dt_policy_loss_args loss = {0};
    list_outputs(s, 5, &loss);
    struct dt_decode_outputs_args a = {.n = loss.n,
                                       .targets = loss.targets.cols,
                                       .mean = loss.mean,
                                       .deviation = loss.deviation,
                                       .z = loss.logits};
    memcpy(a.outputs, loss.outputs, sizeof a.outputs);
    // A few roundings of numbers up to 4 `spread` and of the largest deviation, about 4.
    PARITY(p, decode_outputs, &a, OUT(z, .each = 1e-6, .floor = 4));
}

// Allocates the arguments of a single case: outputs of this shape, a bias and an empty sum.
static struct dt_policy_loss_args own_case(const struct shape *s)
{
    const struct dt_loss_sum none = {0};
    struct dt_policy_loss_args a = {.scale = 1, .sum = guarded_copy(&none, sizeof none)};
    list_outputs(s, 0, &a);
    a.bias = normal(a.logits.cols, 0.0, 3);
    return a;
}

static void check_not_finite(struct parity *p)
{
    static const char kinds[] = "cbrhq";
    if (!parity_case(p, "policy: logits that are not finite"))
        return;
    p->run_only = true;
    for (int kind = 0; kinds[kind]; kind++)
        for (int strange = 0; strange < 2; strange++) {
            const struct shape s = {1, 0, (char[]){kinds[kind], 0}, 40, DT_F32, 0, 0, 4, 0, 1, 0,
                                    0, 0};
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

// Targets at the ends of the range, and predictions near them. The gradient is a product of two
// small differences and keeps their digits, apart from the rounding of an exponential's argument up
// to 16 and six more.
static void check_ends(struct parity *p)
{
    const struct shape s = {33, 0, "RH", 3, DT_F32, 1, 0, 4, 0, 1, 0, 0, 0};
    if (!parity_case(p, "policy: targets that are ends"))
        return;
    struct dt_policy_loss_args a = own_case(&s);
    a.dlogits = fresh_view(s.type, s.rows, a.logits.cols, a.logits.stride);
    for (int64_t i = 0; i < s.rows * a.logits.cols; i++) {
        *(float *)dt_view_at(&a.logits, i / a.logits.cols, i % a.logits.cols) =
            0.5f * (float)(i / a.logits.cols - s.rows / 2);
        *(float *)dt_view_at(&a.targets, i / a.logits.cols, i % a.logits.cols) =
            i % 2 ? a.outputs[0].low : a.outputs[0].high;
    }
    PARITY(p, policy_loss, &a, OUT(dlogits, .each = 3e-6, .floor = 1e-30), OUT(sum, .each = 2e-6));
}

// The first of equal maxima counts as the prediction.
static void check_ties(struct parity *p)
{
    const struct shape s = {11, 0, "c", 5, DT_F32, 0, 0, 4, 0, 0, 0, 0, 0};
    if (!parity_case(p, "policy: equal logits"))
        return;
    struct dt_policy_loss_args a = own_case(&s);
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

// 256 numbers near 1 add up to about 16, and each addition has an error of up to 2^-24 of that:
// together about 2^-24 · 16 · 16 = 1.5e-5, a sixteenth of sqrt(256) times 1.5e-5. More rows add as
// much more as their square root says.
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
        {1, 0, "c", 2, DT_F32, 1, 0, 4, 0.0f, 1.0f, 0, 0, 0},
        {7, 3, "b", 1, DT_BF16, 1, 0, 3, 0.0f, 2.0f, 0, 0, 0},
        {9, 1, ".r", 3, DT_F32, 1, 1, 3, 0.0f, 2.0f, 0, 0, 0},
        {66, 2, "h.", 5, DT_BF16, 1, 0, 2, 0.0f, 1.0f, 0, 0, 0},
        {33, 7, "bccc.c", 17, DT_F32, 1, 1, 3, 0.1f, 3.0f, 0, 0, 0},
        {33, 7, "c.brh", 9, DT_BF16, 1, 0, 3, 0.1f, 3.0f, 0, 0, 0},
        {5, 0, "ccc", 33, DT_F32, 0, 0, 4, 0.25f, 3.0f, 0, 0, 0},
        {4, 0, "cb", 257, DT_F32, 1, 0, 4, 0.0f, 10.0f, 0, 0, 0},
        {8, 1, "cbrh", 4, DT_F32, 1, 0, 0, 0.0f, 1.0f, 0, 0, 0},
        {1030, 3, "rhbc", 2, DT_F32, 1, 0, 3, 0.0f, 1.0f, 0, 0, 0},
        {3, 0, "cccccccccccccccccccccccccccccccc", 3, DT_BF16, 1, 0, 4, 0.0f, 1.0f, 0, 0, 0},
        {1, 0, "g", 7, DT_F32, 1, 1, 4, 0.0f, 1.0f, 0, 0, 0},
        {9, 2, "q", 3, DT_F32, 1, 0, 4, 0.0f, 2.0f, 0, 0, 0},
        {37, 1, "gRq.HG", 5, DT_F32, 1, 1, 3, 0.0f, 1.0f, 0, 0, 1},
        {37, 3, "c.bhrgqG", 9, DT_BF16, 1, 0, 3, 0.1f, 1.0f, 1, 1, 1},
        {66, 0, "brhqgc", 4, DT_F32, 1, 1, 3, 0.0f, 2.0f, 1, 0, 0},
        {12, 0, "cg", 33, DT_F32, 1, 0, 4, 0.0f, 1.0f, 0, 1, 0},
        {40, 1, "ccb", 5, DT_F32, 1, 1, 2, 0.1f, 1.0f, 1, 1, 0},
        {21, 0, ".rhRb", 6, DT_BF16, 1, 0, 3, 0.0f, 1.0f, 1, 0, 1},
        {5, 0, "rg", 2, DT_F32, 0, 0, 4, 0.0f, 1.0f, 1, 1, 1},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++) {
        compare(p, &shapes[i]);
        compare_encoding(p, &shapes[i]);
        compare_decoding(p, &shapes[i]);
    }
    if (!p->model) {
        check_not_finite(p);
        check_ties(p);
        check_ends(p);
    }
    for (int type = 0; type < 2 && p->model; type++)
        compare(p, &(struct shape){256 * 60, 0, "bccccc", 17, type ? DT_BF16 : DT_F32, 1, 0, 3,
                                   0.0f, 3.0f, 0, 0, 0});
    static const int64_t biases[][3] = {{1, 1, 0},   {2, 33, 3},    {257, 31, 0},
                                        {700, 5, 1}, {512, 264, 8}, {3, 1000, 24}};
    for (size_t i = 0; i < sizeof biases / sizeof *biases && !p->model; i++)
        compare_bias(p, biases[i][0], biases[i][1], biases[i][2], i % 2 ? DT_BF16 : DT_F32,
                     i % 3 == 1);
    if (p->model)
        compare_bias(p, MODEL_LENGTH, MODEL_WIDTH, 0, DT_BF16, true);
}
