// The whole test framework: checks that say what was expected and what came, and an exit code.
// A test is a plain main that calls CHECK… and ends with `return test_end();`.
#pragma once

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEST_SKIP = 77 };

// Weak: the files of one program count together.
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

// Of calls that give a dt_status, and of the error that they leave (base/error.h).
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        int status_ = (call);                                                                      \
        CHECK(status_ == DT_OK, "%s: %s", #call, dt_error_current()->message);                     \
    } while (0)
#define CHECK_SAYS(part)                                                                           \
    CHECK(strstr(dt_error_current()->message, part), "\"%s\" is not in: %s", (part),               \
          dt_error_current()->message)
#define CHECK_ADVISES(part)                                                                        \
    CHECK(strstr(dt_error_current()->hint, part), "\"%s\" is not in: %s", (part),                  \
          dt_error_current()->hint)
#define CHECK_FAILS(call, code, part)                                                              \
    do {                                                                                           \
        CHECK_INT(call, code);                                                                     \
        CHECK_SAYS(part);                                                                          \
        dt_error_clear();                                                                          \
    } while (0)

static inline int test_end(void)
{
    fprintf(stderr, "%d checks, %d failed\n", test_checks, test_failures);
    if (test_checks == 0)
        fprintf(stderr, "no check was made: that is a failure\n");
    return test_failures > 0 || test_checks == 0;
}
