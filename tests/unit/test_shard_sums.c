// Tests what protects the data of a shard: checksums of /tokens of either kind, and the number and
// hash of /doc_starts. Each is made wrong alone, and verify and the loader must report it.
#include "data/pack.h"
#include "data/shard_cache.h"
#include "data/xxh3.h"
#include "loader_data.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <xxhash.h>

enum { S = 3, N = 3333, BLOCK = 512 }; // shard 3 of loader_data.h

static const char *write_packed(const char *name)
{
    const char *path = in_scratch("%s", name);
    write_hashed(path, S, 2, true);
    return path;
}

// Checks a status and its message; NULL: there must be no error.
static void expect(dt_status status, const char *path, const char *phrase)
{
    const char *message = dt_error_current()->message;
    if (!phrase)
        CHECK(status == DT_OK, "%s", message);
    else
        CHECK(status == DT_USER && strstr(message, path) && strstr(message, phrase),
              "status %d, \"%s\" does not name %s and \"%s\"", (int)status, message, path, phrase);
}

static void expect_verify(const char *path, const char *phrase)
{
    struct dt_shard shard;
    expect(dt_verify_shard(path, NULL, false, &shard), path, phrase);
}

// Trains only on the first block of the shard.
static void expect_loader(const char *path, bool verify, const char *phrase)
{
    struct dt_loader_config config = config_for(path);
    const struct dt_batch *batch;
    config.batch = 1;
    config.shuffle = false;
    config.rules.verify = verify;
    struct dt_loader *loader = open_loader(&config, 0);
    expect(dt_loader_next(loader, &batch, NULL), path, phrase);
    dt_loader_close(loader);
}

// A shard that is open and was read without verification is verified when a later user asks for it.
static void expect_later(const char *path, const char *phrase)
{
    struct dt_shard_cache *shards;
    struct dt_reader *reader;
    CHECK_OK(dt_shard_cache_open(config_for(path).dataset, &shards));
    CHECK_OK(dt_shard_cache_get(shards, 0, false, &reader));
    for (int time = 0; time < 2; time++)
        expect(dt_shard_cache_get(shards, 0, true, &reader), path, phrase);
    dt_shard_cache_close(shards);
}

static void expect_scan(const char *path, const char *phrase)
{
    struct dt_dataset *dataset;
    expect(dt_dataset_scan(path, &(struct dt_scan_rules){.seq_len = T}, &dataset), path, phrase);
}

static void write_start(const char *path, int64_t at, uint64_t value)
{
    int fd = open(path, O_RDWR);
    CHECK(pwrite(fd, &value, sizeof value, (off_t)at) == sizeof value, "cannot write %s", path);
    close(fd);
}

static int64_t place_of_start(const char *path, int64_t index)
{
    return offset_of(path, "doc_starts") + index * (int64_t)sizeof(uint64_t);
}

static void set_start(const char *path, int64_t index, uint64_t value)
{
    write_start(path, place_of_start(path, index), value);
}

// There are 84 document starts: 0, 40, 80 … of 3333 tokens. The block that is trained on ends at
// 80.
static void test_changed_start(void)
{
    const char *path = write_packed("start.h5");
    expect_verify(path, NULL);
    expect_loader(path, true, NULL);
    set_start(path, 70, 2801); // was 2800, which is far after the block
    expect_verify(path, "checksum mismatch in /doc_starts");
    expect_loader(path, true, "checksum mismatch in /doc_starts");
    expect_loader(path, false, NULL);
    expect_later(path, "checksum mismatch in /doc_starts");
    // The order of starts is checked whether hashes are or not.
    set_start(path, 70, 2880);
    expect_verify(path, "/doc_starts[71] is 2840");
    expect_loader(path, true, "/doc_starts[71] is 2840");
    expect_loader(path, false, "/doc_starts[71] is 2840");
    set_start(path, 70, 100);
    expect_loader(path, false, "/doc_starts[70] is 100");
    set_start(path, 70, 2760); // equal to the one before
    expect_loader(path, false, "/doc_starts[70] is 2760");
    set_start(path, 70, N);
    expect_loader(path, false, "/doc_starts[70] is 3333");
}

// Properties that distinguish a file from another.
enum part { INODE, SECONDS, NANOSECONDS, SIZE, PARTS };

// Damages the document start at byte `at` of r00.h5 in such a way that the file differs in one
// property.
static void damage(int64_t at, enum part part)
{
    const char *path = in_scratch("r00.h5"), *changed = path;
    struct stat before;
    CHECK(stat(path, &before) == 0, "no r00.h5");
    if (part == INODE)
        changed = write_packed("new");
    write_start(changed, at, 2801);
    if (part == SIZE)
        CHECK(truncate(changed, before.st_size + 1) == 0, "cannot grow a shard");
    before.st_mtim.tv_sec += part == SECONDS;
    before.st_mtim.tv_nsec = (before.st_mtim.tv_nsec + (part == NANOSECONDS)) % 1000000000;
    CHECK(utimensat(AT_FDCWD, changed, (struct timespec[]){before.st_mtim, before.st_mtim}, 0) == 0,
          "cannot set a time");
    if (part == INODE)
        CHECK(rename(changed, path) == 0, "cannot replace a shard");
}

