// CPU affinity by sched_setaffinity(2); a cpuset (container, Slurm) cuts what is asked for, which
// is how the cores of this job are told from those of the machine.
#include "base/cores.h"

#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { MAX_CPUS = 4096 };

// The set of every core that this job may use; its size in *n.
static cpu_set_t *job_cores(size_t size, const cpu_set_t *mine, int *n)
{
    cpu_set_t *all = CPU_ALLOC(MAX_CPUS);
    if (!all)
        return NULL;
    CPU_ZERO_S(size, all);
    for (int i = 0; i < MAX_CPUS; i++)
        CPU_SET_S(i, size, all);
    if (sched_setaffinity(0, size, all) != 0 || sched_getaffinity(0, size, all) != 0) {
        CPU_FREE(all);
        return NULL;
    }
    sched_setaffinity(0, size, mine);
    *n = CPU_COUNT_S(size, all);
    return all;
}

// Binds every thread of the process: a communicator's was started before.
static bool bind_threads(size_t size, const cpu_set_t *cores)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    if (!tasks)
        return sched_setaffinity(0, size, cores) == 0;
    bool bound = true;
    while ((entry = readdir(tasks)))
        if (entry->d_name[0] != '.' &&
            sched_setaffinity((pid_t)strtol(entry->d_name, NULL, 10), size, cores) != 0)
            bound = bound && errno == ESRCH; // it has ended
    closedir(tasks);
    return bound;
}

// Binds to cores [first, first + count) of `all`.
static bool bind_slice(size_t size, const cpu_set_t *all, int first, int count)
{
    cpu_set_t *slice = CPU_ALLOC(MAX_CPUS);
    if (!slice)
        return false;
    CPU_ZERO_S(size, slice);
    for (int i = 0, seen = 0; i < MAX_CPUS; i++)
        if (CPU_ISSET_S(i, size, all)) {
            if (seen >= first && seen < first + count)
                CPU_SET_S(i, size, slice);
            seen++;
        }
    bool bound = bind_threads(size, slice);
    CPU_FREE(slice);
    return bound;
}

int dt_cores_share(int local_rank, int local_size, bool *widened)
{
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *mine = CPU_ALLOC(MAX_CPUS), *all = NULL;
    int total = 1, bound = 1, share = 1;
    *widened = false;
    if (mine && sched_getaffinity(0, size, mine) == 0)
        all = job_cores(size, mine, &total);
    if (all) {
        bound = CPU_COUNT_S(size, mine);
        share = total / local_size > 1 ? total / local_size : 1;
        if (bound == 1 && share > 1 && bind_slice(size, all, local_rank * share, share)) {
            *widened = true;
            bound = share;
        }
        CPU_FREE(all);
    }
    if (mine)
        CPU_FREE(mine);
    return bound < share ? bound : share;
}
