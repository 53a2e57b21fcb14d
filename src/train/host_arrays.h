// The flat arrays that a checkpoint holds, where the host can read and write them: the device's own
// where memory is unified, else pinned copies.
#pragma once

#include "comm/comm.h"
#include "train/optimizer.h"

enum dt_host_arrays_use {
    DT_HOST_ARRAYS_SAVE,    // filled with what the device holds now
    DT_HOST_ARRAYS_LOAD,    // to be filled
    DT_HOST_ARRAYS_RECEIVE, // not to be read: room for what dt_host_arrays_share brings, a third of
                            // the memory of the others
};

struct dt_host_arrays {
    const struct dt_backend *backend;
    int64_t bytes;          // of each
    float *device[3];       // weights, m, v
    float *weights, *m, *v; // [elements], host
};

// After a failure too they are to be dropped.
dt_status dt_host_arrays_take(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer *optimizer, enum dt_host_arrays_use use,
                              struct dt_host_arrays *host);
void dt_host_arrays_drop(struct dt_host_arrays *host);
// Brings rank 0's arrays to the devices of all ranks, one after another.
dt_status dt_host_arrays_share(const struct dt_host_arrays *host, struct dt_comm *comm);