// A shard that was checked and then replaced is checked again, both if it stays open between two
// validations and if it was closed to make room for others.
static void test_replaced(void)
{
    const char *other = write_packed("other"), *path = write_packed("r00.h5");
    for (int i = 1; i <= DT_OPEN_SHARDS; i++)
        CHECK(link(other, in_scratch("r%02d.h5", i)) == 0, "no r%02d.h5", i);
    const struct dt_loader_config config = config_for(in_scratch("r*.h5"));
    for (int closed = 0; closed < 2; closed++)
        for (enum part part = 0; part < PARTS; part++) {
            struct dt_shard_cache *shards;
            struct dt_reader *reader;
            int64_t at = place_of_start(path, 70);
            CHECK_OK(dt_shard_cache_open(config.dataset, &shards));
            for (int i = 0; i <= (closed ? DT_OPEN_SHARDS : 0); i++)
                CHECK_OK(dt_shard_cache_get(shards, i, true, &reader));
            damage(at, part);
            if (!closed)
                dt_shard_cache_refresh(shards);
            expect(dt_shard_cache_get(shards, 0, true, &reader), path, "checksum mismatch");
            dt_shard_cache_close(shards);
            write_packed("r00.h5");
        }
}

// A shard has changed if any of these properties differs from the start.
static void test_changed(void)
{
    const struct dt_loader_config config = config_for(write_packed("changed.h5"));
    struct dt_shard *known = &config.dataset->shards[0];
    struct dt_shard as_it_is = *known;
    char *const parts[] = {
        (char *)&known->type,       (char *)&known->count,      (char *)&known->windows,
        (char *)&known->row,        (char *)&known->width,      (char *)&known->layout.columns,
        (char *)&known->bytes,      (char *)&known->hash_block, (char *)&known->doc_starts,
        (char *)&known->first_hash, (char *)&known->last_hash};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct dt_shard_cache *shards;
        struct dt_reader *reader;
        *parts[i] ^= 1;
        CHECK_OK(dt_shard_cache_open(config.dataset, &shards));
        CHECK(dt_shard_cache_get(shards, 0, false, &reader) == DT_USER, "part %d", (int)i);
        CHECK_SAYS("changed.h5 has changed since the start");
        dt_error_clear();
        dt_shard_cache_close(shards);
        *known = as_it_is;
    }
}

static void delete_attribute(const char *shard, const char *name)
{
    hid_t file = change(shard);
    CHECK(H5Adelete_by_name(file, "tokens", name, H5P_DEFAULT) >= 0, "no %s", name);
    H5Fclose(file);
}

static void test_missing_starts(void)
{
    static const uint64_t starts[] = {0, 500, 700};
    const char *path = write_packed("missing.h5");
    remove_name("missing.h5", "doc_starts");
    expect_verify(path, "/doc_starts is missing");
    expect_scan(path, "/doc_starts is missing");
    replace_vector("missing.h5", "doc_starts", H5T_STD_U64LE, 3, starts);
    expect_verify(path, "/doc_starts has 3 entries; doc_starts_count of /tokens says 84");
    expect_scan(path, "/doc_starts has 3 entries; doc_starts_count of /tokens says 84");
    delete_attribute("missing.h5", "doc_starts_count");
    expect_scan(path, "doc_starts_xxh3 without doc_starts_count");
    delete_attribute("missing.h5", "doc_starts_xxh3"); // as in shards of older versions
    expect_verify(path, NULL);
    expect_loader(path, true, NULL);
    remove_name("missing.h5", "doc_starts");
    expect_verify(path, NULL);
    path = write_packed("half.h5");
    delete_attribute("half.h5", "doc_starts_xxh3");
    expect_scan(path, "doc_starts_count without doc_starts_xxh3");
}

// A shard within one long document has no start, which its attribute says. The same tokens with
// other documents are other data for a run that is resumed.
static void test_no_start(void)
{
    struct dt_shard_writer *writer;
    const char *path = in_scratch("none.h5");
    write_packed("start.h5");
    CHECK_OK(dt_shard_create(path, DT_U16, N, &writer));
    CHECK_OK(dt_shard_append(writer, tokens_of(S, 2), N));
    CHECK_OK(dt_shard_finish(writer, true));
    expect_verify(path, NULL);
    expect_loader(path, true, NULL);
    const struct dt_shard with = config_for(in_scratch("start.h5")).dataset->shards[0];
    const struct dt_shard without = config_for(path).dataset->shards[0];
    CHECK(with.first_hash == without.first_hash, "the tokens differ");
    CHECK(with.last_hash != without.last_hash, "documents do not count");
    remove_name("none.h5", "doc_starts");
    expect_verify(path, "/doc_starts is missing");
}

