// `dtrain bench --reader` compares the shard reader's streaming rate with plain read() of the same
// file, both from the page cache, alternating in one run. Each piece of the file counts with its
// best round, so that other programs do not change the ratio.
#include "bench/bench.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/round.h"
#include "data/h5_pack.h"
#include "data/tokens.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PIECE = 1 << 20,       // bytes of one read, on either side
    MADE_TOKENS = 1 << 27, // tokens of the temporary shard: 256 MiB of uint16
    LEAST = 3,
    ALIGN = 64, // of the buffer, as in the loader
};
static const double default_seconds = 3;

enum { PLAIN, READER, CHECKED, SIDES };
static const char *const side_names[SIDES] = {"read()", "shard reader",
                                              "shard reader with checksums"};

struct reading {
    const char *path;
    int fd; // for read()
    int64_t file_bytes;
    struct dt_shard shard;
    struct dt_reader *reader;
    void *buffer;        // for both sides
    int64_t piece;       // tokens per read
    double *best[SIDES]; // seconds per piece
};

static int64_t piece_count(const struct reading *r, int side)
{
    int64_t whole = side == PLAIN ? r->file_bytes : r->shard.count;
    int64_t piece = side == PLAIN ? PIECE : r->piece;
    return dt_ceil_div(whole, piece);
}

static dt_status time_pass(const struct reading *r, int side)
{
    double start = dt_seconds();
    if (side == PLAIN && lseek(r->fd, 0, SEEK_SET) < 0)
        return DT_FAIL_ERRNO("read", r->path);
    for (int64_t i = 0; i < piece_count(r, side); i++) {
        int64_t first = i * r->piece, n = dt_min_i64(r->shard.count - first, r->piece);
        const void *tokens;
        if (side != PLAIN)
            DT_TRY(dt_tokens_read(r->reader, first, n, side == CHECKED, r->buffer, &tokens));
        else if (read(r->fd, r->buffer, PIECE) < 0)
            return DT_FAIL_ERRNO("read", r->path);
        double end = dt_seconds();
        if (end - start < r->best[side][i])
            r->best[side][i] = end - start;
        start = end;
    }
    return DT_OK;
}

static double rate(const struct reading *r, int side)
{
    double bytes = (double)r->file_bytes, seconds = 0;
    if (side != PLAIN)
        bytes = (double)(r->shard.count * dt_dtype_size(r->shard.type));
    for (int64_t i = 0; i < piece_count(r, side); i++)
        seconds += r->best[side][i];
    return bytes / seconds;
}

static void report(const struct reading *r, int n_sides, bool json)
{
    double plain = rate(r, PLAIN), reader = rate(r, READER), checked = rate(r, CHECKED);
    if (!json) {
        printf("%lld tokens of %s, %d KiB per read\n", (long long)r->shard.count,
               dt_dtype_name(r->shard.type), PIECE >> 10);
        for (int side = 0; side < n_sides; side++)
            printf("  %-28s %8.2f GB/s  %5.2f of read()\n", side_names[side], rate(r, side) / 1e9,
                   rate(r, side) / plain);
        return;
    }
    printf("{\"bench\":\"reader\",\"type\":\"%s\",\"tokens\":%lld,\"read_gb_per_s\":%.3f,"
           "\"reader_gb_per_s\":%.3f,\"ratio\":%.4f",
           dt_dtype_name(r->shard.type), (long long)r->shard.count, plain / 1e9, reader / 1e9,
           reader / plain);
    if (n_sides == SIDES)
        printf(",\"checked_gb_per_s\":%.3f,\"checked_ratio\":%.4f", checked / 1e9, checked / plain);
    printf("}\n");
}

static dt_status open_reading(struct reading *r)
{
    DT_TRY(dt_reader_open(r->path, &(struct dt_scan_rules){0}, &r->shard, &r->reader));
    if (r->shard.kind != &dt_tokens_reader)
        return DT_FAIL(DT_USER, "give a shard with /tokens", "%s has no /tokens", r->path);
    if (r->shard.count == 0)
        return DT_FAIL(DT_USER, "give a shard with tokens in it", "%s is empty", r->path);
    r->piece = PIECE / dt_dtype_size(r->shard.type);
    int64_t bytes = dt_tokens_read_bytes(&r->shard, r->piece);
    bytes = bytes > PIECE ? bytes : PIECE;
    DT_TRY(DT_NEW_ALIGNED(&r->buffer, dt_round_up(bytes, ALIGN), ALIGN, NULL, "a buffer"));
    for (int side = 0; side < SIDES; side++) {
        int64_t n = piece_count(r, side);
        DT_TRY(DT_NEW(&r->best[side], n, "the times of %lld reads", (long long)n));
        for (int64_t i = 0; i < n; i++)
            r->best[side][i] = INFINITY;
    }
    return DT_OK;
}

static dt_status read_file(const struct dt_bench_options *options, const char *path)
{
    struct reading r = {.path = path};
    DT_TRY(dt_open_read(path, &r.fd, &r.file_bytes));
    dt_status status = open_reading(&r);
    int n_sides = r.shard.hash_block > 0 ? SIDES : CHECKED;
    double start = dt_seconds();
    double seconds = options->seconds > 0 ? options->seconds : default_seconds;
    // A pass reads the whole file, which no CPU cache holds; the first pass brings it into the page
    // cache.
    for (int round = 0; status == DT_OK && (round <= LEAST || dt_seconds() - start < seconds);
         round++)
        for (int side = 0; side < n_sides && status == DT_OK; side++)
            status = time_pass(&r, side);
    if (status == DT_OK)
        report(&r, n_sides, options->json);
    dt_reader_close(r.reader);
    close(r.fd);
    for (int side = 0; side < SIDES; side++)
        free(r.best[side]);
    free(r.buffer);
    return status;
}

static dt_status make_shard(const char *path)
{
    struct dt_shard_writer *writer;
    uint16_t *tokens;
    const int64_t n = PIECE / (int64_t)sizeof *tokens;
    DT_TRY(DT_NEW(&tokens, n, "a piece of a shard"));
    dt_status status = dt_shard_create(path, DT_U16, MADE_TOKENS, &writer);
    for (int64_t done = 0; done < MADE_TOKENS && status == DT_OK; done += n) {
        for (int64_t i = 0; i < n; i++)
            tokens[i] = (uint16_t)(((done + i) * INT64_C(2654435761)) >> 16);
        status = dt_shard_append(writer, tokens, n);
    }
    free(tokens);
    if (status == DT_OK)
        return dt_shard_finish(writer, false);
    dt_shard_abandon(writer);
    return status;
}

dt_status dt_bench_reader(const struct dt_bench_options *options)
{
    const char *parent = getenv("TMPDIR");
    char folder[DT_PATH], path[DT_PATH];
    if (options->file)
        return read_file(options, options->file);
    DT_TRY(dt_path(folder, "%s/dtrain-bench-XXXXXX", parent && parent[0] ? parent : "/tmp"));
    if (!mkdtemp(folder))
        return DT_FAIL_ERRNO("create folder", folder);
    dt_status status = dt_path(path, "%s/tokens.h5", folder);
    if (status == DT_OK)
        status = make_shard(path);
    if (status == DT_OK)
        status = read_file(options, path);
    if (status == DT_OK)
        return dt_remove_tree(folder);
    dt_discard_tree(folder);
    return status;
}
