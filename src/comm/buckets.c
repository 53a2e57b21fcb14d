// Gradient buckets: runs of rows that leave for the all-reduce when the last of their rows is
// ready, and the staging copies of a bf16 wire. Uses the communicator and the backend's cast.
#include "comm/buckets.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

struct bucket {
    int64_t start, end; // elements
    int64_t n_rows;
    int64_t missing; // rows not ready yet in this step
    struct dt_request *request;
};

struct dt_buckets {
    struct dt_comm *comm;
    struct dt_backend backend;
    float *gradients;
    dt_bf16 *staging; // [elements]; NULL where the wire is fp32
    enum dt_dtype wire;
    int64_t n_rows;
    struct bucket *buckets;
    int64_t n_buckets;
    int64_t next;       // the next bucket to leave: they leave in table order
    int64_t *bucket_of; // [n_rows]
    bool *ready;        // [n_rows], in this step
};

static dt_status check_config(const struct dt_buckets_config *config)
{
    int64_t end = 0;
    if (config->wire != DT_F32 && config->wire != DT_BF16)
        return DT_FAIL(DT_MACHINE, NULL, "gradients cannot travel as %s",
                       dt_dtype_name(config->wire));
    if (config->bucket_bytes < 1)
        return DT_FAIL(DT_MACHINE, NULL, "buckets of %lld bytes", (long long)config->bucket_bytes);
    for (int64_t row = 0; row < config->n_rows; row++) {
        if (config->row_ends[row] < end)
            return DT_FAIL(DT_MACHINE, NULL, "row %lld ends at %lld, before the one before it",
                           (long long)row, (long long)config->row_ends[row]);
        end = config->row_ends[row];
    }
    if (end != config->elements)
        return DT_FAIL(DT_MACHINE, NULL, "rows end at %lld, the arena at %lld", (long long)end,
                       (long long)config->elements);
    return DT_OK;
}

// Cuts greedily: a row joins the bucket as long as it fits.
static void cut(struct dt_buckets *buckets, const struct dt_buckets_config *config)
{
    int64_t limit = config->bucket_bytes / (int64_t)sizeof(float), start = 0;
    struct bucket *bucket = NULL;
    for (int64_t row = 0; row < config->n_rows; row++) {
        int64_t end = config->row_ends[row];
        if (!bucket || end - bucket->start > limit) {
            bucket = &buckets->buckets[buckets->n_buckets++];
            *bucket = (struct bucket){.start = start};
        }
        bucket->end = start = end;
        bucket->missing = ++bucket->n_rows;
        buckets->bucket_of[row] = buckets->n_buckets - 1;
    }
}

static dt_status allocate(struct dt_buckets *buckets, const struct dt_buckets_config *config)
{
    size_t rows = (size_t)config->n_rows + 1; // calloc(0) may give NULL
    int64_t bytes = dt_buckets_bytes(config, buckets->comm->info.size);
    buckets->buckets = calloc(rows, sizeof *buckets->buckets);
    buckets->bucket_of = calloc(rows, sizeof *buckets->bucket_of);
    buckets->ready = calloc(rows, sizeof *buckets->ready);
    if (!buckets->buckets || !buckets->bucket_of || !buckets->ready)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %lld buckets", (long long)config->n_rows);
    if (bytes > 0)
        DT_TRY(buckets->backend.table->alloc_host(buckets->backend.device, bytes,
                                                  (void **)&buckets->staging));
    return DT_OK;
}

dt_status dt_buckets_create(struct dt_comm *comm, const struct dt_backend *backend,
                            const struct dt_buckets_config *config, struct dt_buckets **result)
{
    struct dt_buckets *buckets;
    dt_status status;
    *result = NULL;
    DT_TRY(check_config(config));
    buckets = calloc(1, sizeof *buckets);
    if (!buckets)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for buckets");
    *buckets = (struct dt_buckets){.comm = comm,
                                   .backend = *backend,
                                   .gradients = config->gradients,
                                   .wire = config->wire,
                                   .n_rows = config->n_rows};
    DT_TRY_GOTO(status, fail, allocate(buckets, config));
    cut(buckets, config);
    *result = buckets;
    return DT_OK;
fail:
    dt_buckets_destroy(buckets);
    return status;
}

