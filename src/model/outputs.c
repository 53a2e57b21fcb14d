// Lists the types of outputs: what they are called, what they learn by, and how values are drawn
// from them.
#include "base/rng.h"
#include "model/model.h"

#include <math.h>

// Draws a class from softmax(logits / temperature).
static void draw_class(const struct dt_output *output, const float *logits, double temperature,
                       struct dt_philox *rng, float *values)
{
    int64_t n = output->width, best = 0, i = 0;
    for (int64_t j = 1; j < n; j++)
        best = logits[j] > logits[best] ? j : best;
    *values = (float)best;
    if (temperature == 0)
        return;
    double total = 0, at = dt_philox_uniform(rng);
    for (int64_t j = 0; j < n; j++)
        total += exp((logits[j] - logits[best]) / temperature);
    at *= total;
    for (; i < n - 1; i++) {
        at -= exp((logits[i] - logits[best]) / temperature);
        if (at < 0)
            break;
    }
    *values = (float)i;
}

static void draw_bits(const struct dt_output *output, const float *logits, double temperature,
                      struct dt_philox *rng, float *values)
{
    for (int64_t i = 0; i < output->width; i++)
        values[i] = temperature == 0
                        ? logits[i] > 0
                        : dt_philox_uniform(rng) < 1 / (1 + exp(-(double)logits[i] / temperature));
}

// The prediction, without noise.
static void draw_nothing(const struct dt_output *output, const float *predicted, double temperature,
                         struct dt_philox *rng, float *values)
{
    (void)temperature, (void)rng;
    for (int64_t i = 0; i < output->width; i++)
        values[i] = predicted[i];
}

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
const struct dt_output_type dt_regression = {
    .name = "regression", .loss = DT_OUTPUT_REGRESSION, .measure = "error", .draw = draw_nothing};
const struct dt_output_type dt_huber = {
    .name = "huber", .loss = DT_OUTPUT_HUBER, .measure = "error", .draw = draw_nothing};
const struct dt_output_type *const dt_output_types[] = {&dt_categorical, &dt_bernoulli,
                                                        &dt_regression, &dt_huber, NULL};
