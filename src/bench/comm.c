// `dtrain bench --comm` measures every collective of every backend over all ranks of the job, from
// small to large arrays, like nccl-tests. Results are checked with known values (comm/selftest.h).
#include "bench/comm.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/text.h"
#include "comm/selftest.h"
#include "job/device.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST = 5, BATCH = 32, STAGE = 16 << 20 }; // repeats; bytes per copy when checking
static const double default_seconds = 0.1, batch_seconds = 2e-3;

static const enum dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_I64}; // in the order of --type

// One backend's memory, and the current measurement.
struct bench {
    struct dt_bench_route route;
    const struct dt_bench_options *options;
    const struct dt_comm_info *info;
    enum dt_dtype type;           // of the elements
    int64_t first, last, limit;   // bytes; limit: of one array
    int64_t hosts, most_per_host; // hosts; most ranks per host
    char *stage;                  // host memory if arrays are on the device; else NULL
    int64_t skipped, wrong;
};

// One operation in one order.
struct row {
    enum dt_operation operation;
    enum dt_sum_order order;
    int64_t bytes, count; // of the whole array
    struct dt_bench_clock clock;
    int64_t wrong; // wrong values on all ranks
    // Over all sizes so far:
    double connecting, latency, best_bus; // seconds: first call, first size; bytes/s
    int64_t first_bytes, best_bytes;
};

// ---- one row

static struct dt_collective collective_of(const struct bench *b, const struct row *row)
{
    bool exchange = row->operation == DT_EXCHANGE;
    return (struct dt_collective){
        .operation = row->operation,
        .dtype = b->type,
        .peer = exchange ? dt_known_partner(b->info) : b->info->size - 1,
        .count = row->count / (dt_operation_kinds[row->operation].in_blocks ? b->info->size : 1),
        .data = b->route.data,
        .mine = exchange ? b->route.mine : NULL,
        .order = row->order};
}

dt_status dt_bench_run_collective(const struct dt_bench_route *route, const struct dt_collective *c,
                                  int repeats)
{
    if (c->operation == DT_EXCHANGE && c->peer < 0)
        return DT_OK;
    for (int i = 0; i < repeats; i++)
        if (route->device)
            DT_TRY(route->device->table->enqueue(route->device, 0, c, route->stream));
        else
            DT_TRY(dt_collective(route->comm, c));
    return route->device ? dt_stream_sync(&route->backend, route->stream) : DT_OK;
}

// The mean time of a batch of repeats on this rank, after a barrier.
static dt_status time_batch(const struct bench *b, const struct dt_collective *c, int repeats,
                            double *seconds)
{
    DT_TRY(dt_barrier(b->route.comm));
    double start = dt_seconds();
    DT_TRY(dt_bench_run_collective(&b->route, c, repeats));
    *seconds = (dt_seconds() - start) / repeats;
    return DT_OK;
}

// On a device a batch is long enough to make waiting for its end negligible.
static dt_status time_row(const struct bench *b, const struct dt_collective *c, struct row *row)
{
    struct dt_bench_clock *clock = &row->clock;
    double once[2] = {0}; // the first call connects
    double wanted = b->options->seconds > 0 ? b->options->seconds : default_seconds;
    for (int i = 0; i < 2; i++)
        DT_TRY(time_batch(b, c, 1, &once[i]));
    DT_TRY(dt_allreduce(b->route.comm, once, 2, DT_F64, DT_MAX));
    row->connecting = row->connecting > 0 ? row->connecting : once[0];
    int repeats = b->route.device ? (int)fmin(fmax(batch_seconds / once[1], 1), BATCH) : 1;
    int64_t rounds = (int64_t)fmin(fmax(wanted / (once[1] * repeats), LEAST), DT_BENCH_REPEATS);
    for (clock->n = 0; clock->n < rounds; clock->n++)
        DT_TRY(time_batch(b, c, repeats, &clock->seconds[clock->n]));
    return dt_allreduce(b->route.comm, clock->seconds, rounds, DT_F64,
                        DT_MAX); // of the slowest rank
}

static dt_status clear(const struct bench *b, int64_t bytes)
{
    if (b->route.device)
        return dt_fill(&b->route.backend, b->route.data, 0, bytes, b->route.stream);
    memset(b->route.data, 0, (size_t)bytes);
    return DT_OK;
}

