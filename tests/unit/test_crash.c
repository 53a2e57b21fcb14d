// Tests the last words of a process in which a library call crashes or never returns. Each case
// runs in a child.
#include "base/crash.h"
#include "base/error.h"
#include "captured.h"

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

static const struct dt_crash_note note = {"libslow", "some.h5", "copy it again"};
static volatile double number;

static void compute(double seconds)
{
    clock_t end = clock() + (clock_t)(seconds * CLOCKS_PER_SEC);
    while (clock() < end)
        number += 1;
}

static void crash(void)
{
    dt_crash_enter(&note);
    raise(SIGSEGV);
}

static void never_return(void)
{
    dt_crash_enter(&note);
    compute(10); // the watch looks once a second
}

static void compute_in_many_calls(void)
{
    dt_crash_enter(&note);
    for (int i = 0; i < 12; i++) {
        compute(0.1);
        dt_crash_advance();
    }
    dt_crash_leave();
}

static void wait_long(void)
{
    dt_crash_enter(&note);
    sleep(2);
    dt_crash_leave();
}

// The child must end with this exit code and write this text to stderr.
static void check_words(void (*act)(void), int code, const char *want)
{
    int end;
    capture_stderr();
    pid_t child = fork();
    if (child == 0) {
        alarm(120); // of the machine's time: a hang fails
        dt_crash_catch(0.4);
        act();
        _exit(0);
    }
    waitpid(child, &end, 0);
    CHECK_STR(captured(), want);
    CHECK(WIFEXITED(end), "signal %d", WTERMSIG(end));
    CHECK_INT(WEXITSTATUS(end), code);
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return TEST_SKIP; // crashes are not caught in this build
#endif
    check_words(
        crash, DT_MACHINE,
        "dtrain: error: libslow crashed (SIGSEGV) reading some.h5\n  hint: copy it again\n");
    check_words(never_return, DT_MACHINE,
                "dtrain: error: libslow computes without end reading some.h5\n"
                "  hint: copy it again\n");
    check_words(compute_in_many_calls, 0, "");
    check_words(wait_long, 0, "");
    return test_end();
}
