// Tests packing and verifying: which files are packed into which shard, what is refused, and that a
// failure leaves no file.
#include "base/log.h"
#include "captured.h"
#include "durable.h"
#include "packed.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <xxhash.h>

// Seconds that every reading of the clock adds, which then stands still between readings; 0: the
// real clock.
static time_t look_s;

int clock_gettime(clockid_t clock, struct timespec *t)
{
    static struct timespec looked;
    if (look_s == 0)
        return (int)syscall(SYS_clock_gettime, clock, t);
    if (looked.tv_sec == 0)
        syscall(SYS_clock_gettime, clock, &looked);
    looked.tv_sec += look_s;
    *t = looked;
    return 0;
}

static struct dt_pack_config config_of(const char *const *inputs, int n, const char *output)
{
    return (struct dt_pack_config){
        .inputs = inputs,
        .n_inputs = n,
        .output = output,
        .shard_bytes = 1 << 20,
        .seed = 1,
    };
}

static dt_status pack_one(struct dt_pack_config config, const char *input,
                          struct dt_pack_result *result)
{
    const char *inputs[] = {input};
    config.inputs = inputs;
    config.n_inputs = 1;
    return dt_pack(&config, result);
}

static void expect_refusal(struct dt_pack_config config, const char *input, const char *phrase)
{
    struct dt_pack_result result;
    CHECK_FAILS(pack_one(config, input, &result), DT_USER, phrase);
}

// Returns the number of entries of a folder without . and .., hidden ones included.
static int entries(const char *folder)
{
    DIR *dir = opendir(folder);
    int n = 0;
    if (!dir)
        return -1;
    while (readdir(dir))
        n++;
    closedir(dir);
    return n - 2;
}

static void make_folder(void)
{
    mkdir(in_scratch("in"), 0777);
    mkdir(in_scratch("in/sub"), 0777);
    mkdir(in_scratch("in/.git"), 0777);
    put_text(in_scratch("in/b.txt"), "bbb");
    put_text(in_scratch("in/B.txt"), "BB");
    put_text(in_scratch("in/sub/z.txt"), "zz");
    put_text(in_scratch("in/sub/\xc3\xa9"), "\xc3\xa9");
    put_text(in_scratch("in/empty"), "");
    put_text(in_scratch("in/.hidden"), "hidden");
    put_text(in_scratch("in/.git/config"), "hidden");
    put_bytes(in_scratch("in/binary"), "ab\0cd", 5);
    char late[8192];
    memset(late, 'x', sizeof late);
    late[sizeof late - 1] = 0; // the last byte that is checked
    put_bytes(in_scratch("in/sub/late"), late, sizeof late);
    put_text(in_scratch("outside"), "outside");
    CHECK(symlink("../outside", in_scratch("in/link")) == 0, "no link");
    CHECK(symlink("nowhere", in_scratch("in/dangling")) == 0, "no link");
    CHECK(symlink("..", in_scratch("in/sub/loop")) == 0, "no link");
    CHECK(symlink("self", in_scratch("in/self")) == 0, "no link");
    mkfifo(in_scratch("in/pipe"), 0666);
}

static void test_folder(void)
{
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("out"));
    CHECK_OK(pack_one(config, in_scratch("in"), &result));
    CHECK_INT(result.files, 5);
    CHECK_INT(result.vocab_size, 256);
    CHECK_INT(result.val_shards, 0);
    CHECK_STR(read_side(config.output, "train", 1), "|BB|bbb|outside|zz|\xc3\xa9");
    CHECK_INT(entries(config.output), 1);

    // The output is inside the input. A file that is named itself is packed whatever it holds.
    const char *inputs[] = {in_scratch("in/binary"), in_scratch("in"), in_scratch("in/.hidden")};
    config = config_of(inputs, 3, in_scratch("in/sub/shards"));
    for (int again = 0; again < 2; again++) {
        config.force = again;
        CHECK_OK(dt_pack(&config, &result));
        CHECK_INT(result.files, 7);
        CHECK_INT(result.train_tokens, 5 + 2 + 3 + 7 + 2 + 2 + 6);
    }
    config.format = DT_PACK_U8; // binary files are packed, but not dtrain's own shards
    CHECK_OK(dt_pack(&config, &result));
    CHECK_INT(result.files, 9);
    CHECK_OK(dt_remove_tree(config.output));
}

