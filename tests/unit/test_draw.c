// Draws follow softmax(logits / temperature), bits the sigmoid; at temperature 0 the most likely
// value comes, the first of equal ones. A fraction of DRAWS is within five standard deviations, of
// which one is at most 0.5 / sqrt(DRAWS).
#include "base/rng.h"
#include "model/model.h"

#include "test.h"

enum { DRAWS = 20000, CLASSES = 4 };
static const double tolerance = 5 * 0.5 / 141;

static void test_classes(double temperature)
{
    const struct dt_output output = {.type = &dt_categorical, .width = CLASSES};
    const float logits[CLASSES] = {1.0f, -0.5f, 2.0f, 0.25f};
    struct dt_philox rng = dt_philox_init(3, 0, 0);
    int drawn[CLASSES] = {0};
    double total = 0;
    for (int i = 0; i < DRAWS; i++) {
        float value;
        output.type->draw(&output, logits, temperature, &rng, &value);
        drawn[(int)value]++;
    }
    for (int k = 0; k < CLASSES; k++)
        total += exp(logits[k] / temperature);
    for (int k = 0; k < CLASSES; k++)
        CHECK_NEAR(drawn[k] / (double)DRAWS, exp(logits[k] / temperature) / total, tolerance);
}

static void test_bits(double temperature)
{
    const struct dt_output output = {.type = &dt_bernoulli, .width = 2};
    const float logits[2] = {0.7f, -1.2f};
    struct dt_philox rng = dt_philox_init(4, 0, 0);
    double sum[2] = {0};
    for (int i = 0; i < DRAWS; i++) {
        float values[2];
        output.type->draw(&output, logits, temperature, &rng, values);
        sum[0] += values[0], sum[1] += values[1];
    }
    for (int k = 0; k < 2; k++)
        CHECK_NEAR(sum[k] / DRAWS, 1 / (1 + exp(-logits[k] / temperature)), tolerance);
}

static void test_most_likely(void)
{
    const struct dt_output class = {.type = &dt_categorical, .width = CLASSES};
    const struct dt_output bits = {.type = &dt_bernoulli, .width = 3};
    const float logits[CLASSES] = {0.5f, 2.0f, 2.0f, -1.0f}, signs[3] = {0.1f, 0.0f, -0.1f};
    struct dt_philox rng = dt_philox_init(5, 0, 0);
    float values[3];
    class.type->draw(&class, logits, 0, &rng, values);
    CHECK_INT(values[0], 1);
    bits.type->draw(&bits, signs, 0, &rng, values);
    CHECK(values[0] == 1 && values[1] == 0 && values[2] == 0, "%g %g %g", values[0], values[1],
          values[2]);
}

int main(void)
{
    for (double temperature = 0.5; temperature <= 2; temperature *= 2) {
        test_classes(temperature);
        test_bits(temperature);
    }
    test_most_likely();
    return test_end();
}
