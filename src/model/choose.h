// Draws one of n classes by their logits, for every categorical output. The same logits and random
// numbers give the same choice on every machine: weights are integers, computed without functions
// of the C library, and no two floating-point operations may be fused.
//
// The order is that of transformers' generate. Positive logits of classes seen before are divided
// by the repetition penalty, others multiplied by it; all logits are divided by the temperature.
// Classes are sorted by descending logit, ties by ascending index. Of these the first top_k are
// kept, with those equal to the last; then the shortest prefix whose probability reaches top_p;
// then those with at least min_p times the probability of the first. One is drawn in proportion to
// e^logit.
#pragma once

#include "base/error.h"
#include "base/rng.h"

#include <stdbool.h>

struct dt_choice {
    double temperature;        // >= 0; 0: the most likely class, the first of equal ones
    int64_t top_k;             // >= 1; 0: all
    double top_p;              // in (0, 1]; 1: all
    double min_p;              // in [0, 1]; 0: all
    double repetition_penalty; // > 0; 1: none
};
#define DT_CHOICE_PLAIN(t)                                                                         \
    {                                                                                              \
        .temperature = (t), .top_p = 1, .repetition_penalty = 1                                    \
    }
// DT_USER naming what is out of range.
dt_status dt_choice_check(const struct dt_choice *choice);

// logits [n] are finite; seen [n]: whether the penalty applies, or NULL. scratch:
// DT_CHOOSE_SCRATCH(n) bytes, 8-byte aligned; may be NULL unless dt_choice_sorts. Temperature 0
// draws no random number.
#define DT_CHOOSE_SCRATCH(n) ((n) * (int64_t)(sizeof(float) + sizeof(int32_t)))
bool dt_choice_sorts(const struct dt_choice *choice);
int64_t dt_choose(const struct dt_choice *choice, const float *logits, int64_t n,
                  const unsigned char *seen, void *scratch, struct dt_philox *rng);
