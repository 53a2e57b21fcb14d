// Finds values that weights, moments and frames must not contain.
#pragma once

#include "base/round.h"

#include <float.h>
#include <math.h>

static inline int dt_is_outside(float value, float least, float most)
{
    return !((value >= least) & (value <= most)); // branch-free, so that loops vectorise
}

// Index of the first of n values that is NaN, below `least` or above `most` (-FLT_MAX and FLT_MAX
// accept all finite values); n if there is none.
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
