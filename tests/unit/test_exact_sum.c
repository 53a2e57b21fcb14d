// Tests exact sums: no rounding within the bits of a double, even where numbers cancel; the same
// result in any order and in parts; and the limits.
#include "base/exact_sum.h"
#include "base/rng.h"
#include "test.h"

static double sum_of(const double *x, int n)
{
    struct dt_exact_sum sum = {0};
    for (int i = 0; i < n; i++)
        dt_exact_add(&sum, x[i]);
    return dt_exact_value(&sum);
}

static void test_exact(void)
{
    static const double cases[][4] = {
        {1, 0x1p-60, -1, 0},  {0x1p400, 1, -0x1p400, 0x1p-20}, {-3, 1.5, 0.25, -0.75},
        {0, 5e4, 1e-9, -0.0}, {0x1p447, -0x1p447, -7e-30, 0},  {0x1p-320, 0, 0, 0},
    };
    static const double sums[] = {0x1p-60, 1 + 0x1p-20, -2, 5e4 + 1e-9, -7e-30, 0x1p-320};
    for (int i = 0; i < 6; i++)
        CHECK(sum_of(cases[i], 4) == sums[i], "case %d: %.17g, not %.17g", i, sum_of(cases[i], 4),
              sums[i]);
    CHECK(sum_of((const double[]){0x1p-321, 0x1p-400, -0x1p-1074}, 3) == 0, "below it");
    CHECK(isnan(sum_of((const double[]){1, NAN}, 2)), "NaN");
    CHECK(isnan(sum_of((const double[]){-INFINITY, 1}, 2)), "infinite");
    CHECK(isnan(sum_of((const double[]){0x1p448}, 1)), "too large");
}

// Sums numbers of all sizes and signs, and compares with long double, whose 64 bits are enough for
// these.
static void test_orders(void)
{
    enum { N = 5000 };
    struct dt_philox rng = dt_philox_init(3, 0, 0);
    struct dt_exact_sum forward = {0}, parts[3] = {{{0}, 0, 0}};
    static double x[N];
    long double want = 0;
    for (int i = 0; i < N; i++) {
        x[i] = (double)dt_philox_normal(&rng) * (double)dt_philox_normal(&rng) *
               pow(2, (double)dt_philox_below(&rng, 60) - 30);
        want += (long double)x[i];
    }
    for (int i = 0; i < N; i++) {
        dt_exact_add(&forward, x[i]);
        dt_exact_add(&parts[i * 7 % 3], x[N - 1 - i]);
    }
    for (int k = 0; k < 3; k++)
        dt_exact_settle(&parts[k]);
    int64_t *sum = (int64_t *)&parts[0];
    for (int k = 1; k < 3; k++)
        for (int i = 0; i < DT_EXACT_I64; i++)
            sum[i] += ((const int64_t *)&parts[k])[i];
    double one = dt_exact_value(&forward), other = dt_exact_value(&parts[0]);
    CHECK(one == other, "%.17g and %.17g", one, other);
    CHECK_NEAR(one, (double)want, 1e-15); // one rounding to double, and N roundings of 2^-64
}

int main(void)
{
    test_exact();
    test_orders();
    return test_end();
}
