// Exact sums: the order of addends and the number of ranks do not change a bit. A sum is a multiple
// of 2^-320 in limbs of 32 bits, held in 64-bit integers with room for carries. Sums are added limb
// by limb as int64, so they can be all-reduced.
#pragma once

#include <stdint.h>

enum { DT_EXACT_LIMBS = 24 }; // up to 2^448

struct dt_exact_sum {
    int64_t limbs[DT_EXACT_LIMBS]; // lowest first
    int64_t added;                 // addends since carries were last resolved
    int64_t lost;                  // addends that were not finite, or above 2^447
};
enum { DT_EXACT_I64 = sizeof(struct dt_exact_sum) / sizeof(int64_t) };

// Adds x, dropping its bits below 2^-320.
void dt_exact_add(struct dt_exact_sum *sum, double x);
// Resolves carries, so that up to 2^30 sums can be added limb by limb.
void dt_exact_settle(struct dt_exact_sum *sum);
// The sum in double precision; NaN if an addend was lost. Resolves carries.
double dt_exact_value(struct dt_exact_sum *sum);
