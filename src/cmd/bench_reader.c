// `dtrain bench --reader`: the shard reader's streaming rate against plain read() of the same file,
// both from the system's cache, turn about in one run.
#include "cmd/bench.h"

#include "base/clock.h"
#include "base/file.h"
#include "data/h5_pack.h"
#include "data/h5_shard.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PIECE = 1 << 20,       // bytes of one read, on either side
    MADE_TOKENS = 1 << 27, // of the shard made for the measurement: 256 MiB of uint16
    LEAST = 3,
};
static const double default_seconds = 3;

struct reading {
    const char *path;
    struct dt_shard shard;
    struct dt_shard_reader *reader;
    void *buffer;  // for either side
    int64_t piece; // tokens of one read
};

// The way a pass goes over the file; gives the bytes it got.
typedef dt_status (*pass)(const struct reading *reading, int64_t *bytes);

static dt_status pass_plain(const struct reading *r, int64_t *bytes)
{
    int fd;
    int64_t size;
    DT_TRY(dt_open_read(r->path, &fd, &size));
    dt_status status = DT_OK;
    for (*bytes = 0; status == DT_OK;) {
        ssize_t n = read(fd, r->buffer, PIECE);
        if (n < 0)
            status = DT_FAIL_ERRNO("read", r->path);
        if (n <= 0)
            break;
        *bytes += n;
    }
    close(fd);
    return status;
}

static dt_status pass_tokens(const struct reading *r, bool verify, int64_t *bytes)
{
    int64_t count = r->shard.count, size = dt_dtype_size(r->shard.type);
    for (int64_t first = 0; first < count; first += r->piece) {
        int64_t n = count - first < r->piece ? count - first : r->piece;
        const void *tokens;
        DT_TRY(dt_shard_read_tokens(r->reader, first, n, verify, r->buffer, &tokens));
    }
    *bytes = count * size;
    return DT_OK;
}

static dt_status pass_reader(const struct reading *r, int64_t *bytes)
{
    return pass_tokens(r, false, bytes);
}

static dt_status pass_checked(const struct reading *r, int64_t *bytes)
{
    return pass_tokens(r, true, bytes);
}

enum { PLAIN, READER, CHECKED, SIDES };
static const struct side {
    const char *name;
    pass pass;
} sides[SIDES] = {{"read()", pass_plain},
                  {"shard reader", pass_reader},
                  {"shard reader with checksums", pass_checked}};

static dt_status time_pass(const struct reading *r, int side, double *rate)
{
    int64_t bytes;
    double start = dt_seconds();
    DT_TRY(sides[side].pass(r, &bytes));
    *rate = (double)bytes / (dt_seconds() - start);
    return DT_OK;
}

// The best rate of each side; a first round, not counted, brings the file into the cache.
static dt_status measure(const struct reading *r, int n_sides, double seconds, double best[SIDES])
{
    double rate = 0, start = dt_seconds();
    for (int round = 0; round <= LEAST || dt_seconds() - start < seconds; round++)
        for (int side = 0; side < n_sides; side++) {
            DT_TRY(time_pass(r, side, &rate));
            best[side] = round > 0 && rate > best[side] ? rate : best[side];
        }
    return DT_OK;
}

static void report(const struct reading *r, int n_sides, const double best[SIDES], bool json)
{
    double ratio = best[READER] / best[PLAIN];
    if (!json) {
        printf("%lld tokens of %s, %d KiB a read\n", (long long)r->shard.count,
               dt_dtype_name(r->shard.type), PIECE >> 10);
        for (int side = 0; side < n_sides; side++)
            printf("  %-28s %8.2f GB/s  %5.2f of read()\n", sides[side].name, best[side] / 1e9,
                   best[side] / best[PLAIN]);
        return;
    }
    printf("{\"bench\":\"reader\",\"type\":\"%s\",\"tokens\":%lld,\"read_gb_per_s\":%.3f,"
           "\"reader_gb_per_s\":%.3f,\"ratio\":%.4f",
           dt_dtype_name(r->shard.type), (long long)r->shard.count, best[PLAIN] / 1e9,
           best[READER] / 1e9, ratio);
    if (n_sides == SIDES)
        printf(",\"checked_gb_per_s\":%.3f,\"checked_ratio\":%.4f", best[CHECKED] / 1e9,
               best[CHECKED] / best[PLAIN]);
    printf("}\n");
}

static dt_status open_reading(struct reading *r)
{
    DT_TRY(dt_shard_open(r->path, 0, 0, &r->shard, &r->reader));
    if (r->shard.schema != DT_SCHEMA_TOKENS)
        return DT_FAIL(DT_USER, "give a shard with /tokens", "%s holds no /tokens", r->path);
    if (r->shard.count == 0)
        return DT_FAIL(DT_USER, "give a shard with tokens in it", "%s is empty", r->path);
    r->piece = PIECE / dt_dtype_size(r->shard.type);
    int64_t bytes = dt_shard_read_bytes(&r->shard, r->piece);
    r->buffer = malloc((size_t)(bytes > PIECE ? bytes : PIECE));
    return r->buffer ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for a buffer");
}

static dt_status read_file(const struct dt_bench_options *options, const char *path)
{
    struct reading r = {.path = path};
    double best[SIDES] = {0};
    dt_status status = open_reading(&r);
    int n_sides = r.shard.hash_block > 0 ? SIDES : CHECKED;
    if (status == DT_OK)
        status =
            measure(&r, n_sides, options->seconds > 0 ? options->seconds : default_seconds, best);
    if (status == DT_OK)
        report(&r, n_sides, best, options->json);
    dt_shard_close(r.reader);
    free(r.buffer);
    return status;
}

static dt_status append_tokens(struct dt_shard_writer *writer, uint16_t *tokens, int64_t n)
{
    for (int64_t done = 0; done < MADE_TOKENS; done += n) {
        for (int64_t i = 0; i < n; i++)
            tokens[i] = (uint16_t)(((done + i) * INT64_C(2654435761)) >> 16);
        DT_TRY(dt_shard_append(writer, tokens, n));
    }
    return DT_OK;
}

static dt_status make_shard(const char *path)
{
    struct dt_shard_writer *writer;
    uint16_t *tokens = malloc(PIECE);
    if (!tokens)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %d bytes", PIECE);
    dt_status status = dt_shard_create(path, DT_U16, MADE_TOKENS, &writer);
    if (status == DT_OK) {
        status = append_tokens(writer, tokens, PIECE / (int64_t)sizeof *tokens);
        if (status == DT_OK)
            status = dt_shard_finish(writer, false);
        else
            dt_shard_abandon(writer);
    }
    free(tokens);
    return status;
}

static dt_status read_made(const struct dt_bench_options *options)
{
    const char *parent = getenv("TMPDIR");
    char folder[DT_PATH], path[DT_PATH];
    DT_TRY(dt_path(folder, "%s/dtrain-bench-XXXXXX", parent && parent[0] ? parent : "/tmp"));
    if (!mkdtemp(folder))
        return DT_FAIL_ERRNO("make the folder", folder);
    dt_status status = dt_path(path, "%s/tokens.h5", folder);
    if (status == DT_OK)
        status = make_shard(path);
    if (status == DT_OK)
        status = read_file(options, path);
    dt_status removed = dt_remove_tree(folder);
    return status == DT_OK ? removed : status;
}

dt_status dt_bench_reader(const struct dt_bench_options *options)
{
    return options->file ? read_file(options, options->file) : read_made(options);
}
