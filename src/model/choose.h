// Chooses one of n classes by their logits: what is drawn from every categorical output. The same
// logits and random numbers give the same choice on every machine: weights are whole numbers,
// computed and added up without functions of the C library, and every product and quotient of
// floating-point numbers stands alone.
//
// In this order, as transformers' generate: the logits of classes seen before are divided by the
// repetition penalty where they are positive, else multiplied by it; all are divided by the
// temperature; of the classes by descending logit (of equal ones by ascending index) the first
// top_k stay, with those equal to the last; of these the shortest beginning whose probability
// reaches top_p; of these those with at least min_p times the probability of the first. One of
// them is drawn in proportion to e^logit.
#pragma once

#include "base/error.h"
#include "base/rng.h"

#include <stdbool.h>

struct dt_choice {
    double temperature;        // >= 0; 0: the most likely one, the first of equal ones
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

// logits [n] finite; seen [n]: whether the penalty applies, or NULL. scratch: DT_CHOOSE_SCRATCH(n)
// bytes, 8-byte aligned, where dt_choice_sorts; else it may be NULL. Temperature 0 draws no random
// number.
#define DT_CHOOSE_SCRATCH(n) ((n) * (int64_t)(sizeof(float) + sizeof(int32_t)))
bool dt_choice_sorts(const struct dt_choice *choice);
int64_t dt_choose(const struct dt_choice *choice, const float *logits, int64_t n,
                  const unsigned char *seen, void *scratch, struct dt_philox *rng);
