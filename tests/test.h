// The whole test framework: checks that print the expected and the actual value, and an exit code.
// A test is a plain main that calls CHECK… and ends with `return test_end();`, leaving no files
// open.
#pragma once

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TEST_SKIP = 77, TEST_DESCRIPTORS = 1024 };

// These are weak, so that all files of a program share them.
__attribute__((weak)) int test_checks;
__attribute__((weak)) int test_failures;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        test_checks++;                                                                             \
        if (!(condition)) {                                                                        \
            test_failures++;                                                                       \
            fprintf(stderr, "%s:%d: CHECK(%s) failed: ", __FILE__, __LINE__, #condition);          \
            fprintf(stderr, "" __VA_ARGS__);                                                       \
            fputc('\n', stderr);                                                                   \
        }                                                                                          \
    } while (0)

#define CHECK_INT(got, want)                                                                       \
    do {                                                                                           \
        long long got_ = (long long)(got), want_ = (long long)(want);                              \
        CHECK(got_ == want_, "%s is %lld, not %lld", #got, got_, want_);                           \
    } while (0)

#define CHECK_STR(got, want)                                                                       \
    do {                                                                                           \
        const char *got_ = (got), *want_ = (want);                                                 \
        CHECK(got_ &&strcmp(got_, want_) == 0, "%s is \"%s\", not \"%s\"", #got,                   \
              got_ ? got_ : "(null)", want_);                                                      \
    } while (0)

// |got - want| <= tolerance * max(1, |want|); false for NaN.
#define CHECK_NEAR(got, want, tolerance)                                                           \
    do {                                                                                           \
        double got_ = (double)(got), want_ = (double)(want), tol_ = (tolerance);                   \
        CHECK(fabs(got_ - want_) <= tol_ * fmax(1.0, fabs(want_)),                                 \
              "%s is %.9g, not %.9g (tolerance %g)", #got, got_, want_, tol_);                     \
    } while (0)

// Checks for calls that return a dt_status, and for their error (base/error.h).
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        CHECK(status_ == DT_OK, "%s: %s", #call, dt_error_current()->message);                     \
    } while (0)
#define CHECK_SAYS(...) /* all of these */                                                         \
    do {                                                                                           \
        const char *const parts_[] = {__VA_ARGS__};                                                \
        for (size_t i_ = 0; i_ < sizeof parts_ / sizeof *parts_; i_++)                             \
            CHECK(strstr(dt_error_current()->message, parts_[i_]), "\"%s\" is not in: %s",         \
                  parts_[i_], dt_error_current()->message);                                        \
    } while (0)
#define CHECK_ADVISES(part)                                                                        \
    CHECK(strstr(dt_error_current()->hint, part), "\"%s\" is not in: %s", (part),                  \
          dt_error_current()->hint)
#define CHECK_FAILS(call, code, ...)                                                               \
    do {                                                                                           \
        CHECK_INT(call, code);                                                                     \
        CHECK_SAYS(__VA_ARGS__);                                                                   \
        dt_error_clear();                                                                          \
    } while (0)

// Descriptors that were open when the program started, one byte each. Libraries may open files and
// keep them until the end; tests of such libraries set `test_ignores_descriptors`.
__attribute__((weak)) char test_descriptors[TEST_DESCRIPTORS];
__attribute__((weak)) int test_ignores_descriptors;

static inline __attribute__((constructor)) void test_note_descriptors(void)
{
    for (int fd = 0; fd < TEST_DESCRIPTORS; fd++)
        test_descriptors[fd] = fcntl(fd, F_GETFD) >= 0;
}

static inline void test_check_descriptors(void)
{
    for (int fd = 0; fd < TEST_DESCRIPTORS; fd++) {
        char link[32], path[256];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t n = readlink(link, path, sizeof path);
        CHECK(n < 0 || test_descriptors[fd], "descriptor %d was left open: %.*s", fd, (int)n, path);
    }
}

// Returns the number of threads of this process.
static inline int thread_count(void)
{
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));)
        n += task->d_name[0] != '.';
    if (tasks)
        closedir(tasks);
    return n;
}

// Checks that there are as many threads as before; a joined thread may be visible for a moment.
static inline void check_threads(int before)
{
#ifdef __SANITIZE_THREAD__
    before++; // the sanitizer has a thread of its own once another was created
#endif
    for (int waits = 0; waits < 1000 && thread_count() != before; waits++)
        usleep(1000);
    CHECK_INT(thread_count(), before);
}

// Runs `act` in a child process, in which a failed check gives exit code 1. Returns what waitpid
// says of its end.
static inline int in_child(void (*act)(void))
{
    int end = -1;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(600); // ends a hang
        test_failures = 0;
        act();
        _exit(test_failures > 0);
    }
    CHECK(child > 0 && waitpid(child, &end, 0) == child, "no child");
    return end;
}

// Runs the tests of a program, which are these functions, in order.
#define RUN(...)                                                                                   \
    do {                                                                                           \
        void (*const tests_[])(void) = {__VA_ARGS__};                                              \
        for (size_t i_ = 0; i_ < sizeof tests_ / sizeof *tests_; i_++)                             \
            tests_[i_]();                                                                          \
    } while (0)

static inline int test_end(void)
{
    if (!test_ignores_descriptors && !getenv("OMPI_COMM_WORLD_SIZE")) // MPI keeps descriptors open
        test_check_descriptors();
    fprintf(stderr, "%d checks, %d failed\n", test_checks, test_failures);
    if (test_checks == 0)
        fprintf(stderr, "no check was made: that is a failure\n");
    return test_failures > 0 || test_checks == 0;
}
