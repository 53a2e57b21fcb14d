// The reader thread and its ring of batches. The caller owns at most one batch; the thread fills
// the others in step order and sleeps while the ring is full. Everything is allocated when the
// loader opens.
#include "data/loader.h"

#include "base/clock.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/trace.h"
#include "data/order.h"
#include "data/shard_cache.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

struct dt_loader {
    struct dt_loader_config config;
    const struct dt_reader_kind *kind;
    struct dt_order *order;
    int64_t n_slots;         // slots of this rank
    int64_t first_step, end; // steps [first_step, end)
    struct dt_batch *ring;   // [prefetch]
    void *memory;            // for the ring's arrays

    // Used only by the thread:
    struct dt_shard_cache *shards, *own; // own: opened by the loader, or NULL
    struct dt_block *blocks;             // [block_count]
    char *block_memory;
    pthread_t thread;
    bool started;

    // Guarded by the lock; `stop` is also read without it. Batches are counted from first_step:
    // filled >= handed_out >= released.
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int64_t filled, handed_out, released;
    atomic_bool stop;
    bool failed;
    struct dt_error error;
};

static int64_t share(const struct dt_loader_config *config)
{
    return config->batch / config->size;
}

void dt_loader_arrays(const struct dt_loader_config *config, struct dt_array_list *arrays)
{
    *arrays = (struct dt_array_list){0};
    config->dataset->kind->arrays(config->dataset, &config->rules, arrays);
}

static int64_t batch_bytes(const struct dt_loader_config *config)
{
    struct dt_array_list list;
    int64_t bytes = 0;
    dt_loader_arrays(config, &list);
    for (int i = 0; i < list.n; i++)
        bytes += dt_reader_align(
            dt_array_bytes(&list.arrays[i], share(config) * config->dataset->rules.seq_len));
    return bytes;
}

int64_t dt_loader_slot(const struct dt_loader_config *config, int64_t row)
{
    int64_t run = config->run > 0 ? config->run : share(config);
    return (row / run * config->size + config->rank) * run + row % run;
}

// Whether the rows of a batch are consecutive in the list, so that one block serves them all.
static bool rows_follow(const struct dt_loader_config *config)
{
    return config->sequential && !config->parts;
}

// In training a slot keeps a block per source.
static int64_t blocks_per_slot(const struct dt_loader_config *config)
{
    return config->sequential ? 1 : dt_max_i64(1, config->dataset->mixture.n);
}

static int64_t block_count(const struct dt_loader_config *config)
{
    return rows_follow(config) ? 1 : share(config) * blocks_per_slot(config);
}

// The most bytes of a block in any shard.
static int64_t block_bytes(const struct dt_loader_config *config)
{
    const struct dt_dataset *dataset = config->dataset;
    int64_t most = 0, windows = rows_follow(config) ? share(config) : config->block;
    for (int64_t i = 0; dataset->kind->block_bytes && i < dataset->n_shards; i++) {
        const struct dt_shard *shard = &dataset->shards[i];
        int64_t bytes = dataset->kind->block_bytes(dataset, &config->rules, shard,
                                                   dt_min_i64(windows, shard->windows));
        most = dt_max_i64(bytes, most);
    }
    return dt_reader_align(most);
}

int64_t dt_loader_bytes(const struct dt_loader_config *config)
{
    return config->prefetch * batch_bytes(config) + block_count(config) * block_bytes(config);
}

// The reader thread.

static dt_status read_block(struct dt_loader *loader, struct dt_block *block, int64_t shard,
                            int64_t first, int64_t windows)
{
    const struct dt_loader_config *config = &loader->config;
    struct dt_reader *reader;
    block->windows = 0; // invalid until they are read
    DT_TRY(dt_shard_cache_get(loader->shards, shard, config->rules.verify, &reader));
    struct dt_block read = {
        .shard = shard, .first = first, .windows = windows, .memory = block->memory};
    uint64_t begin = dt_trace_begin();
    DT_TRY(loader->kind->read(reader, config->dataset, &config->rules, &read));
    if (begin > 0)
        dt_trace_end(DT_LANE_INPUT, "reading a block", begin,
                     loader->kind->block_bytes(config->dataset, &config->rules,
                                               &config->dataset->shards[shard], windows));
    *block = read;
    return DT_OK;
}

static void pad_row(const struct dt_batch *batch, void *const *rows)
{
    for (int i = 0; i < batch->n_arrays; i++) {
        const struct dt_array_spec *spec = &batch->arrays[i].spec;
        memset(rows[i], 0, (size_t)dt_array_bytes(spec, batch->length));
        for (int64_t k = 0; spec->pad != 0 && k < batch->length * spec->width; k++)
            if (spec->type == DT_I32)
                ((int32_t *)rows[i])[k] = (int32_t)spec->pad;
            else
                ((float *)rows[i])[k] = (float)spec->pad;
    }
}

