// Argmax and random draws. Uses the generator of base.
#include "play/draw.h"

#include <math.h>

static int64_t argmax(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

// Draws from softmax(logits / temperature).
static int64_t draw_class(const float *logits, int64_t n, double temperature, struct dt_philox *rng)
{
    int64_t best = argmax(logits, n), i = 0;
    if (temperature == 0)
        return best;
    double total = 0, at = dt_philox_uniform(rng);
    for (int64_t j = 0; j < n; j++)
        total += exp((logits[j] - logits[best]) / temperature);
    at *= total;
    for (; i < n - 1; i++) {
        at -= exp((logits[i] - logits[best]) / temperature);
        if (at < 0)
            break;
    }
    return i;
}

static bool draw_bit(float logit, double temperature, struct dt_philox *rng)
{
    if (temperature == 0)
        return logit > 0;
    return dt_philox_uniform(rng) < 1 / (1 + exp(-(double)logit / temperature));
}

void dt_draw(const struct dt_output *output, const float *predicted, double temperature,
             struct dt_philox *rng, float *values)
{
    switch (output->kind) {
    case DT_OUTPUT_CATEGORICAL:
        *values = (float)draw_class(predicted, output->width, temperature, rng);
        break;
    case DT_OUTPUT_BERNOULLI:
        for (int64_t i = 0; i < output->width; i++)
            values[i] = draw_bit(predicted[i], temperature, rng);
        break;
    case DT_OUTPUT_REGRESSION:
    case DT_OUTPUT_HUBER:
        for (int64_t i = 0; i < output->width; i++)
            values[i] = predicted[i];
        break;
    }
}