// Shards have equal sizes, and documents cross their borders.
static void test_borders(void)
{
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("borders"));
    static const int64_t shard_bytes[] = {4, 5, 7}, shards[] = {4, 4, 3};
    for (int i = 0; i < 3; i++) {
        config.shard_bytes = shard_bytes[i];
        config.force = i > 0;
        CHECK_OK(pack_one(config, in_scratch("in"), &result));
        CHECK_INT(result.train_tokens, 16);
        CHECK_INT(result.train_shards, shards[i]);
        // The fourth shard of the run before is removed.
        CHECK_INT(entries(config.output), shards[i]);
        CHECK_STR(read_side(config.output, "train", shards[i]), "|BB|bbb|outside|zz|\xc3\xa9");
    }
}

static void test_split(void)
{
    char expect[2][64], first[64] = "";
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("split"));
    int differ = 0, unsorted = 0;
    mkdir(in_scratch("many"), 0777);
    for (char c = 'a'; c < 'u'; c++) {
        char text[2] = {c, 0};
        put_text(in_scratch("many/%c", c), text);
    }
    config.force = true;
    for (int i = 0; i < 12; i++) {
        config.val_fraction = 0.25;
        config.seed = (uint64_t)i / 2;
        CHECK_OK(pack_one(config, in_scratch("many"), &result));
        CHECK_INT(result.train_tokens, 15);
        CHECK_INT(result.val_tokens, 5);
        strcpy(expect[i % 2], read_side(config.output, "val", 1));
        char *train = read_side(config.output, "train", 1);
        // Each file is on one side, and training files are in order.
        for (char c = 'a'; c < 'u'; c++)
            CHECK((strchr(train, c) != NULL) != (strchr(expect[i % 2], c) != NULL), "%c", c);
        for (char *p = train + 1; p[0] && p[1]; p += 2)
            CHECK(p[2] == 0 || p[2] > p[0], "out of order: %s", train);
        if (i % 2)
            CHECK_STR(expect[1], expect[0]);
        for (char *p = expect[i % 2]; *p; p += 2)
            CHECK(*p == '|', "not a document for each file: %s", expect[i % 2]);
        for (char *p = expect[i % 2] + 1; p[0] && p[1]; p += 2)
            unsorted += p[2] != 0 && p[2] < p[0];
        differ += i > 0 && strcmp(expect[i % 2], first) != 0;
        strcpy(first, expect[i % 2]);
    }
    CHECK(differ > 0, "no seed changes the split");
    CHECK(unsorted > 0, "validation files are in the order of their names");

    config.val_fraction = 0.28; // of 20 files, rounded to the nearest number
    CHECK_OK(pack_one(config, in_scratch("many"), &result));
    CHECK_INT(result.val_tokens, 6);
    config.val_fraction = 0.001; // each side has at least one file
    CHECK_OK(pack_one(config, in_scratch("many"), &result));
    CHECK_INT(result.val_tokens, 1);
    config.val_fraction = 0.999;
    CHECK_OK(pack_one(config, in_scratch("many"), &result));
    CHECK_INT(result.train_tokens, 1);
    put_text(in_scratch("single"), "0123456789"); // a single file: validation gets its end
    config.val_fraction = 0.3;
    CHECK_OK(pack_one(config, in_scratch("single"), &result));
    CHECK_STR(read_side(config.output, "train", 1), "|0123456");
    CHECK_STR(read_side(config.output, "val", 1), "789");
}

enum { RAW = 30011 };