// Fills one row of a batch. A slot keeps its block of a source while it trains windows of that
// block. If the rows of a batch are consecutive, one block has the rows from this one on that are
// in the same shard.
static dt_status fill_row(struct dt_loader *loader, const struct dt_batch *batch, int64_t row)
{
    const struct dt_loader_config *config = &loader->config;
    const struct dt_dataset *dataset = config->dataset;
    void *rows[DT_BATCH_ARRAYS] = {NULL};
    struct dt_position at;
    for (int i = 0; i < batch->n_arrays; i++)
        rows[i] = (char *)batch->arrays[i].data +
                  row * dt_array_bytes(&batch->arrays[i].spec, batch->length);
    DT_TRY(dt_order_at(loader->order, dt_skips_batch(&loader->config.skips, batch->step),
                       dt_loader_slot(config, row), &at));
    if (at.window < 0) {
        pad_row(batch, rows);
        return DT_OK;
    }
    int64_t kept = config->sequential ? row : row * blocks_per_slot(config) + at.source;
    struct dt_block *block = &loader->blocks[rows_follow(config) ? 0 : kept];
    bool held = block->shard == at.shard && at.window >= block->first &&
                at.window < block->first + block->windows;
    if (loader->kind->read && !held) {
        int64_t first = rows_follow(config) ? at.window : at.block_first;
        int64_t windows =
            rows_follow(config)
                ? dt_min_i64(loader->n_slots - row, dataset->shards[at.shard].windows - at.window)
                : at.block_windows;
        DT_TRY(read_block(loader, block, at.shard, first, windows));
    }
    block->epoch = at.epoch;
    return loader->kind->write(dataset, &config->rules, block, at.window, rows);
}

static void *read_all(void *context)
{
    struct dt_loader *loader = context;
    int64_t prefetch = loader->config.prefetch;
    dt_status status = DT_OK;
    for (int64_t i = 0; status == DT_OK && loader->first_step + i < loader->end; i++) {
        struct dt_batch *batch = &loader->ring[i % prefetch];
        uint64_t waiting = dt_trace_begin();
        pthread_mutex_lock(&loader->lock);
        while (!loader->stop && loader->filled - loader->released == prefetch)
            pthread_cond_wait(&loader->changed, &loader->lock);
        pthread_mutex_unlock(&loader->lock);
        dt_trace_end(DT_LANE_INPUT, "waiting for a free batch", waiting, 0);

        uint64_t filling = dt_trace_begin();
        batch->step = loader->first_step + i;
        for (int64_t row = 0; status == DT_OK && row < loader->n_slots && !loader->stop; row++)
            status = fill_row(loader, batch, row);
        if (loader->stop)
            break;
        dt_trace_end(DT_LANE_INPUT, "filling a batch", filling, batch_bytes(&loader->config));

        pthread_mutex_lock(&loader->lock);
        if (status == DT_OK) {
            loader->filled++;
        } else {
            loader->failed = true;
            dt_error_push(status, __FILE__, __LINE__, __func__,
                          "reading the batch of step %" PRId64, batch->step + 1);
            dt_error_take(&loader->error);
        }
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
    }
    return NULL;
}

// The caller.

dt_status dt_loader_next(struct dt_loader *loader, const struct dt_batch **batch, double *wait_ms)
{
    double start = dt_seconds();
    dt_status status = DT_OK;
    *batch = NULL;
    pthread_mutex_lock(&loader->lock);
    loader->released = loader->handed_out;
    pthread_cond_broadcast(&loader->changed);
    if (loader->first_step + loader->handed_out < loader->end) {
        while (!loader->failed && loader->filled == loader->handed_out)
            pthread_cond_wait(&loader->changed, &loader->lock);
        if (loader->filled > loader->handed_out)
            *batch = &loader->ring[loader->handed_out++ % loader->config.prefetch];
        else
            status = dt_error_restore(&loader->error);
    }
    pthread_mutex_unlock(&loader->lock);
    if (wait_ms)
        *wait_ms = 1e3 * (dt_seconds() - start);
    return status;
}

// Opening and closing.

static dt_status check(const struct dt_loader_config *config)
{
    const struct dt_read_rules *rules = &config->rules;
    if (config->prefetch < 1 || rules->vocab_size < 0 || rules->vocab_size > INT32_MAX)
        return DT_FAIL(DT_USER,
                       "data.prefetch must be 1 or more, model.vocab_size at most 2147483647",
                       "data.prefetch is %" PRId64 ", model.vocab_size is %" PRId64,
                       config->prefetch, rules->vocab_size);
    if (config->batch % config->size != 0)
        return DT_FAIL(DT_USER, "choose a data.batch that is a multiple of the number of ranks",
                       "data.batch = %" PRId64 " cannot be divided among %d ranks", config->batch,
                       config->size);
    // Room for aligning every row of every array.
    int64_t n = 0;
    struct dt_array_list list;
    dt_loader_arrays(config, &list);
    for (int i = 0; i < list.n; i++)
        n += dt_array_bytes(&list.arrays[i], 1);
    if (__builtin_mul_overflow(n, config->batch, &n) ||
        __builtin_mul_overflow(n, config->prefetch, &n) ||
        __builtin_mul_overflow(n, config->dataset->rules.seq_len + DT_READER_ALIGN, &n))
        return DT_FAIL(DT_USER, "lower data.batch or data.prefetch",
                       "%" PRId64 " batches of %" PRId64 " sequences do not fit in any memory",
                       config->prefetch, config->batch);
    return DT_OK;
}

