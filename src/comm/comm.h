// The communicator: collectives in host memory over the ranks of a job, by comm_self (one process)
// or comm_mpi; device_comm.h has collectives in device memory. One struct describes any collective;
// a backend begins it and waits for it, and may progress it on a separate thread. Not thread-safe.
// What ranks know of each other, and how a job ends: job_control.h.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

enum dt_reduce_op { DT_SUM, DT_MIN, DT_MAX };

// FAST: the fastest order, which depends on sizes and the number of ranks. TREE: ranks 0 + 1, 2 +
// 3, …, then (0 + 1) + (2 + 3), …: one binary tree that continues a tree within each rank, so that
// the sum of leaves does not depend on how many ranks share them. For sums of fp32 and fp64, on a
// power of two of ranks.
enum dt_sum_order { DT_SUM_FAST, DT_SUM_TREE };

enum { DT_HOST_NAME = 64 };

struct dt_comm;        // state of one backend
struct dt_request;     // a collective in progress
struct dt_job_control; // backends.h

struct dt_comm_info {
    const char *backend; // "self", "mpi"
    int rank, size;
    int local_rank, local_size; // among the ranks of this host
    char host[DT_HOST_NAME];
};

// Sizes are in elements. Reductions accept fp32, bf16, fp64 and int64; other operations any type.
enum dt_operation {
    DT_ALLREDUCE,      // data [count]: becomes the reduction over all ranks
    DT_REDUCE_SCATTER, // data [size, count]: block `rank` becomes its reduction over all ranks; the
                       // other blocks are undefined afterwards
    DT_ALL_GATHER,     // data [size, count]: block r becomes that of rank r
    DT_BROADCAST,      // data [count]: becomes that of rank `peer`
    DT_EXCHANGE,       // sends mine [count] to `peer`, receives data [count]; either may be NULL
    DT_OPERATIONS
};
struct dt_operation_kind {
    const char *name;
    bool reduces, has_peer;
    bool in_blocks; // `data` has a block for each rank
};
extern const struct dt_operation_kind dt_operation_kinds[DT_OPERATIONS];

// Every rank begins the same collectives in the same order; an exchange involves only two ranks,
// which begin their exchanges with each other in the same order. An exchange in host memory fails
// on the rank that receives another size or signature than it expects, and names the sender.
//
// Reductions are deterministic for a given size and number of ranks, and an all-reduce gives the
// same result on every rank. Reduce-scatter followed by all-gather gives the bits of an all-reduce
// if sums are exact (int64, DT_MIN, DT_MAX), on two ranks, and in the order DT_SUM_TREE. Otherwise
// rounding differs, because the sum of an all-reduce's chunk starts at another rank than the sum of
// its block.
struct dt_collective {
    enum dt_operation operation;
    enum dt_reduce_op reduce;
    enum dt_dtype dtype;
    int peer;
    int64_t count;
    void *data;       // in place
    const void *mine; // exchange
    enum dt_sum_order order;
    uint32_t signature; // exchange: says what is sent and received, the same on both ranks; or 0
    bool overtakes;     // exchange over MPI: received before what the peer sent earlier without it
};

// Which error a rank writes to stderr at the end; only one rank of the job reports.
enum dt_voice {
    DT_VOICE_RANK, // this rank reports its own failure
    DT_VOICE_JOB,  // this rank reports a failure of a peer, in a complete sentence
    DT_VOICE_NONE, // another rank reports it
};

struct dt_comm_table {
    const char *name;
    // Returns immediately; the communicator owns the memory until wait. The caller has checked
    // `call`.
    dt_status (*begin)(struct dt_comm *comm, const struct dt_collective *collective,
                       struct dt_request **request);
    dt_status (*wait)(struct dt_comm *comm, struct dt_request *request); // frees the request
    void (*close)(struct dt_comm *comm); // collective; ends the communication thread
    // For the end of a job of several ranks; NULL for one rank.
    void (*abort)(struct dt_comm *comm, int code); // ends the job immediately; does not return
    void (*terminated)(struct dt_comm *comm);      // async-signal-safe
    enum dt_voice (*claim)(struct dt_comm *comm);  // who reports the end? Informs the peers
};

// Every backend embeds this struct first.
struct dt_comm {
    const struct dt_comm_table *table;
    struct dt_comm_info info;
    struct dt_job_control *control;
    bool agreed; // the current error is from dt_agree: every rank has it, rank 0 prints it and all
                 // close in order. Any other error is only this rank's: dt_die
};

enum dt_comm_kind { DT_COMM_KIND_AUTO, DT_COMM_KIND_SELF, DT_COMM_KIND_MPI };

// What the launcher says before anything is opened: the rank of this process (0 without a
// launcher), and the number of processes started with it (in a step of srun; a batch script is one
// process).
int dt_comm_launched_rank(void);
int dt_comm_launched_size(void);
// The number of tasks of the Slurm job, if its batch script started this process without srun or
// mpirun; else 1.
int dt_comm_batch_tasks(void);
// AUTO: MPI if a launcher started this process (Open MPI, PMIx, Slurm environment), else self, so
// that a single process never touches MPI. If several processes were started but each sees only
// itself, each fails with an error that says how to launch them. MPI can be opened once per
// process.
dt_status dt_comm_open(enum dt_comm_kind kind, struct dt_comm **comm);
// dt_comm_open with limits in seconds instead of DT_COMM_TIMEOUT_S. If ranks wait for each other at
// the start longer than start_s, the process ends by dt_die, saying what it waited for.
enum { DT_COMM_TIMEOUT_S = 600 };
struct dt_comm_limits {
    double wait_s;  // in a collective: dt_comm_set_timeout
    double start_s; // for MPI to start
};
dt_status dt_comm_open_within(enum dt_comm_kind kind, const struct dt_comm_limits *limits,
                              struct dt_comm **comm);
// Collective, after success or an error that all ranks have. NULL is fine.
void dt_comm_close(struct dt_comm *comm);

dt_status dt_begin(struct dt_comm *comm, const struct dt_collective *collective,
                   struct dt_request **request);
dt_status dt_wait(struct dt_comm *comm, struct dt_request *request);
// Begins a collective and waits for it, like the functions below.
dt_status dt_collective(struct dt_comm *comm, const struct dt_collective *collective);
dt_status dt_allreduce(struct dt_comm *comm, void *data, int64_t count, enum dt_dtype dtype,
                       enum dt_reduce_op reduce);
dt_status dt_broadcast(struct dt_comm *comm, void *data, int64_t bytes, int root);
dt_status dt_all_gather(struct dt_comm *comm, void *data, int64_t bytes); // of each rank
// Sends `mine` to `peer` and receives `data` from it; NULL: does not send, or does not receive.
dt_status dt_exchange(struct dt_comm *comm, int peer, const void *mine, void *data, int64_t bytes);
dt_status dt_barrier(struct dt_comm *comm);

// Ends a rank-local phase: every rank passes its own status and all return the worst. If ranks
// failed, every rank gets the error record of the lowest failing rank, with the prefix "rank 2 on
// host: " or "rank 2 on host (and 3 other ranks): " unless it is rank 0's alone. So they fail
// together and rank 0 reports it once.
dt_status dt_agree(struct dt_comm *comm, dt_status mine);
// Broadcasts a malloc'ed buffer whose size only the root knows.
dt_status dt_broadcast_buffer(struct dt_comm *comm, void **data, int64_t *bytes, int root);

// The library in use, "Open MPI v4.1.4"; needs no communicator.
const char *dt_comm_mpi_version(void);
