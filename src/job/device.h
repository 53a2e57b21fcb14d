// Decides which device each rank opens, for all ranks together: one rank per GPU, or all on CPUs.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"

struct dt_device_choice_config {
    struct dt_comm *comm;
    int choice;  // enum dt_device_choice of job/settings.h
    int threads; // host threads for ops
    bool share;  // several ranks may use one GPU
};

// Collective. auto uses the CPU if no rank sees a CUDA device, and says why. *ranks_on_device: the
// ranks on this rank's device, including itself (CPUs: 1). DT_USER if a rank that needs a device
// sees none, or if ranks would share one but may not; nothing is open then.
dt_status dt_device_open(const struct dt_device_choice_config *config, struct dt_backend *backend,
                         int *ranks_on_device);
// DT_USER, naming the key or option, if there are more threads than cores.
dt_status dt_device_check_threads(const char *name, int64_t threads);
// dt_device_open for a single process; threads 0: its share of the cores.
dt_status dt_device_open_alone(int choice, int threads, struct dt_backend *backend);

// The decisions of dt_device_open, exposed for tests without devices.

struct dt_device_seen {
    char host[DT_HOST_NAME];
    int devices;       // 0: none, and why
    char reason[1024]; // the error of counting devices
};
// Decides for `auto`: *cuda, whether all of the n ranks see a device; DT_USER where some do and
// some do not.
dt_status dt_device_decide(const struct dt_device_seen *seen, int n, bool *cuda);

struct dt_device_opened {
    char host[DT_HOST_NAME];
    char id[64]; // "": unknown, treated as never shared
    int visible; // devices that this rank sees
};
int dt_device_ranks_on(const struct dt_device_opened *opened, int n, int rank);
// DT_USER naming host, ranks and device of the first device that several ranks opened.
dt_status dt_device_refuse_shared(const struct dt_device_opened *opened, int n);
