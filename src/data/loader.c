// The reader thread and its ring. The caller holds at most one batch; the thread fills the others
// in step order and sleeps when the ring is full. Everything is allocated when the loader opens.
#include "data/loader.h"

#include "base/clock.h"
#include "base/rng.h"
#include "data/slot.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, SYNTHETIC_STREAM = -1 }; // no epoch of the order has that number

struct dt_loader {
    struct dt_loader_config config;
    struct dt_slot_rules rules;
    struct dt_order *order;
    int64_t first_slot, n_slots; // this rank's
    int64_t first_step;
    struct dt_batch *ring; // [prefetch]
    char *memory;          // of the ring's arrays

    // The thread's own.
    struct dt_shard_cache cache;
    struct dt_slot *slots; // [n_slots]; sequential: one, of the windows that the rank needs at once
    char *blocks;          // memory of the slots' buffers and starts
    pthread_t thread;
    bool started;

    // Under the lock. Batches are counted from first_step: filled >= taken >= released.
    pthread_mutex_t lock;
    pthread_cond_t moved;
    int64_t filled, taken, released;
    bool stop, failed;
    struct dt_error error;
};

static int64_t aligned(int64_t bytes)
{
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool has_reset(const struct dt_loader_config *config)
{
    bool found = config->reset_token >= 0;
    for (int64_t i = 0; i < config->dataset->n_shards; i++)
        found |= config->dataset->shards[i].doc_starts;
    return found;
}

static int64_t share(const struct dt_loader_config *config, int rank)
{
    return rank * config->batch / config->size;
}

static int64_t share_size(const struct dt_loader_config *config)
{
    return share(config, config->rank + 1) - share(config, config->rank);
}

static int64_t batch_bytes(const struct dt_loader_config *config)
{
    int64_t n = share_size(config) * config->dataset->seq_len;
    return 2 * aligned(n * (int64_t)sizeof(int32_t)) + (has_reset(config) ? aligned(n) : 0);
}

// Of one slot: its buffer, then its starts.
static int64_t slot_windows(const struct dt_loader_config *config)
{
    return config->sequential ? share_size(config) : config->block;
}

static int64_t buffer_bytes(const struct dt_loader_config *config)
{
    return aligned(dt_slot_buffer_bytes(config->dataset, slot_windows(config)));
}

static int64_t slot_bytes(const struct dt_loader_config *config)
{
    int64_t starts = dt_slot_starts_bytes(config->dataset, slot_windows(config));
    bool synthetic = config->dataset->schema == DT_SCHEMA_SYNTHETIC;
    return buffer_bytes(config) + (has_reset(config) && !synthetic ? aligned(starts) : 0);
}

static int64_t slot_count(const struct dt_loader_config *config)
{
    return config->sequential ? 1 : share_size(config);
}

int64_t dt_loader_bytes(const struct dt_loader_config *config)
{
    return config->prefetch * batch_bytes(config) + slot_count(config) * slot_bytes(config);
}

int64_t dt_loader_steps_per_epoch(const struct dt_loader *loader)
{
    return dt_order_steps_per_epoch(loader->order);
}

static void fill_synthetic(const struct dt_loader *loader, int64_t window, int32_t *input_ids,
                           int32_t *labels)
{
    int64_t T = loader->config.dataset->seq_len;
    struct dt_philox rng =
        dt_philox_init(loader->config.seed, (uint32_t)SYNTHETIC_STREAM, (uint64_t)window);
    uint64_t vocab_size = (uint64_t)loader->config.vocab_size;
    for (int64_t t = 0; t <= T; t++) {
        int32_t token = (int32_t)((dt_philox_u32(&rng) * vocab_size) >> 32);
        if (t < T)
            input_ids[t] = token;
        if (t > 0)
            labels[t - 1] = token;
    }
}

static void fill_padding(int64_t T, int32_t *input_ids, int32_t *labels, uint8_t *reset)
{
    memset(input_ids, 0, (size_t)T * sizeof *input_ids);
    for (int64_t t = 0; t < T; t++)
        labels[t] = DT_IGNORED;
    if (reset)
        memset(reset, 0, (size_t)T);
}

// Sequential: a read serves the rows of the batch from this one on, as far as they lie in the
// shard.
static dt_status read_ahead(struct dt_loader *loader, int64_t row, const struct dt_position *at,
                            struct dt_slot **slot)
{
    const struct dt_dataset *dataset = loader->config.dataset;
    *slot = &loader->slots[loader->config.sequential ? 0 : row];
    if (!loader->config.sequential)
        return dt_slot_read(*slot, &loader->cache, &loader->rules, at->shard, at->block_first,
                            at->block_windows);
    if (row > 0 && (*slot)->windows > 0 && (*slot)->shard == at->shard)
        return DT_OK;
    int64_t left = dataset->shards[at->shard].windows - at->window, rows = loader->n_slots - row;
    return dt_slot_read(*slot, &loader->cache, &loader->rules, at->shard, at->window,
                        left < rows ? left : rows);
}

static dt_status fill_row(struct dt_loader *loader, struct dt_batch *batch, int64_t row)
{
    int64_t T = loader->config.dataset->seq_len;
    int32_t *input_ids = (int32_t *)batch->arrays[0].data + row * T;
    int32_t *labels = (int32_t *)batch->arrays[1].data + row * T;
    uint8_t *reset = batch->n_arrays > 2 ? (uint8_t *)batch->arrays[2].data + row * T : NULL;
    struct dt_position at;
    struct dt_slot *slot;
    DT_TRY(dt_order_at(loader->order, batch->step, loader->first_slot + row, &at));
    if (at.window < 0) {
        fill_padding(T, input_ids, labels, reset);
        return DT_OK;
    }
    if (loader->config.dataset->schema == DT_SCHEMA_SYNTHETIC) {
        if (reset)
            memset(reset, 0, (size_t)T);
        fill_synthetic(loader, at.window, input_ids, labels);
        return DT_OK;
    }
    DT_TRY(read_ahead(loader, row, &at, &slot));
    return dt_slot_rows(slot, loader->config.dataset, &loader->rules, at.window, input_ids, labels,
                        reset);
}

static bool must_stop(struct dt_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    bool stop = loader->stop;
    pthread_mutex_unlock(&loader->lock);
    return stop;
}

static dt_status fill_batch(struct dt_loader *loader, struct dt_batch *batch, int64_t step)
{
    batch->step = step;
    for (int64_t row = 0; row < loader->n_slots && !must_stop(loader); row++)
        DT_TRY_NOTE(fill_row(loader, batch, row), "reading the batch of step %" PRId64, step + 1);
    return DT_OK;
}

// Waits for a free place; false when the loader closes.
static bool wait_for_room(struct dt_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    while (!loader->stop && loader->filled - loader->released == loader->config.prefetch)
        pthread_cond_wait(&loader->moved, &loader->lock);
    bool go_on = !loader->stop;
    pthread_mutex_unlock(&loader->lock);
    return go_on;
}

static void hand_over(struct dt_loader *loader, dt_status status)
{
    pthread_mutex_lock(&loader->lock);
    if (status == DT_OK) {
        loader->filled++;
    } else {
        loader->failed = true;
        dt_error_take(&loader->error);
    }
    pthread_cond_broadcast(&loader->moved);
    pthread_mutex_unlock(&loader->lock);
}

static bool past_end(const struct dt_loader *loader, int64_t step)
{
    return loader->config.sequential && step >= dt_order_steps_per_epoch(loader->order);
}

static void *read_all(void *context)
{
    struct dt_loader *loader = context;
    dt_status status = DT_OK;
    for (int64_t i = 0; status == DT_OK && !past_end(loader, loader->first_step + i); i++) {
        if (!wait_for_room(loader))
            break;
        status =
            fill_batch(loader, &loader->ring[i % loader->config.prefetch], loader->first_step + i);
        hand_over(loader, status);
    }
    return NULL;
}

static void lay_out_batch(struct dt_loader *loader, struct dt_batch *batch, char *at)
{
    int64_t b = loader->n_slots, T = loader->config.dataset->seq_len;
    const struct {
        const char *name;
        dt_dtype type;
    } row[] = {{"input_ids", DT_I32}, {"labels", DT_I32}, {"reset", DT_U8}};
    batch->sequences = b;
    batch->length = T;
    batch->n_arrays = loader->rules.with_reset ? 3 : 2;
    for (int i = 0; i < batch->n_arrays; i++) {
        batch->arrays[i] = (struct dt_array){{row[i].name, row[i].type, 1, i == 2}, at};
        at += aligned(b * T * dt_dtype_size(row[i].type));
    }
}

static dt_status allocate_ring(struct dt_loader *loader)
{
    const struct dt_loader_config *config = &loader->config;
    int64_t bytes = batch_bytes(config);
    void *memory = NULL;
    loader->ring = calloc((size_t)config->prefetch, sizeof *loader->ring);
    if (!loader->ring)
        return DT_FAIL(DT_MACHINE, "lower data.prefetch", "no memory for %" PRId64 " batches",
                       config->prefetch);
    if (config->alloc_host)
        DT_TRY(config->alloc_host(config->context, config->prefetch * bytes, &memory));
    else if (!(memory = aligned_alloc(ALIGN, (size_t)(config->prefetch * bytes))))
        return DT_FAIL(DT_MACHINE, "lower data.prefetch or data.batch",
                       "no memory for %" PRId64 " batches of %" PRId64 " bytes", config->prefetch,
                       bytes);
    loader->memory = memory;
    for (int64_t i = 0; i < config->prefetch; i++)
        lay_out_batch(loader, &loader->ring[i], loader->memory + i * bytes);
    return DT_OK;
}

static dt_status allocate_slots(struct dt_loader *loader)
{
    const struct dt_loader_config *config = &loader->config;
    int64_t n = slot_count(config), each = slot_bytes(config), buffer = buffer_bytes(config);
    loader->slots = calloc((size_t)n, sizeof *loader->slots);
    loader->blocks = aligned_alloc(ALIGN, (size_t)(n * each + ALIGN)); // each is aligned
    if (!loader->slots || !loader->blocks)
        return DT_FAIL(DT_MACHINE, "lower data.block",
                       "no memory for %" PRId64 " blocks of %" PRId64 " bytes", n, each);
    for (int64_t i = 0; i < n; i++) {
        loader->slots[i].buffer = loader->blocks + i * each;
        if (loader->rules.with_reset)
            loader->slots[i].starts = (uint8_t *)loader->blocks + i * each + buffer;
    }
    return DT_OK;
}

static dt_status check(const struct dt_loader_config *config, int64_t first_step)
{
    int64_t sequences, bytes;
    if (config->prefetch < 1 || config->vocab_size < 1 || config->vocab_size > INT32_MAX)
        return DT_FAIL(DT_USER, "data.prefetch is 1 or more, model.vocab_size 1 to 2147483647",
                       "data.prefetch is %" PRId64 ", model.vocab_size is %" PRId64,
                       config->prefetch, config->vocab_size);
    if (config->size < 1 || config->rank < 0 || config->rank >= config->size ||
        config->batch % config->size != 0)
        return DT_FAIL(DT_USER, "choose a data.batch that is a multiple of the number of ranks",
                       "data.batch = %" PRId64 " does not divide among %d ranks", config->batch,
                       config->size);
    if (first_step < 0)
        return DT_FAIL(DT_USER, NULL, "step %" PRId64 " is no step", first_step);
    // The factor: two int32 rows and a reset row a token, with room for alignment.
    if (__builtin_mul_overflow(config->batch, config->prefetch, &sequences) ||
        __builtin_mul_overflow(sequences, 16 * (config->dataset->seq_len + ALIGN), &bytes))
        return DT_FAIL(DT_USER, "lower data.batch or data.prefetch",
                       "%" PRId64 " batches of %" PRId64 " sequences do not fit any memory",
                       config->prefetch, config->batch);
    return DT_OK;
}

// Signals stay with the threads that expect them.
static dt_status start_thread(struct dt_loader *loader)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&loader->thread, NULL, read_all, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return DT_FAIL(DT_MACHINE, NULL, "cannot start the reader thread: %s", strerror(failed));
    loader->started = true;
    return DT_OK;
}