// Fills an array with known values or, with `wrong`, counts those that differ; in pieces if the
// host cannot access it.
static dt_status visit(const struct bench *b, const struct dt_known_values *known, char *array,
                       int64_t *wrong_from, int64_t *wrong)
{
    const struct dt_bench_route *r = &b->route;
    int64_t n = dt_known_elements(known), size = dt_dtype_size(known->collective.dtype);
    int64_t piece = b->stage ? STAGE / size : n;
    char *host = b->stage ? b->stage : array;
    for (int64_t at = 0; at < n; at += piece) {
        int64_t length = dt_min_i64(piece, n - at), bytes = length * size;
        if (!wrong)
            dt_known_fill(known, at, length, host);
        if (b->stage) {
            char *there = array + at * size;
            DT_TRY(wrong ? dt_to_host(&r->backend, host, there, bytes, r->stream)
                         : dt_to_device(&r->backend, there, host, bytes, r->stream));
            DT_TRY(dt_stream_sync(&r->backend, r->stream));
        }
        if (wrong)
            *wrong += dt_known_check(known, at, length, host, wrong_from);
    }
    return DT_OK;
}

// Checks a row after its timing, to also find errors that appear only after many rounds.
static dt_status check_row(const struct bench *b, const struct dt_collective *c, struct row *row)
{
    const struct dt_bench_route *r = &b->route;
    struct dt_known_values known;
    int64_t *wrong_from = NULL;
    row->wrong = 0;
    if (c->operation != DT_EXCHANGE || c->peer >= 0) {
        dt_status status;
        DT_TRY(dt_known_open(&r->comm->info, c, &known));
        DT_TRY_GOTO(status, out,
                    DT_NEW(&wrong_from, r->comm->info.size + 1, "counts of wrong values"));
        DT_TRY_GOTO(status, out, clear(b, row->bytes)); // detects what an exchange does not deliver
        DT_TRY_GOTO(status, out, visit(b, &known, c->mine ? r->mine : r->data, NULL, NULL));
        DT_TRY_GOTO(status, out, dt_bench_run_collective(r, c, 1));
        DT_TRY_GOTO(status, out, visit(b, &known, r->data, wrong_from, &row->wrong));
    out:
        free(wrong_from);
        dt_known_close(&known);
        DT_TRY(status);
    }
    return dt_allreduce(r->comm, &row->wrong, 1, DT_I64, DT_SUM);
}

// ---- printing

static bool is_oversubscribed(const struct bench *b)
{
    return b->most_per_host > sysconf(_SC_NPROCESSORS_ONLN);
}

static void print_header(const struct bench *b)
{
    if (b->route.json || b->info->rank != 0)
        return;
    printf("# %s on %s, %s\n%s", DT_COUNT(b->info->size, "ranks"), DT_COUNT(b->hosts, "hosts"),
           dt_comm_mpi_version(),
           b->info->size == 1     ? "# one rank sends nothing: start several with mpirun or srun\n"
           : is_oversubscribed(b) ? "# more ranks than cores: they take turns, so these times are "
                                    "longer than with\n# enough cores\n"
                                  : "");
    if (b->options->pairs)
        return;
    printf("# size: bytes of the array of %s (reduce-scatter, all-gather: the blocks\n"
           "# of all ranks). time: from a barrier until the slowest rank is done, in\n"
           "# place. algbw: size / median time, 1e9 bytes/s. busbw: algbw x 2 (n - 1) / n of\n"
           "# an all-reduce, (n - 1) / n of reduce-scatter and all-gather, 1 of the others:\n"
           "# what a link carries, comparable between numbers of ranks. broadcast: from the\n"
           "# last rank; exchange: both ways at once, by ranks half the job apart. wrong:\n"
           "# values, over all ranks.\n"
           "# %-4s %-14s %-4s %11s %9s %9s %7s %7s %5s\n",
           dt_dtype_name(b->type), "by", "collective", "sum", "size", "median us", "max us",
           "algbw", "busbw", "wrong");
}

static const char *order_name(const struct row *row)
{
    if (!dt_operation_kinds[row->operation].reduces)
        return "-";
    return row->order == DT_SUM_TREE ? "tree" : "fast";
}