void dt_buckets_destroy(struct dt_buckets *buckets)
{
    if (!buckets)
        return;
    if (buckets->staging)
        buckets->backend.table->free_host(buckets->backend.device, buckets->staging);
    free(buckets->ready);
    free(buckets->bucket_of);
    free(buckets->buckets);
    free(buckets);
}

int64_t dt_buckets_count(const struct dt_buckets *buckets)
{
    return buckets->n_buckets;
}

int64_t dt_buckets_bytes(const struct dt_buckets_config *config, int n_ranks)
{
    if (config->wire == DT_F32 || n_ranks == 1) // a lone rank sends nothing
        return 0;
    return config->elements * (int64_t)sizeof(dt_bf16);
}

static dt_status send(struct dt_buckets *buckets, struct bucket *bucket)
{
    int64_t n = bucket->end - bucket->start;
    float *gradients = buckets->gradients + bucket->start;
    if (!buckets->staging) {
        DT_TRY(dt_allreduce_begin(buckets->comm, gradients, n, DT_F32, DT_SUM, &bucket->request));
        return DT_OK;
    }
    DT_TRY(dt_cast(&buckets->backend,
                   &(struct dt_cast_args){.n = n,
                                          .x = gradients,
                                          .x_type = DT_F32,
                                          .y = buckets->staging + bucket->start,
                                          .y_type = DT_BF16},
                   NULL));
    DT_TRY(dt_allreduce_begin(buckets->comm, buckets->staging + bucket->start, n, DT_BF16, DT_SUM,
                              &bucket->request));
    return DT_OK;
}

dt_status dt_buckets_ready(struct dt_buckets *buckets, int64_t row)
{
    if (row < 0 || row >= buckets->n_rows || buckets->ready[row])
        return DT_FAIL(DT_MACHINE, NULL, "gradient row %lld of %lld was announced %s",
                       (long long)row, (long long)buckets->n_rows,
                       row < 0 || row >= buckets->n_rows ? "and is none" : "twice in a step");
    buckets->ready[row] = true;
    buckets->buckets[buckets->bucket_of[row]].missing--;
    // In table order even where rows come otherwise: every rank must begin them alike.
    while (buckets->next < buckets->n_buckets && buckets->buckets[buckets->next].missing == 0)
        DT_TRY(send(buckets, &buckets->buckets[buckets->next++]));
    return DT_OK;
}

static dt_status receive(struct dt_buckets *buckets, struct bucket *bucket)
{
    struct dt_request *request = bucket->request;
    bucket->request = NULL;
    DT_TRY(dt_wait(buckets->comm, request));
    if (!buckets->staging)
        return DT_OK;
    DT_TRY(dt_cast(&buckets->backend,
                   &(struct dt_cast_args){.n = bucket->end - bucket->start,
                                          .x = buckets->staging + bucket->start,
                                          .x_type = DT_BF16,
                                          .y = buckets->gradients + bucket->start,
                                          .y_type = DT_F32},
                   NULL));
    return DT_OK;
}

static dt_status check_all_left(const struct dt_buckets *buckets)
{
    if (buckets->next == buckets->n_buckets)
        return DT_OK;
    for (int64_t row = 0; row < buckets->n_rows; row++)
        if (!buckets->ready[row])
            return DT_FAIL(DT_MACHINE, NULL, "the gradient of row %lld was never announced",
                           (long long)row);
    return DT_OK;
}

dt_status dt_buckets_wait(struct dt_buckets *buckets, double *exposed_ms)
{
    double start = dt_seconds();
    DT_TRY(check_all_left(buckets));
    for (int64_t i = 0; i < buckets->n_buckets; i++) {
        DT_TRY(receive(buckets, &buckets->buckets[i]));
        buckets->buckets[i].missing = buckets->buckets[i].n_rows;
    }
    memset(buckets->ready, 0, (size_t)buckets->n_rows * sizeof *buckets->ready);
    buckets->next = 0;
    if (exposed_ms)
        *exposed_ms = 1e3 * (dt_seconds() - start);
    return DT_OK;
}
