// What would fit on a device, this one or one that is named, by the memory plan alone: for each
// kind of recomputation, in order of its cost, the largest micro-batch of the job's window, the
// longest window of one sequence, and the longest segment of the job's window where that is longer.
#pragma once

#include "train/memory.h"

struct dt_known_device {
    const char *name;
    int64_t gib; // of memory, as sold; 97 % of it are counted as usable
};
extern const struct dt_known_device dt_known_devices[]; // ends with a row without a name
enum { DT_DEVICES_TEXT = 128 };
const char *dt_known_devices_text(char text[DT_DEVICES_TEXT]); // "a100-40, …"

struct dt_fit_length {
    enum dt_recompute recompute;
    int64_t length, bytes;
};

// A row is omitted where a cheaper kind of recomputation allows as much.
struct dt_proposal {
    const char *device;
    int64_t bytes; // that training may use
    enum dt_dtype storage;
    int n_batches, n_windows, n_segments;
    struct dt_fit batches[DT_RECOMPUTE_BLOCK + 1];
    struct dt_fit_length windows[DT_RECOMPUTE_BLOCK + 1];  // multiples of 64
    struct dt_fit_length segments[DT_RECOMPUTE_BLOCK + 1]; // where one window does not fit whole
};
// `device`: a name of the table, DT_USER where it has no such row; "": this one. A named one is
// planned for as dt_backend_plan_gpu says, in bf16 where run.precision = auto.
dt_status dt_propose(const struct dt_job *job, const char *device, struct dt_proposal *proposal);
