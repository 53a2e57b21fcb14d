// Private to `dtrain bench --comm`: one backend's memory, and how collectives run in it.
#pragma once

#include "bench/bench.h"
#include "comm/device_comm.h"

struct dt_bench_route {
    bool json;
    struct dt_comm *comm;
    struct dt_backend backend;
    struct dt_stream *stream;
    struct dt_device_comm *device; // NULL: the communicator, in host memory
    const char *name;              // "mpi"
    char *data, *mine;
};

// Runs the collective repeatedly, one after the other, and waits for the device.
dt_status dt_bench_run_collective(const struct dt_bench_route *route, const struct dt_collective *c,
                                  int repeats);
// --pairs: every two ranks exchange `bytes`, to find slow hosts and links.
dt_status dt_bench_pairs(const struct dt_bench_route *route, int64_t bytes);
