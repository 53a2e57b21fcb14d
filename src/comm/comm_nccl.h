// Private to the NCCL communicator: its state, and which thread may touch what. The caller's thread
// enqueues collectives (comm_nccl.c) and messages (comm_nccl_ring.c); the watchdog follows them
// (comm_nccl_watch.c). Two threads must not use an NCCL communicator at the same time, so calls are
// made under `lock`, and the watchdog makes none while the other thread is in NCCL.
#pragma once

#include "comm/backends.h"
#include "comm/device_comm.h"

#include <nccl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

// The NCCL functions that dtrain calls, without the prefix "nccl".
#define DT_NCCL_FUNCTIONS(X)                                                                       \
    X(GetVersion)                                                                                  \
    X(GetErrorString)                                                                              \
    X(GetLastError)                                                                                \
    X(GetUniqueId)                                                                                 \
    X(CommInitRankConfig)                                                                          \
    X(CommGetAsyncError)                                                                           \
    X(CommFinalize)                                                                                \
    X(CommDestroy)                                                                                 \
    X(CommAbort)                                                                                   \
    X(AllReduce)                                                                                   \
    X(ReduceScatter)                                                                               \
    X(AllGather)                                                                                   \
    X(GroupStart)                                                                                  \
    X(Send)                                                                                        \
    X(Recv)                                                                                        \
    X(GroupEnd)

struct dt_nccl_library {
#define DT_NCCL_POINTER(name) __typeof__(nccl##name) *name;
    DT_NCCL_FUNCTIONS(DT_NCCL_POINTER)
#undef DT_NCCL_POINTER
};

// How often a collective of the step has begun and ended. The device writes the counts in stream
// order, so graphs are followed without counting their launches.
struct nccl_counts {
    int64_t begun, done;
    uint64_t since; // device time of the last begin
};

// One collective of the step, or the messages of one way, as last enqueued.
struct nccl_call {
    _Atomic(const char *) name; // NULL: not yet
    _Atomic(int64_t) bytes;     // 0: they differ from call to call
    _Atomic(int) dtype, peer;
    struct nccl_counts seen; // the watchdog's: counts at its last look
    _Atomic(double) since;   // … and the time since when they are unchanged, on its clock
};

// NCCL's communicators: of all ranks, and for each channel of this rank and a neighbour in its
// ring. Neighbouring edges of a ring have different colours, of which a ring of an odd number of
// ranks needs three.
enum { NCCL_COLOURS = 3, NCCL_CHANNELS = 2 };
enum { NCCL_ALL, NCCL_PAIRS, NCCL_COMMS = NCCL_PAIRS + NCCL_CHANNELS * NCCL_COLOURS };

struct nccl_comm {
    struct dt_device_comm base;
    struct dt_comm *comm;
    const struct dt_backend *backend;
    struct dt_nccl_library library;
    ncclComm_t nccl[NCCL_COMMS]; // NULL: none
    int ring, place;             // ranks of the ring, of which this is rank `place`
    int channels;                // of the ring
    int n_collectives;           // of a step
    int n; // of these, and in a ring DT_DEVICE_WAYS times `channels`, which follow
    struct nccl_call *calls;    // [n]
    int64_t tree_bytes;         // dt_device_comm_config
    void *scratch;              // dt_device_comm_scratch(tree_bytes), device memory
    struct nccl_counts *counts; // [n], pinned
    pthread_mutex_t lock;       // held during NCCL calls
    _Atomic(int64_t) entered;   // number of NCCL calls made
    _Atomic(int64_t) left;      // number of NCCL calls that returned
    bool recorded;              // the record was written; guarded by the communicator's record_lock

    // The watchdog's fields.
    pthread_t thread;
    bool has_thread;
    sem_t stop;
    double last_time;      // dt_seconds at its last look
    _Atomic(double) clock; // seconds during which this process ran
    int64_t entered_seen;
    double entered_since;
};

// Seconds since *last_time, which becomes now. A long pause counts only a little: this process was
// suspended, and its peers may have been as well.
double dt_nccl_elapsed(double *last_time);

// Connects the `size` ranks of communicator `index` by their common id, this one as `rank`; those
// of size 0 take no part. Collective; gives all ranks of the job the same error.
struct nccl_group {
    int index, size, rank;
    ncclUniqueId id;
};
dt_status dt_nccl_connect(struct nccl_comm *nccl, const struct nccl_group *group);
// Makes the id of a group, on one of its ranks.
dt_status dt_nccl_make_id(const struct nccl_comm *nccl, struct nccl_group *group);

// What is enqueued between these two is counted as collective or way `index` (name, peer, bytes as
// the record shows them, and the bytes of the profile).
dt_status dt_nccl_call_begins(struct nccl_comm *nccl, int index, const struct dt_collective *c,
                              int64_t recorded, struct dt_stream *stream);
dt_status dt_nccl_call_ends(struct nccl_comm *nccl, int index, const struct dt_collective *c,
                            int64_t bytes, struct dt_stream *stream);

// comm_nccl_ring.c
dt_status dt_nccl_open_ring(struct nccl_comm *nccl);
dt_status dt_nccl_message(struct dt_device_comm *comm, int channel, enum dt_device_way way,
                          void *data, int64_t bytes, struct dt_stream *stream);

// "ncclAllReduce failed: …", DT_MACHINE.
dt_status dt_nccl_error(const struct nccl_comm *nccl, ncclResult_t result, const char *what);

// comm_nccl_nvls.c
void dt_nccl_exclude_nvls(void); // by the environment, unless the user asks for NVLS
bool dt_nccl_may_use_nvls(void); // according to this process's environment
// Rank 0 warns if the environment of any rank allows NVLS. Collective.
dt_status dt_nccl_warn_of_nvls(struct dt_comm *comm);

// A message to rank `peer` of communicator `index` and one from it, in one group, so that neither
// rank waits for the other's receive. A count (of elements) of 0 omits the message.
struct nccl_messages {
    int index, peer;
    enum dt_dtype dtype;
    const void *out;
    int64_t n_out;
    void *in;
    int64_t n_in;
};
dt_status dt_nccl_exchange(struct nccl_comm *nccl, const struct nccl_messages *messages,
                           struct dt_stream *stream);

// comm_nccl_tree.c: a sum in the order DT_SUM_TREE.
dt_status dt_nccl_sum_by_tree(struct nccl_comm *nccl, const struct dt_collective *collective,
                              struct dt_stream *stream);

// comm_nccl_watch.c
dt_status dt_nccl_watch_start(struct nccl_comm *nccl);
void dt_nccl_watch_stop(struct nccl_comm *nccl);
// Call when a collective of all ranks has failed: writes the record, gives the communicator's watch
// the time that it needs to find and report a dead peer, then returns an error.
dt_status dt_nccl_failed(struct nccl_comm *nccl, ncclResult_t result, const char *what);
