// The communicator: a table of collectives over the ranks of a job. comm_self (one process),
// comm_mpi; what lies on devices is summed by another (device_comm.h). Every collective is called
// by all ranks in the same order. A backend may progress collectives on its own thread; none of
// them may be called from two threads. What ranks know of each other, and how a job ends:
// job_control.h.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_reduce_op { DT_SUM, DT_MIN, DT_MAX };

enum { DT_HOST_NAME = 64 };

struct dt_comm;        // state of one backend
struct dt_request;     // a collective under way
struct dt_job_control; // backends.h

struct dt_comm_info {
    const char *backend; // "self", "mpi"
    int rank, size;
    int local_rank, local_size; // among the ranks of this host
    char host[DT_HOST_NAME];
};

struct dt_comm_table {
    const char *name;
    // All-reduce in place of `count` elements (fp32, bf16, fp64, int64) in host memory. begin
    // returns at once; `data` belongs to the communicator until wait. Sums are deterministic for a
    // given size and rank, and the same on every rank.
    dt_status (*allreduce_begin)(struct dt_comm *comm, void *data, int64_t count,
                                 enum dt_dtype dtype, enum dt_reduce_op op,
                                 struct dt_request **request);
    dt_status (*wait)(struct dt_comm *comm, struct dt_request *request); // frees the request
    dt_status (*broadcast)(struct dt_comm *comm, void *data, int64_t bytes, int root);
    dt_status (*gather)(struct dt_comm *comm, const void *mine, int64_t bytes, void *all,
                        int root);       // all: [size, bytes], at root
    void (*close)(struct dt_comm *comm); // collective; ends the communication thread
};

// The struct that every backend embeds first.
struct dt_comm {
    const struct dt_comm_table *table;
    struct dt_comm_info info;
    struct dt_job_control *control;
    bool agreed; // the current error came from dt_agree: every rank has it
};

enum dt_comm_kind { DT_COMM_KIND_AUTO, DT_COMM_KIND_SELF, DT_COMM_KIND_MPI };

// AUTO: MPI where a launcher started this process (Open MPI, PMIx, Slurm environment), else self: a
// lone process never touches MPI. SLURM_NTASKS > 1 with an MPI size of 1 is an error that says
// srun --mpi=pmix. MPI can be opened once in a process.
dt_status dt_comm_open(enum dt_comm_kind kind, struct dt_comm **comm);
// Orderly end: all ranks call it, after success or after an error that all share. NULL is fine.
void dt_comm_close(struct dt_comm *comm);
dt_status dt_allreduce_begin(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                             enum dt_reduce_op op, struct dt_request **request);
dt_status dt_wait(struct dt_comm *comm, struct dt_request *request);
dt_status dt_allreduce(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                       enum dt_reduce_op op);
dt_status dt_broadcast(struct dt_comm *comm, void *data, int64_t bytes, int root);
dt_status dt_gather(struct dt_comm *comm, const void *mine, int64_t bytes, void *all, int root);
dt_status dt_barrier(struct dt_comm *comm);

// Ends a rank-local phase: every rank passes its own status and all return the worst. Where one or
// more failed, every rank has the error record of the lowest failing rank, its message opened by
// "rank 2 on host: " or "rank 2 on host (and 3 other ranks): " where it is not rank 0's alone; so
// they fail together and rank 0 says it once.
dt_status dt_agree(struct dt_comm *comm, dt_status mine);
// Whether the calling thread's error is shared by all ranks (dt_agree gave it): then rank 0 prints
// it and all close in order. Any other error is this rank's alone: dt_die.
bool dt_comm_agreed(const struct dt_comm *comm);
// Broadcast of a malloc'ed buffer whose size only the root knows.
dt_status dt_broadcast_buffer(struct dt_comm *comm, void **data, int64_t *bytes, int root);

// "Open MPI v4.1.4": of the library in use; needs no communicator.
const char *dt_comm_mpi_version(void);
