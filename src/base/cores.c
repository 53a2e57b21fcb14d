// CPU affinity by sched_setaffinity(2); a cpuset (container, Slurm) cuts what is asked for, which
// is how the cores of this job are told from those of the machine.
#include "base/cores.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
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

int dt_cores_of_job(void)
{
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *mine = CPU_ALLOC(MAX_CPUS), *all = NULL;
    int total = 1;
    if (mine && sched_getaffinity(0, size, mine) == 0) {
        total = CPU_COUNT_S(size, mine); // where the system refuses to widen the mask
        all = job_cores(size, mine, &total);
    }
    CPU_FREE(all);
    CPU_FREE(mine);
    return total;
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

// The first line of a file of sysfs; false where there is none.
static bool sysfs_line(char *line, int size, const char *path)
{
    FILE *file = fopen(path, "r");
    bool read = file && fgets(line, size, file);
    if (file)
        fclose(file);
    return read;
}

// The NUMA node of a PCI device, or -1, of which sysfs has no folder. CUDA writes bus ids in
// capitals, sysfs does not.
static int numa_node(const char *sysfs, const char *bus_id)
{
    char path[512], line[32], id[32];
    size_t n = 0;
    for (; bus_id[n] && n + 1 < sizeof id; n++)
        id[n] = (char)tolower((unsigned char)bus_id[n]);
    id[n] = '\0';
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sysfs, id);
    return sysfs_line(line, sizeof line, path) ? (int)strtol(line, NULL, 10) : -1;
}

// The cores of a list as sysfs writes it, "0-15,32-47". False where it is not one.
static bool read_list(const char *list, size_t size, cpu_set_t *cores)
{
    CPU_ZERO_S(size, cores);
    for (const char *at = list; isdigit((unsigned char)*at);) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < MAX_CPUS; i++)
            CPU_SET_S((size_t)i, size, cores);
        at = *end == ',' ? end + 1 : end;
        if (*at == '\0' || *at == '\n')
            return true;
    }
    return false;
}

bool dt_cores_bind_near(const char *sysfs, const char *bus_id)
{
    char path[512], list[4096];
    size_t size = CPU_ALLOC_SIZE(MAX_CPUS);
    cpu_set_t *near = CPU_ALLOC(MAX_CPUS), *mine = CPU_ALLOC(MAX_CPUS);
    int node = numa_node(sysfs, bus_id);
    bool bound = false;
    snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sysfs, node);
    if (near && mine && sysfs_line(list, sizeof list, path) && read_list(list, size, near) &&
        sched_getaffinity(0, size, mine) == 0) {
        CPU_AND_S(size, near, near, mine);
        bound = CPU_COUNT_S(size, near) > 0 && bind_threads(size, near);
    }
    CPU_FREE(near);
    CPU_FREE(mine);
    return bound;
}
