// Tables of known values for each collective, and the self-test, which runs every collective on
// them in host or device memory and names the rank that wrong values come from.
#include "comm/selftest.h"

#include "base/memory.h"
#include "base/round.h"
#include "comm/backends.h"

#include <string.h>

enum {
    VALUES = 97,  // 1 to 97: exact in bf16; prime: no block of 2^n elements looks like another
    STEP = 31,    // between the inputs of two ranks
    SUMMED = 64,  // ranks in a sum of all: at most 64 * 3, exact in bf16
    TABLE = 4096, // elements at least, so that copies are long
};

static bool is_sum(const struct dt_collective *c)
{
    return dt_operation_kinds[c->operation].reduces;
}

static void put(void *data, enum dt_dtype type, int64_t i, int value)
{
    if (type == DT_F32)
        ((float *)data)[i] = (float)value;
    else if (type == DT_F64)
        ((double *)data)[i] = value;
    else if (type == DT_I64)
        ((int64_t *)data)[i] = value;
    else
        ((dt_bf16 *)data)[i] = dt_f32_to_bf16((float)value);
}

static void put_sum(struct dt_known_values *known, int64_t i)
{
    int size = known->info.size, rank = known->info.rank, owner = (int)(i % (size + 1));
    int k = (int)(i / (size + 1) % VALUES), all = k % 3 + 1, summed = size < SUMMED ? size : SUMMED;
    int mine = owner == size ? (rank < summed ? all : 0) : owner == rank ? k + 1 : 0;
    put(known->input, known->collective.dtype, i, mine);
    put(known->expected, known->collective.dtype, i, owner == size ? summed * all : k + 1);
}

dt_status dt_known_open(const struct dt_comm_info *info, const struct dt_collective *collective,
                        struct dt_known_values *known)
{
    int64_t period = VALUES * (is_sum(collective) ? (int64_t)info->size + 1 : 1);
    period *= dt_ceil_div(TABLE, period);
    *known = (struct dt_known_values){*info, *collective, period, NULL, NULL};
    int64_t bytes = period * dt_dtype_size(collective->dtype);
    DT_TRY(DT_NEW(&known->input, bytes, "%lld known values", (long long)period));
    known->expected = known->input;
    if (is_sum(collective)) {
        dt_status status = DT_NEW(&known->expected, bytes, "%lld expected sums", (long long)period);
        if (status != DT_OK) {
            dt_known_close(known);
            return status;
        }
    }
    for (int64_t i = 0; i < period; i++)
        if (is_sum(collective))
            put_sum(known, i);
        else
            put(known->input, collective->dtype, i, (int)(i % VALUES) + 1);
    return DT_OK;
}

void dt_known_close(struct dt_known_values *known)
{
    if (known->expected != known->input)
        free(known->expected);
    free(known->input);
    known->input = known->expected = NULL;
}

int64_t dt_known_elements(const struct dt_known_values *known)
{
    return dt_collective_elements(&known->info, &known->collective);
}

// Consecutive elements from one rank, or sums.
struct run {
    int64_t end;
    int owner;     // -1: all
    int64_t shift; // offset in the table
};

static struct run run_at(const struct dt_known_values *known, int64_t at, int64_t end, bool sends)
{
    const struct dt_collective *c = &known->collective;
    struct run run = {end, c->peer, 0};
    if (c->operation == DT_ALLREDUCE)
        run.owner = -1;
    else if (c->operation == DT_EXCHANGE && sends)
        run.owner = known->info.rank;
    else if (dt_operation_kinds[c->operation].in_blocks) {
        run.owner = (int)(at / c->count);
        run.end = dt_min_i64(end, (run.owner + 1) * c->count);
    }
    run.shift = is_sum(c) ? 0 : (int64_t)run.owner * STEP;
    return run;
}

// The longest run at `at` that is contiguous in the table.
static int64_t stretch(const struct dt_known_values *known, int64_t at, const struct run *run,
                       int64_t *from)
{
    *from = (at + run->shift) % known->period;
    return dt_min_i64(known->period - *from, run->end - at);
}

void dt_known_fill(const struct dt_known_values *known, int64_t first, int64_t n, void *to)
{
    int64_t bytes = dt_dtype_size(known->collective.dtype), from;
    char *out = to;
    for (int64_t at = first, length; at < first + n; at += length, out += length * bytes) {
        struct run run = run_at(known, at, first + n, true);
        length = stretch(known, at, &run, &from);
        if (is_sum(&known->collective) || run.owner == known->info.rank)
            memcpy(out, known->input + from * bytes, (size_t)(length * bytes));
        else
            memset(out, 0, (size_t)(length * bytes));
    }
}