static void test_raw(enum dt_pack_format format, int64_t size)
{
    static uint32_t u32[RAW];
    static uint16_t u16[RAW];
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("raw"));
    for (int64_t p = 0; p < RAW; p++) {
        u32[p] = p == 20000 ? UINT32_MAX : (uint32_t)(p * p);
        u16[p] = (uint16_t)(p == 20000 ? 60000 : p % 1000);
    }
    const char *data = size == 4 ? (char *)u32 : (char *)u16;
    put_bytes(in_scratch("raw.bin"), data, (size_t)(RAW * size));
    config.format = format;
    config.shard_bytes = 20000;
    config.val_fraction = 0.1;
    config.force = true;
    CHECK_OK(pack_one(config, in_scratch("raw.bin"), &result));
    CHECK_INT(result.val_tokens, 3001);
    CHECK_INT(result.train_tokens, RAW - 3001);
    CHECK_INT(result.train_shards, (27010 * size + 19999) / 20000);
    CHECK_INT(result.vocab_size, size == 4 ? INT64_C(1) << 32 : 60001);
    int64_t at = 0;
    for (int64_t i = 0; i < result.train_shards; i++) {
        char path[DT_PATH];
        uint64_t want;
        struct dt_shard shard;
        snprintf(path, sizeof path, "%s/train-%05ld.h5", config.output, (long)i);
        CHECK_OK(dt_verify_shard(path, NULL, false, &shard));
        CHECK_INT(shard.vocab_size, result.vocab_size);
        CHECK_INT(shard.hash_block, 16384);
        CHECK(!shard.doc_starts, "raw tokens have no documents");
        struct dt_reader *reader;
        CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 1}, &shard, &reader));
        CHECK_OK(dt_reader_fingerprint(reader, &shard));
        dt_reader_close(reader);
        int64_t bytes = shard.count * size;
        CHECK(bytes <= 20000 && bytes > 17000, "a shard of %ld bytes", (long)bytes);
        want = XXH3_64bits(data + at, 16384);
        CHECK(shard.first_hash == want, "shard %ld: first hash", (long)i);
        want = XXH3_64bits(data + at + 16384, (size_t)(bytes - 16384));
        CHECK(shard.last_hash == want, "shard %ld: last hash", (long)i);
        at += bytes;
    }
    CHECK_INT(at, 27010 * size);

    config.output = in_scratch("refused");
    config.vocab_size = size == 4 ? UINT32_MAX : 60000;
    expect_refusal(config, in_scratch("raw.bin"), "token 20000 is");
    config.vocab_size++;
    CHECK_OK(pack_one(config, in_scratch("raw.bin"), &result));
    CHECK_OK(dt_remove_tree(config.output));
    put_bytes(in_scratch("odd.bin"), data, (size_t)(RAW * size - 1));
    expect_refusal(config, in_scratch("odd.bin"), "not a multiple of");
    CHECK(!dt_file_exists(config.output), "a refusal leaves a folder");
}

// Files longer than what is read at a time: the message names the token's place in the file.
static void test_far_token(void)
{
    enum { FAR = (1 << 20) + 7 };
    static uint32_t tokens[FAR + 1] = {[FAR] = 7};
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("far"));
    put_bytes(in_scratch("far.bin"), (const char *)tokens, sizeof tokens);
    config.format = DT_PACK_U32;
    config.vocab_size = 7;
    expect_refusal(config, in_scratch("far.bin"), "token 1048583 is 7,");
    config.format = DT_PACK_U16;
    expect_refusal(config, in_scratch("far.bin"), "token 2097166 is 7,");
}

