// The search for races: each planted race is found in every order of threads, said with both
// places in the source, and its twin that orders the accesses is let pass. Of accesses drawn at
// random those are found to race that do so by a clock a thread and a look at every pair, which
// leaves nothing out.
#include "racing.h"
#include "simt_backend.h"

static void check_pair(dt_status (*kernel)(bool), const char *text, const char *what)
{
    dt_status racing = kernel(false);
    const char *message = dt_error_current()->message;
    CHECK(racing == DT_MACHINE && strstr(message, text), "%s: status %d, \"%s\" lacks \"%s\"", what,
          (int)racing, message, text);
    dt_error_clear();
    check_ok(kernel(true), what);
}
#define PAIR(kernel, text) check_pair(kernel, text, #kernel)

static void test_pairs(void)
{
    PAIR(read_behind_write, "a race for tile + ");
    PAIR(write_behind_read, "a race for tile + ");
    PAIR(write_twice_the_same, "a race for flag + 0: thread (");
    PAIR(second_round, "a race for tile + ");
    PAIR(dynamic_shared, "a race for dynamic shared memory + 508");
    PAIR(half_of_a_vector, "a race for tile + 12");
    PAIR(lanes, "a race for tile + ");
    PAIR(lanes_by_shuffle, "a race for tile + ");
    PAIR(lanes_of_a_mask, "a race for tile + 12");
    PAIR(lanes_in_a_chain, "a race for x + 0");
    PAIR(threads_of_a_block, "a race for global memory at");
    PAIR(two_blocks, "a race for global memory at");
    PAIR(block_reads_another, "a race for global memory at");
    PAIR(whole_struct, "a race for global memory at");
    PAIR(copy_read_early, "writes by a copy not waited for at kernels/device.cuh:");
    PAIR(copy_read_by_others, "a race for tile + ");
    PAIR(copy_over_readers, "writes by a copy not waited for");
    PAIR(copy_waited_by_another, "writes by a copy not waited for");
    PAIR(copy_of_written, "reads by a copy not waited for");
    PAIR(newer_copy_read, "a race for pairs + ");
}

static void test_right_ones(void)
{
    check_ok(neighbouring_bytes(), "bytes that lie together");
    check_ok(all_read(), "what all read");
    check_ok(own_locals(), "locals");
    check_ok(own_again(), "a thread's own elements");
    check_ok(reductions_in_a_row(), "sums and maxima");
}

// Both threads and both places.
static void test_report(void)
{
    simt_set_order(SIMT_ASCENDING, 1);
    write_twice_the_same(false);
    const char *message = dt_error_current()->message;
    CHECK(strstr(message, "(same_kernel): a race for flag + 0: thread (0, 0, 0) of block "
                          "(0, 0, 0) writes at tests/simt/racing.cu:") &&
              strstr(message, "; thread (127, 0, 0) of block (0, 0, 0) writes at "
                              "tests/simt/racing.cu:"),
          "\"%s\"", message);
    dt_error_clear();
}

// ---- accesses drawn at random

enum { ROUNDS = 6, ACCESSES = 7, PLAYS = 2000 };

struct plan {
    struct play_access access[ACCESSES];
    struct play_end end[ROUNDS];
};

static int draw(struct dt_philox *rng, int n)
{
    return (int)(dt_philox_u32(rng) % (uint32_t)n);
}

// Few bytes and few threads, so that about half of the plans race.
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

// knows[t][u]: thread t comes after what u does in rounds before that one.
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

// `b` is of the round that is played, `a` of it or one before.
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
        test_pairs();
        test_right_ones();
    }
    test_report();
    test_plays();
    return test_end();
}
