// Tests how a run recognises the shards that it was trained on: every value that training reads
// counts in shards without checksums, the checksums count in shards with them, and hashes are
// computed again when a file may have changed.
#include "base/log.h"
#include "data/reader.h"
#include "data/shard_cache.h"
#include "data/statistics.h"
#include "episode_cases.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>

enum { N = 20000 };

static uint64_t hash_of(const char *name, const struct dt_scan_rules *rules)
{
    uint64_t hash = scan(in_scratch("%s", name), rules)->shards[0].data_hash;
    CHECK(hash != 0, "%s has no hash", name);
    return hash;
}

static void write_shard(enum episode_layout layout, bool gzip)
{
    struct episode_types types = {H5T_IEEE_F32LE, H5T_STD_I64LE, H5T_STD_U8LE, H5T_IEEE_F64LE,
                                  gzip};
    write_episodes(in_scratch("a.h5"), layout, &types, 0, 6);
}

// Changes one value in a row that is not among sixteen evenly spread rows.
static void test_every_value(enum episode_layout layout, bool gzip)
{
    static const char *const paths[LAYOUTS][4] = {
        {"/frames", "/b", "/img", "/actions"},
        {"/data/demo_4/obs/a", "/data/demo_4/obs/b", "/data/demo_4/obs/img",
         "/data/demo_4/actions"},
        {"/episode_4/observations/a", "/episode_4/observations/b", "/episode_4/observations/img",
         "/episode_4/actions"},
        {"/observations", "/b", "/img", "/actions"},
        {"/subject_8/trial_4/obs/a", "/subject_8/trial_4/obs/b", "/subject_8/trial_4/obs/img",
         "/subject_8/trial_4/actions"}};
    static const char *const weights[LAYOUTS] = {"img[0]", "obs/img[0]", "observations/img[0]",
                                                 "img[0]", "obs/img[0]"};
    // The fourth episode starts at row 39 of shared datasets.
    hsize_t row = layout == NATIVE || layout == D4RL ? 39 + 18 : 18;
    struct dt_scan_rules rules = rules_of(layout, 0);
    write_shard(layout, gzip);
    uint64_t hash = hash_of("a.h5", &rules);
    CHECK(hash == hash_of("a.h5", &rules), "not the same twice");
    write_shard(layout, gzip);
    CHECK(hash == hash_of("a.h5", &rules), "not the same for the same data");
    for (int i = 0; i < 4; i++) {
        write_shard(layout, gzip);
        put_value(in_scratch("a.h5"), paths[layout][i], row, i == 2, 6);
        CHECK(hash != hash_of("a.h5", &rules), "%s: a change of %s is not seen",
              layout_name[layout], paths[layout][i]);
    }
    write_shard(layout, gzip);
    put_value(in_scratch("a.h5"), paths[layout][2], row, 0, 6); // column 0 of img is not an input
    CHECK(hash == hash_of("a.h5", &rules), "%s: a column that is not read counts",
          layout_name[layout]);
    strcpy(rules.weights, weights[layout]);
    uint64_t weighted = hash_of("a.h5", &rules);
    write_shard(layout, gzip);
    CHECK(weighted != hash_of("a.h5", &rules), "%s: a change of a weight is not seen",
          layout_name[layout]);
}

static uint64_t hash_some(const char *name, const struct dt_scan_rules *rules, int64_t bytes)
{
    struct dt_reader *reader;
    struct dt_shard shard = {0};
    CHECK_OK(dt_reader_open(in_scratch("%s", name), rules, &shard, &reader));
    CHECK_OK(dt_reader_hash_data(reader, &shard, bytes));
    dt_reader_close(reader);
    return shard.data_hash;
}