static void test_refusals(void)
{
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("out"));
    struct dt_pack_result result;
    expect_refusal(config, in_scratch("in"), "already contains shards");
    CHECK_STR(read_side(config.output, "train", 1), "|BB|bbb|outside|zz|\xc3\xa9");
    config.output = in_scratch("new");
    expect_refusal(config, in_scratch("absent"), "absent");
    expect_refusal(config, in_scratch("in/self"), "self");
    expect_refusal(config, in_scratch("in/pipe"), "not a regular file");
    expect_refusal(config, in_scratch("in/empty"), "nothing to pack");
    expect_refusal(config, in_scratch("in/.git/../sub/shards"), "shards");
    CHECK_INT(dt_pack(&config, &result), DT_USER);
    static const double fractions[] = {1, -0.1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        config.val_fraction = fractions[i];
        expect_refusal(config, in_scratch("in"), "validation fraction");
    }
    config.val_fraction = 0;
    config.shard_bytes = 0;
    expect_refusal(config, in_scratch("in"), "too small");
    CHECK(!dt_file_exists(config.output), "a refusal leaves a folder");
    config.shard_bytes = 100;
    config.output = in_scratch("outside");
    expect_refusal(config, in_scratch("in"), "outside");
    config.output = in_scratch("outside/sub");
    expect_refusal(config, in_scratch("in"), "outside");
}

// Packs in a child in which no file may grow beyond `most` bytes, since the library loses some
// memory of files that it could not close. Returns the status, or 99 if the message is wrong.
static int pack_within(const struct dt_pack_config *config, const char *input, rlim_t most)
{
    struct dt_pack_result result;
    int exit_status = 0;
    pid_t child = fork();
    if (child == 0) {
        limit_file_size(most);
        dt_status status = pack_one(*config, input, &result);
        bool said = status == DT_OK || strstr(dt_error_current()->message, "File too large");
        _exit(said ? (int)status : 99);
    }
    CHECK(waitpid(child, &exit_status, 0) == child, "no child");
    return WIFEXITED(exit_status) ? WEXITSTATUS(exit_status) : -1;
}

// The disk is full after some bytes of a file: old shards stay, and nothing is added.
static void test_full_disk(void)
{
    static char bytes[100000];
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("full"));
    memset(bytes, 'x', sizeof bytes);
    put_text(in_scratch("small"), "small");
    put_bytes(in_scratch("big"), bytes, sizeof bytes);
    CHECK_OK(pack_one(config, in_scratch("small"), &result));
    config.force = true;
    int failures = 0, status = DT_MACHINE;
    for (rlim_t most = 200; most < 115000 && status == DT_MACHINE; most += 1111) {
        status = pack_within(&config, in_scratch("big"), most);
        CHECK_INT(entries(config.output), 1);
        failures += status == DT_MACHINE;
        if (status == DT_MACHINE)
            CHECK_STR(read_side(config.output, "train", 1), "|small");
    }
    CHECK_OK(status);
    CHECK(failures > 80, "%d failures", failures);
    config.output = in_scratch("full2");
    CHECK_INT(pack_within(&config, in_scratch("big"), 50000), DT_MACHINE);
    CHECK(!dt_file_exists(config.output), "a failure leaves a folder");
}

// The remains of a killed run are removed, and files of others stay.
static void test_leftovers(void)
{
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("left"));
    mkdir(in_scratch("left"), 0777);
    put_text(in_scratch("left/.train-00007.h5.tmp"), "half");
    put_text(in_scratch("left/notes.txt"), "notes");
    put_text(in_scratch("left/train-0001.h5"), "not one of ours");
    CHECK_OK(pack_one(config, in_scratch("in"), &result));
    CHECK_INT(entries(config.output), 3);
    CHECK(!dt_file_exists(in_scratch("left/.train-00007.h5.tmp")), "a leftover stays");
}