int64_t dt_known_check(const struct dt_known_values *known, int64_t first, int64_t n,
                       const void *data, int64_t *wrong_from)
{
    const struct dt_collective *c = &known->collective;
    size_t bytes = (size_t)dt_dtype_size(c->dtype);
    int64_t wrong = 0, size = known->info.size, from;
    const char *got = data;
    for (int64_t at = first, length; at < first + n; at += length, got += (size_t)length * bytes) {
        struct run run = run_at(known, at, first + n, false);
        length = stretch(known, at, &run, &from);
        const char *right = known->expected + (size_t)from * bytes;
        bool is_defined = c->operation != DT_REDUCE_SCATTER || run.owner == known->info.rank;
        if (!is_defined || memcmp(got, right, (size_t)length * bytes) == 0)
            continue;
        for (int64_t i = 0; i < length; i++)
            if (memcmp(got + (size_t)i * bytes, right + (size_t)i * bytes, bytes) != 0) {
                wrong++;
                wrong_from[is_sum(c) ? (at + i) % (size + 1) : run.owner]++;
            }
    }
    return wrong;
}

int dt_known_partner(const struct dt_comm_info *info)
{
    int half = info->size / 2, rank = info->rank;
    return rank < half ? rank + half : rank < 2 * half ? rank - half : -1;
}

bool dt_known_order(const struct dt_comm_info *info, enum dt_operation operation,
                    enum dt_dtype dtype, int at, enum dt_sum_order *order)
{
    bool has_tree = dt_operation_kinds[operation].reduces && (dtype == DT_F32 || dtype == DT_F64) &&
                    dt_is_power_of_two(info->size);
    *order = at == 0 ? DT_SUM_FAST : DT_SUM_TREE;
    return at <= has_tree;
}

// ---- the self-test

// A trial of the collectives: where they run, and what was wrong.
struct trial {
    struct dt_comm *comm;
    struct dt_device_comm *device; // NULL: in host memory
    const struct dt_backend *backend;
    struct dt_stream *stream;
    int64_t tree_bytes;         // device: largest sum by a tree
    char *host, *memory, *mine; // [bytes]; device: host is a copy, else memory itself
    int64_t first_wrong;        // case; INT64_MAX: none
    int64_t *wrong;             // [2 * size + 1]: by the rank they come from, or are found on
};

static const int64_t totals[] = {211, 1 << 18}; // elements: one for the MPI library, one for rings
static const enum dt_dtype types[] = {DT_F32, DT_BF16};
enum { TOTALS = 2, TYPES = 2, ORDERS = 2, CASES = DT_OPERATIONS * TOTALS * TYPES * ORDERS };

static struct dt_collective nth_case(const struct dt_comm_info *info, int k)
{
    struct dt_collective c = {.operation = (enum dt_operation)(k % DT_OPERATIONS),
                              .dtype = types[k / DT_OPERATIONS % TYPES],
                              .count = totals[k / DT_OPERATIONS / TYPES % TOTALS],
                              .order = (enum dt_sum_order)(k / DT_OPERATIONS / TYPES / TOTALS)};
    if (dt_operation_kinds[c.operation].in_blocks)
        c.count = dt_ceil_div(c.count, info->size);
    c.peer = c.operation == DT_EXCHANGE ? dt_known_partner(info) : info->size - 1;
    return c;
}

// Copies `host` to `to` on the device, runs the collective there, and copies the result back.
static dt_status run_on_device(const struct trial *t, int index, const struct dt_collective *c,
                               void *to, int64_t bytes)
{
    DT_TRY(dt_to_device(t->backend, to, t->host, bytes, t->stream));
    DT_TRY(t->device->table->enqueue(t->device, index, c, t->stream));
    DT_TRY(dt_to_host(t->backend, t->host, c->data, bytes, t->stream));
    return dt_stream_sync(t->backend, t->stream);
}

static dt_status try_case(struct trial *t, int k, int index)
{
    const struct dt_comm_info *info = &t->comm->info;
    struct dt_known_values known;
    struct dt_collective c = nth_case(info, k);
    if (c.operation == DT_EXCHANGE && c.peer < 0)
        return DT_OK;
    DT_TRY(dt_known_open(info, &c, &known));
    int64_t n = dt_known_elements(&known), bytes = n * dt_dtype_size(c.dtype);
    c.data = t->memory;
    c.mine = c.operation == DT_EXCHANGE ? t->mine : NULL;
    char *to = c.mine ? t->mine : t->memory;
    memset(t->host, 0, (size_t)bytes); // detects what an exchange does not deliver
    dt_known_fill(&known, 0, n, t->device ? t->host : to);
    dt_status status =
        t->device ? run_on_device(t, index, &c, to, bytes) : dt_collective(t->comm, &c);
    if (status == DT_OK) {
        int64_t wrong = dt_known_check(&known, 0, n, t->host, t->wrong);
        t->wrong[info->size + 1 + info->rank] += wrong;
        if (wrong > 0)
            t->first_wrong = dt_min_i64(t->first_wrong, k);
    }
    dt_known_close(&known);
    return status;
}

static int largest(const int64_t *list, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (list[i] > list[best])
            best = i;
    return best;
}

