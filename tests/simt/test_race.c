// Tests the search for races. Each planted race is found in every order of threads and reported
// with both lines, and its ordered variant is accepted. For random accesses, the races that are
// found are those of a complete check: a clock for each thread, and a look at every pair of
// accesses.
#include "racing.h"
#include "simt_backend.h"

static void test_planted(void)
{
    for (const struct planted_race *race = planted_races; race->name; race++) {
        if (race->says) {
            dt_status racing = race->launch(false);
            const char *message = dt_error_current()->message;
            CHECK(racing == DT_MACHINE && strstr(message, race->says),
                  "%s: status %d, \"%s\" lacks \"%s\"", race->name, (int)racing, message,
                  race->says);
            dt_error_clear();
        }
        check_ok(race->launch(true), race->name);
    }
}

// A report must name both threads and both lines.
static void test_report(void)
{
    simt_set_order(SIMT_ASCENDING, 1);
    const struct planted_race *twice = planted_races;
    while (strcmp(twice->name, "write_twice_the_same") != 0)
        twice++;
    twice->launch(false);
    const char *message = dt_error_current()->message;
    CHECK(strstr(message, "(write_twice_the_same): a race for flag + 0: thread (0, 0, 0) of block "
                          "(0, 0, 0) writes at tests/simt/racing.cu:") &&
              strstr(message, "; thread (127, 0, 0) of block (0, 0, 0) writes at "
                              "tests/simt/racing.cu:"),
          "\"%s\"", message);
    dt_error_clear();
}

// ---- random accesses

enum { ROUNDS = 6, ACCESSES = 7, PLAYS = 2000 };

struct plan {
    struct play_access access[ACCESSES];
    struct play_end end[ROUNDS];
};

static int draw(struct dt_philox *rng, int n)
{
    return (int)(dt_philox_u32(rng) % (uint32_t)n);
}

// There are few bytes and few threads, so that about half of the plans have a race.
static struct plan draw_plan(struct dt_philox *rng)
{
    static const int threads[] = {0, 1, 2, 32};
    static const uint32_t masks[] = {0, 3, 6, 5, 7, 0xffffffff};
    struct plan plan;
    const int blocks = 1 + draw(rng, 2), writes = 1 + draw(rng, 4);
    for (int i = 0; i < ACCESSES; i++) {
        const int bytes = 1 << draw(rng, 4);
        plan.access[i] = (struct play_access){.round = draw(rng, ROUNDS),
                                              .block = draw(rng, blocks),
                                              .thread = threads[draw(rng, 4)],
                                              .offset = draw(rng, PLAY_BYTES / bytes) * bytes,
                                              .bytes = bytes,
                                              .writes = draw(rng, 10) < writes,
                                              .shared = blocks == 1};
    }
    for (int i = 0; i < ROUNDS; i++)
        plan.end[i] = (struct play_end){draw(rng, 3) - 1, masks[draw(rng, 6)]};
    return plan;
}

// knows[t][u]: thread t comes after everything that u does in rounds before this one.
typedef int clocks[PLAY_THREADS][PLAY_THREADS];

static bool meets(const struct play_end *end, int thread)
{
    return end->warp < 0 || (end->warp == thread / 32 && (end->mask >> thread % 32 & 1u));
}

static void end_round(clocks knows, const struct play_end *end, int round)
{
    int joined[PLAY_THREADS] = {0};
    for (int t = 0; t < PLAY_THREADS; t++)
        for (int u = 0; u < PLAY_THREADS && meets(end, t); u++)
            joined[u] = knows[t][u] > joined[u] ? knows[t][u] : joined[u];
    for (int t = 0; t < PLAY_THREADS; t++)
        joined[t] = meets(end, t) ? round + 1 : joined[t];
    for (int t = 0; t < PLAY_THREADS; t++)
        if (meets(end, t))
            memcpy(knows[t], joined, sizeof joined);
}

// Whether two accesses race. `b` is in the current round, `a` in this round or an earlier one.
static bool race(clocks knows, const struct play_access *a, const struct play_access *b)
{
    if (!(a->writes || b->writes) || a->offset >= b->offset + b->bytes ||
        b->offset >= a->offset + a->bytes)
        return false;
    if (a->block != b->block)
        return true;
    return a->thread != b->thread && knows[b->thread][a->thread] <= a->round;
}

static bool plan_races(const struct plan *plan)
{
    clocks knows = {{0}};
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < ACCESSES; i++)
            for (int j = 0; j < ACCESSES; j++)
                if (plan->access[j].round == round && plan->access[i].round <= round &&
                    race(knows, &plan->access[i], &plan->access[j]))
                    return true;
        end_round(knows, &plan->end[round], round);
    }
    return false;
}

static void print_plan(const struct plan *plan)
{
    for (int i = 0; i < ACCESSES; i++) {
        const struct play_access *a = &plan->access[i];
        fprintf(stderr, "  round %d, block %d, thread %d %s %d bytes at %d\n", a->round, a->block,
                a->thread, a->writes ? "writes" : "reads", a->bytes, a->offset);
    }
    for (int i = 0; i < ROUNDS; i++)
        fprintf(stderr, "  round %d ends with warp %d, mask %x\n", i, plan->end[i].warp,
                plan->end[i].mask);
}

static void test_plays(void)
{
    struct dt_philox rng = dt_philox_init(8, 1, 0);
    int racing = 0;
    for (int i = 0; i < PLAYS; i++) {
        const struct plan plan = draw_plan(&rng);
        const bool want = plan_races(&plan);
        simt_set_order((enum simt_order)draw(&rng, SIMT_WARP_AHEAD + 1), (uint32_t)i);
        const bool got = play(plan.access, ACCESSES, plan.end, ROUNDS) != DT_OK;
        racing += want;
        CHECK(got == want, "plan %d: %s", i,
              got ? dt_error_current()->message : "its race was missed");
        if (got != want)
            print_plan(&plan);
        dt_error_clear();
    }
    CHECK(racing > PLAYS / 4 && racing < PLAYS * 3 / 4, "%d plans race", racing);
}

int main(void)
{
    for (int order = 0; order <= SIMT_WARP_AHEAD; order++) {
        simt_set_order((enum simt_order)order, 3);
        test_planted();
    }
    test_report();
    test_plays();
    return test_end();
}
