// Tests the arena: measuring and placing agree, pieces are aligned and do not overlap, and a wrong
// plan aborts. Single allocations are zeroed or aligned, and one that fails says what it was for.
#include "base/arena.h"

#include "base/memory.h"
#include "test.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 5 };
static const int64_t sizes[N] = {1, 256, 0, 257, 1000};

// Building code that runs on both kinds of arena. pieces[i] receives the i-th piece.
static void build(struct dt_arena *arena, char *pieces[N])
{
    for (int i = 0; i < N; i++)
        pieces[i] = dt_arena_take(arena, sizes[i]);
    int64_t mark = dt_arena_mark(arena);
    dt_arena_take(arena, 5000); // scratch memory, released below
    dt_arena_release(arena, mark);
    dt_arena_take(arena, 10);
}

static void test_measure_then_place(void)
{
    char *pieces[N];
    struct dt_arena measured = dt_arena_measure();
    build(&measured, pieces);
    for (int i = 0; i < N; i++)
        CHECK(!pieces[i], "measuring gave memory for piece %d", i);
    // 256 + 256 + 0 + 512 + 1024 bytes, then a scratch of 5120 that is released, then 256.
    CHECK_INT(measured.used, 2048 + 256);
    CHECK_INT(measured.peak, 2048 + 5120);

    char *base = aligned_alloc(DT_ARENA_ALIGN, (size_t)measured.peak);
    struct dt_arena placed = dt_arena_place(base, measured.peak);
    build(&placed, pieces);
    CHECK_INT(placed.used, measured.used);
    CHECK_INT(placed.peak, measured.peak);
    char *end = base;
    for (int i = 0; i < N; i++) {
        CHECK((uintptr_t)pieces[i] % DT_ARENA_ALIGN == 0, "piece %d at %p", i, (void *)pieces[i]);
        CHECK(pieces[i] >= end, "piece %d lies in the one before", i);
        end = pieces[i] + sizes[i];
        memset(pieces[i], i, (size_t)sizes[i]); // a sanitizer reports pieces outside the block
    }
    CHECK(end <= base + measured.peak, "the last piece ends %td bytes in", end - base);
    free(base);
}

static void test_beyond_32_bits(void)
{
    struct dt_arena arena = dt_arena_measure();
    for (int i = 0; i < 3; i++)
        dt_arena_take(&arena, (1ll << 40) + 1);
    CHECK_INT(arena.peak, 3 * ((1ll << 40) + 256));
}

static _Alignas(DT_ARENA_ALIGN) char block[1024];

// All of these except the first one must abort.
enum { TAKE_ALL, TAKE_TOO_MUCH, TAKE_NEGATIVE, TAKE_PAST_INT64, RELEASE_UPWARDS, MISALIGNED, ACTS };
static const char *const act_name[ACTS] = {"taking all",        "taking too much",
                                           "taking -1 bytes",   "taking past 2^63",
                                           "releasing upwards", "a misaligned block"};

static void act(int which)
{
    struct dt_arena placed = dt_arena_place(block, sizeof block), measured = dt_arena_measure();
    if (which == TAKE_ALL)
        dt_arena_take(&placed, 1024);
    if (which == TAKE_TOO_MUCH)
        dt_arena_take(&placed, 1000), dt_arena_take(&placed, 1);
    if (which == TAKE_NEGATIVE)
        dt_arena_take(&measured, -1);
    if (which == TAKE_PAST_INT64)
        dt_arena_take(&measured, 1), dt_arena_take(&measured, INT64_MAX - 256);
    if (which == RELEASE_UPWARDS)
        dt_arena_release(&placed, 256);
    if (which == MISALIGNED)
        dt_arena_place(block + 16, 512);
}

static void test_aborts(void)
{
    for (int i = 0; i < ACTS; i++) {
        int status = 0;
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            setrlimit(RLIMIT_CORE, &(struct rlimit){0});
            if (!freopen("/dev/null", "w", stderr))
                _exit(1);
            act(i);
            _exit(0);
        }
        waitpid(child, &status, 0);
        CHECK(i == TAKE_ALL ? status == 0 : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT,
              "%s: wait status %d", act_name[i], status);
    }
}

static void test_new(void)
{
    int64_t *numbers = NULL;
    char *bytes = NULL, *text = NULL;
    CHECK_OK(DT_NEW(&numbers, 7, "numbers"));
    for (int i = 0; i < 7; i++)
        CHECK_INT(numbers[i], 0);
    free(numbers);
    CHECK_OK(DT_NEW(&numbers, 0, "nothing"));
    CHECK(numbers, "no items gave no address");
    free(numbers);
    CHECK_OK(DT_NEW_ALIGNED(&bytes, 100, 4096, NULL, "bytes"));
    CHECK_INT((intptr_t)bytes % 4096, 0);
    free(bytes);
    CHECK_OK(dt_memory_text(&text, "%s/%d", "step", 12));
    CHECK_STR(text, "step/12");
    free(text);

    numbers = &(int64_t){0};
    CHECK_INT(DT_NEW_HINT(&numbers, INT64_MAX, "use fewer", "the ends of %d rows", 12), DT_MACHINE);
    CHECK_SAYS("no memory for the ends of 12 rows (9223372036854775807 times 8 bytes)");
    CHECK_ADVISES("use fewer");
    CHECK(!numbers, "a failed allocation left an address");
    CHECK_FAILS(DT_NEW(&numbers, -1, "a negative size"), DT_MACHINE, "a negative size");
#ifndef __SANITIZE_ADDRESS__ // the sanitizer would end the process
    CHECK_FAILS(DT_NEW_ALIGNED(&bytes, INT64_MAX / 2, 4096, NULL, "half of all"), DT_MACHINE,
                "no memory for half of all (4611686018427387903 bytes)");
#endif
    dt_error_clear();
}

int main(void)
{
    RUN(test_new, test_measure_then_place, test_beyond_32_bits, test_aborts);
    return test_end();
}
