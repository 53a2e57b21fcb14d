// Tests on the simulated device, each in a separate process, since the runtime reads its
// environment once and stays broken after a failure. A test runs in one order of the device's
// threads and streams, or in all.
#pragma once

#include "test.h"

#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ORDERS = 4, SEEN = 10, LIMIT_S = 120 };

// `seen`: the minimum number of orders in which the test must end with SEEN, because it shows a
// planted bug; 0: it must never do so.
struct test_case {
    const char *name;
    void (*test)(void);
    int orders, seen;
    const char *environment[3]; // "NAME=value"
};
#define NAMED(test) #test, test

static inline int run_case(const struct test_case *c, const char *order)
{
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(LIMIT_S);
        test_checks = test_failures = 0;
        setenv("SIMT_ORDER", order, 1);
        for (int i = 0; i < 3 && c->environment[i]; i++)
            putenv((char *)(uintptr_t)c->environment[i]);
        c->test();
        exit(test_failures > 0 || test_checks == 0);
    }
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "no process for a case");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

static inline void run_cases(const struct test_case *cases, size_t n)
{
    static const char *const orders[ORDERS] = {"ascending", "descending", "random", "warp"};
    for (const struct test_case *c = cases; c < cases + n; c++) {
        int seen = 0;
        for (int i = 0; i < c->orders; i++) {
            int status = run_case(c, orders[i]);
            CHECK(status == 0 || (status == SEEN && c->seen > 0), "%s, order %s, %s: ended with %d",
                  c->name, orders[i], c->environment[0] ? c->environment[0] : "", status);
            seen += status == SEEN;
        }
        CHECK(seen >= c->seen, "%s: seen in %d orders, not %d", c->name, seen, c->seen);
    }
}
