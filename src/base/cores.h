// Which cores this process may use. mpirun binds each rank to one core when there are two or fewer
// ranks, which starves the reader thread and OpenMP alike.
#pragma once

#include <stdbool.h>

// The threads a rank should use: its share of the cores that its host gives this job, at most those
// it is bound to. A rank bound to a single core with a larger share is first bound to its share
// (*widened), with all its threads. To be called before OpenMP starts its own.
int dt_cores_share(int local_rank, int local_size, bool *widened);
