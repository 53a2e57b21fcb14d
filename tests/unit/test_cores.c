// Tests shares of the cores as the kernel sees them. It needs at least two cores, and must be
// allowed to use all cores of the machine.
#include "base/cores.h"

#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int n_cores, first_core, last_core; // the cores that this process had when it started
static cpu_set_t all;
static bool refused; // makes sched_setaffinity fail, as where system calls are filtered

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
    CPU_ZERO(&one);
    CPU_SET(first_core, &one);
    CHECK_INT(pthread_setaffinity_np(thread, sizeof one, &one), 0);
}

// Sets the variables that Slurm and mpirun set; NULL removes one. Binds the process to all of its
// cores.
static void launch(const char *ranks_of_mpirun, const char *tasks_of_srun, const char *per_task,
                   const char *per_node)
{
    const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS",
                                 "SLURM_CPUS_PER_TASK", "SLURM_JOB_CPUS_PER_NODE"};
    const char *const values[] = {ranks_of_mpirun, tasks_of_srun, per_task, per_node};
    for (int i = 0; i < 4; i++)
        values[i] ? setenv(names[i], values[i], 1) : unsetenv(names[i]);
    cpu_set_t every = all;
    CHECK_INT(sched_setaffinity(0, sizeof every, &every), 0);
}

static void test_unbound(void)
{
    bool widened;
    launch(NULL, NULL, NULL, NULL);
    CHECK_INT(dt_cores_share(0, 1, &widened), n_cores);
    CHECK(!widened, "nothing was to be widened");
    CHECK_INT(dt_cores_share(0, 2 * n_cores, &widened), 1); // more ranks than cores
    CHECK_INT(bound_of(pthread_self()), n_cores);
}

static void test_cores_of_job(void)
{
    char list[64], first[16];
    CHECK_INT(dt_cores_of_job(), n_cores);
    launch("2", NULL, NULL, NULL);
    bind_to_one(pthread_self());
    CHECK_INT(dt_cores_of_job(), n_cores); // a rank of mpirun may widen its binding
    CHECK_INT(bound_of(pthread_self()), 1);
    dt_cores_list(list, sizeof list);
    snprintf(first, sizeof first, "%d", first_core);
    CHECK_STR(list, first);
    launch(NULL, "2", NULL, NULL);
    bind_to_one(pthread_self());
    CHECK_INT(dt_cores_of_job(), 1);
}

// The process and a thread that started before are bound to one core, as mpirun does.
static void test_widened(pthread_t other)
{
    bool widened;
    launch("2", NULL, NULL, NULL);
    bind_to_one(pthread_self());
    bind_to_one(other);
    CHECK_INT(dt_cores_share(0, n_cores, &widened), 1); // its share is one core
    CHECK(!widened, "one core is the share");
    CHECK_INT(bound_of(pthread_self()), 1);
    refused = true;
    CHECK_INT(dt_cores_share(0, 1, &widened), 1);
    CHECK(!widened, "the system refused");
    refused = false;
    CHECK_INT(dt_cores_share(0, 1, &widened), n_cores);
    CHECK(widened, "the share is larger than what it is bound to");
    CHECK_INT(bound_of(pthread_self()), n_cores);
    CHECK_INT(bound_of(other), n_cores);
    bind_to_one(pthread_self());
    dt_cores_free_thread();
    CHECK_INT(bound_of(pthread_self()), n_cores);
}

// What Slurm allotted is never exceeded, and tasks of srun stay bound.
static void test_allotted(void)
{
    bool widened;
    launch(NULL, "2", NULL, NULL);
    bind_to_one(pthread_self());
    CHECK_INT(dt_cores_share(0, 1, &widened), 1);
    CHECK(!widened, "a task of srun widened itself");
    dt_cores_free_thread();
    CHECK_INT(bound_of(pthread_self()), 1);
    launch(NULL, "2", "1", NULL); // srun without task affinity
    CHECK_INT(dt_cores_share(0, 1, &widened), 1);
    launch(NULL, "2", NULL, "64"); // a limit of the node, which is not the step's
    setenv("SLURM_CPUS_ON_NODE", "1", 1);
    CHECK_INT(dt_cores_share(0, 1, &widened), 1);
    unsetenv("SLURM_CPUS_ON_NODE");
    static const char *const nodes[] = {"72(x3),1", "1,72(x3)", "72,1,36"};
    for (int i = 0; i < 3; i++) { // the smallest node counts, wherever it is in the list
        launch("2", NULL, "1", nodes[i]);
        bind_to_one(pthread_self());
        CHECK_INT(dt_cores_share(0, 1, &widened), 1);
        CHECK(!widened, "it widened itself past its job");
    }
    launch("2", NULL, "1", "72(x3)");
    CHECK_INT(dt_cores_share(0, 1, &widened), n_cores);
    launch(NULL, NULL, NULL, "1"); // in a batch script
    CHECK_INT(dt_cores_share(0, 1, &widened), 1);
    launch(NULL, NULL, NULL, NULL);
}

