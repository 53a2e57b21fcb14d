// Gradient buckets: the flat gradient arena, cut into runs of parameter rows of at most bucket_mb,
// smaller ones at the end (bucket_plan.h), each all-reduced as soon as all its rows are ready,
// while backward goes on. Rows lie in the arena in the order in which backward finishes them, so
// buckets fill and are sent in table order. Buckets travel from device to device (device_comm.h) or
// through the host: in place where the host reads the device's memory, else by pinned copies. A
// lone rank sends nothing.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"

struct dt_buckets;

struct dt_buckets_config {
    float *gradients; // [elements] fp32, the arena (device memory)
    int64_t elements;
    const int64_t *row_ends; // [n_rows] ascending: row r is elements [row_ends[r-1], row_ends[r])
    int64_t n_rows;
    int64_t bucket_bytes; // of fp32 gradient; a row larger than this shares no bucket
    enum dt_dtype wire;   // DT_F32 or DT_BF16
    double *sums;         // [n_sums] fp64 (device memory), summed over ranks beside the gradients
    int64_t n_sums;
    struct dt_stream *stream; // on which rows become ready and, after a wait, sums are used
    bool between_devices;     // by the device communicator of this build
};

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **buckets);
// Opens the device communicator where one is asked for; all ranks together, each after its create.
dt_status dt_buckets_connect(struct dt_buckets *buckets);
void dt_buckets_destroy(struct dt_buckets *buckets); // NULL is fine
int64_t dt_buckets_count(const struct dt_buckets *buckets);
// Memory that create allocates for these settings, in bytes, for the memory plan: on the device,
// and pinned on the host. Both read the numbers of the configuration only, no pointer.
int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks);
int64_t dt_buckets_host_bytes(const struct dt_buckets_config *config,
                              const struct dt_backend *backend, int n_ranks);
// Whether a step's calls do no more than put work on streams, so that they can be captured.
bool dt_buckets_can_be_captured(const struct dt_buckets *buckets);

// The sums of this rank are final on the stream; once a step, before any row.
dt_status dt_buckets_sums_ready(struct dt_buckets *buckets);
// The gradient of `row` is final on the stream. Rows may come in any order, each once a step.
dt_status dt_buckets_ready(struct dt_buckets *buckets, int64_t row);
// Makes the stream wait until every bucket and the sums are those of all ranks, and is ready for
// the next step. The host waits only for buckets that travel through it. Rows never announced are
// an error.
dt_status dt_buckets_wait(struct dt_buckets *buckets);
