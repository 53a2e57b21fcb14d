// The flat arrays that a checkpoint holds, where the host can read and write them: the device's own
// where memory is unified, else copies.
#pragma once

#include "comm/comm.h"
#include "train/optimizer.h"

struct dt_host_arrays {
    const struct dt_backend *backend;
    int64_t bytes;          // of each
    float *device[3];       // weights, m, v
    float *weights, *m, *v; // [elements], host
};

// `filled`: with what the device holds now. After a failure too they are to be dropped.
dt_status dt_host_arrays_take(const struct dt_backend *backend, struct dt_model *model,
                              const struct dt_optimizer *optimizer, bool filled,
                              struct dt_host_arrays *host);
void dt_host_arrays_drop(struct dt_host_arrays *host);
dt_status dt_host_arrays_broadcast(const struct dt_host_arrays *host, struct dt_comm *comm);
dt_status dt_host_arrays_to_device(const struct dt_host_arrays *host);