static void print_row(const struct bench *b, struct row *row)
{
    const struct dt_bench_clock *clock = &row->clock;
    double median = dt_bench_median(clock), most = 0, n = b->info->size;
    double algbw = (double)row->bytes / median / 1e9;
    double busbw = algbw * (row->operation == DT_ALLREDUCE                 ? 2 * (n - 1) / n
                            : dt_operation_kinds[row->operation].in_blocks ? (n - 1) / n
                                                                           : 1);
    for (int64_t i = 0; i < clock->n; i++)
        most = fmax(most, clock->seconds[i]);
    if (row->first_bytes == 0) {
        row->first_bytes = row->bytes;
        row->latency = median;
    }
    if (busbw > row->best_bus) {
        row->best_bus = busbw;
        row->best_bytes = row->bytes;
    }
    if (b->route.json)
        printf("{\"bench\":\"comm\",\"backend\":\"%s\",\"collective\":\"%s\",\"sum\":\"%s\","
               "\"ranks\":%d,"
               "\"hosts\":%lld,\"oversubscribed\":%d,\"bytes\":%lld,\"count\":%lld,\"type\":\"%s\","
               "\"min_us\":%.2f,\"median_us\":%.2f,\"max_us\":%.2f,\"algbw_gb_per_s\":%.5f,"
               "\"busbw_gb_per_s\":%.5f,\"wrong\":%lld,\"iterations\":%lld}\n",
               b->route.name, dt_operation_kinds[row->operation].name, order_name(row),
               b->info->size, (long long)b->hosts, is_oversubscribed(b), (long long)row->bytes,
               (long long)row->count, dt_dtype_name(b->type), dt_bench_best(clock) * 1e6,
               median * 1e6, most * 1e6, algbw, busbw, (long long)row->wrong, (long long)clock->n);
    else
        printf("  %-4s %-14s %-4s %11lld %9.2f %9.2f %7.3f %7.3f %5lld\n", b->route.name,
               dt_operation_kinds[row->operation].name, order_name(row), (long long)row->bytes,
               median * 1e6, most * 1e6, algbw, busbw, (long long)row->wrong);
}

// ---- all rows of a backend

// `row` has the operation and its order.
static dt_status measure_sizes(struct bench *b, struct row *row)
{
    int64_t unit = dt_dtype_size(b->type), before = 0;
    unit *= dt_operation_kinds[row->operation].in_blocks ? b->info->size : 1;
    for (int64_t bytes = b->first; bytes <= b->last; bytes *= b->options->factor) {
        int64_t whole = dt_max_i64(bytes / unit, 1) * unit;
        if (whole > b->limit)
            b->skipped = b->skipped ? dt_min_i64(b->skipped, whole) : whole;
        if (whole == before || whole > b->limit)
            continue;
        row->bytes = before = whole;
        row->count = whole / dt_dtype_size(b->type);
        struct dt_collective c = collective_of(b, row);
        DT_TRY(clear(b, row->bytes)); // zeros, so that repeated sums do not overflow
        DT_TRY(time_row(b, &c, row));
        DT_TRY(check_row(b, &c, row));
        b->wrong += row->wrong;
        if (b->info->rank == 0)
            print_row(b, row);
    }
    return DT_OK;
}

static dt_status measure_operation(struct bench *b, enum dt_operation operation, struct row *row)
{
    bool chosen = b->options->collective == 0 || b->options->collective == (int)operation + 1;
    if (!chosen || (b->route.device && operation == DT_BROADCAST) ||
        (b->info->size == 1 && operation == DT_EXCHANGE))
        return DT_OK;
    *row = (struct row){.operation = operation};
    for (int i = 0; dt_known_order(b->info, operation, b->type, i, &row->order); i++) {
        row->connecting = row->best_bus = 0;
        row->first_bytes = 0;
        DT_TRY(measure_sizes(b, row));
        if (b->route.json || b->info->rank != 0 || row->first_bytes == 0)
            continue;
        printf("# %s %s%s: %.1f us at %lld bytes (the first call %.1f us)\n", b->route.name,
               dt_operation_kinds[operation].name, row->order == DT_SUM_TREE ? " by a tree" : "",
               row->latency * 1e6, (long long)row->first_bytes, row->connecting * 1e6);
        if (row->best_bus > 0)
            printf("# best busbw %.3f GB/s at %lld bytes\n", row->best_bus,
                   (long long)row->best_bytes);
    }
    return DT_OK;
}

static dt_status allocate(struct bench *b, int64_t bytes)
{
    bool is_device = b->route.device != NULL;
    DT_TRY(dt_stream_create(&b->route.backend, &b->route.stream));
    DT_TRY((is_device ? dt_alloc : dt_alloc_host)(&b->route.backend, bytes, &b->route.data));
    DT_TRY((is_device ? dt_alloc : dt_alloc_host)(&b->route.backend, bytes, &b->route.mine));
    return is_device ? dt_alloc_host(&b->route.backend, STAGE, &b->stage) : DT_OK;
}

static void release(struct bench *b)
{
    void (*give)(const struct dt_backend *, void *) = b->route.device ? dt_free : dt_free_host;
    dt_free_host(&b->route.backend, b->stage);
    give(&b->route.backend, b->route.mine);
    give(&b->route.backend, b->route.data);
    dt_stream_destroy(&b->route.backend, b->route.stream);
    if (b->route.device)
        b->route.device->table->close(b->route.device);
    b->route.device = NULL;
    b->route.data = b->route.mine = b->stage = NULL;
    b->route.stream = NULL;
}

