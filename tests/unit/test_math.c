// Compares kernels/math_cpu.h with libm in double: errors in units of the last place over the whole
// range, and the limits (large arguments, infinities, NaN).
#include "test.h"

#include "kernels/math_cpu.h"

static double ulp(float x)
{
    return (double)nextafterf(fabsf(x), INFINITY) - (double)fabsf(x);
}

typedef float approximation(float x);
typedef double truth(double x);

static double softplus_truth(double x)
{
    return x > 30.0 ? x + exp(-x) : log1p(exp(x));
}

static double sigmoid_truth(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double silu_truth(double x)
{
    return x * sigmoid_truth(x);
}

static double tanh_gap_truth(double x)
{
    return 1.0 / (1.0 + exp(2 * fabs(x)));
}

static void test_range(const char *name, approximation *f, truth *want, float low, float high,
                       double limit)
{
    double worst = 0.0;
    float at = low;
    for (int i = 0; i <= 400000; i++) {
        float x = low + (high - low) * ((float)i / 400000.0f);
        double w = want((double)x), error = fabs((double)f(x) - w) / ulp((float)w);
        if (!(error <= worst)) {
            worst = error;
            at = x;
        }
    }
    CHECK(worst <= limit, "%s is %.2f units of the last place off at %.9g, not %.2f", name, worst,
          (double)at, limit);
}

static void test_ends(void)
{
    CHECK(dt_expf(-INFINITY) == 0.0f && dt_expf(-1e30f) == 0.0f && dt_expf(-104.0f) == 0.0f, "exp");
    CHECK(isinf(dt_expf(INFINITY)) && isinf(dt_expf(1e30f)) && isinf(dt_expf(88.73f)), "exp");
    CHECK(isfinite(dt_expf(88.7228f)) && dt_expf(0.0f) == 1.0f, "exp");
    CHECK(isnan(dt_expf(NAN)) && isnan(dt_sigmoidf(NAN)) && isnan(dt_softplusf(NAN)),
          "NaN is lost");
    CHECK(dt_sigmoidf(-200.0f) == 0.0f && dt_sigmoidf(200.0f) == 1.0f, "sigmoid");
    CHECK(dt_softplusf(-200.0f) == 0.0f && dt_softplusf(21.0f) == 21.0f, "softplus");
    CHECK(dt_softplusf(1e30f) == 1e30f && isinf(dt_softplusf(INFINITY)), "softplus");
    CHECK(dt_siluf(-200.0f) == 0.0f && dt_siluf(200.0f) == 200.0f, "silu");
}

int main(void)
{
    // Half a unit is the rounding itself; the rest comes from the reduced argument and the
    // polynomial.
    test_range("exp", dt_expf, exp, -86.9f, 88.72f, 1.25);
    test_range("exp", dt_expf, exp, -0.4f, 0.4f, 1.25);
    // exp, a division, and six more roundings.
    test_range("sigmoid", dt_sigmoidf, sigmoid_truth, -80.0f, 80.0f, 3.0);
    test_range("tanh gap", dt_tanh_gapf, tanh_gap_truth, -40.0f, 40.0f, 3.0);
    // At 1/4, where the series ends, a difference of 1 and 3/4 loses two digits.
    test_range("tanh", dt_tanhf, tanh, -12.0f, 12.0f, 9.0);
    test_range("tanh", dt_tanhf, tanh, -0.3f, 0.3f, 9.0);
    test_range("silu", dt_siluf, silu_truth, -80.0f, 80.0f, 4.0);
    test_range("softplus", dt_softplusf, softplus_truth, -80.0f, 40.0f, 5.0);
    test_ends();
    return test_end();
}
