// Gradient buckets: the flat gradient arena, cut into runs of parameter rows of about bucket_mb,
// each all-reduced as soon as all its rows are ready, while backward goes on. Rows lie in the arena
// in the order in which backward finishes them, so buckets fill and leave in table order.
#pragma once

#include "backend/backend.h"
#include "comm/comm.h"

struct dt_buckets;

struct dt_buckets_config {
    float *gradients; // [elements] fp32, the arena (device memory)
    int64_t elements;
    const int64_t *row_ends; // [n_rows] ascending: row r is elements [row_ends[r-1], row_ends[r])
    int64_t n_rows;
    int64_t bucket_bytes; // of fp32 gradient; a row larger than this is a bucket of its own
    enum dt_dtype wire;   // DT_F32 or DT_BF16
};

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **buckets);
void dt_buckets_destroy(struct dt_buckets *buckets); // NULL is fine
int64_t dt_buckets_count(const struct dt_buckets *buckets);
// Staging memory that create takes for these settings, in bytes (0 for fp32 on the host), for the
// memory plan.
int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks);

// The gradient of `row` is final in this rank. Rows may come in any order, each once a step.
dt_status dt_buckets_ready(struct dt_buckets *buckets, int64_t row);
// Waits until every bucket is reduced (sums over ranks), and makes ready for the next step.
// *exposed_ms (may be NULL): how long the caller was kept. Rows never announced are an error.
dt_status dt_buckets_wait(struct dt_buckets *buckets, double *exposed_ms);