static dt_status open_loader(struct dt_loader *loader)
{
    const struct dt_loader_config *config = &loader->config;
    struct dt_order_config order = {
        .dataset = config->dataset,
        .seed = config->seed,
        .batch = config->batch,
        .block = config->block,
        .shuffle = config->shuffle,
        .sequential = config->sequential,
    };
    DT_TRY(dt_order_create(&order, &loader->order));
    DT_TRY(check(config, loader->first_step));
    loader->first_slot = share(config, config->rank);
    loader->n_slots = share_size(config);
    DT_TRY(dt_shard_cache_open(config->dataset, &loader->cache));
    loader->rules = (struct dt_slot_rules){
        .vocab_size = config->vocab_size,
        .reset_token = config->reset_token,
        .reset_after = config->reset_after,
        .verify = config->verify,
        .with_reset = has_reset(config),
    };
    DT_TRY(allocate_ring(loader));
    DT_TRY(allocate_slots(loader));
    return start_thread(loader);
}

dt_status dt_loader_open(const struct dt_loader_config *config, int64_t first_step,
                         struct dt_loader **loader)
{
    *loader = NULL;
    struct dt_loader *l = calloc(1, sizeof *l);
    if (!l)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a loader");
    l->config = *config;
    l->first_step = first_step;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->moved, NULL);
    dt_status status = open_loader(l);
    if (status != DT_OK) {
        dt_loader_close(l);
        return dt_error_push(status, __FILE__, __LINE__, __func__, NULL);
    }
    *loader = l;
    return DT_OK;
}