// Shards survive a power failure. The folder that their own is created in is synced, then their
// bytes, and again when the vocabulary is known; then they are renamed, and their folder is synced.
static void test_durable(void)
{
    struct dt_pack_result result;
    char expected[512];
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("lasting"));
    put_bytes(in_scratch("some"), "some text", 9);
    config.val_fraction = 0.5;
    durable[0] = 0;
    CHECK_INT(pack_one(config, in_scratch("some"), &result), DT_OK);
    snprintf(expected, sizeof expected,
             "fsync %s\n"
             "fsync .train-00000.h5.tmp\nfsync .val-00000.h5.tmp\n"
             "fsync .train-00000.h5.tmp\nfsync .val-00000.h5.tmp\n"
             "rename train-00000.h5\nrename val-00000.h5\nfsync lasting\n",
             strrchr(scratch, '/') + 1);
    CHECK_STR(durable, expected);
}

static void expect_damage(const char *path, const char *phrase)
{
    struct dt_shard shard;
    CHECK_FAILS(dt_verify_shard(path, NULL, false, &shard), DT_USER, phrase);
}

static void test_verify(void)
{
    static uint16_t tokens[RAW];
    enum { BAD = 3 * 1024 - 1 }; // 1024 starts are read at a time
    static uint64_t starts[BAD + 1] = {0, 500, 400};
    struct dt_pack_result result;
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("verify"));
    put_bytes(in_scratch("zeros"), tokens, sizeof tokens);
    config.format = DT_PACK_U16;
    CHECK_OK(pack_one(config, in_scratch("zeros"), &result));
    const char *path = in_scratch("verify/train-00000.h5");
    flip_bit(path, offset_of(path, "tokens") + 2 * RAW - 1);
    expect_damage(path, "checksum mismatch in /tokens, block 3");
    CHECK(truncate(path, dt_file_size(path) - 100) == 0, "cannot truncate");
    expect_damage(path, "truncated");
    expect_damage(in_scratch("absent"), "No such file");

    hid_t file = new_file(in_scratch("plain.h5"));
    tokens[777] = 50;
    put_vector(file, "tokens", H5T_STD_U16LE, RAW, tokens);
    put_attribute(file, "tokens", "vocab_size", H5T_STD_I64LE, 50);
    H5Fclose(file);
    expect_damage(
        in_scratch("plain.h5"),
        "/tokens at offset 777 is 50; a token must be from 0 to 49 (attribute vocab_size = 50)");
    file = new_file(in_scratch("docs.h5"));
    put_vector(file, "tokens", H5T_STD_U16LE, RAW, tokens);
    put_vector(file, "doc_starts", H5T_STD_U64LE, 3, starts);
    H5Fclose(file);
    expect_damage(in_scratch("docs.h5"), "/doc_starts[2] is 400");
    for (uint64_t i = 0; i < BAD; i++)
        starts[i] = 2 * i;
    for (int n = 1023; n <= 1500; n += n < 1025 ? 1 : 475) { // a whole piece, or parts of one
        struct dt_shard shard;
        file = new_file(in_scratch("docs.h5"));
        put_vector(file, "tokens", H5T_STD_U16LE, RAW, tokens);
        put_vector(file, "doc_starts", H5T_STD_U64LE, n, starts);
        H5Fclose(file);
        CHECK_OK(dt_verify_shard(in_scratch("docs.h5"), NULL, false, &shard));
    }
    starts[BAD] = 7;
    file = new_file(in_scratch("docs.h5"));
    put_vector(file, "tokens", H5T_STD_U16LE, RAW, tokens);
    put_vector(file, "doc_starts", H5T_STD_U64LE, BAD + 1, starts);
    H5Fclose(file);
    expect_damage(in_scratch("docs.h5"), "/doc_starts[3071] is 7");
}

