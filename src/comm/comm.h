// The communicator: a table of collectives over the ranks of a job. comm_self (one process),
// comm_mpi. What lies on devices is summed by another (device_comm.h). Every collective is called
// by all ranks in the same order. A backend may progress collectives on its own thread; none of
// them may be called from two threads.
//
// Job control rides on the same object: what each rank is doing (step, phase) is known to its peers
// by heartbeat, so that a dead or stalled rank can be named. A wait that outlasts the time-out, or
// a dead peer, ends the process by dt_die (base/error.h) from the watchdog itself.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum dt_reduce_op { DT_SUM, DT_MIN, DT_MAX };

enum { DT_HOST_NAME = 64 };

struct dt_comm;    // state of one backend
struct dt_request; // a collective under way

struct dt_comm_info {
    const char *backend; // "self", "mpi"
    int rank, size;
    int local_rank, local_size; // among the ranks of this host
    char host[DT_HOST_NAME];
};

// Whose story an error tells, for the one rank that writes to stderr at the end.
enum dt_voice {
    DT_VOICE_NONE, // another rank says it
    DT_VOICE_RANK, // this rank's own failure
    DT_VOICE_JOB,  // a complete sentence about a peer
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
                        int root);                 // all: [size, bytes], at root
    void (*close)(struct dt_comm *comm);           // collective; ends the communication thread
    void (*abort)(struct dt_comm *comm, int code); // ends the job at once; does not return
    void (*terminated)(struct dt_comm *comm);      // async-signal-safe
    enum dt_voice (*claim)(struct dt_comm *comm);  // may this rank speak? Tells the peers
};

// Where this rank's device stands in what the devices sum among themselves, and whether that still
// goes well: written by the watchdog of the device communicator (device_comm.h), so that a rank
// which others wait for there is found, named and told of as one they wait for in MPI.
struct dt_comm_devices {
    _Atomic(int64_t) begun;    // collectives that the device came to
    _Atomic(int64_t) oldest;   // the one it waits in, counted likewise from 1; 0: in none
    _Atomic(double) waited;    // seconds
    _Atomic(bool) failed;      // it goes wrong here
    _Atomic(bool) peer_failed; // … on another rank: written by the communicator
};

// Writes what a rank has to tell of its device's collectives before the job ends, once, in one
// write(2). always: also where none is under way.
typedef void dt_comm_record(void *context, bool always);

// The struct that every backend embeds first.
struct dt_comm {
    const struct dt_comm_table *table;
    struct dt_comm_info info;
    bool agreed; // the current error came from dt_agree: every rank has it
    _Atomic(int64_t) step;
    _Atomic(const char *) phase;
    _Atomic(double) timeout_s;
    _Atomic(bool) spoken; // another rank has written the last words: nothing may follow them
    struct dt_comm_devices devices;
    pthread_mutex_t record_lock;
    _Atomic(dt_comm_record *) record; // NULL: there is no device communicator
    void *record_context;
};

enum dt_comm_kind { DT_COMM_KIND_AUTO, DT_COMM_KIND_SELF, DT_COMM_KIND_MPI };

// AUTO: MPI where a launcher started this process (Open MPI, PMIx, Slurm environment), else self: a
// lone process never touches MPI. SLURM_NTASKS > 1 with an MPI size of 1 is an error that says
// srun --mpi=pmix. MPI can be opened once in a process.
dt_status dt_comm_open(enum dt_comm_kind kind, struct dt_comm **comm);
// Orderly end: all ranks call it, after success or after an error that all share. NULL is fine.
void dt_comm_close(struct dt_comm *comm);
// Ends the job at once with this exit code, from any thread; does not return.
_Noreturn void dt_comm_abort(struct dt_comm *comm, int code);

#define DT_LAST_WORDS_BEGIN "dtrain: error: "
// The end on an error, for the function that main registers with dt_die_register: the text that
// this rank shall write to stderr, in one write(2), as "dtrain: error: rank 2 on n1, step 41,
// backward: …". 0 bytes: another rank has spoken or will, write nothing. Then dt_comm_abort(comm,
// code).
size_t dt_comm_last_words(struct dt_comm *comm, const struct dt_error *error, int debug, char *text,
                          size_t size);
// Whether the calling thread's error is shared by all ranks (dt_agree gave it): then rank 0 prints
// it and all close in order. Any other error is this rank's alone: dt_die.
bool dt_comm_agreed(const struct dt_comm *comm);
// Ends the job where `status` is this rank's alone (size > 1), at once: before memory is freed that
// collectives under way still use, and before anything that its peers would wait in. Else `status`.
dt_status dt_comm_end_if_alone(const struct dt_comm *comm, dt_status status);
// To be called by the handlers of SIGTERM and SIGINT, beside the request to stop;
// async-signal-safe. mpirun sends SIGTERM when a rank died, a second before SIGKILL: within it the
// survivors look for the dead, and end the job in dt_die where there is one. Otherwise nothing
// happens.
void dt_comm_terminated(struct dt_comm *comm);

// Registers the device communicator's record; NULL takes it back, after which it is not called.
// dt_comm_last_words says it before the words of this rank, and the communicator where a peer is
// lost or a device's collectives go wrong on any rank.
void dt_comm_set_record(struct dt_comm *comm, dt_comm_record *record, void *context);
void dt_comm_say_record(struct dt_comm *comm, bool always); // any thread

// Seconds that a collective may wait for a rank, after which the job ends; until set, 600.
void dt_comm_set_timeout(struct dt_comm *comm, double seconds);
// Says what this rank is doing, for heartbeats and last words: cheap, any thread. `phase` is a
// string literal ("forward", "reading data", "saving a checkpoint").
void dt_comm_progress(struct dt_comm *comm, int64_t step, const char *phase);
// This process's last words of progress: step and phase, for dt_die's message.
void dt_comm_last_progress(const struct dt_comm *comm, int64_t *step, const char **phase);

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
// Broadcast of a malloc'ed buffer whose size only the root knows.
dt_status dt_broadcast_buffer(struct dt_comm *comm, void **data, int64_t *bytes, int root);

// "Open MPI v4.1.4": of the library in use; needs no communicator.
const char *dt_comm_mpi_version(void);