// Of large data a share is read, spread over the file. So of changes of single elements that share
// is noticed.
static void test_large(void)
{
    enum { BYTES = 20000, LIMIT = 1 << 13 }; // two pieces of 4 KiB
    static uint8_t tokens[BYTES];
    struct dt_scan_rules rules = {.seq_len = T};
    put_alone(in_scratch("large.h5"), "tokens", H5T_STD_U8LE, BYTES, tokens);
    int64_t offset = offset_of(in_scratch("large.h5"), "tokens");
    uint64_t some = hash_some("large.h5", &rules, LIMIT),
             all = hash_some("large.h5", &rules, BYTES);
    CHECK(hash_some("large.h5", &rules, INT64_MAX) != some, "all is not some");
    int64_t seen = 0, seen_by_all = 0, tried = 0;
    for (int64_t at = 0; at < BYTES; at += 61, tried++) {
        flip_bit(in_scratch("large.h5"), offset + at);
        seen += hash_some("large.h5", &rules, LIMIT) != some;
        seen_by_all += hash_some("large.h5", &rules, BYTES) != all;
        flip_bit(in_scratch("large.h5"), offset + at);
    }
    CHECK_INT(seen_by_all, tried);
    CHECK_NEAR((double)seen / (double)tried, (double)LIMIT / BYTES, 0.01);
    int64_t ends[] = {0, BYTES - 1};
    for (int i = 0; i < 2; i++) {
        flip_bit(in_scratch("large.h5"), offset + ends[i]);
        CHECK(hash_some("large.h5", &rules, LIMIT) != some, "the ends are read");
        flip_bit(in_scratch("large.h5"), offset + ends[i]);
    }
    struct dt_dataset dataset = {.n_shards = 1};
    CHECK_INT(dt_dataset_hash_bytes(&dataset), 256 << 20);
    dataset.n_shards = 8;
    CHECK_INT(dt_dataset_hash_bytes(&dataset), 128 << 20);
    dataset.n_shards = INT64_C(1) << 40;
    CHECK_INT(dt_dataset_hash_bytes(&dataset), 64 << 10);
}

static void put_pairs(const int32_t *ids, const int32_t *labels)
{
    hid_t file = new_file(in_scratch("pairs.h5"));
    put_matrix(file, "input_ids", H5T_STD_I32LE, N / T, T, ids);
    put_matrix(file, "labels", H5T_STD_I32LE, N / T, T, labels);
    H5Fclose(file);
}

// Tokens: the checksums count, or the tokens in shards without checksums; so do document starts and
// pairs.
static void test_tokens(void)
{
    static uint16_t tokens[N * 2];
    static int32_t ids[N];
    uint64_t sums[3] = {1, 2, 3}, starts[3] = {0, 5, 900};
    struct dt_scan_rules rules = {.seq_len = T};
    uint64_t hashes[6];
    for (int i = 0; i < 6; i++) {
        tokens[N] = i == 1; // far from both ends
        sums[1] = i == 3 ? 4 : 2;
        starts[1] = i == 5 ? 6 : 5;
        hid_t file = new_file(in_scratch("tokens.h5"));
        put_vector(file, "tokens", H5T_STD_U16LE, N * 2, tokens);
        if (i == 2 || i == 3) {
            put_vector(file, "tokens_xxh3", H5T_STD_U64LE, 3, sums);
            put_attribute(file, "tokens_xxh3", "block_bytes", H5T_STD_I32LE, 32768);
        }
        if (i >= 4)
            put_vector(file, "doc_starts", H5T_STD_U64LE, 3, starts);
        H5Fclose(file);
        hashes[i] = hash_of("tokens.h5", &rules);
        for (int j = 0; j < i; j++)
            CHECK(hashes[j] != hashes[i], "shards %d and %d are alike", j, i);
    }
    put_pairs(ids, ids);
    uint64_t hash = hash_of("pairs.h5", &rules);
    static int32_t other[N];
    other[N / 2] = 1;
    put_pairs(other, ids);
    CHECK(hash != hash_of("pairs.h5", &rules), "a change of input_ids is not seen");
    put_pairs(ids, other);
    CHECK(hash != hash_of("pairs.h5", &rules), "a change of labels is not seen");
    // The first row of one array and the last row of the other tell that a file holds other data.
    struct dt_shard before = scan(in_scratch("pairs.h5"), &rules)->shards[0], after;
    other[N / T * T - 1] = 1;
    put_pairs(ids, other);
    after = scan(in_scratch("pairs.h5"), &rules)->shards[0];
    CHECK(after.first_hash == before.first_hash && after.last_hash != before.last_hash,
          "the last row of labels");
    put_pairs(other, other);
    other[0] = 1;
    before = scan(in_scratch("pairs.h5"), &rules)->shards[0];
    put_pairs(other, other);
    after = scan(in_scratch("pairs.h5"), &rules)->shards[0];
    CHECK(after.first_hash != before.first_hash && after.last_hash == before.last_hash,
          "the first row of input_ids");
}

static void touch(const char *path, time_t seconds)
{
    const struct timespec times[2] = {{.tv_sec = seconds}, {.tv_sec = seconds}};
    CHECK_INT(utimensat(AT_FDCWD, path, times, 0), 0);
}