// Documents of one token, then two of 15,000, then of 7 tokens: the place of a start cannot be
// computed from its number. There are more entries than are read at once.
static void test_starts_of_windows(void)
{
    enum { N = 60000, WINDOW = 50 };
    static uint8_t tokens[N], marks[WINDOW], all[N + WINDOW];
    static uint64_t starts[N];
    struct dt_shard shard;
    struct dt_reader *reader;
    struct dt_h5_starts documents;
    int n = 0;
    for (uint64_t at = 0; at < N; at += at < 4000 ? 1 : at < 30000 ? 15000 : 7) {
        starts[n++] = at;
        all[at] = 1;
    }
    const char *path = in_scratch("uneven.h5");
    hid_t file = new_file(path);
    put_vector(file, "tokens", H5T_STD_U8LE, N, tokens);
    put_vector(file, "doc_starts", H5T_STD_U64LE, n, starts);
    H5Fclose(file);
    CHECK_OK(dt_verify_shard(path, NULL, false, &shard));
    CHECK_OK(dt_reader_open(path, &(struct dt_scan_rules){.seq_len = 1}, &shard, &reader));
    CHECK_OK(dt_h5_starts_open(&reader->file, &reader->arrays[0], &documents));
    for (int64_t first = 0; first + WINDOW <= N; first += first % 4000 < 3 ? 1 : 53) {
        CHECK_OK(dt_h5_starts_mark(&documents, first, WINDOW, marks));
        CHECK(memcmp(marks, all + first, WINDOW) == 0, "from %ld", (long)first);
    }
    dt_h5_array_close(&documents.array);
    dt_reader_close(reader);
}

static void test_verify_pairs(void)
{
    static int32_t ids[40], labels[40];
    struct dt_shard shard;
    for (int i = 0; i < 3; i++) {
        hid_t file = new_file(in_scratch("pairs.h5")), i32 = H5T_STD_I32LE;
        ids[33] = i == 1 ? -1 : 1;
        labels[34] = i == 2 ? -5 : -100;
        put_matrix(file, "input_ids", i32, 10, 4, ids);
        put_matrix(file, "labels", i32, 10, 4, labels);
        H5Fclose(file);
        if (i == 0)
            CHECK_OK(dt_verify_shard(in_scratch("pairs.h5"), NULL, false, &shard));
        else
            expect_damage(in_scratch("pairs.h5"),
                          i == 1 ? "/input_ids at row 8, column 1 is -1; a token must be from 0"
                                 : "/labels at row 8, column 2 is -5; a label must be from 0 to "
                                   "2147483647, or -100 for none");
    }
}

// The live line after each MiB shows the share, MB of the total, MB/s so far, and how long the rest
// takes at that rate.
static void test_progress(void)
{
    enum { BYTES = 4000000, PIECES = 4 };
    struct dt_pack_config config = config_of(NULL, 0, in_scratch("progress"));
    struct dt_pack_result result;
    char *text = malloc(BYTES);
    const char *line, *input = in_scratch("long.txt");
    memset(text, 'a', BYTES);
    put_bytes(input, text, BYTES);
    free(text);
    config.progress = true;
    dt_log_quiet(false);
    dt_log_assume_terminal(); // cannot be undone
    capture_stderr();
    look_s = 10;
    CHECK_OK(pack_one(config, input, &result));
    look_s = 0;
    line = captured();
    dt_log_quiet(true);
    for (int i = 1; i <= PIECES; i++) {
        char want[160], bar[31] = "";
        double done = i < PIECES ? i * 1048576.0 : BYTES, rate = done / (10 * i);
        for (int k = 0; k < 30; k++)
            bar[k] = k < done / BYTES * 30 ? '#' : '.';
        snprintf(want, sizeof want, "packing [%s] %3.0f %%  %.0f/4 MB  %.0f MB/s  %.0f s left", bar,
                 100 * done / BYTES, done / 1e6, rate / 1e6, (BYTES - done) / rate);
        CHECK(strstr(line, want), "no \"%s\" in %s", want, line);
    }
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    dt_log_quiet(true);
    make_scratch();
    RUN(make_folder, test_folder, test_borders, test_split);
    test_raw(DT_PACK_U16, 2);
    test_raw(DT_PACK_U32, 4);
    RUN(test_far_token, test_refusals, test_full_disk, test_leftovers, test_durable, test_verify,
        test_starts_of_windows, test_verify_pairs, test_progress);
    remove_scratch();
    return test_end();
}
