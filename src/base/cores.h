// Which cores this process may use. mpirun binds each rank to one core when there are two or fewer
// ranks, which starves the reader thread and OpenMP alike.
#pragma once

#include <stdbool.h>

// The threads a rank should use: its share of the cores that its host gives this job, at most those
// it is bound to. A rank bound to a single core with a larger share is first bound to its share
// (*widened), with all its threads. To be called before OpenMP starts its own.
int dt_cores_share(int local_rank, int local_size, bool *widened);

// The cores of this host that the job may use, 1 or more. To be called before OpenMP starts its
// own.
int dt_cores_of_job(void);

// Binds all threads of the process to those of the calling thread's cores that are nearest to a
// device on the PCI bus, "0000:17:00.0", as sysfs says ("/sys", or a test's). Where sysfs does not
// say, or the thread may use none of those cores, nothing changes. True where they were bound.
bool dt_cores_bind_near(const char *sysfs, const char *bus_id);
