// Inside the NCCL communicator: its state, and who may touch what. The caller's thread puts
// collectives on streams (comm_nccl.c), the watchdog follows them (comm_nccl_watch.c). An NCCL
// communicator must not be used by two threads at a time: calls are made under `lock`, and the
// watchdog makes none while the other thread is inside.
#pragma once

#include "comm/backends.h"
#include "comm/device_comm.h"

#include <nccl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

// The functions that dtrain calls, without "nccl".
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

// How often a collective of the step has begun and ended: written by the device, in the order of
// the stream, so that graphs are followed without knowing how often they were launched.
struct nccl_counts {
    int64_t begun, done;
    uint64_t since; // the device's clock as it last began
};

// One collective of the step, as the caller last put it on a stream.
struct nccl_call {
    _Atomic(const char *) name; // NULL: not yet
    _Atomic(int64_t) bytes;
    _Atomic(int) dtype, peer;
    struct nccl_counts seen; // the watchdog's own: at its last look …
    _Atomic(double) since;   // … and since when, on its clock
};

struct nccl_comm {
    struct dt_device_comm base;
    struct dt_comm *comm;
    const struct dt_backend *backend;
    struct dt_nccl_library library;
    ncclComm_t nccl;
    int n;                      // collectives of a step
    struct nccl_call *calls;    // [n]
    int64_t tree_bytes;         // dt_device_comm_config
    void *scratch;              // dt_device_comm_scratch(tree_bytes), device memory
    struct nccl_counts *counts; // [n], pinned
    pthread_mutex_t lock;       // around calls to NCCL with `nccl`
    _Atomic(int64_t) entered;   // how often a thread has called NCCL …
    _Atomic(int64_t) left;      // … and returned
    bool recorded;              // the record is written; under the communicator's record_lock

    // the watchdog's
    pthread_t thread;
    bool has_thread;
    sem_t stop;
    double last_time;      // of dt_seconds
    _Atomic(double) clock; // seconds during which this process ran
    int64_t entered_seen;
    double entered_since;
};

// Seconds since *last_time, which becomes now. A long pause counts little: the process was
// suspended, and what it waits for may have been, too.
double dt_nccl_elapsed(double *last_time);

// "ncclAllReduce failed: …", DT_MACHINE.
dt_status dt_nccl_error(const struct nccl_comm *nccl, ncclResult_t result, const char *what);

// comm_nccl_nvls.c
void dt_nccl_exclude_nvls(void); // by the environment, where the user does not ask for NVLS
bool dt_nccl_may_use_nvls(void); // as the environment of this process is
// Rank 0 warns where the environment of any rank allows NVLS. Collective.
dt_status dt_nccl_warn_of_nvls(struct dt_comm *comm);

// A message to `peer` and one from it, in one group, so that neither rank waits for the other's
// receive; each unless its count, of elements, is 0.
struct nccl_messages {
    int peer;
    enum dt_dtype dtype;
    const void *out;
    int64_t n_out;
    void *in;
    int64_t n_in;
};
dt_status dt_nccl_exchange(struct nccl_comm *nccl, const struct nccl_messages *messages,
                           struct dt_stream *stream);

// comm_nccl_tree.c: a sum in the order DT_SUM_TREE
dt_status dt_nccl_sum_by_tree(struct nccl_comm *nccl, const struct dt_collective *collective,
                              struct dt_stream *stream);

// comm_nccl_watch.c
dt_status dt_nccl_watch_start(struct nccl_comm *nccl);
void dt_nccl_watch_stop(struct nccl_comm *nccl);
// A collective of all ranks has failed: writes the record, leaves the last words to the watch of
// the communicator for as long as that may need to find a dead peer, then returns an error.
dt_status dt_nccl_failed(struct nccl_comm *nccl, ncclResult_t result, const char *what);
