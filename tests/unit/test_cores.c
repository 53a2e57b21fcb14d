// Shares of the cores, as seen by the kernel. Needs two cores or more, and all that there are.
#include "base/cores.h"

#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int n_cores; // of this process, as it was started
static cpu_set_t all;
static bool refused; // sched_setaffinity fails, as where system calls are filtered

int sched_setaffinity(pid_t pid, size_t size, const cpu_set_t *set)
{
    if (!refused)
        return (int)syscall(SYS_sched_setaffinity, pid, size, set);
    errno = EPERM;
    return -1;
}

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

static void test_cores_of_job(void)
{
    refused = true;
    CHECK_INT(dt_cores_of_job(), n_cores);
    refused = false;
    bind_to_one(pthread_self());
    CHECK_INT(dt_cores_of_job(), n_cores);
    CHECK_INT(bound_of(pthread_self()), 1);
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

// ---- near a device: sysfs as it would be, in a folder of our own

static const char sysfs[] = "./test_cores.sysfs";

static void make_folders(const char *path)
{
    char part[256];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        mkdir(part, 0700);
    }
}

// A file of sysfs, `text` in it; NULL: none.
static void write_sysfs(const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", sysfs, name);
    make_folders(path);
    unlink(path);
    FILE *file = text ? fopen(path, "w") : NULL;
    CHECK(!text || file, "cannot write %s", path);
    if (!file)
        return;
    fputs(text, file);
    fclose(file);
}

// The device 0000:3b:00.0 on node 1, that node's cores as listed.
static void expect_near(const char *node, const char *list, bool bound, int cores)
{
    cpu_set_t before = all;
    CHECK_INT(sched_setaffinity(0, sizeof before, &before), 0);
    write_sysfs("bus/pci/devices/0000:3b:00.0/numa_node", node);
    write_sysfs("devices/system/node/node1/cpulist", list);
    CHECK(dt_cores_bind_near(sysfs, "0000:3B:00.0") == bound, "node %s of cores %s", node, list);
    CHECK_INT(bound_of(pthread_self()), cores);
}

static void test_near(pthread_t other)
{
    char last[64], both[64], absent[64], far[64];
    int first_core = 0, last_core = CPU_SETSIZE - 1;
    while (!CPU_ISSET(first_core, &all))
        first_core++;
    while (!CPU_ISSET(last_core, &all))
        last_core--;
    snprintf(last, sizeof last, "%d\n", last_core);
    snprintf(both, sizeof both, "%d,%d-%d\n", first_core, last_core, last_core + 4);
    snprintf(absent, sizeof absent, "%d-%d\n", last_core + 1, last_core + 8);
    snprintf(far, sizeof far, "%d-9999999\n", last_core + 1);
    expect_near("1\n", last, true, 1);
    CHECK_INT(bound_of(other), 1); // every thread of the process
    expect_near("1\n", both, true, 2);
    expect_near("1\n", absent, false, n_cores); // cores of another job
    expect_near("1\n", far, false, n_cores);
    expect_near("1\n", "\n", false, n_cores); // a node of memory alone
    expect_near("1\n", "0-x\n", false, n_cores);
    expect_near("1\n", NULL, false, n_cores);
    expect_near("-1\n", last, false, n_cores); // the machine does not tell
    expect_near(NULL, last, false, n_cores);

    write_sysfs("bus/pci/devices/0000:3b:00.0/numa_node", "1\n");
    bind_to_one(pthread_self()); // to the first: the last is near, and another rank's
    CHECK(!dt_cores_bind_near(sysfs, "0000:3b:00.0"), "it may not leave its core");
    CHECK_INT(bound_of(pthread_self()), 1);
    CHECK(sched_getcpu() == first_core, "it was moved");
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
    test_cores_of_job();
    test_widened(other);
    test_near(other);
    return test_end();
}
