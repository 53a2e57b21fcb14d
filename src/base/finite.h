// Looks for numbers that weights, moments and frames must not contain.
#pragma once

#include "base/round.h"

#include <float.h>
#include <math.h>

static inline int dt_is_outside(float value, float least, float most)
{
    return !((value >= least) & (value <= most)); // without a branch: loops become vector code
}

// The first of n numbers that is NaN, below `least` or above `most` (-FLT_MAX, FLT_MAX: any finite
// one is fine); n: none is.
static inline int64_t dt_find_outside(const float *values, int64_t n, float least, float most)
{
    enum { BLOCK = 1024 };
    for (int64_t first = 0; first < n; first += BLOCK) {
        int64_t end = dt_min_i64(first + BLOCK, n);
        int outside = 0;
        for (int64_t i = first; i < end; i++)
            outside |= dt_is_outside(values[i], least, most);
        for (int64_t i = first; outside; i++)
            if (dt_is_outside(values[i], least, most))
                return i;
    }
    return n;
}
