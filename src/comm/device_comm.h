// Collectives in device memory, enqueued on a stream and executed by the devices (NCCL).
// Collectives in host memory and job control belong to the communicator (comm.h).
//
// A watchdog thread follows the collectives by counters that the device writes into pinned host
// memory, in graphs too. If a collective is not done within the communicator's time-out, or NCCL
// reports an error, the rank writes its last collectives (number, operation, bytes, state) to
// stderr and ends the job by dt_die. So a collective never hangs.
#pragma once

#include "backend/backend.h"
#include "base/round.h"
#include "comm/comm.h"

enum { DT_DEVICE_TREE_WHOLE = 1 << 16 }; // smaller sums are not halved, to save messages

struct dt_device_comm_config {
    struct dt_comm *comm; // all its ranks open the device communicator together
    const struct dt_backend *backend;
    int n_collectives;  // collectives per step, numbered from 0; the same in every step
    int64_t tree_bytes; // the largest sum in the order DT_SUM_TREE; 0: none
    int ring;           // each so many neighbouring ranks form a ring for messages; 0 or 1: none do
    int channels;       // of a ring, 1 or 2: messages of one do not wait for those of another
};

// These are the ways that a message takes between this rank and its neighbours in the ring.
enum dt_device_way { DT_TO_NEXT, DT_TO_PREVIOUS, DT_FROM_PREVIOUS, DT_FROM_NEXT, DT_DEVICE_WAYS };

// Bytes of scratch device memory for sums of `tree_bytes`.
static inline int64_t dt_device_comm_scratch(int64_t tree_bytes)
{
    int64_t half = tree_bytes / 2 + (int64_t)sizeof(double);
    return tree_bytes <= DT_DEVICE_TREE_WHOLE ? tree_bytes : dt_max_i64(half, DT_DEVICE_TREE_WHOLE);
}

// Every device communicator embeds this struct first.
struct dt_device_comm {
    const struct dt_device_comm_table *table;
};

struct dt_device_comm_table {
    const char *name; // "nccl"
    // Sets environment variables that the library reads later. Call once at the start of main:
    // setenv is safe only while no other thread runs.
    void (*prepare)(void);
    // The library's version, "2.30.7". If there is no library, the error names it and what to
    // install.
    dt_status (*version)(char *text, size_t size);
    // Collective; all ranks get the same error.
    dt_status (*open)(const struct dt_device_comm_config *config, struct dt_device_comm **comm);
    // Enqueues collective number `index` of the step (comm.h: an all-reduce, reduce-scatter,
    // all-gather or exchange; sums of fp32, bf16, fp64 or int64) on `stream`, which may be
    // captured. Polls non-blocking NCCL until the collective is enqueued. An all-reduce gives the
    // same result on every rank. Two ranks that exchange both ways must do so in one collective: if
    // each sent and then received, neither would finish. Sums in the order DT_SUM_TREE share
    // memory, so enqueue all of them on one stream.
    dt_status (*enqueue)(struct dt_device_comm *comm, int index,
                         const struct dt_collective *collective, struct dt_stream *stream);
    // Enqueues a message in device memory on `stream`, which must not be captured. What one rank
    // sends its neighbour must arrive there in the same order and sizes. A send ends when the
    // neighbour receives it, so enqueue sends on a stream on which nothing else waits. A message
    // waits for earlier ones of the channel between the same two ranks, and for no collective.
    dt_status (*message)(struct dt_device_comm *comm, int channel, enum dt_device_way way,
                         void *data, int64_t bytes, struct dt_stream *stream);
    // Destroy graphs with its collectives before this call.
    void (*close)(struct dt_device_comm *comm);
};

// The device communicator of this build (known.c), or NULL.
extern const struct dt_device_comm_table *const dt_device_comm_known;
extern const struct dt_device_comm_table dt_nccl_table; // only where built with DTRAIN_CUDA
