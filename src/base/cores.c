// Reads and sets CPU affinity by hwloc. Slurm's environment says how many CPUs a task has, but
// not which, so it limits only the number of threads.
#include "base/cores.h"

#include <ctype.h>
#include <hwloc.h>
#include <hwloc/linux.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static hwloc_topology_t topology; // only what this process may use; never freed

static void load(void)
{
    if (hwloc_topology_init(&topology) == 0 && hwloc_topology_load(topology) == 0)
        return;
    fprintf(stderr, "dtrain: hwloc cannot read the topology of this machine\n");
    abort();
}

static hwloc_const_cpuset_t all_cpus(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return hwloc_topology_get_allowed_cpuset(topology);
}

// The CPUs that the calling thread may use. Caller frees.
static hwloc_cpuset_t my_cpus(void)
{
    hwloc_cpuset_t mine = hwloc_bitmap_dup(all_cpus());
    if (hwloc_get_cpubind(topology, mine, HWLOC_CPUBIND_THREAD) != 0)
        hwloc_bitmap_copy(mine, all_cpus());
    return mine;
}

static int count_mine(void)
{
    hwloc_cpuset_t mine = my_cpus();
    int n = hwloc_bitmap_weight(mine);
    hwloc_bitmap_free(mine);
    return n > 1 ? n : 1;
}

static bool is_rank_of_mpirun(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") != NULL;
}

// The smallest number in a list of CPUs per node, "72(x2),36"; 0: no list.
static int least_of_list(const char *list)
{
    int least = 0;
    while (list && *list) {
        int n = (int)strtol(list, NULL, 10);
        least = least == 0 || n < least ? n : least;
        list = strchr(list, ',');
        list += list != NULL;
    }
    return least;
}

// The number of CPUs that Slurm allotted to this rank; 0: unknown.
static int allotted(int local_size)
{
    int on_node = least_of_list(getenv("SLURM_JOB_CPUS_PER_NODE"));
    if (!is_rank_of_mpirun() && getenv("SLURM_STEP_NUM_TASKS")) { // started by srun
        int of_task = least_of_list(getenv("SLURM_CPUS_PER_TASK"));
        if (of_task > 0)
            return of_task;
        on_node = least_of_list(getenv("SLURM_CPUS_ON_NODE"));
    }
    return on_node > 0 && on_node < local_size ? 1 : on_node / local_size;
}

int dt_cores_of_job(void)
{
    return is_rank_of_mpirun() ? hwloc_bitmap_weight(all_cpus()) : count_mine();
}

// Binds all threads of the process to a compact part of the machine; to the whole machine if the
// rank may use fewer CPUs than the part has, since it is unknown which ones.
static bool widen(int local_rank, int local_size, int limit)
{
    hwloc_obj_t root = hwloc_get_root_obj(topology);
    hwloc_cpuset_t *parts = calloc((size_t)local_size, sizeof *parts);
    bool wide =
        parts && hwloc_distrib(topology, &root, 1, parts, (unsigned)local_size, INT_MAX, 0) == 0;
    if (wide) {
        hwloc_const_cpuset_t part =
            hwloc_bitmap_weight(parts[local_rank]) > limit ? all_cpus() : parts[local_rank];
        wide = hwloc_set_cpubind(topology, part, HWLOC_CPUBIND_PROCESS) == 0;
        for (int i = 0; i < local_size; i++)
            hwloc_bitmap_free(parts[i]);
    }
    free(parts);
    return wide;
}

int dt_cores_share(int local_rank, int local_size, bool *widened)
{
    int all = hwloc_bitmap_weight(all_cpus()), bound = count_mine(), limit = allotted(local_size);
    int share = all / local_size > 1 ? all / local_size : 1;
    if (limit > 0 && limit < share)
        share = limit;
    *widened = is_rank_of_mpirun() && bound == 1 && share > 1 &&
               widen(local_rank, local_size, limit > 0 ? limit : INT_MAX);
    return *widened || share < bound ? share : bound;
}

void dt_cores_free_thread(void)
{
    hwloc_const_cpuset_t all = all_cpus();
    if (is_rank_of_mpirun() && count_mine() == 1)
        hwloc_set_cpubind(topology, all, HWLOC_CPUBIND_THREAD);
}

bool dt_cores_bind_near(const char *sysfs, const char *bus_id)
{
    char path[512];
    int used = snprintf(path, sizeof path, "%s/bus/pci/devices/%s/local_cpus", sysfs, bus_id);
    for (int i = (int)strlen(sysfs); i < used && i < (int)sizeof path; i++)
        path[i] = (char)tolower((unsigned char)path[i]); // CUDA writes upper case, sysfs lower case
    hwloc_cpuset_t mine = my_cpus(), near = hwloc_bitmap_alloc();
    bool known = hwloc_linux_read_path_as_cpumask(path, near) == 0;
    hwloc_bitmap_and(near, near, mine);
    int n = hwloc_bitmap_weight(near);
    bool bound = known && n > 0 && (n > 1 || hwloc_bitmap_weight(mine) == 1) &&
                 hwloc_set_cpubind(topology, near, HWLOC_CPUBIND_PROCESS) == 0;
    hwloc_bitmap_free(near);
    hwloc_bitmap_free(mine);
    return bound;
}

void dt_cores_list(char *text, size_t size)
{
    hwloc_cpuset_t mine = my_cpus();
    hwloc_bitmap_list_snprintf(text, size, mine);
    hwloc_bitmap_free(mine);
}
