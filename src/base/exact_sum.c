// Splits addends into limbs and combines limbs into a double.
#include "base/exact_sum.h"

#include <math.h>
#include <stdbool.h>

enum { BITS = 32, LOWEST = -320, MANTISSA = 53, SETTLE = 1 << 30 };
static const uint64_t limb_mask = ((uint64_t)1 << BITS) - 1;

void dt_exact_add(struct dt_exact_sum *sum, double x)
{
    int exponent = 0;
    if (!isfinite(x) || fabs(x) > 0x1p447) {
        sum->lost++;
        return;
    }
    uint64_t mantissa = (uint64_t)ldexp(frexp(fabs(x), &exponent), MANTISSA);
    int place = exponent - MANTISSA - LOWEST; // of its lowest bit
    if (place < 0) {
        mantissa = place <= -MANTISSA ? 0 : mantissa >> -place;
        place = 0;
    }
    int64_t *limb = &sum->limbs[place / BITS], sign = x < 0 ? -1 : 1;
    int shift = place % BITS;
    uint64_t high = mantissa >> (BITS - shift); // bits above the first limb
    limb[0] += sign * (int64_t)(mantissa << shift & limb_mask);
    limb[1] += sign * (int64_t)(high & limb_mask);
    if (high >> BITS)
        limb[2] += sign * (int64_t)(high >> BITS);
    if (++sum->added == SETTLE)
        dt_exact_settle(sum);
}

void dt_exact_settle(struct dt_exact_sum *sum)
{
    for (int i = 0; i < DT_EXACT_LIMBS - 1; i++) {
        int64_t low = (int64_t)((uint64_t)sum->limbs[i] & limb_mask); // floor: the carry has a sign
        sum->limbs[i + 1] += (sum->limbs[i] - low) / ((int64_t)1 << BITS);
        sum->limbs[i] = low;
    }
    sum->added = 0;
}

double dt_exact_value(struct dt_exact_sum *sum)
{
    struct dt_exact_sum size;
    double value = 0;
    dt_exact_settle(sum);
    size = *sum;
    bool negative = size.limbs[DT_EXACT_LIMBS - 1] < 0;
    for (int i = 0; negative && i < DT_EXACT_LIMBS; i++)
        size.limbs[i] = -size.limbs[i];
    dt_exact_settle(&size);
    for (int i = DT_EXACT_LIMBS - 1; i >= 0; i--)
        value = value * 0x1p32 + (double)size.limbs[i];
    value = ldexp(negative ? -value : value, LOWEST);
    return sum->lost > 0 ? NAN : value;
}
