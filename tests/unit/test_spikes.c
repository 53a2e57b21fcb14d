// Tests statistics of losses, and lists of batches that are skipped.
#include "data/skips.h"
#include "test.h"
#include "train/spikes.h"

#include <math.h>
#include <string.h>

static void test_statistics(void)
{
    struct dt_loss_statistics s = {0};
    double sum = 0, squares = 0;
    for (int i = 0; i < 80; i++) { // the mean and the variance are still plain ones
        double loss = 3 + sin(i * 1.7);
        CHECK(isnan(dt_loss_z(&s, loss)) == (i < 20), "step %d", i);
        dt_loss_count(&s, loss, 6);
        sum += loss, squares += loss * loss;
    }
    double mean = sum / 80, deviation = sqrt(squares / 80 - mean * mean);
    CHECK(fabs(s.mean - mean) < 1e-12 && fabs(sqrt(s.variance) - deviation) < 1e-12,
          "mean %g and %g", s.mean, mean);
    CHECK(fabs(dt_loss_z(&s, mean + 5 * deviation) - 5) < 1e-9, "z");
    CHECK(isnan(dt_loss_z(&s, NAN)) && isnan(dt_loss_z(&s, INFINITY)), "not finite");

    struct dt_loss_statistics before = s, limit = s;
    dt_loss_count(&s, INFINITY, 6);
    CHECK(memcmp(&s, &before, sizeof s) == 0, "a loss that is not finite does not count");
    dt_loss_count(&s, 1e9, 6);
    dt_loss_count(&limit, before.mean + 6 * sqrt(before.variance), 6);
    CHECK(memcmp(&s, &limit, sizeof s) == 0, "a spike counts as one of six deviations");
    struct dt_loss_statistics low = before;
    dt_loss_count(&low, -1e9, 6);
    CHECK(fabs(low.mean + s.mean - 2 * before.mean) < 1e-12 && low.variance == s.variance,
          "so does one downwards: mean %g", low.mean);

    struct dt_loss_statistics flat = {.mean = 2, .count = 50};
    CHECK(dt_loss_z(&flat, 2) == 0 && dt_loss_z(&flat, 2.5) == INFINITY, "no deviation at all");
    for (int i = 0; i < 2000; i++) // the loss has moved and stays there
        dt_loss_count(&s, 9 + cos(i), 6);
    CHECK(fabs(s.mean - 9) < 0.3 && s.count == 2081, "forgets: mean %g", s.mean);
}

static void check_skips(const struct dt_skips *s, const char *text)
{
    char is[DT_SKIPS_TEXT];
    struct dt_skips again;
    dt_skips_text(s, is);
    CHECK(strcmp(is, text) == 0, "'%s', not '%s'", is, text);
    CHECK_OK(dt_skips_parse(text, &again));
    CHECK(memcmp(&again, s, sizeof again) == 0, "%s and back", text);
}

static void test_skips(void)
{
    struct dt_skips s = {0};
    check_skips(&s, "");
    CHECK_OK(dt_skips_add(&s, 40, 43));
    CHECK_OK(dt_skips_add(&s, 10, 11));
    check_skips(&s, "10:11 40:43");
    const int64_t batches[][2] = {{0, 0},   {9, 9},   {10, 11}, {11, 12},
                                  {38, 39}, {39, 43}, {40, 44}, {100, 104}};
    for (size_t i = 0; i < sizeof batches / sizeof *batches; i++)
        CHECK_INT(dt_skips_batch(&s, batches[i][0]), batches[i][1]);
    CHECK_OK(dt_skips_add(&s, 43, 44)); // touches a range
    check_skips(&s, "10:11 40:44");
    CHECK_OK(dt_skips_add(&s, 8, 41)); // contains one range and reaches into another
    check_skips(&s, "8:44");
    CHECK_OK(dt_skips_add(&s, 50, 51));
    CHECK_OK(dt_skips_add(&s, 46, 48)); // between two ranges
    check_skips(&s, "8:44 46:48 50:51");
    for (int64_t i = s.n; i < DT_SKIPS; i++)
        CHECK_OK(dt_skips_add(&s, 100 * i, 100 * i + 1));
    CHECK_INT(dt_skips_add(&s, 1, 2), DT_USER);
    dt_error_clear();
    static const char *const wrong[] = {"x",    "3",       "3:",   "3:3",
                                        "-1:2", "5:6 4:7", "1:2,", "1:2 2:3"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK(dt_skips_parse(wrong[i], &s) == DT_USER, "'%s' was accepted", wrong[i]);
        dt_error_clear();
    }
}

int main(void)
{
    test_statistics();
    test_skips();
    return test_end();
}
