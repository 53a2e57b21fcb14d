// Private to the MPI communicator: its state, and which thread may touch what. One thread, the
// communication thread, makes all MPI calls from MPI_Init to MPI_Finalize. Other threads queue
// requests under `lock`, wake it by `wake` and wait on `changed`.
#pragma once

#include "comm/backends.h"
#include "comm/watch.h"

#include <mpi.h>
#include <pthread.h>
#include <semaphore.h>

enum {
    DT_MPI_RINGS = 4,                  // concurrent ring pieces
    DT_MPI_RING_CHUNK = 256 * 1024,    // bytes that a rank sends in one step of a ring
    DT_MPI_RING_CHUNK_MIN = 32 * 1024, // below this the library's all-reduce is faster
    DT_MPI_TREE_WHOLE = 8 * 1024,      // up to this a tree sends whole pieces instead of halves
    DT_MPI_REDUCE_OPS = 3,
};

struct dt_request {
    struct dt_request *next;
    struct dt_collective call; // data that are only moved are counted in bytes, DT_U8
    int64_t element_bytes;
    int64_t sequence; // counts the collectives of the job, from 1; an exchange: 0
    // the thread's own
    double since;        // on the watch's clock
    uint64_t posted;     // dt_trace_begin
    bool ring;           // uses rings or a tree
    int64_t given;       // ring: elements (of a block) handed to rings so far
    int rings;           // ring: active rings
    MPI_Request *pieces; // library: [n_pieces, 2]
    int n_pieces;
    // under lock
    bool done;
    bool mismatch; // two ranks exchanged different sizes, or with different signatures
    char failure[MPI_MAX_ERROR_STRING]; // "": success
};

// Elements of a request's data: `runs` runs of n, `stride` apart.
struct mpi_part {
    int64_t first, n, stride;
    int runs;
};

// One step of a ring: sends `out` and receives `in`, which is added to the data or replaces it.
struct mpi_step {
    int to, from; // ranks
    bool adds;
    struct mpi_part out, in;
};

// One piece of a collective that uses a ring: `size - 1` steps that pass partial sums around, each
// rank adding its own (all-reduce, reduce-scatter), and the same number of steps that pass whole
// chunks (all-reduce, all-gather). In the order DT_SUM_TREE the steps are those of comm_mpi_tree.c.
struct mpi_ring {
    struct dt_request *owner; // NULL: free
    int64_t first, count;     // elements of the owner (all-reduce), or of each of its blocks
    int step, end, tag;
    MPI_Request mpi[2];
};

struct mpi_comm {
    struct dt_comm base;
    struct dt_job_control control;
    pthread_t thread; // as seen by its creator
    pthread_t self;   // as set by the thread itself
    pthread_t guard;
    sem_t wake, guard_wake; // for the thread; for the guard: SIGTERM came, or `guard_ends`
    pthread_mutex_t lock;
    pthread_cond_t changed; // `started`, or a request's `done`
    bool started;
    struct dt_error start_error; // DT_OK: success
    double start_limit;          // seconds
    _Atomic(const char *) start_phase;
    _Atomic(int) start_peer; // the rank being waited for; -1: all
    struct dt_request *queue, **queue_end;
    int64_t sequence; // of the last collective queued
    bool closing;
    _Atomic(int) waiting;     // threads inside wait
    _Atomic(uint64_t) pulse;  // counts the thread's rounds, to show that it makes progress
    _Atomic(bool) terminated; // SIGTERM came
    _Atomic(bool) guard_ends;
    _Atomic(bool) doomed;    // the end is certain because of another rank
    _Atomic(bool) speaks;    // this rank will report the end
    _Atomic(bool) heard;     // … and all ranks know
    _Atomic(int) abort_code; // -1: none

    // the thread's own
    MPI_Comm world, ring_world, overtaking_world;
    uint32_t tags; // how many tags a message may have
    MPI_Op bf16_ops[DT_MPI_REDUCE_OPS];
    struct dt_request *active; // posted but incomplete, in the order of the queue
    struct mpi_ring rings[DT_MPI_RINGS];
    int64_t rings_started;
    int64_t begun; // `sequence` at the last round
    struct dt_watch watch;
    char scratch[DT_MPI_RINGS][DT_MPI_RING_CHUNK];
};

static inline struct mpi_comm *mpi_of(struct dt_comm *comm)
{
    return (struct mpi_comm *)comm;
}

// comm_mpi_thread.c
void *dt_mpi_thread(void *mpi_comm);
// On the communication thread: informs the peers that this rank ends the job, and ends it. On other
// threads it is the last resort if the communication thread hangs.
_Noreturn void dt_mpi_end(struct mpi_comm *mpi, int code);
bool dt_mpi_is_thread(const struct mpi_comm *mpi); // whether it is the caller

// comm_mpi_guard.c: a thread that never calls MPI, and ends the process if the communication thread
// hangs in MPI.
void *dt_mpi_guard(void *mpi_comm);
bool dt_mpi_is_guard(const struct mpi_comm *mpi);

// comm_mpi_collective.c: posting and progress. Codes are MPI's.
// Elements that one call of the library may carry; tests lower it.
void dt_mpi_set_piece(int64_t elements);
dt_status dt_mpi_reductions(struct mpi_comm *mpi);
void dt_mpi_free_reductions(struct mpi_comm *mpi);
int dt_mpi_post(struct mpi_comm *mpi, struct dt_request *request);
int dt_mpi_advance_rings(struct mpi_comm *mpi, bool *moved); // sets *moved if anything moved
// If a message is not the one that was expected, request->failure says so.
int dt_mpi_test(const struct mpi_comm *mpi, struct dt_request *request, bool *done);

// comm_mpi_tree.c: the steps of a ring whose order is DT_SUM_TREE
// The most elements (of a block) that one ring carries.
int64_t dt_mpi_tree_most(const struct mpi_comm *mpi, const struct dt_request *request);
int dt_mpi_tree_steps(const struct mpi_comm *mpi, const struct mpi_ring *ring); // how many
struct mpi_step dt_mpi_tree_step(const struct mpi_comm *mpi, const struct mpi_ring *ring);
