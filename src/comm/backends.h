// Between comm.c and the communicators: how each is opened, and what they share.
#pragma once

#include "comm/comm.h"

dt_status dt_comm_open_self(struct dt_comm **comm);
dt_status dt_comm_open_mpi(struct dt_comm **comm);

// Fills the part that all backends share but `info`.
void dt_comm_prepare(struct dt_comm *comm, const struct dt_comm_table *table);

bool dt_launched_by_mpi(void);       // a launcher that MPI_Init can talk to started this process
bool dt_is_one_of_slurm_tasks(void); // of a step or batch job with more than one
