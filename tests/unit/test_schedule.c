// Compares the learning rate with the formulas of train/schedule.h at the steps where they meet.
#include "train/schedule.h"

#include "test.h"

static struct dt_settings settings(enum dt_schedule kind, int64_t warmup)
{
    struct dt_settings s = {0};
    s.optim.schedule = kind;
    s.optim.lr = 2e-3;
    s.optim.min_lr = 5e-4;
    s.optim.warmup_steps = warmup;
    s.optim.decay_steps = 30;
    s.optim.restart_steps = 20;
    s.optim.restart_mult = 2;
    return s;
}

static void check_at(enum dt_schedule kind, int64_t warmup, int64_t step, double want)
{
    struct dt_settings s = settings(kind, warmup);
    struct dt_lr_schedule schedule = dt_lr_schedule(&s, 110);
    double got = dt_lr_at(&schedule, step);
    // Doubles are computed in another order: a few units in the last place.
    CHECK(fabs(got - want) <= 1e-12 * want, "schedule %d, step %lld: %.17g, not %.17g", kind,
          (long long)step, got, want);
}

int main(void)
{
    for (int kind = DT_SCHEDULE_COSINE; kind <= DT_SCHEDULE_RESTARTS; kind++) {
        check_at((enum dt_schedule)kind, 10, 1, 2e-4);
        check_at((enum dt_schedule)kind, 10, 5, 1e-3);
        check_at((enum dt_schedule)kind, 10, 10,
                 2e-3); // the last warm-up step has the peak
    }
    check_at(DT_SCHEDULE_COSINE, 10, 60, 1.25e-3); // half-way between
    check_at(DT_SCHEDULE_COSINE, 10, 110, 5e-4);
    check_at(DT_SCHEDULE_COSINE, 0, 55, 1.25e-3);
    check_at(DT_SCHEDULE_LINEAR, 10, 35, 2e-3 - 0.25 * 1.5e-3);
    check_at(DT_SCHEDULE_LINEAR, 10, 110, 5e-4);
    check_at(DT_SCHEDULE_CONSTANT, 10, 110, 2e-3);
    check_at(DT_SCHEDULE_WSD, 10, 80, 2e-3); // the last step before decay
    check_at(DT_SCHEDULE_WSD, 10, 95, 1.25e-3);
    check_at(DT_SCHEDULE_WSD, 10, 110, 5e-4);

    // Periods of 20, 40 and 80 steps after step 10, the last one cut by the run's end.
    static const struct {
        int64_t start, steps;
    } periods[] = {{10, 20}, {30, 40}, {70, 80}};
    for (int i = 0; i < 3; i++)
        for (int64_t k = 1; k <= periods[i].steps && periods[i].start + k <= 110; k++)
            check_at(DT_SCHEDULE_RESTARTS, 10, periods[i].start + k,
                     5e-4 + 1.5e-3 * (1 + cos(M_PI * (double)k / (double)periods[i].steps)) / 2);
    check_at(DT_SCHEDULE_RESTARTS, 10, 20, 1.25e-3);
    check_at(DT_SCHEDULE_RESTARTS, 10, 30, 5e-4);
    check_at(DT_SCHEDULE_RESTARTS, 10, 50, 1.25e-3);
    check_at(DT_SCHEDULE_RESTARTS, 10, 70, 5e-4);
    check_at(DT_SCHEDULE_RESTARTS, 10, 110, 1.25e-3);

    struct dt_settings s = settings(DT_SCHEDULE_RESTARTS, 10);
    s.optim.restart_mult = 1; // equal periods; one as long as the run is cosine
    struct dt_lr_schedule equal = dt_lr_schedule(&s, 110);
    for (int64_t step = 11; step <= 90; step++)
        CHECK_NEAR(dt_lr_at(&equal, step), dt_lr_at(&equal, step + 20), 0);
    s.optim.restart_steps = 100;
    equal = dt_lr_schedule(&s, 110);
    struct dt_settings plain = settings(DT_SCHEDULE_COSINE, 10);
    struct dt_lr_schedule one = dt_lr_schedule(&plain, 110);
    for (int64_t step = 1; step <= 110; step++)
        CHECK_NEAR(dt_lr_at(&equal, step), dt_lr_at(&one, step), 0);
    s.optim.restart_steps = 1; // a run of many periods must not be slow
    equal = dt_lr_schedule(&s, INT64_C(1) << 53);
    CHECK_NEAR(dt_lr_at(&equal, INT64_C(1) << 53), 5e-4, 1e-12);

    s = settings(DT_SCHEDULE_WSD, 0);
    s.optim.min_lr = -1; // auto
    s.optim.decay_steps = -1;
    struct dt_lr_schedule schedule = dt_lr_schedule(&s, 110);
    CHECK_NEAR(schedule.min_lr, 2e-4, 1e-12);
    CHECK_INT(schedule.decay_steps, 22);
    s.optim.decay_steps = 0; // no decay, not even in the last step
    schedule = dt_lr_schedule(&s, 110);
    CHECK_NEAR(dt_lr_at(&schedule, 110), 2e-3, 0);
    return test_end();
}
