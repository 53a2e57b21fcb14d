// Tests mixtures: texts that are refused, whole weights, and which source a slot reads. Counts are
// compared with the weights, with a slow count, and across a change of weights.
#include "base/rng.h"
#include "data/mixture.h"
#include "test.h"

#include <math.h>

static struct dt_source sources[DT_SOURCES_MAX];

static void refuse(const char *text, const char *message)
{
    int n;
    CHECK_FAILS(dt_mixture_parse(text, sources, &n), DT_USER, message);
}

static void test_texts(void)
{
    int n;
    refuse("a.h5:0.7 b.h5:-0.3", "b.h5:-0.3: '-0.3' is not a weight");
    refuse("a.h5:0.7 b.h5:nan", "'nan' is not a weight");
    refuse("a.h5:inf b.h5:1", "'inf' is not a weight");
    refuse("a.h5:0.7e b.h5:1e", "'0.7e' is not a whole number of epochs");
    refuse("a.h5:0e b.h5:1e", "'0e' is not a whole number of epochs");
    refuse("a.h5:1e b.h5:0.3", "b.h5:0.3: a mixture has weights, or epochs, of all");
    refuse("a.h5:1 b.h5", "b.h5 has no weight");
    refuse("a.h5:0 b.h5:0.0", "all weights of the mixture are 0");
    refuse("a.h5:1e9 b.h5:1e10", "'1e10' is not a weight");
    refuse("a.h5:1..2 b.h5:1", "'1..2' is not a weight");
    refuse("a.h5:2e", "run.epochs");
    CHECK_OK(dt_mixture_parse("web/*.h5,wiki/*.h5:0.7 \t code/*.h5:3e-1", sources, &n));
    CHECK_INT(n, 2);
    CHECK(strcmp(sources[0].name, "web/*.h5,wiki/*.h5") == 0, "%s", sources[0].name);
    CHECK(sources[1].weight == 0.3 && !sources[1].epochs, "%g", sources[1].weight);
    static const char *const single[] = {"my data/a.h5, b.h5", "synthetic:random", "x:1/a.h5",
                                         "a:b.h5"};
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) {
        CHECK_OK(dt_mixture_parse(single[i], sources, &n));
        CHECK(n == 1 && strcmp(sources[0].name, single[i]) == 0, "%s is cut", single[i]);
    }
}

static void make(const double *weights, int n, bool epochs, int64_t windows, int64_t batch,
                 struct dt_mixture *mixture)
{
    for (int i = 0; i < n; i++)
        sources[i] = (struct dt_source){
            .name = "s", .weight = weights[i], .epochs = epochs, .windows = windows * (i + 1)};
    CHECK_OK(dt_mixture_resolve(sources, n, batch, mixture));
}

static void test_weights(void)
{
    struct dt_mixture m;
    static const double tenths[] = {0.7, 0.3}, thirds[] = {1.0 / 3, 2.0 / 3}, twos[] = {1, 2};
    make(tenths, 2, false, 100, 4, &m);
    CHECK(m.phases[0].weights[0] == 7 && m.phases[0].weights[1] == 3, "0.7 : 0.3");
    make(thirds, 2, false, 100, 4, &m);
    CHECK(fabs(dt_mixture_share(&m, 0, 0) - 1.0 / 3) < 1e-11, "a third");
    make(twos, 2, true, 100, 4, &m); // 25 steps once, 50 steps twice
    CHECK(m.phases[0].weights[0] == 1 && m.phases[0].weights[1] == 4, "epochs");
    CHECK_INT(dt_mixture_epoch_steps(sources, 2, 4), 125);
    sources[0].weight = 1e9, sources[1].weight = 1e-9;
    sources[0].epochs = sources[1].epochs = false;
    CHECK_FAILS(dt_mixture_resolve(sources, 2, 4, &m), DT_USER, "less than 1e-12");
    sources[1] = (struct dt_source){.name = "small", .weight = 1, .windows = 3};
    CHECK_FAILS(dt_mixture_resolve(sources, 2, 4, &m), DT_USER,
                "the source small has 3 windows, a batch needs 4");
}

// Over `steps` steps, each slot's counts must be what the slot has read so far, and the counts of
// the whole batch must be within one batch of the weights.
static void test_counts(const struct dt_mixture *m, int64_t batch, int64_t steps)
{
    struct dt_mixer *mixer;
    int64_t counts[64][DT_SOURCES_MAX] = {{0}}, total[DT_SOURCES_MAX] = {0}, before;
    double want[DT_SOURCES_MAX] = {0}, worst = 0;
    CHECK_OK(dt_mixer_create(m, 1337, batch, &mixer));
    for (int64_t t = 0; t < steps; t++) {
        for (int64_t k = 0; k < batch; k++) {
            int source = dt_mixer_at(mixer, t, k, &before);
            if (before != counts[k][source])
                CHECK_INT(before, counts[k][source]);
            counts[k][source]++;
            total[source]++;
        }
        for (int i = 0; i < m->n; i++) {
            want[i] += dt_mixture_share(m, t, i) * (double)batch;
            worst = fmax(worst, fabs((double)total[i] - want[i]));
        }
    }
    CHECK(worst <= (double)batch, "batch %ld: counts are %g windows off the weights", (long)batch,
          worst);
    if (m->n == 2 && m->n_phases == 1) // floor sums: Σ_k floor(x + k / batch) = floor(batch x)
        CHECK(worst <= 1, "two sources: counts are %g windows off the weights", worst);
    dt_mixer_free(mixer);
}