// The largest array that every rank can hold twice (on a device, with a tree's scratch memory),
// within --max-memory or half of the free memory.
static dt_status choose_limit(struct bench *b, bool on_device)
{
    char text[64];
    struct dt_device_info info;
    DT_TRY(dt_backend_info(&b->route.backend, &info));
    dt_proc_value("/proc/meminfo", "MemAvailable", text, sizeof text);
    int64_t free_bytes =
        on_device ? info.memory_free : strtoll(text, NULL, 10) * 1024 / b->info->local_size;
    int64_t most = b->options->max_memory > 0 ? b->options->max_memory << 20 : free_bytes / 2;
    b->limit = on_device ? most * 2 / 5 : most / 2;
    return dt_allreduce(b->route.comm, &b->limit, 1, DT_I64, DT_MIN);
}

static dt_status measure_backend(struct bench *b)
{
    struct row *row = NULL;
    b->skipped = 0;
    int64_t unit = dt_dtype_size(b->type) * b->info->size;
    dt_status status = allocate(b, dt_max_i64(dt_min_i64(b->limit, b->last), unit));
    if (status == DT_OK)
        status = DT_NEW(&row, 1, "the times of a row");
    status = dt_agree(b->route.comm, status);
    if (status == DT_OK && b->options->pairs)
        status = dt_bench_pairs(&b->route, dt_min_i64(b->limit, b->last));
    for (int i = 0; i < DT_OPERATIONS && status == DT_OK && !b->options->pairs; i++)
        status = measure_operation(b, (enum dt_operation)i, row);
    if (status == DT_OK && b->skipped && b->info->rank == 0)
        dt_info("%s: skipping arrays of %lld bytes and more: each rank needs two, and the "
                "limit for one is %.1f MiB (%s)",
                b->route.name, (long long)b->skipped, (double)b->limit / 0x1p20,
                b->options->max_memory > 0 ? "--max-memory"
                                           : "half of the free memory; --max-memory changes it");
    free(row);
    release(b);
    return status;
}

// ---- all backends

static dt_status measure_all(struct bench *b)
{
    b->hosts = b->info->local_rank == 0;
    b->most_per_host = b->info->local_size;
    DT_TRY(dt_allreduce(b->route.comm, &b->hosts, 1, DT_I64, DT_SUM));
    DT_TRY(dt_allreduce(b->route.comm, &b->most_per_host, 1, DT_I64, DT_MAX));
    print_header(b);
    b->route.name = b->info->backend;
    DT_TRY(choose_limit(b, false));
    DT_TRY(measure_backend(b));
    if (!b->route.backend.table->device_comm || !dt_device_comm_known || b->info->size == 1)
        return DT_OK;
    DT_TRY(choose_limit(b, true));
    struct dt_device_comm_config config = {.comm = b->route.comm,
                                           .backend = &b->route.backend,
                                           .n_collectives = 1,
                                           .tree_bytes = dt_min_i64(b->limit, b->last)};
    b->route.name = dt_device_comm_known->name;
    DT_TRY(dt_device_comm_known->open(&config, &b->route.device));
    return measure_backend(b);
}

// "64", "16K", "25M", "1G"
static dt_status parse_bytes(const char *option, const char *text, int64_t *bytes)
{
    static const char units[] = "KMG";
    char *end;
    double number = strtod(text, &end);
    const char *unit = *end ? strchr(units, *end) : NULL;
    double value = unit ? ldexp(number, 10 * (int)(unit - units + 1)) : number;
    if (end == text || (*end && (!unit || end[1])) || !(value >= 1 && value <= 0x1p40))
        return DT_FAIL(DT_USER, "for example 8, 64K or 1G", "--%s: '%s' is not a size in bytes",
                       option, text);
    *bytes = (int64_t)value;
    return DT_OK;
}

dt_status dt_bench_comm(struct dt_comm *comm, const struct dt_bench_options *options)
{
    struct bench b = {.route = {.json = options->json, .comm = comm},
                      .options = options,
                      .info = &comm->info,
                      .type = types[options->type]};
    struct dt_device_choice_config device = {.comm = comm, .choice = options->device, .threads = 1};
    int sharing;
    DT_TRY(parse_bytes("first", options->first, &b.first));
    DT_TRY(parse_bytes("last", options->last, &b.last));
    if (b.first > b.last && !options->pairs)
        return DT_FAIL(DT_USER, "give a larger --last", "--first %s is above --last %s",
                       options->first, options->last);
    DT_TRY(dt_device_open(&device, &b.route.backend, &sharing));
    dt_status status = measure_all(&b);
    dt_backend_close(&b.route.backend);
    DT_TRY(status);
    if (b.wrong > 0 && comm->info.rank == 0)
        status = DT_FAIL(DT_MACHINE, "the column `wrong` says where", "%lld wrong values",
                         (long long)b.wrong);
    return dt_agree(comm, status);
}
