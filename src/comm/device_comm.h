// Collectives in device memory, put on a stream and done by the devices among themselves (NCCL).
// Host memory and job control belong to the communicator (comm.h).
//
// A watchdog thread follows the collectives by counters that the device writes into pinned host
// memory, so graphs are followed too. Where a collective has begun and is not done within the
// communicator's time-out, or NCCL reports an error, the rank writes its last collectives
// (number, operation, bytes, state) to stderr and ends the job by dt_die: never a hang.
#pragma once

#include "backend/backend.h"
#include "base/round.h"
#include "comm/comm.h"

enum { DT_DEVICE_TREE_WHOLE = 1 << 16 }; // bytes up to which sums are not halved: fewer messages

struct dt_device_comm_config {
    struct dt_comm *comm; // all its ranks open the device communicator together
    const struct dt_backend *backend;
    int n_collectives;  // of a step, numbered from 0; every step has the same
    int64_t tree_bytes; // the most that is summed at once in the order DT_SUM_TREE; 0: nothing
};

// Bytes of device memory that `tree_bytes` need.
static inline int64_t dt_device_comm_scratch(int64_t tree_bytes)
{
    int64_t half = tree_bytes / 2 + (int64_t)sizeof(double);
    return tree_bytes <= DT_DEVICE_TREE_WHOLE ? tree_bytes : dt_max_i64(half, DT_DEVICE_TREE_WHOLE);
}

// The struct that every device communicator embeds first.
struct dt_device_comm {
    const struct dt_device_comm_table *table;
};

struct dt_device_comm_table {
    const char *name; // "nccl"
    // Sets what the library reads from the environment later. Call it once at the start of main:
    // setenv is safe only while no other thread runs.
    void (*prepare)(void);
    // "2.30.7", of the library on this machine. Where there is none: an error that names the
    // library and what to install.
    dt_status (*version)(char *text, size_t size);
    // All ranks call it, and all get the same error.
    dt_status (*open)(const struct dt_device_comm_config *config, struct dt_device_comm **comm);
    // Puts collective number `index` of the step (comm.h: an all-reduce, reduce-scatter, all-gather
    // or exchange; sums of fp32, bf16, fp64 or int64) on `stream`, which may be captured. It is on
    // its way when this returns: non-blocking NCCL is polled to success. An all-reduce is the same
    // on every rank. Two ranks that exchange both ways do so in one collective: with a send and
    // then a receive each, neither would end. Sums in the order DT_SUM_TREE share memory of the
    // communicator, so all of them are put on one stream.
    dt_status (*enqueue)(struct dt_device_comm *comm, int index,
                         const struct dt_collective *collective, struct dt_stream *stream);
    // Destroy graphs that hold its collectives before this call.
    void (*close)(struct dt_device_comm *comm);
};

// The device communicator of this build (known.c); NULL where it has none.
extern const struct dt_device_comm_table *const dt_device_comm_known;
extern const struct dt_device_comm_table dt_nccl_table; // only where built with DTRAIN_CUDA