// Rank 0's error about the first failed case, and the rank to look at.
static dt_status blame(const struct trial *t, int culprit, const char *host, bool is_source)
{
    const struct dt_comm_info *info = &t->comm->info;
    struct dt_collective c = nth_case(info, (int)t->first_wrong);
    int64_t wrong = 0;
    c.mine = c.data = t->memory; // so that an exchange is called that, not send or receive
    for (int rank = 0; rank < info->size; rank++)
        wrong += t->wrong[info->size + 1 + rank];
    return DT_FAIL(DT_MACHINE,
                   "run `dtrain bench --comm` on these hosts, and exclude a host with faulty "
                   "memory or network",
                   "communication self-test: %s of %s by %s gave wrong values (%lld in total), "
                   "most of them %s rank %d on %s",
                   dt_collective_name(&c), dt_dtype_name(c.dtype),
                   t->device ? t->device->table->name : info->backend, (long long)wrong,
                   is_source ? "from" : "on", culprit, host);
}

// The culprit is the rank that most wrong values come from, unless more are found on one rank.
static dt_status judge(struct trial *t)
{
    struct dt_comm *comm = t->comm;
    int size = comm->info.size;
    const int64_t *by_source = t->wrong, *by_place = t->wrong + size + 1;
    char host[DT_HOST_NAME];
    DT_TRY(dt_allreduce(comm, &t->first_wrong, 1, DT_I64, DT_MIN));
    if (t->first_wrong == INT64_MAX)
        return DT_OK;
    DT_TRY(dt_allreduce(comm, t->wrong, 2 * size + 1, DT_I64, DT_SUM));
    int source = largest(by_source, size), place = largest(by_place, size);
    bool is_source = by_source[source] >= by_place[place];
    int culprit = is_source ? source : place;
    memcpy(host, comm->info.host, sizeof host);
    DT_TRY(dt_broadcast(comm, host, (int64_t)sizeof host, culprit));
    return dt_agree(comm, comm->info.rank == 0 ? blame(t, culprit, host, is_source) : DT_OK);
}

static bool is_offered(const struct trial *t, int k)
{
    const struct dt_comm_info *info = &t->comm->info;
    struct dt_collective c = nth_case(info, k);
    enum dt_sum_order order;
    bool exists = dt_known_order(info, c.operation, c.dtype, (int)c.order, &order);
    int64_t bytes = dt_collective_elements(info, &c) * dt_dtype_size(c.dtype);
    bool fits = c.order == DT_SUM_FAST || bytes <= t->tree_bytes;
    return exists && (!t->device || (c.operation != DT_BROADCAST && fits));
}

static dt_status try_all(struct trial *t, int n_collectives)
{
    int n = 0;
    for (int k = 0; k < CASES; k++)
        if (is_offered(t, k))
            DT_TRY(try_case(t, k, n++ % n_collectives));
    for (; t->device && n % n_collectives != 0; n++) // complete the step
        DT_TRY(try_case(t, DT_ALLREDUCE, n % n_collectives));
    return judge(t);
}

static dt_status open_trial(struct trial *t)
{
    int64_t bytes = (totals[TOTALS - 1] + t->comm->info.size) * (int64_t)sizeof(float);
    t->first_wrong = INT64_MAX;
    DT_TRY(DT_NEW(&t->wrong, 2 * t->comm->info.size + 1, "counts of wrong values"));
    if (t->device) {
        DT_TRY(dt_stream_create(t->backend, &t->stream));
        DT_TRY(dt_alloc(t->backend, bytes, &t->memory));
        DT_TRY(dt_alloc(t->backend, bytes, &t->mine));
        return dt_alloc_host(t->backend, bytes, &t->host);
    }
    DT_TRY(DT_NEW(&t->memory, bytes, "the communication self-test"));
    t->host = t->memory;
    return DT_NEW(&t->mine, bytes, "the communication self-test");
}

static void close_trial(struct trial *t)
{
    free(t->wrong);
    if (t->device) {
        dt_free_host(t->backend, t->host);
        dt_free(t->backend, t->mine);
        dt_free(t->backend, t->memory);
        dt_stream_destroy(t->backend, t->stream);
    } else {
        free(t->mine);
        free(t->memory);
    }
}

static dt_status selftest(struct trial *t, int n_collectives)
{
    dt_status status;
    if (t->comm->info.size == 1)
        return DT_OK;
    status = dt_agree(t->comm, open_trial(t));
    if (status == DT_OK)
        status = try_all(t, n_collectives);
    close_trial(t);
    return status;
}

dt_status dt_comm_selftest(struct dt_comm *comm)
{
    return selftest(&(struct trial){.comm = comm}, 1);
}

dt_status dt_device_comm_selftest(const struct dt_device_comm_config *config,
                                  struct dt_device_comm *device)
{
    struct trial trial = {.comm = config->comm,
                          .device = device,
                          .backend = config->backend,
                          .tree_bytes = config->tree_bytes};
    return selftest(&trial, config->n_collectives);
}