static dt_status allocate(struct dt_loader *loader)
{
    const struct dt_loader_config *config = &loader->config;
    int64_t bytes = batch_bytes(config), n = block_count(config), each = block_bytes(config);
    struct dt_array_list list;
    dt_loader_arrays(config, &list);
    DT_TRY(DT_NEW_HINT(&loader->ring, config->prefetch, "lower data.prefetch",
                       "%" PRId64 " batches", config->prefetch));
    if (config->alloc_host)
        DT_TRY(config->alloc_host(config->context, config->prefetch * bytes, &loader->memory));
    else
        DT_TRY(DT_NEW_ALIGNED(&loader->memory, config->prefetch * bytes, DT_READER_ALIGN,
                              "lower data.prefetch or data.batch",
                              "%" PRId64 " batches of %" PRId64 " bytes", config->prefetch, bytes));
    char *at = loader->memory;
    for (int64_t k = 0; k < config->prefetch; k++) {
        struct dt_batch *batch = &loader->ring[k];
        *batch = (struct dt_batch){.sequences = loader->n_slots,
                                   .length = config->dataset->rules.seq_len,
                                   .n_arrays = list.n};
        for (int i = 0; i < list.n; i++) {
            batch->arrays[i] = (struct dt_array){list.arrays[i], at};
            at +=
                dt_reader_align(dt_array_bytes(&list.arrays[i], batch->sequences * batch->length));
        }
    }
    DT_TRY(DT_NEW(&loader->blocks, n, "%" PRId64 " blocks", n));
    DT_TRY(DT_NEW_ALIGNED(&loader->block_memory, n * each, DT_READER_ALIGN, "lower data.block",
                          "%" PRId64 " blocks of %" PRId64 " bytes", n, each));
    for (int64_t i = 0; i < n; i++)
        loader->blocks[i].memory = loader->block_memory + i * each;
    return DT_OK;
}

static dt_status open_loader(struct dt_loader *loader)
{
    const struct dt_loader_config *config = &loader->config;
    struct dt_order_config order = {
        .dataset = config->dataset,
        .seed = config->rules.seed,
        .batch = config->batch,
        .block = config->block,
        .shuffle = config->shuffle,
        .sequential = config->sequential,
        .parts = config->parts,
    };
    DT_TRY(dt_order_create(&order, &loader->order));
    DT_TRY(check(config));
    loader->kind = config->dataset->kind;
    loader->n_slots = share(config);
    loader->end = config->sequential ? dt_order_steps_per_epoch(loader->order) : INT64_MAX;
    if (!config->shards)
        DT_TRY(dt_shard_cache_open(config->dataset, &loader->own));
    loader->shards = config->shards ? config->shards : loader->own;
    dt_shard_cache_refresh(loader->shards);
    DT_TRY(allocate(loader));
    sigset_t all, before; // block signals in the reader thread
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&loader->thread, NULL, read_all, loader);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        return DT_FAIL(DT_MACHINE, NULL, "cannot start the reader thread: %s", strerror(failed));
    loader->started = true;
    return DT_OK;
}

dt_status dt_loader_open(const struct dt_loader_config *config, int64_t first_step,
                         struct dt_loader **loader)
{
    *loader = NULL;
    struct dt_loader *l;
    DT_TRY(DT_NEW(&l, 1, "a loader"));
    l->config = *config;
    l->first_step = first_step;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    dt_status status = open_loader(l);
    if (status != DT_OK) {
        dt_loader_close(l);
        return dt_error_push(status, __FILE__, __LINE__, __func__, NULL);
    }
    *loader = l;
    return DT_OK;
}

void dt_loader_close(struct dt_loader *loader)
{
    if (!loader)
        return;
    if (loader->started) {
        pthread_mutex_lock(&loader->lock);
        loader->stop = true;
        pthread_cond_broadcast(&loader->changed);
        pthread_mutex_unlock(&loader->lock);
        pthread_join(loader->thread, NULL);
    }
    dt_shard_cache_close(loader->own);
    if (loader->config.free_host && loader->memory)
        loader->config.free_host(loader->config.context, loader->memory);
    else
        free(loader->memory);
    free(loader->block_memory);
    free(loader->blocks);
    free(loader->ring);
    dt_order_free(loader->order);
    pthread_cond_destroy(&loader->changed);
    pthread_mutex_destroy(&loader->lock);
    free(loader);
}
