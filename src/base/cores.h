// Which CPUs this process may use, by hwloc: it respects the process's binding, the host's limits
// on the job (a container, a Slurm cpuset), and CPUs that Slurm allotted without binding. Only
// bindings by mpirun are widened: with one or two ranks it binds each to a single core, which
// starves the reader thread and OpenMP. A binding by srun is kept.
#pragma once

#include <stdbool.h>
#include <stddef.h>

// The threads that a rank should use: its share of the host's CPUs for this job, limited by its
// binding and by Slurm's allotment. A rank that mpirun bound to a single core although its share is
// larger is first bound to its share (*widened), with all its threads. Call before OpenMP starts
// threads.
int dt_cores_share(int local_rank, int local_size, bool *widened);

// The CPUs that any rank of this job could use on this host, 1 or more.
int dt_cores_of_job(void);

// Lets the calling thread leave the single core that mpirun bound its rank to.
void dt_cores_free_thread(void);

// Binds all threads of the process to those of the calling thread's CPUs that are nearest to a PCI
// device ("0000:17:00.0") according to sysfs ("/sys", or a test's copy). Returns whether it did: it
// changes nothing if sysfs does not say, if one CPU of several would remain, or none that the
// thread may use.
bool dt_cores_bind_near(const char *sysfs, const char *bus_id);

// Writes the calling thread's CPUs to `text`, such as "0-3,8".
void dt_cores_list(char *text, size_t size);