static void stop_thread(struct dt_loader *loader)
{
    pthread_mutex_lock(&loader->lock);
    loader->stop = true;
    pthread_cond_broadcast(&loader->moved);
    pthread_mutex_unlock(&loader->lock);
    pthread_join(loader->thread, NULL);
}

void dt_loader_close(struct dt_loader *loader)
{
    if (!loader)
        return;
    if (loader->started)
        stop_thread(loader);
    dt_shard_cache_close(&loader->cache);
    if (loader->config.free_host && loader->memory)
        loader->config.free_host(loader->config.context, loader->memory);
    else
        free(loader->memory);
    free(loader->blocks);
    free(loader->slots);
    free(loader->ring);
    dt_order_free(loader->order);
    pthread_cond_destroy(&loader->moved);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}

dt_status dt_loader_next(struct dt_loader *loader, const struct dt_batch **batch, double *wait_ms)
{
    double start = dt_seconds();
    dt_status status = DT_OK;
    *batch = NULL;
    pthread_mutex_lock(&loader->lock);
    loader->released = loader->taken;
    pthread_cond_broadcast(&loader->moved);
    bool end = past_end(loader, loader->first_step + loader->taken);
    while (!end && !loader->failed && loader->filled == loader->taken)
        pthread_cond_wait(&loader->moved, &loader->lock);
    if (!end && loader->filled > loader->taken)
        *batch = &loader->ring[loader->taken++ % loader->config.prefetch];
    else if (!end)
        status = dt_error_restore(&loader->error);
    pthread_mutex_unlock(&loader->lock);
    if (wait_ms)
        *wait_ms = 1e3 * (dt_seconds() - start);
    return status;
}
