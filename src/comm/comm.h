// The communicator: collectives in host memory over the ranks of a job, by comm_self (one process)
// or comm_mpi; those in device memory are in device_comm.h. One struct describes any collective; a
// backend begins it and waits for it, and may progress it on a thread of its own. None of these
// functions may be called from two threads. What ranks know of each other, and how a job ends:
// job_control.h.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_reduce_op { DT_SUM, DT_MIN, DT_MAX };

// FAST: whichever order moves the bytes best; it depends on sizes and on the number of ranks.
// TREE: ranks 0 + 1, 2 + 3, …, then (0 + 1) + (2 + 3), …: one binary tree that continues a tree
// within each rank, so that the sum of leaves does not depend on how many ranks share them. Sums of
// fp32 and fp64 on a power of two of ranks.
enum dt_sum_order { DT_SUM_FAST, DT_SUM_TREE };

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

// Sizes are in elements. Reductions accept fp32, bf16, fp64 and int64; the others move any type.
enum dt_operation {
    DT_ALLREDUCE,      // data [count]: becomes the reduction over all ranks
    DT_REDUCE_SCATTER, // data [size, count]: block `rank` becomes its reduction over all ranks; the
                       // other blocks are undefined afterwards
    DT_ALL_GATHER,     // data [size, count]: block r becomes that of rank r
    DT_BROADCAST,      // data [count]: becomes that of rank `peer`
    DT_EXCHANGE,       // mine [count] is sent to rank `peer`, data [count] received from it; each
                       // unless it is NULL
    DT_OPERATIONS
};
struct dt_operation_kind {
    const char *name;
    bool reduces, has_peer;
    bool in_blocks; // `data` has a block for each rank
};
extern const struct dt_operation_kind dt_operation_kinds[DT_OPERATIONS];

// Every rank begins the same collectives in the same order; an exchange concerns two ranks alone,
// which begin theirs with each other in the same order.
//
// Reductions are deterministic for a given size and number of ranks, and those of an all-reduce the
// same on every rank. Reduce-scatter, then all-gather gives the bits of an all-reduce where sums
// are exact (int64, DT_MIN, DT_MAX), on two ranks, and in the order DT_SUM_TREE. Else rounding
// differs: the sum of a chunk of an all-reduce starts at another rank than the sum of its block.
struct dt_collective {
    enum dt_operation operation;
    enum dt_reduce_op reduce;
    enum dt_dtype dtype;
    int peer;
    int64_t count;
    void *data;       // in place
    const void *mine; // exchange
    enum dt_sum_order order;
};

// Whose error a rank writes to stderr at the end: one rank of the job speaks.
enum dt_voice {
    DT_VOICE_RANK, // this rank reports its own failure
    DT_VOICE_JOB,  // this rank reports a failure of a peer, in a complete sentence
    DT_VOICE_NONE, // another rank reports it
};

struct dt_comm_table {
    const char *name;
    // Returns at once; memory belongs to the communicator until wait. Checked by the caller.
    dt_status (*begin)(struct dt_comm *comm, const struct dt_collective *collective,
                       struct dt_request **request);
    dt_status (*wait)(struct dt_comm *comm, struct dt_request *request); // frees the request
    void (*close)(struct dt_comm *comm); // collective; ends the communication thread
    // The end of a job of several ranks; NULL where there is only one.
    void (*abort)(struct dt_comm *comm, int code); // ends the job at once; does not return
    void (*terminated)(struct dt_comm *comm);      // async-signal-safe
    enum dt_voice (*claim)(struct dt_comm *comm);  // may this rank speak? Informs the peers
};

// The struct that every backend embeds first.
struct dt_comm {
    const struct dt_comm_table *table;
    struct dt_comm_info info;
    struct dt_job_control *control;
    bool agreed; // the current error came from dt_agree: every rank has it, rank 0 prints it and
                 // all close in order. Any other error is this rank's alone: dt_die
};

enum dt_comm_kind { DT_COMM_KIND_AUTO, DT_COMM_KIND_SELF, DT_COMM_KIND_MPI };

// What the launcher says, before anything is opened: the rank of this process (0 where nothing
// launched it) and how many were started with it (a step of srun, not a batch job: its script is
// one process).
int dt_comm_launched_rank(void);
int dt_comm_launched_size(void);
// The tasks of the Slurm job whose batch script started this process without srun or mpirun;
// else 1.
int dt_comm_batch_tasks(void);
// AUTO: MPI where a launcher started this process (Open MPI, PMIx, Slurm environment), else self: a
// lone process never touches MPI. Several processes of which each sees itself alone are an error on
// each that says how to launch them. MPI can be opened once in a process.
dt_status dt_comm_open(enum dt_comm_kind kind, struct dt_comm **comm);
// The same with other limits than DT_COMM_TIMEOUT_S, in seconds. At the start ranks wait for each
// other; where that takes longer than start_s, the process ends by dt_die, saying what it waited
// for.
enum { DT_COMM_TIMEOUT_S = 600 };
struct dt_comm_limits {
    double wait_s;  // in a collective: dt_comm_set_timeout
    double start_s; // of MPI
};
dt_status dt_comm_open_within(enum dt_comm_kind kind, const struct dt_comm_limits *limits,
                              struct dt_comm **comm);
// Orderly end: all ranks call it, after success or after an error that all share. NULL is fine.
void dt_comm_close(struct dt_comm *comm);

dt_status dt_begin(struct dt_comm *comm, const struct dt_collective *collective,
                   struct dt_request **request);
dt_status dt_wait(struct dt_comm *comm, struct dt_request *request);
// Begins one and waits for it, as those below do.
dt_status dt_collective(struct dt_comm *comm, const struct dt_collective *collective);
dt_status dt_allreduce(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                       enum dt_reduce_op reduce);
dt_status dt_broadcast(struct dt_comm *comm, void *data, int64_t bytes, int root);
dt_status dt_all_gather(struct dt_comm *comm, void *data, int64_t bytes); // of each rank
// Sends `mine` to `peer` and receives `data` from it; NULL: does not send, or does not receive.
dt_status dt_exchange(struct dt_comm *comm, int peer, const void *mine, void *data, int64_t bytes);
dt_status dt_barrier(struct dt_comm *comm);

// Ends a rank-local phase: every rank passes its own status and all return the worst. Where one or
// more failed, every rank has the error record of the lowest failing rank, its message prefixed by
// "rank 2 on host: " or "rank 2 on host (and 3 other ranks): " where it is not rank 0's alone; so
// they fail together and rank 0 reports it once.
dt_status dt_agree(struct dt_comm *comm, dt_status mine);
// Broadcast of a malloc'ed buffer whose size only the root knows.
dt_status dt_broadcast_buffer(struct dt_comm *comm, void **data, int64_t *bytes, int root);

// "Open MPI v4.1.4": of the library in use; needs no communicator.
const char *dt_comm_mpi_version(void);
