// Looks for numbers that weights, moments and frames must not contain.
#pragma once

#include "base/round.h"

#include <float.h>

static inline int dt_is_outside(float value, float least)
{
    return !((value >= least) & (value <= FLT_MAX)); // without a branch: loops become vector code
}

// The first of n numbers that is NaN, infinite or below `least` (-FLT_MAX: any finite one is fine);
// n: none is.
static inline int64_t dt_find_outside(const float *values, int64_t n, float least)
{
    enum { BLOCK = 1024 };
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t end = dt_min_i64(first + BLOCK, n);
        int outside = 0;
        for (int64_t i = first; i < end; i++)
            outside |= dt_is_outside(values[i], least);
        for (int64_t i = first; outside; i++)
            if (dt_is_outside(values[i], least))
                return i;
    }
    return n;
}