// Writes a shard with tokens and checksums of one or both kinds, each with its own block size.
static const char *write_sums(const char *name, int64_t xxh3_block, int64_t xxh64_block)
{
    const char *path = in_scratch("%s", name), *tokens = tokens_of(S, 2);
    static uint64_t sums[2][N];
    hid_t file = new_file(path);
    put_vector(file, "tokens", H5T_STD_U16LE, N, tokens);
    for (int kind = 0; kind < 2; kind++) {
        int64_t block = kind == 0 ? xxh3_block : xxh64_block, n = 0;
        const char *dataset = kind == 0 ? "tokens_xxh3" : "tokens_xxh64";
        for (int64_t at = 0; block > 0 && at < 2 * N; at += block) {
            size_t length = (size_t)(2 * N - at < block ? 2 * N - at : block);
            sums[kind][n++] =
                kind == 0 ? XXH3_64bits(tokens + at, length) : XXH64(tokens + at, length, 0);
        }
        if (n == 0)
            continue;
        put_vector(file, dataset, H5T_STD_U64LE, n, sums[kind]);
        put_attribute(file, dataset, "block_bytes", H5T_STD_I32LE, block);
    }
    H5Fclose(file);
    return path;
}

static void test_kinds(void)
{
    static const int64_t blocks[][2] = {{BLOCK, 0}, {0, BLOCK}, {BLOCK, 2 * BLOCK}, {1000, BLOCK}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        const char *path = write_sums("sums.h5", blocks[i][0], blocks[i][1]);
        const char *used = blocks[i][0] > 0 ? "/tokens_xxh3 has" : "/tokens_xxh64 has";
        expect_verify(path, NULL);
        expect_loader(path, true, NULL);
        flip_bit(path, offset_of(path, "tokens") + 5);
        expect_verify(path, "checksum mismatch in /tokens, block 0 (bytes 0 to");
        expect_loader(path, true, used);
    }
    // If both are there, training checks one and verify both.
    const char *path = write_sums("both.h5", BLOCK, BLOCK);
    flip_bit(path, offset_of(path, "tokens_xxh64"));
    expect_verify(path, "/tokens_xxh64 has");
    expect_loader(path, true, NULL);
    path = write_sums("both.h5", BLOCK, BLOCK);
    flip_bit(path, offset_of(path, "tokens_xxh3"));
    expect_verify(path, "/tokens_xxh3 has");
    expect_loader(path, true, "/tokens_xxh3 has");
}

// There are so many checksums that they fill several pages (PAGE in h5_hashes.c), and some windows
// cross from one page to the next.
static void test_pages(void)
{
    const char *path = write_sums("pages.h5", 4, 0);
    struct dt_loader_config config = config_for(path);
    const struct dt_batch *batch;
    dt_status status = DT_OK;
    config.batch = 1;
    config.shuffle = false;
    struct dt_loader *loader = open_loader(&config, 0);
    for (int64_t i = 0; i <= (N - 1) / T; i++) // then the first one again, in the next epoch
        next_batch(loader);
    dt_loader_close(loader);
    // The message names the block by its place in the file.
    flip_bit(path, offset_of(path, "tokens") + 2802);
    loader = open_loader(&config, 0);
    for (int64_t i = 0; i < (N - 1) / T && status == DT_OK; i++)
        status = dt_loader_next(loader, &batch, NULL);
    expect(status, path, "block 700 (bytes 2800 to 2803)");
    dt_loader_close(loader);
}

// Blocks of 1024 bytes in stripes of 64: every length up to more than three blocks, at odd
// addresses.
static void test_xxh3(void)
{
    enum { SHORT = 3400, LONG = 1 << 20 };
    static unsigned char bytes[LONG + 64];
    uint32_t state = 1;
    for (int i = 0; i < LONG + 64; i++) {
        state = state * 1664525u + 1013904223u;
        bytes[i] = (unsigned char)(state >> 24);
    }
    for (size_t n = 0; n <= SHORT; n++)
        CHECK(dt_xxh3(bytes + n % 61, n) == XXH3_64bits(bytes + n % 61, n), "%zu bytes", n);
    for (size_t n = LONG - 70; n <= LONG; n++)
        CHECK(dt_xxh3(bytes, n) == XXH3_64bits(bytes, n), "%zu bytes", n);
    memset(bytes, 0xff, sizeof bytes);
    CHECK(dt_xxh3(bytes, LONG) == XXH3_64bits(bytes, LONG), "sums that overflow");
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    make_scratch();
    RUN(test_changed_start, test_replaced, test_changed, test_missing_starts, test_no_start,
        test_kinds, test_pages, test_xxh3);
    remove_scratch();
    return test_end();
}
