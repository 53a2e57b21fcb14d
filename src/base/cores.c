// CPU affinity by sched_setaffinity(2). A cpuset (container, Slurm) cuts the mask that is asked
// for: what remains are the cores of this job.
#include "base/cores.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CPUS = 4096 };

struct mask {
    cpu_set_t sets[MAX_CPUS / CPU_SETSIZE];
};
enum { SIZE = sizeof(struct mask) };

static int count(const struct mask *mask)
{
    return CPU_COUNT_S(SIZE, mask->sets);
}

// The cores that this thread is bound to, and all that the job may use: the same where the system
// refuses to widen the mask.
static void read_masks(struct mask *mine, struct mask *all)
{
    CPU_ZERO_S(SIZE, mine->sets);
    if (sched_getaffinity(0, SIZE, mine->sets) != 0)
        CPU_SET_S(0, SIZE, mine->sets);
    memset(all, 0xff, sizeof *all);
    if (sched_setaffinity(0, SIZE, all->sets) == 0 && sched_getaffinity(0, SIZE, all->sets) == 0)
        sched_setaffinity(0, SIZE, mine->sets);
    else
        *all = *mine;
}

// Binds every thread of the process: a communicator's was started before.
static bool bind_threads(const struct mask *cores)
{
    DIR *tasks = opendir("/proc/self/task");
    const struct dirent *entry;
    if (!tasks)
        return sched_setaffinity(0, SIZE, cores->sets) == 0;
    bool bound = true;
    while ((entry = readdir(tasks)))
        if (entry->d_name[0] != '.' &&
            sched_setaffinity((pid_t)strtol(entry->d_name, NULL, 10), SIZE, cores->sets) != 0)
            bound = bound && errno == ESRCH; // it has ended
    closedir(tasks);
    return bound;
}

int dt_cores_of_job(void)
{
    struct mask mine, all;
    read_masks(&mine, &all);
    return count(&all);
}

int dt_cores_share(int local_rank, int local_size, bool *widened)
{
    struct mask mine, all, slice = {0};
    read_masks(&mine, &all);
    int bound = count(&mine), share = count(&all) / local_size > 1 ? count(&all) / local_size : 1;
    for (int i = 0, seen = 0; i < MAX_CPUS; i++)
        if (CPU_ISSET_S(i, SIZE, all.sets) && seen++ / share == local_rank)
            CPU_SET_S(i, SIZE, slice.sets);
    *widened = bound == 1 && share > 1 && bind_threads(&slice);
    return *widened || share < bound ? share : bound;
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
static bool read_list(const char *list, struct mask *cores)
{
    CPU_ZERO_S(SIZE, cores->sets);
    for (const char *at = list; isdigit((unsigned char)*at);) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < MAX_CPUS; i++)
            CPU_SET_S((size_t)i, SIZE, cores->sets);
        at = *end == ',' ? end + 1 : end;
        if (*at == '\0' || *at == '\n')
            return true;
    }
    return false;
}

bool dt_cores_bind_near(const char *sysfs, const char *bus_id)
{
    char path[512], list[4096];
    struct mask near, mine;
    snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sysfs,
             numa_node(sysfs, bus_id));
    if (!sysfs_line(list, sizeof list, path) || !read_list(list, &near) ||
        sched_getaffinity(0, SIZE, mine.sets) != 0)
        return false;
    CPU_AND_S(SIZE, near.sets, near.sets, mine.sets);
    return count(&near) > 0 && bind_threads(&near);
}
