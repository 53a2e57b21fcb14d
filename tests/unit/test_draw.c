// Draws follow softmax(logits / temperature), and the sigmoid for bits. At temperature 0 the most
// likely value is drawn, and the first of equal ones. A mixture's component follows its logits in
// the same way, and its noise has temperature times the variance. Of quantiles the one nearest to
// the median is drawn. A fraction of DRAWS draws must be within five standard deviations; a
// deviation is at most 0.5 / sqrt(DRAWS).
#include "base/rng.h"
#include "model/choose.h"
#include "model/model.h"

#include "choose_cases.h"
#include "test.h"

#include <float.h>

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

// The components are far apart, so that the sign of the first number tells which one was drawn.
static void test_mixture(double temperature)
{
    const struct dt_output output = {.type = &dt_gmm, .size = 2, .parts = 2, .width = 10};
    const float predicted[10] = {0.4f, -0.3f, -100, 3, 100, 5, 1.5f, 0.5f, 2, 0.25f};
    struct dt_philox rng = dt_philox_init(6, 0, 0);
    double n[2] = {0}, sum[2] = {0}, squares[2] = {0};
    for (int i = 0; i < DRAWS; i++) {
        float values[2];
        output.type->draw(&output, predicted, temperature, &rng, values);
        int c = values[0] > 0;
        double z = (values[1] - predicted[3 + 2 * c]) / predicted[7 + 2 * c];
        n[c]++, sum[c] += z, squares[c] += z * z;
    }
    double share = 1 / (1 + exp(-(0.4 + 0.3) / temperature));
    CHECK_NEAR(n[0] / DRAWS, share, tolerance);
    // A square's deviation is sqrt(2), and a component has half of the draws.
    for (int c = 0; c < 2; c++) {
        CHECK_NEAR(sum[c] / n[c], 0, 4 * tolerance * sqrt(temperature));
        CHECK_NEAR(squares[c] / n[c] / temperature, 1, 6 * tolerance);
    }
    float values[2];
    output.type->draw(&output, predicted, 0, &rng, values);
    CHECK(values[0] == -100 && values[1] == 3, "%g %g", (double)values[0], (double)values[1]);
}

static void test_quantiles(void)
{
    const struct dt_output output = {
        .type = &dt_quantile, .size = 2, .parts = 3, .width = 6, .median = 1};
    const float predicted[6] = {1, 2, 3, 4, 5, 6};
    struct dt_philox rng = dt_philox_init(7, 0, 0);
    float values[2];
    output.type->draw(&output, predicted, 1, &rng, values);
    CHECK(values[0] == 3 && values[1] == 4, "%g %g", (double)values[0], (double)values[1]);
}

// Tests each option of dt_choose, and several together: excluded classes are never drawn, the
// others as often as plain arithmetic in double precision says.
static void test_choices(void)
{
    int64_t scratch[16]; // DT_CHOOSE_SCRATCH(16) bytes
    for (size_t k = 0; k < sizeof choose_cases / sizeof *choose_cases; k++) {
        const struct choose_case *c = &choose_cases[k];
        struct dt_philox rng = dt_philox_init(8, 0, k);
        int drawn[16] = {0};
        CHECK_OK(dt_choice_check(&c->choice));
        for (int i = 0; i < DRAWS; i++)
            drawn[dt_choose(&c->choice, c->logits, c->n, c->seen, scratch, &rng)]++;
        for (int64_t i = 0; i < c->n; i++) {
            CHECK(c->probability[i] > 0 || drawn[i] == 0, "case %zu: class %lld came", k,
                  (long long)i);
            CHECK_NEAR(drawn[i] / (double)DRAWS, c->probability[i], tolerance);
        }
    }
}

// The same classes are drawn on every machine, with any instruction set and C library.
static void test_same_everywhere(void)
{
    static const char *const expected[2] = {
        "ddcdddddddddddcdddcdddddddddcdcddddaddddcddddcccddddddddddddddcd",
        "dfdafaffffdffafkfkffkaffffkdffafkakfddkfakkkfkfdfdfffaafffafkkfa"};
    static const int at[2] = {1, 12};
    int64_t scratch[16];
    for (int k = 0; k < 2; k++) {
        const struct choose_case *c = &choose_cases[at[k]];
        struct dt_philox rng = dt_philox_init(9, 0, 0);
        char text[65] = "";
        for (int i = 0; i < 64; i++)
            text[i] = (char)('a' + dt_choose(&c->choice, c->logits, c->n, c->seen, scratch, &rng));
        CHECK_STR(text, expected[k]);
    }
}

static void test_choices_refused(void)
{
    static const struct {
        struct dt_choice choice;
        const char *part;
    } cases[] = {
        {{-1, 0, 1, 0, 1}, "the temperature is -1"},
        {{NAN, 0, 1, 0, 1}, "the temperature is nan"},
        {{INFINITY, 0, 1, 0, 1}, "the temperature"},
        {{1, -1, 1, 0, 1}, "top_k is -1"},
        {{1, 0, 0, 0, 1}, "top_p is 0"},
        {{1, 0, 1.5, 0, 1}, "top_p is 1.5"},
        {{1, 0, NAN, 0, 1}, "top_p"},
        {{1, 0, 1, -0.1, 1}, "min_p is -0.1"},
        {{1, 0, 1, 2, 1}, "min_p is 2"},
        {{1, 0, 1, 0, 0}, "the repetition penalty is 0"},
        {{1, 0, 1, 0, INFINITY}, "the repetition penalty is inf"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        CHECK_FAILS(dt_choice_check(&cases[i].choice), DT_USER, cases[i].part);
}

// Logits that are equal, far apart, or infinite after the penalty.
static void test_extreme_logits(void)
{
    const float same[3] = {-3, -3, -3}, far[3] = {-FLT_MAX, 0, FLT_MAX};
    const unsigned char seen[3] = {1, 1, 1};
    const struct dt_choice top = {1e-300, 2, 0.5, 0.5, 1}, all = DT_CHOICE_PLAIN(1e-300),
                           penalty = {1, 0, 1, 0, 1e-9}, most_likely = {1, 0, 1, 1, 1};
    int64_t scratch[3];
    int drawn[3] = {0};
    struct dt_philox rng = dt_philox_init(10, 0, 0);
    for (int i = 0; i < 100; i++) {
        CHECK_INT(dt_choose(&top, far, 3, NULL, scratch, &rng), 2);
        CHECK_INT(dt_choose(&all, far, 3, NULL, NULL, &rng), 2);
        CHECK_INT(dt_choose(&penalty, far, 3, seen, scratch, &rng), 2);
        int64_t class = dt_choose(&all, same, 3, NULL, NULL, &rng);
        CHECK(class >= 0 && class < 3, "class %lld", (long long)class);
        drawn[dt_choose(&most_likely, same, 3, NULL, scratch, &rng)]++;
    }
    CHECK(drawn[0] > 0 && drawn[1] > 0 && drawn[2] > 0,
          "min_p of 1 keeps all classes that are as likely as the most likely one, not %d %d %d",
          drawn[0], drawn[1], drawn[2]);
}

int main(void)
{
    for (double temperature = 0.5; temperature <= 2; temperature *= 2) {
        test_classes(temperature);
        test_bits(temperature);
        test_mixture(temperature);
    }
    RUN(test_choices, test_same_everywhere, test_choices_refused, test_extreme_logits,
        test_most_likely, test_quantiles);
    return test_end();
}
