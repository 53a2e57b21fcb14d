// Which CPUs this process may use, by hwloc: those that it is bound to, those that its host allows
// the job (a container, a cpuset of Slurm), and those that Slurm allotted without binding anything.
// Bindings are made wider for ranks of mpirun only, which binds each to one core where there are
// two or fewer: that starves the reader thread and OpenMP alike. A task of srun keeps its own.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The threads a rank should use: its share of the CPUs that its host gives this job, at most those
// it is bound to and those that Slurm allotted to it. A rank that mpirun bound to a single core
// with a larger share is first bound to its share (*widened), with all its threads. Call it before
// OpenMP starts its threads.
int dt_cores_share(int local_rank, int local_size, bool *widened);

// The CPUs that any rank of this job could use here, 1 or more.
int dt_cores_of_job(void);

// Lets the calling thread leave the single core that mpirun bound its rank to.
void dt_cores_free_thread(void);

// Binds all threads of the process to those of the calling thread's CPUs that are nearest to a
// device on the PCI bus, "0000:17:00.0", as sysfs says ("/sys", or a test's). Where sysfs does not
// say, where that would leave one CPU of several, or the thread may use none of them, nothing
// changes. True where they were bound.
bool dt_cores_bind_near(const char *sysfs, const char *bus_id);

// Puts what the calling thread is bound to into `text`, such as "0-3,8".
void dt_cores_list(char *text, size_t size);
