// Shares of the cores, as seen by the kernel. Needs two cores or more, and all that there are.
#include "base/cores.h"

#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

static int n_cores; // of this process, as it was started
static cpu_set_t all;

static int bound_of(pthread_t thread)
{
    cpu_set_t set;
    CHECK_INT(pthread_getaffinity_np(thread, sizeof set, &set), 0);
    return CPU_COUNT(&set);
}

static void *sleep_long(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

static void bind_to_one(pthread_t thread)
{
    cpu_set_t one;
    int core = 0;
    while (!CPU_ISSET(core, &all))
        core++;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    CHECK_INT(pthread_setaffinity_np(thread, sizeof one, &one), 0);
}

static void test_unbound(void)
{
    bool widened;
    CHECK_INT(dt_cores_share(0, 1, &widened), n_cores);
    CHECK(!widened, "nothing was to be widened");
    CHECK_INT(dt_cores_share(0, 2 * n_cores, &widened), 1); // more ranks than cores
    CHECK_INT(bound_of(pthread_self()), n_cores);
}

// Bound to one core, as mpirun does it, with a thread that was started before.
static void test_widened(pthread_t other)
{
    bool widened;
    bind_to_one(pthread_self());
    bind_to_one(other);
    CHECK_INT(dt_cores_share(0, n_cores, &widened), 1); // one core is the share
    CHECK(!widened, "one core is the share");
    CHECK_INT(bound_of(pthread_self()), 1);
    CHECK_INT(dt_cores_share(0, 1, &widened), n_cores);
    CHECK(widened, "the share is larger than what it is bound to");
    CHECK_INT(bound_of(pthread_self()), n_cores);
    CHECK_INT(bound_of(other), n_cores);
}

int main(void)
{
    pthread_t other;
    CHECK_INT(sched_getaffinity(0, sizeof all, &all), 0);
    n_cores = CPU_COUNT(&all);
    if (n_cores < 2 || n_cores != sysconf(_SC_NPROCESSORS_CONF)) // else widening has no known end
        return TEST_SKIP;
    CHECK_INT(pthread_create(&other, NULL, sleep_long, NULL), 0);
    test_unbound();
    test_widened(other);
    return test_end();
}
