// The types of outputs: name, loss, and how values are drawn from them.
#include "base/rng.h"
#include "model/choose.h"
#include "model/model.h"

#include <math.h>

static int64_t pick(const float *logits, int64_t n, double temperature, struct dt_philox *rng)
{
    const struct dt_choice plain = DT_CHOICE_PLAIN(temperature);
    return dt_choose(&plain, logits, n, NULL, NULL, rng);
}

static void draw_class(const struct dt_output *output, const float *logits, double temperature,
                       struct dt_philox *rng, float *values)
{
    *values = (float)pick(logits, output->width, temperature, rng);
}

static void draw_bits(const struct dt_output *output, const float *logits, double temperature,
                      struct dt_philox *rng, float *values)
{
    for (int64_t i = 0; i < output->width; i++)
        values[i] = temperature == 0
                        ? logits[i] > 0
                        : dt_philox_uniform(rng) < 1 / (1 + exp(-(double)logits[i] / temperature));
}

// Draws the prediction without noise; with several levels, that of the level nearest to the median.
static void draw_nothing(const struct dt_output *output, const float *predicted, double temperature,
                         struct dt_philox *rng, float *values)
{
    (void)temperature, (void)rng;
    for (int64_t i = 0; i < output->size; i++)
        values[i] = predicted[output->median * output->size + i];
}

// Draws a component, then a number from it. A Gaussian's density to the power of 1 / temperature
// has temperature times the variance.
static void draw_mixture(const struct dt_output *output, const float *predicted, double temperature,
                         struct dt_philox *rng, float *values)
{
    int64_t K = output->parts, n = output->size, c = pick(predicted, K, temperature, rng);
    const float *means = predicted + K + c * n, *deviations = means + K * n;
    double spread = sqrt(temperature);
    for (int64_t i = 0; i < n; i++) {
        double noise = temperature == 0 ? 0 : spread * (double)dt_philox_normal(rng);
        values[i] = (float)(means[i] + noise * deviations[i]);
    }
}

// Parses an optional "(LOW,HIGH)" from parameter `at` on.
static bool take_range(struct dt_output *output, int at)
{
    if (output->n_parameters == at)
        return true;
    if (output->n_parameters != at + 2)
        return false;
    output->low = output->parameters[at];
    output->high = output->parameters[at + 1];
    return output->low < output->high;
}

static bool shape_numbers(struct dt_output *output)
{
    return take_range(output, 0);
}

static bool shape_mixture(struct dt_output *output)
{
    float components = output->n_parameters > 0 ? output->parameters[0] : 0;
    if (!(components >= 1 && components <= DT_OUTPUT_COMPONENTS) ||
        components != floorf(components))
        return false;
    output->parts = (int64_t)components;
    output->width = output->parts * (1 + 2 * output->size);
    return take_range(output, 1);
}

static bool shape_levels(struct dt_output *output)
{
    const float *levels = output->parameters;
    for (int j = 0; j < output->n_parameters; j++) {
        if (!(levels[j] > (j > 0 ? levels[j - 1] : 0) && levels[j] < 1))
            return false;
        if (fabsf(levels[j] - 0.5f) < fabsf(levels[output->median] - 0.5f))
            output->median = j;
    }
    output->parts = output->n_parameters;
    output->width = output->parts * output->size;
    return output->parts > 0;
}

static const char range_or_none[] = "no parameters or a range (LOW,HIGH), as in regression(-1,1)";

const struct dt_output_type dt_categorical = {.name = "categorical",
                                              .loss = DT_OUTPUT_CATEGORICAL,
                                              .measure = "accuracy",
                                              .one_of = true,
                                              .draw = draw_class};
const struct dt_output_type dt_bernoulli = {.name = "bernoulli",
                                            .loss = DT_OUTPUT_BERNOULLI,
                                            .measure = "accuracy",
                                            .classes = 2,
                                            .draw = draw_bits};
const struct dt_output_type dt_regression = {.name = "regression",
                                             .loss = DT_OUTPUT_REGRESSION,
                                             .measure = "error",
                                             .scaled = true,
                                             .shape = shape_numbers,
                                             .parameters = range_or_none,
                                             .draw = draw_nothing};
const struct dt_output_type dt_huber = {.name = "huber",
                                        .loss = DT_OUTPUT_HUBER,
                                        .measure = "error",
                                        .scaled = true,
                                        .shape = shape_numbers,
                                        .parameters = range_or_none,
                                        .draw = draw_nothing};
const struct dt_output_type dt_gmm = {
    .name = "gmm",
    .loss = DT_OUTPUT_GMM,
    .measure = "error",
    .scaled = true,
    .shape = shape_mixture,
    .parameters =
        "1 to 32 components and perhaps a range (K,LOW,HIGH), as in gmm(5) or gmm(5,-1,1)",
    .draw = draw_mixture};
const struct dt_output_type dt_quantile = {
    .name = "quantile",
    .loss = DT_OUTPUT_QUANTILE,
    .measure = "error",
    .scaled = true,
    .shape = shape_levels,
    .parameters = "1 to 16 ascending levels between 0 and 1, as in quantile(0.1,0.5,0.9)",
    .draw = draw_nothing};
const struct dt_output_type *const dt_output_types[] = {
    &dt_categorical, &dt_bernoulli, &dt_regression, &dt_huber, &dt_gmm, &dt_quantile, NULL};
