// Exact sums: of any addends in any order, and of sums of several ranks, always the same bits. A
// sum is a whole number of 2^-320 in limbs of 32 bits, which 64-bit integers hold with room for
// carries: sums are added up limb by limb, as int64, and so can be all-reduced.
#pragma once

#include <stdint.h>

enum { DT_EXACT_LIMBS = 24 }; // up to 2^448

struct dt_exact_sum {
    int64_t limbs[DT_EXACT_LIMBS]; // from the lowest on
    int64_t added;                 // since carries were last resolved
    int64_t lost;                  // addends that were not finite, or beyond 2^447
};
enum { DT_EXACT_I64 = sizeof(struct dt_exact_sum) / sizeof(int64_t) };

// Adds x; what of it is below 2^-320 is dropped.
void dt_exact_add(struct dt_exact_sum *sum, double x);
// Resolves carries, so that up to 2^30 sums can be added up limb by limb.
void dt_exact_settle(struct dt_exact_sum *sum);
// The sum in double precision; NaN where an addend was lost. Settles it.
double dt_exact_value(struct dt_exact_sum *sum);
