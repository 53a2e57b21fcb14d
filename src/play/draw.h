// Values from what a model predicts: the most likely ones, or drawn at random.
#pragma once

#include "base/rng.h"
#include "model/model.h"

// temperature 0: the most likely value; else a draw with logits divided by it. A categorical output
// [width] gives one value, the class; Bernoulli outputs one of 0 and 1 each; a regression its
// prediction, without noise. Expects finite predictions.
void dt_draw(const struct dt_output *output, const float *predicted, double temperature,
             struct dt_philox *rng, float *values);