// A shard is hashed again only if its file may have changed.
static void test_cache(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    struct dt_shard_cache *cache;
    struct dt_reader *reader, *again;
    const char *path = in_scratch("a.h5");
    write_shard(NATIVE, false);
    int64_t at = offset_of(path, "/frames") + (39 + 18) * A * (int64_t)sizeof(float);
    touch(path, 1000);
    struct dt_dataset *dataset = scan(in_scratch("a.h5"), &rules);
    CHECK_OK(dt_shard_cache_open(dataset, &cache));
    CHECK_OK(dt_shard_cache_get(cache, 0, true, &reader));
    CHECK_INT(cache->checked[0], 2);
    flip_bit(path, at);
    touch(path, 1000); // the times are as before, so it is not read again
    dt_shard_cache_refresh(cache);
    CHECK_OK(dt_shard_cache_get(cache, 0, false, &again));
    CHECK(reader == again, "the same file was opened again");
    touch(path, 1001);
    dt_shard_cache_refresh(cache);
    for (int i = 0; i < 2; i++) // the error is repeated
        CHECK_FAILS(dt_shard_cache_get(cache, 0, false, &reader), DT_USER,
                    "a.h5 has changed since the start");
    flip_bit(path, at); // restores the data
    touch(path, 1002);
    CHECK_OK(dt_shard_cache_get(cache, 0, false, &reader));
    CHECK_INT(cache->files[0].changed_ns, INT64_C(1002000000000));
    CHECK_INT(cache->checked[0], 1); // checksums of the new file were not checked yet
    dt_shard_cache_close(cache);

    // The file may also have changed before the cache was opened.
    CHECK_OK(dt_shard_cache_open(dataset, &cache));
    CHECK_OK(dt_shard_cache_get(cache, 0, false, &reader));
    dt_shard_cache_close(cache);
    flip_bit(path, at);
    CHECK_OK(dt_shard_cache_open(dataset, &cache));
    CHECK_FAILS(dt_shard_cache_get(cache, 0, false, &reader), DT_USER, "has changed since");
    dt_shard_cache_close(cache);
}

// Each property of a shard that was read at the start must be the same later.
static void test_parts(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    struct dt_shard_cache *cache;
    struct dt_reader *reader;
    write_shard(NATIVE, false);
    struct dt_dataset *dataset = scan(in_scratch("a.h5"), &rules);
    struct dt_shard *s = dataset->shards;
    void *const parts[] = {&s->type,           &s->count,      &s->row,
                           &s->width,          &s->windows,    &s->layout.frame_width,
                           &s->layout.columns, &s->bytes.n,    &s->hash_block,
                           &s->doc_starts,     &s->first_hash, &s->last_hash};
    for (size_t i = 0; i <= sizeof parts / sizeof *parts; i++) {
        uint8_t *part = i > 0 ? parts[i - 1] : NULL;
        if (part)
            *part ^= 1;
        CHECK_OK(dt_shard_cache_open(dataset, &cache));
        dt_status status = dt_shard_cache_get(cache, 0, false, &reader);
        CHECK(status == (part ? DT_USER : DT_OK), "part %d: status %d", (int)i, (int)status);
        dt_error_clear();
        dt_shard_cache_close(cache);
        if (part)
            *part ^= 1;
    }
}

// The cache holds a limited number of shards open. One more closes the shard that was used least
// recently.
static void test_many(void)
{
    struct dt_scan_rules rules = rules_of(NATIVE, 0);
    struct dt_shard_cache *cache;
    struct dt_reader *first, *reader;
    bool held[DT_OPEN_SHARDS + 1] = {false};
    write_shard(NATIVE, false);
    for (int i = 0; i <= DT_OPEN_SHARDS; i++)
        CHECK_INT(link(in_scratch("a.h5"), in_scratch("many-%02d.h5", i)), 0);
    CHECK_OK(dt_shard_cache_open(scan(in_scratch("many-*.h5"), &rules), &cache));
    for (int i = 0; i < DT_OPEN_SHARDS; i++)
        CHECK_OK(dt_shard_cache_get(cache, i, false, i == 0 ? &first : &reader));
    CHECK_OK(dt_shard_cache_get(cache, 0, false, &reader));
    CHECK(reader == first, "all of them are not open at once");
    CHECK_OK(dt_shard_cache_get(cache, DT_OPEN_SHARDS, false, &reader));
    for (int i = 0; i < DT_OPEN_SHARDS; i++)
        held[cache->place[i].shard] = true;
    for (int i = 0; i <= DT_OPEN_SHARDS; i++)
        CHECK(held[i] == (i != 1), "shard %d is %s", i, held[i] ? "open" : "closed");
    dt_shard_cache_close(cache);
}