static void test_mixtures(void)
{
    static const double lists[][5] = {{0.7, 0.3},      {0.5, 0.5},        {0.999, 0.001}, {1, 1, 1},
                                      {0.6, 0.3, 0.1}, {0.05, 0.05, 0.9}, {3, 1, 4, 1, 5}};
    static const int lengths[] = {2, 2, 2, 3, 3, 3, 5};
    static const int64_t batches[] = {2, 8, 64};
    struct dt_mixture m;
    for (int i = 0; i < 7; i++)
        for (int b = 0; b < 3; b++) {
            make(lists[i], lengths[i], false, 1000, batches[b], &m);
            test_counts(&m, batches[b], batches[b] == 8 ? 10000 : 500);
        }
    make(lists[0], 2, false, 1000, 1, &m);
    test_counts(&m, 1, 10000);
}

static void test_phases(void)
{
    static const double old[] = {0.7, 0.3}, new[] = {0.1, 0.9}, other[] = {1, 1};
    struct dt_mixture saved, now, back;
    char text[DT_MIXTURE_TEXT];
    int64_t shards[DT_SOURCES_MAX] = {3, 2};
    make(old, 2, false, 1000, 8, &saved);
    now = saved;
    CHECK_OK(dt_mixture_continue(&saved, 0, 40, &now));
    make(new, 2, false, 1000, 8, &now);
    CHECK_FAILS(dt_mixture_continue(&saved, 0, 40, &now), DT_USER, "other weights");
    CHECK_FAILS(dt_mixture_continue(&saved, 39, 40, &now), DT_USER, "mixture_from is 39");
    CHECK_OK(dt_mixture_continue(&saved, 100, 40, &now));
    test_counts(&now, 8, 300);
    for (int64_t t = 98; t < 103; t++)
        CHECK(fabs(dt_mixture_share(&now, t, 0) - (t < 100 ? 0.7 : 0.1)) < 1e-12,
              "step %ld: a share of %g", (long)t, dt_mixture_share(&now, t, 0));
    CHECK_OK(dt_mixture_text(&now, shards, text));
    CHECK(strcmp(text, "shards 3 2, from 0: 7 3, from 100: 1 9") == 0, "%s", text);
    CHECK_OK(dt_mixture_read(text, &back, shards));
    CHECK(memcmp(&back, &now, sizeof now) == 0, "%s reads as another mixture", text);

    // The phases before a change stay as they were, step by step.
    struct dt_mixer *a, *b;
    CHECK_OK(dt_mixer_create(&saved, 1, 8, &a));
    CHECK_OK(dt_mixer_create(&now, 1, 8, &b));
    for (int64_t i = 0; i < 100 * 8; i++) {
        int64_t x, y;
        CHECK_INT(dt_mixer_at(a, i / 8, i % 8, &x), dt_mixer_at(b, i / 8, i % 8, &y));
        CHECK_INT(x, y);
    }
    dt_mixer_free(a);
    dt_mixer_free(b);

    // A run that is resumed with the same keys keeps its mixture. A change that has not begun is
    // replaced.
    saved = now;
    make(new, 2, false, 1000, 8, &now);
    CHECK_OK(dt_mixture_continue(&saved, 100, 120, &now));
    CHECK_INT(now.n_phases, 2);
    make(other, 2, false, 1000, 8, &now);
    CHECK_OK(dt_mixture_continue(&saved, 90, 80, &now));
    CHECK_INT(now.n_phases, 2);
    CHECK_INT(now.phases[1].from, 90);
    CHECK_FAILS(dt_mixture_continue(&saved, 90, 120, &now), DT_USER, "mixture_from is 90");

    static const char *const bad[] = {"shards 3 2",
                                      "shards 3, from 0: 1",
                                      "shards 3 2, from 1: 7 3",
                                      "shards 3 2, from 0: 7",
                                      "shards 3 2, from 0: 0 0",
                                      "shards 3 2, from 0: 7 3, from 0: 1 1",
                                      "shards 3 2, from 0: 7 3 ",
                                      "shards 3 2, from 0: 7 -3"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_INT(dt_mixture_read(bad[i], &back, shards), DT_USER);
}

int main(void)
{
    RUN(test_texts, test_weights, test_mixtures, test_phases);
    return test_end();
}