// ---- cores near a device, with a made-up sysfs

static char sysfs[512]; // its absolute path

static void make_folders(const char *path)
{
    char part[768];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - path), path);
        mkdir(part, 0700);
    }
}

// Writes `text` to a file of sysfs; NULL removes the file.
static void write_sysfs(const char *name, const char *text)
{
    char path[768];
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

// Binds to the cores near device 0000:3b:00.0, which `mask` lists as sysfs does.
static void expect_near(const char *mask, bool bound, int cores)
{
    cpu_set_t before = all;
    CHECK_INT(sched_setaffinity(0, sizeof before, &before), 0);
    write_sysfs("bus/pci/devices/0000:3b:00.0/local_cpus", mask);
    CHECK(dt_cores_bind_near(sysfs, "0000:3B:00.0") == bound, "cores %s", mask);
    CHECK_INT(bound_of(pthread_self()), cores);
}

// Writes a mask of two cores (or one, if they are equal) as sysfs does: words of 32 bits.
static const char *mask_of(int a, int b, char *text, size_t size)
{
    size_t used = 0;
    for (int word = CPU_SETSIZE / 32 - 1; word >= 0; word--) {
        unsigned bits = (a / 32 == word ? 1u << a % 32 : 0) | (b / 32 == word ? 1u << b % 32 : 0);
        used += (size_t)snprintf(text + used, size - used, "%08x%s", bits, word ? "," : "\n");
    }
    return text;
}

static void test_near(pthread_t other)
{
    char mask[512], folder[256];
    CHECK(getcwd(folder, sizeof folder), "no working folder");
    snprintf(sysfs, sizeof sysfs, "%s/test_cores.sysfs", folder);
    expect_near(mask_of(first_core, last_core, mask, sizeof mask), true, 2);
    CHECK_INT(bound_of(other), 2); // every thread of the process is bound
    // One core is too few.
    expect_near(mask_of(last_core, last_core, mask, sizeof mask), false, n_cores);
    expect_near(mask_of(CPU_SETSIZE - 1, CPU_SETSIZE - 2, mask, sizeof mask), false,
                n_cores);              // cores of another job
    expect_near("\n", false, n_cores); // a node without cores
    expect_near("x\n", false, n_cores);
    expect_near(NULL, false, n_cores);

    write_sysfs("bus/pci/devices/0000:3b:00.0/local_cpus",
                mask_of(last_core, last_core, mask, sizeof mask));
    bind_to_one(pthread_self()); // bound to the first core: the near one belongs to another rank
    CHECK(!dt_cores_bind_near(sysfs, "0000:3b:00.0"), "it may not leave its core");
    CHECK_INT(bound_of(pthread_self()), 1);
    CHECK(sched_getcpu() == first_core, "it was moved");
}

// Shares of a machine of eight cores, which hwloc simulates in this process from here on.
static void share_eight_cores(void)
{
    static const struct {
        const char *mpirun, *srun, *per_task, *per_node;
        int ranks, share;
    } cases[] = {{NULL, NULL, NULL, NULL, 1, 8}, {"1", NULL, NULL, NULL, 2, 4},
                 {"1", NULL, NULL, NULL, 3, 2},  {"1", NULL, NULL, NULL, 9, 1},
                 {"1", NULL, NULL, "4", 1, 4},   {"1", NULL, NULL, "6(x2),4", 2, 2},
                 {"1", NULL, NULL, "2", 4, 1},   {NULL, "4", NULL, "2", 4, 2},
                 {NULL, "4", "1", "8", 4, 1},    {NULL, "2", "3", "8", 2, 3},
                 {"1", "2", "3", "8", 2, 4}};
    bool widened;
    setenv("HWLOC_SYNTHETIC", "core:8 pu:1", 1);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch(cases[i].mpirun, cases[i].srun, cases[i].per_task, cases[i].per_node);
        CHECK(dt_cores_share(0, cases[i].ranks, &widened) == cases[i].share && !widened,
              "case %zu has %d", i, dt_cores_share(0, cases[i].ranks, &widened));
    }
}

int main(void)
{
    pthread_t other;
    CHECK_INT(sched_getaffinity(0, sizeof all, &all), 0);
    CHECK_INT(in_child(share_eight_cores), 0);
    n_cores = CPU_COUNT(&all);
    // Else the result of widening is not known.
    if (n_cores < 2 || n_cores != sysconf(_SC_NPROCESSORS_CONF))
        return TEST_SKIP;
    while (!CPU_ISSET(first_core, &all))
        first_core++;
    for (last_core = CPU_SETSIZE - 1; !CPU_ISSET(last_core, &all);)
        last_core--;
    CHECK_INT(pthread_create(&other, NULL, sleep_long, NULL), 0);
    test_unbound();
    test_cores_of_job();
    test_widened(other);
    test_allotted();
    test_near(other);
    return test_end();
}