// Whether statistics of these numbers were kept earlier; keeps them.
static bool is_kept(const struct dt_dataset *dataset, enum dt_numbers which)
{
    int64_t n = dt_statistics_size(dataset, which);
    double *blocks = calloc((size_t)n, sizeof *blocks);
    bool found = dt_statistics_recall(in_scratch("kept"), dataset, which, blocks);
    CHECK(blocks[0] == (found ? 7 : 0) && blocks[1] == 0, "%g is kept", blocks[0]);
    blocks[0] = 7;
    dt_statistics_keep(in_scratch("kept"), dataset, which, blocks);
    free(blocks);
    return found;
}

static bool is_kept_by(const struct dt_scan_rules *rules)
{
    return is_kept(scan(in_scratch("a.h5"), rules), DT_NUMBERS_FRAMES);
}

// Statistics are recalled only for the same data, read in the same way. The last episode is in
// another file.
static void test_kept(void)
{
    const struct dt_scan_rules rules = rules_of(MINARI, 0);
    write_a(MINARI);
    write_episodes(in_scratch("more.hdf5"), MINARI, plain_types(), 5, 7);
    hid_t to = change("a.h5");
    H5Ldelete(to, "/episode_5", H5P_DEFAULT);
    H5Lcreate_external("more.hdf5", "/episode_6", to, "/episode_5", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(to);
    CHECK(!is_kept_by(&rules), "at first");
    CHECK(is_kept_by(&rules), "the same again");

    struct dt_scan_rules other[7];
    for (int i = 0; i < 7; i++)
        other[i] = rules;
    strcpy(other[0].inputs, "observations/a");
    strcpy(other[1].targets, "actions[0:2] actions[0]");
    strcpy(other[2].weights, "observations/img[0]");
    other[3].target[1].classes++;
    other[4].n_targets = 0;
    other[5].val_fraction = 0.25;
    strcpy(other[6].format, "minari");
    strcpy(other[6].episodes, "/episode_?");
    for (int i = 0; i < 6; i++)
        CHECK(!is_kept_by(&other[i]), "rules %d", i);
    CHECK(is_kept_by(&other[6]), "another pattern for the same episodes");
    CHECK(!is_kept(scan(in_scratch("a.h5"), &rules), DT_NUMBERS_TARGETS), "other numbers");

    struct dt_dataset *dataset = scan(in_scratch("a.h5"), &rules);
    struct dt_shard *s = dataset->shards;
    struct dt_scan_rules *now = &dataset->rules;
    void *parts[] = {&s->first_hash,    &s->last_hash,  &s->data_hash,      &s->links,
                     &s->count,         &s->file.bytes, &s->file.inode,     &s->file.changed_ns,
                     &now->seed,        &now->held_out, &s->file.status_ns, &now->time_axis,
                     &now->val_fraction};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        *(uint8_t *)parts[i] ^= 1;
        CHECK(!is_kept(dataset, DT_NUMBERS_FRAMES), "part %d", (int)i);
        *(uint8_t *)parts[i] ^= 1;
    }
    CHECK(is_kept(dataset, DT_NUMBERS_FRAMES), "all parts as they were");
    for (int i = 0; i < 2; i++) { // a file whose time was set back after a write has changed
        touch(in_scratch("%s", i ? "more.hdf5" : "a.h5"), 1000);
        CHECK(!is_kept_by(&rules), "file %d", i);
        CHECK(is_kept_by(&rules), "file %d again", i);
    }

    glob_t files;
    CHECK_INT(glob(in_scratch("kept/*"), 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++)
        flip_bit(files.gl_pathv[i], (int64_t)i);
    globfree(&files);
    CHECK(!is_kept_by(&rules), "damaged");
    CHECK(is_kept_by(&rules), "kept again");
    CHECK_INT(remove(in_scratch("more.hdf5")), 0);
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    make_scratch();
    for (enum episode_layout layout = 0; layout < LAYOUTS; layout++) {
        test_every_value(layout, false);
        test_every_value(layout, true);
    }
    RUN(test_large, test_tokens, test_cache, test_parts, test_many, test_kept);
    remove_scratch();
    return test_end();
}
