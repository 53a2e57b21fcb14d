// Tests every kind of shard that must be refused at the start, with the words that the message must
// have, and unusual shards that are good. Also tests that metadata reach all ranks by broadcast.
#include "base/log.h"
#include "data/h5_reader.h"
#include "data/loader.h"
#include "data/pack.h"
#include "shards.h"

#include <sys/stat.h>

// libhdf5 does not free all memory of a damaged type.
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5\n";
}

enum { N = 1000, T = 16 };
static uint16_t numbers[N];

static const struct dt_scan_rules any = {.seq_len = T},
                                  vocabulary = {.seq_len = T, .vocab_size = 300};
static const struct put good = {"tokens", 0, 0, 1, {N}, numbers, 0, 0, false, false};

// The readers of this program: those of dtrain, and one that reads rows of floats of any width.
static dt_status open_wide(struct dt_reader *reader, const struct dt_scan_rules *rules,
                           struct dt_shard *shard)
{
    (void)rules;
    shard->type = reader->arrays[0].type;
    shard->count = shard->windows = reader->arrays[0].shape[0];
    shard->width = reader->arrays[0].shape[1];
    return DT_OK;
}
static const struct dt_reader_kind wide_reader = {
    .name = "wide", .unit = "rows", .datasets = {"/wide"}, .open = open_wide};
extern const struct dt_reader_kind dt_tokens_reader, dt_pairs_reader;
const struct dt_reader_kind *const dt_reader_kinds[] = {&dt_tokens_reader, &dt_pairs_reader,
                                                        &wide_reader, NULL};

static struct put u16(struct put what)
{
    what.disk = H5T_STD_U16LE;
    what.memory = H5T_NATIVE_UINT16;
    return what;
}

// Writes a file with one dataset.
static const char *write_one(const char *name, struct put what)
{
    const char *path = in_scratch("%s", name);
    hid_t file = new_file(path);
    put(file, &what);
    H5Fclose(file);
    return path;
}

static const char *write_good(const char *name)
{
    return write_one(name, u16(good));
}

static void expect_bad(const char *glob, const char *phrase)
{
    struct dt_dataset *dataset;
    CHECK_INT(dt_dataset_scan(glob, &vocabulary, &dataset), DT_USER);
    CHECK_SAYS(glob);
    CHECK_SAYS(phrase);
    CHECK(dt_error_current()->hint[0], "\"%s\" has no hint", dt_error_current()->message);
    CHECK(dataset == NULL, "a refusal gives a dataset");
}

static struct dt_dataset *expect_good(const char *glob)
{
    return scan(glob, &vocabulary);
}

static void test_no_shards(void)
{
    expect_bad(in_scratch("absent-*.h5"), "no shard matches");
    expect_bad("", "no shards given");
    mkdir(in_scratch("folder.h5"), 0777);
    expect_bad(in_scratch("folder.h5"), "is a folder");
    mkfifo(in_scratch("pipe.h5"), 0666);
    expect_bad(in_scratch("pipe.h5"), "not a regular file");
}

static void test_no_hdf5(void)
{
    put_bytes(in_scratch("empty.h5"), "", 0);
    expect_bad(in_scratch("empty.h5"), "is empty");
    put_bytes(in_scratch("text.h5"), "once upon a time", 16);
    expect_bad(in_scratch("text.h5"), "not an HDF5 file");
    const char *path = write_good("cut.h5");
    for (int64_t size = dt_file_size(path) - 1; size > 0; size -= 517) {
        CHECK(truncate(path, size) == 0, "cannot truncate");
        expect_bad(path, "");
    }
    path = write_good("cut1.h5");
    CHECK(truncate(path, dt_file_size(path) - 1) == 0, "cannot truncate");
    expect_bad(path, "truncated");
}

static void test_schemas(void)
{
    struct put what = u16(good);
    what.name = "token";
    expect_bad(write_one("neither.h5", what), "neither /tokens nor /input_ids nor /wide");

    hid_t file = new_file(in_scratch("group.h5"));
    H5Gclose(H5Gcreate2(file, "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);
    expect_bad(in_scratch("group.h5"), "not a dataset");

    file = new_file(in_scratch("link.h5"));
    H5Lcreate_external(in_scratch("cut.h5"), "/tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT);
    H5Fclose(file);
    expect_bad(in_scratch("link.h5"), "is a link");
}

static void test_types(void)
{
    static const double reals[N];
    struct put what = u16(good);
    what.n_dims = 2;
    what.dims[0] = what.dims[1] = 10;
    expect_bad(write_one("two.h5", what), "has 2 dimensions");
    what.n_dims = 0;
    expect_bad(write_one("scalar.h5", what), "has 0 dimensions");

    const struct {
        const char *name;
        hid_t type;
        const char *phrase;
    } wrong[] = {
        {"float.h5", H5T_IEEE_F32LE, "32-bit floating-point"},
        {"big.h5", H5T_STD_U16BE, "big-endian unsigned 16-bit"},
        {"float-big.h5", H5T_IEEE_F64BE, "big-endian 64-bit floating-point"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        what = u16(good);
        what.disk = wrong[i].type;
        what.memory = H5T_NATIVE_DOUBLE;
        what.data = reals;
        expect_bad(write_one(wrong[i].name, what), wrong[i].phrase);
    }
    what.disk = H5Tcopy(H5T_STD_U16LE);
    H5Tset_precision(what.disk, 12);
    expect_bad(write_one("padded.h5", what), "padded unsigned 16-bit");
    H5Tclose(what.disk);
}

// Tokens and pairs of every integer type are read as they were written. A value that does not fit
// an int32 or is outside the vocabulary is reported with its place.
static void test_integers(void)
{
    const struct {
        hid_t type;
        double wrong;
        const char *text;
    } types[] = {{H5T_STD_U8LE, 255, "255"},
                 {H5T_STD_I8LE, -1, "-1"},
                 {H5T_STD_U16LE, 300, "300"},
                 {H5T_STD_I16LE, -100, "-100"}, // only labels may be -100: none
                 {H5T_STD_U32LE, 0x1p31, "2147483648"},
                 {H5T_STD_I32LE, -101, "-101"},
                 {H5T_STD_U64LE, 0x1p63, "9223372036854775808"},
                 {H5T_STD_I64LE, 0x1p40, "1099511627776"}};
    enum { LENGTH = 4 * T + 1, ROWS = 4, AT = 2 * T + 5 };
    const struct dt_scan_rules small = {.seq_len = T, .vocab_size = 120};
    static double values[LENGTH];
    for (size_t i = 0; i < 2 * (sizeof types / sizeof *types); i++) {
        hid_t type = types[i / 2].type;
        bool pairs = i % 2;
        for (int bad = 0; bad < 2; bad++) {
            const char *path = in_scratch("integers.h5");
            hid_t file = new_file(path);
            for (int k = 0; k < LENGTH; k++)
                values[k] = k % 7 == 0 ? 100 : k;
            if (bad)
                values[AT] = types[i / 2].wrong;
            struct put what = {.name = pairs ? "input_ids" : "tokens",
                               .disk = type,
                               .memory = H5T_NATIVE_DOUBLE,
                               .n_dims = 1 + pairs,
                               .dims = {pairs ? ROWS : LENGTH, T},
                               .data = values};
            put(file, &what);
            what.name = "labels";
            values[AT] = AT;
            if (pairs)
                put(file, &what);
            H5Fclose(file);
            struct dt_dataset *dataset = scan(path, &small);
            struct dt_loader_config config = {
                .dataset = dataset, .batch = 1, .block = 1, .size = 1, .prefetch = 1};
            config.rules = (struct dt_read_rules){.vocab_size = 120, .reset_token = 100};
            config.sequential = true;
            struct dt_loader *loader;
            const struct dt_batch *batch;
            dt_status status = dt_loader_open(&config, 0, &loader);
            int64_t wrong = 0, step = 0;
            for (; (status = dt_loader_next(loader, &batch, NULL)) == DT_OK && batch; step++) {
                const int32_t *ids = dt_batch_find(batch, "input_ids")->data;
                const int32_t *labels = dt_batch_find(batch, "labels")->data;
                const uint8_t *reset = dt_batch_find(batch, "reset")->data;
                for (int t = 0; t < T; t++) {
                    int64_t k = step * T + t, next = k + !pairs;
                    wrong += ids[t] != (k % 7 == 0 ? 100 : k);
                    wrong += labels[t] != (next % 7 == 0 ? 100 : next);
                    wrong += reset[t] != (k % 7 == 0 || (pairs && t == 0));
                }
            }
            CHECK_INT(wrong, 0);
            CHECK_INT(step, bad ? AT / T : ROWS);
            char where[128];
            if (pairs)
                snprintf(where, sizeof where, "integers.h5: /input_ids at row %d, column %d is %s",
                         AT / T, AT % T, types[i / 2].text);
            else
                snprintf(where, sizeof where, "integers.h5: /tokens at offset %d is %s", AT,
                         types[i / 2].text);
            if (bad)
                CHECK_FAILS(status, DT_USER, where);
            dt_loader_close(loader);
            // Without a vocabulary only values that no id may have are found.
            bool found_alone = types[i / 2].wrong < 0 || types[i / 2].wrong > UINT32_MAX ||
                               (pairs && types[i / 2].wrong > INT32_MAX);
            status = dt_verify_shard(path, NULL, false, &(struct dt_shard){0});
            if (bad && found_alone)
                CHECK_FAILS(status, DT_USER, where);
            else
                CHECK_OK(status);
        }
    }
}

static void test_storage(void)
{
    struct put what = u16(good);
    what.data = NULL;
    expect_bad(write_one("unwritten.h5", what), "never written");
    what.chunk = 100;
    expect_bad(write_one("chunks.h5", what), "never written");

    hsize_t size = N, start = 0, half = N / 2;
    hid_t file = new_file(in_scratch("half.h5")), space = H5Screate_simple(1, &size, NULL);
    put(file, &what);
    hid_t id = H5Dopen2(file, "tokens", H5P_DEFAULT);
    hid_t memory = H5Screate_simple(1, &half, NULL);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &half, NULL);
    H5Dwrite(id, H5T_NATIVE_UINT16, memory, space, H5P_DEFAULT, numbers);
    H5Dclose(id), H5Sclose(memory), H5Fclose(file);
    expect_bad(in_scratch("half.h5"), "only in part");

    H5Sselect_all(space);
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_virtual(plist, space, "absent.h5", "tokens", space);
    file = new_file(in_scratch("virtual.h5"));
    put_in(file, "tokens", H5T_STD_U16LE, space, plist, 0, NULL);
    H5Fclose(file);
    expect_bad(in_scratch("virtual.h5"), "virtual dataset");

    plist = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_external(plist, "/dev/zero", 0, 2 * N);
    file = new_file(in_scratch("external.h5"));
    put_in(file, "tokens", H5T_STD_U16LE, H5Screate_simple(1, &size, NULL), plist, 0, NULL);
    H5Fclose(file);
    expect_bad(in_scratch("external.h5"), "external files");
}

// A damaged header makes the library take contiguous data for compact data of too few bytes. It
// would read beyond its own memory.
static void test_damaged_layout(void)
{
    const char *path = write_good("layout.h5");
    char want[10] = {3, 1}, *text; // version, contiguous, then the address of the data
    int64_t offset = offset_of(path, "tokens"), size;
    memcpy(want + 2, &offset, sizeof offset);
    CHECK_OK(dt_read_file(path, 1 << 20, &text, &size));
    char *at = memmem(text, (size_t)size, want, sizeof want);
    CHECK(at != NULL, "no layout message of version 3");
    if (at) {
        at[0] = 1;
        put_bytes(path, text, (size_t)size);
        expect_bad(path, "");
    }
    free(text);
}

// Writes tokens as h5py stores booleans, after `user_block` bytes; or bytes with such an attribute.
static void write_booleans(const char *path, hsize_t user_block, bool attribute)
{
    static const uint8_t zeros[N];
    hid_t plist = H5Pcreate(H5P_FILE_CREATE), type = H5Tenum_create(H5T_STD_I8LE);
    H5Pset_userblock(plist, user_block);
    H5Tenum_insert(type, "FALSE", &(int8_t){0});
    H5Tenum_insert(type, "TRUE", &(int8_t){1});
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, plist, H5P_DEFAULT);
    hid_t space = H5Screate(H5S_SCALAR), stored = attribute ? H5T_STD_U8LE : type;
    put_vector(file, "tokens", stored, N, zeros);
    if (attribute) {
        hid_t id = H5Dopen2(file, "tokens", H5P_DEFAULT);
        hid_t flag = H5Acreate2(id, "flag", type, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(flag, type, zeros);
        H5Aclose(flag);
        H5Dclose(id);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Pclose(plist);
    H5Fclose(file);
}

// Makes an enumeration's base type claim more bytes than its values have, of which libhdf5 1.10.8
// would read too many. Then flips each of the first `bits` bits of the type.
static void check_booleans(const char *path, int bits)
{
    static const uint8_t want[12] = {0x18, 2, 0, 0, 1, 0, 0, 0, 0x10, 8, 0, 0};
    static const uint32_t sizes[] = {9, 64, 4096, (1 << 24) + 1, INT32_MAX, UINT32_MAX};
    char *text;
    int64_t size;
    expect_good(path);
    CHECK_OK(dt_read_file(path, 1 << 20, &text, &size));
    char *at = memmem(text, (size_t)size, want, sizeof want), byte;
    CHECK(at != NULL, "no enumeration of version 1");
    for (size_t i = 0; at && i < sizeof sizes / sizeof *sizes; i++) {
        memcpy(at + sizeof want, &sizes[i], sizeof *sizes);
        put_bytes(path, text, (size_t)size);
        expect_bad(path, "the type of /tokens is damaged: its sizes do not fit its header");
    }
    if (at)
        memcpy(at + sizeof want, &(uint32_t){1}, sizeof *sizes);
    for (int bit = 0; at && bit < bits; bit++) {
        struct dt_dataset *dataset = NULL;
        byte = at[bit / 8];
        at[bit / 8] = (char)(byte ^ 1 << bit % 8);
        put_bytes(path, text, (size_t)size);
        dt_dataset_scan(path, &any, &dataset);
        dt_dataset_free(dataset);
        at[bit / 8] = byte;
    }
    free(text);
}

static void test_damaged_types(void)
{
    for (int attribute = 0; attribute < 2; attribute++)
        for (hsize_t block = 0; block <= 512; block += 512) {
            write_booleans(in_scratch("bool.h5"), block, attribute);
            check_booleans(in_scratch("bool.h5"), block ? 0 : 48 * 8);
        }
    CHECK_INT(remove(in_scratch("bool.h5")), 0);
}

static void test_pairs(void)
{
    static const struct {
        const char *name;
        // Rows of /input_ids and /labels; with more than 100, labels are shorter.
        hsize_t n, labels, row;
        bool tokens;
        const char *phrase; // NULL: the shard is good
    } cases[] = {
        {"both.h5", 5, 5, T, true, "both /tokens and /input_ids"},
        {"n.h5", 5, 4, T, false, "/input_ids is [5, 16], /labels is [4, 16]"},
        {"labels.h5", 101, 101, T, false, "/input_ids is [101, 16], /labels is [101, 15]"},
        {"row.h5", 5, 5, T + 1, false, "17 tokens long, data.seq_len is 16"},
        {"half-pair.h5", 5, 0, T, false, "without /labels"},
        {"pairs.h5", 5, 5, T, false, NULL},
    };
    static const int32_t zeros[2 * N * T];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        hid_t file = new_file(in_scratch("%s", cases[i].name));
        hsize_t label_row = cases[i].labels > 100 ? cases[i].row - 1 : cases[i].row;
        put_matrix(file, "input_ids", H5T_STD_I32LE, cases[i].n, cases[i].row, zeros);
        if (cases[i].labels > 0)
            put_matrix(file, "labels", H5T_STD_I32LE, cases[i].labels, label_row, zeros);
        struct put also = u16(good);
        if (cases[i].tokens)
            put(file, &also);
        H5Fclose(file);
        if (cases[i].phrase)
            expect_bad(in_scratch("%s", cases[i].name), cases[i].phrase);
    }
    struct dt_dataset *dataset = expect_good(in_scratch("pairs.h5"));
    CHECK_STR(dataset->kind->name, "pairs");
    CHECK_INT(dataset->windows, 5);
    CHECK_INT(dataset->tokens, 5 * T);
    write_good("tokens.h5");
    char both[DT_PATH];
    snprintf(both, sizeof both, "%s/pairs.h5,%s/tokens.h5", scratch, scratch);
    CHECK_FAILS(dt_dataset_scan(both, &any, &dataset), DT_USER, "holds pairs");
}

// With carried state a row may have several windows, and a document starts at the first window of
// each row.
static void test_long_pairs(void)
{
    enum { PIECES = 3 };
    static int32_t values[4 * PIECES * T];
    const struct dt_scan_rules carry = {.seq_len = T, .carry = true};
    struct dt_dataset *dataset;
    for (int i = 0; i < 4 * PIECES * T; i++)
        values[i] = i;
    for (hsize_t chunk = 0; chunk < 2; chunk++) {
        hid_t file = new_file(in_scratch("long-%d.h5", (int)chunk));
        for (int i = 0; i < 2; i++) {
            const struct put what = {.name = i ? "labels" : "input_ids",
                                     .disk = H5T_STD_I32LE,
                                     .memory = H5T_STD_I32LE,
                                     .n_dims = 2,
                                     .dims = {4, PIECES * T},
                                     .data = values,
                                     .chunk = chunk};
            put(file, &what);
        }
        H5Fclose(file);
    }
    expect_bad(in_scratch("long-0.h5"), "48 tokens long, data.seq_len is 16");
    CHECK_FAILS(dt_dataset_scan(in_scratch("long-1.h5"), &carry, &dataset), DT_USER,
                "rows of several windows");
    CHECK_OK(dt_dataset_scan(in_scratch("long-0.h5"), &carry, &dataset));
    CHECK_INT(dataset->windows, 4 * PIECES);
    CHECK_INT(dataset->tokens, 4 * PIECES * T);
    struct dt_shard shard = dataset->shards[0];
    struct dt_reader *reader;
    struct dt_read_rules rules = {.vocab_size = 1000, .reset_token = -1, .carry = true};
    CHECK_OK(dt_reader_open(shard.path, &carry, &shard, &reader));
    struct dt_block block = {.first = 1, .windows = 4 * PIECES - 1};
    block.memory = malloc((size_t)shard.kind->block_bytes(dataset, &rules, &shard, block.windows));
    CHECK_OK(shard.kind->read(reader, dataset, &rules, &block));
    for (int64_t window = 1; window < 4 * PIECES; window++) {
        int32_t ids[T], labels[T];
        uint8_t reset[T];
        CHECK_OK(shard.kind->write(dataset, &rules, &block, window,
                                   (void *const[]){ids, labels, reset}));
        for (int t = 0; t < T; t++) {
            CHECK_INT(ids[t], window * T + t);
            CHECK_INT(labels[t], window * T + t);
            CHECK_INT(reset[t], window % PIECES == 0 && t == 0);
        }
    }
    struct dt_segment segment;
    CHECK(shard.kind->segment(reader, &shard, 3, &segment) && segment.window == 3 * PIECES,
          "no fourth row");
    CHECK(!shard.kind->segment(reader, &shard, 4, &segment), "a fifth row");
    rules.reset_token = 1;
    rules.reset_after = true;
    CHECK_FAILS(shard.kind->read(reader, dataset, &rules, &block), DT_USER, "data.reset_after");
    free(block.memory);
    dt_reader_close(reader);
    dt_dataset_free(dataset);
}

static void test_widths(void)
{
    static const float zeros[20];
    struct put what = {"wide", H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, 2, {4, 3}, zeros, 0, 0, 0, 0};
    const char *glob = in_scratch("wide-?.h5");
    write_one("wide-a.h5", what);
    write_one("wide-b.h5", what);
    struct dt_dataset *dataset = expect_good(glob);
    CHECK_STR(dataset->kind->name, "wide");
    CHECK_INT(dataset->shards[1].type, DT_F32);
    CHECK_INT(dataset->windows, 8);
    what.dims[1] = 5;
    write_one("wide-b.h5", what);
    CHECK_FAILS(dt_dataset_scan(glob, &any, &dataset), DT_USER, "wide-b.h5: 5 values per position");
}

static const char *write_with(const char *name, const char *extra, hid_t type, hsize_t n,
                              int64_t block_bytes)
{
    static const uint64_t zeros[N];
    const char *path = in_scratch("%s", name);
    hid_t file = new_file(path);
    struct put tokens = u16(good);
    struct put what = {extra, type, H5T_NATIVE_UINT64, 1, {n}, zeros, 0, 0, false, false};
    put(file, &tokens);
    put(file, &what);
    if (block_bytes)
        put_attribute(file, extra, "block_bytes", H5T_STD_I32LE, block_bytes);
    H5Fclose(file);
    return path;
}

static void test_extras(void)
{
    const char *hashes = "tokens_xxh64";
    expect_bad(write_with("h1.h5", hashes, H5T_STD_U64LE, 4, 0), "no attribute block_bytes");
    expect_bad(write_with("h2.h5", hashes, H5T_STD_U64LE, 3, 512), "3 checksums");
    expect_bad(write_with("h3.h5", hashes, H5T_STD_I64LE, 4, 512), "signed 64-bit");
    expect_bad(write_with("h4.h5", hashes, H5T_STD_U64LE, 4, 511), "block_bytes");
    expect_bad(write_with("h5.h5", hashes, H5T_STD_U64LE, 4, -512), "block_bytes");
    expect_bad(write_with("h6.h5", hashes, H5T_STD_U64LE, 1, 1 << 30), "block_bytes");
    expect_good(write_with("h7.h5", hashes, H5T_STD_U64LE, 4, 512));
    expect_bad(write_with("d1.h5", "doc_starts", H5T_IEEE_F64LE, 2, 0), "floating-point");
    expect_good(write_with("d2.h5", "doc_starts", H5T_STD_U64LE, 2, 0));
}

// Writes a shard whose tokens have this vocabulary.
static const char *write_vocab(const char *name, hid_t type, int64_t value)
{
    write_good(name);
    hid_t file = change(name);
    put_attribute(file, "tokens", "vocab_size", type, value);
    H5Fclose(file);
    return in_scratch("%s", name);
}

static void test_vocabulary(void)
{
    struct dt_dataset *dataset = expect_good(write_vocab("v300.h5", H5T_STD_U16LE, 300));
    CHECK_INT(dataset->shards[0].vocab_size, 300);
    expect_bad(write_vocab("v301.h5", H5T_STD_I64LE, 301), "vocab_size is 301, the model's is 300");
    expect_bad(write_vocab("v-1.h5", H5T_STD_I64LE, -1),
               "vocab_size of /tokens is -1, not a positive integer");
    expect_bad(write_vocab("v0.h5", H5T_STD_I64LE, 0),
               "vocab_size of /tokens is 0, not a positive integer");
    expect_bad(write_vocab("vf.h5", H5T_IEEE_F32LE, 300),
               "vocab_size of /tokens is not a single integer");
}

// All wrong shards are reported at once, one line each while there is room.
static void test_many(void)
{
    enum { BAD = 100 };
    struct dt_dataset *dataset;
    for (int i = 0; i < BAD; i++)
        put_bytes(in_scratch("many-%03d.h5", i), "x", 1);
    write_good("many-good.h5");
    write_good("many-last.h5");
    CHECK(truncate(in_scratch("many-last.h5"), 600) == 0, "cannot truncate");
    CHECK_INT(dt_dataset_scan(in_scratch("many-*.h5"), &any, &dataset), DT_USER);
    const char *message = dt_error_current()->message, *more = strstr(message, "\nand ");
    CHECK_SAYS("101 of 102 shards");
    CHECK_ADVISES("give HDF5 shards"); // the hint for the first shard
    CHECK_SAYS("many-019.h5");
    int lines = 0;
    for (const char *at = message; (at = strstr(at, "is not an HDF5")); at++)
        lines++;
    CHECK(more && lines + atoi(more + 5) == BAD + 1, "%d lines, then%s", lines, more ? more : "");
}

// Shards are sorted by bytes, duplicates are dropped, and names with glob characters are taken as
// they are.
static void test_globs(void)
{
    char glob[DT_PATH];
    write_good("g-b.h5");
    write_good("g-B.h5");
    write_good("g-[a].h5");
    snprintf(glob, sizeof glob, " %s/g-[bB].h5 ,%s/g-b.h5, %s/g-[a].h5", scratch, scratch, scratch);
    struct dt_dataset *dataset = expect_good(glob);
    CHECK_INT(dataset->n_shards, 3);
    CHECK_STR(dataset->shards[0].path, in_scratch("g-B.h5"));
    CHECK_STR(dataset->shards[1].path, in_scratch("g-[a].h5"));
    CHECK_STR(dataset->shards[2].path, in_scratch("g-b.h5"));
    CHECK_INT(dataset->windows, 3 * ((N - 1) / T));
}

static void test_short(void)
{
    static const int64_t sizes[] = {0, 1, T, T + 1, 2 * T, 2 * T + 1},
                         windows[] = {0, 0, 0, 1, 1, 2};
    for (int i = 0; i < 6; i++) {
        struct put what = u16(good);
        what.dims[0] = (hsize_t)sizes[i];
        struct dt_dataset *dataset = expect_good(write_one("short.h5", what));
        CHECK_INT(dataset->windows, windows[i]);
        CHECK_INT(dataset->tokens, sizes[i]);
    }
}

static void test_broadcast(void)
{
    struct dt_dataset *a = expect_good(in_scratch("g-*.h5")), *b;
    void *bytes;
    int64_t size;
    CHECK_OK(dt_dataset_pack(a, &bytes, &size));
    CHECK_OK(dt_dataset_unpack(bytes, size, &b));
    CHECK_INT(b->n_shards, a->n_shards);
    CHECK_INT(b->windows, a->windows);
    CHECK_INT(b->rules.seq_len, T);
    for (int64_t i = 0; i < b->n_shards; i++) {
        CHECK_STR(b->shards[i].path, a->shards[i].path);
        CHECK_INT(b->shards[i].count, N);
        CHECK_INT(b->shards[i].last_hash, a->shards[i].last_hash);
        CHECK(b->shards[i].first_hash != 0, "no fingerprint");
    }
    dt_dataset_free(b);
    for (int64_t cut = 0; cut < size; cut++)
        CHECK_INT(dt_dataset_unpack(bytes, cut, &b), DT_MACHINE);
    free(bytes);
}

static void test_keys_of_episodes(void)
{
    struct dt_dataset *dataset;
    struct dt_scan_rules rules = {.seq_len = T, .stride = 3};
    const uint8_t tokens[40] = {0};
    put_alone(in_scratch("few.h5"), "tokens", H5T_STD_U8LE, 40, tokens);
    CHECK_FAILS(dt_dataset_scan(in_scratch("few.h5"), &rules, &dataset), DT_USER,
                "few.h5 holds tokens: data.stride is for episodes of frames");
}

// The result of looking up a path must not depend on the path that was looked up before.
static void test_paths(void)
{
    static const char *const groups[] = {"/a", "/ab", "/a/b", "/a/bc", "/a/b/c", "/b"};
    static const char *const paths[] = {"/x",         "/a/x", "/ab/x",    "/a/b/x", "/a/bc/x",
                                        "/a/b/c/x",   "/b/x", "/a/c/x",   "/ab",    "/a/b/y",
                                        "/a//b/c//x", "/a/x", "/a/b/c/y", "/c/b/x"};
    enum { PATHS = sizeof paths / sizeof *paths, THERE = 7 };
    static const int rows[PATHS] = {1, 2, 3, 4, 5, 6, 7, [10] = 6, [11] = 2}; // 0: no dataset
    static const uint8_t tokens[THERE] = {0};
    hid_t file = new_file(in_scratch("paths.h5"));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        H5Gclose(H5Gcreate2(file, groups[i], H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    for (int i = 0; i < THERE; i++)
        put_vector(file, paths[i], H5T_STD_U8LE, i + 1, tokens);
    H5Fclose(file);
    for (int i = 0; i < PATHS * PATHS; i++) {
        struct dt_h5_file open;
        const int in_turn[] = {i / PATHS, i % PATHS, i / PATHS};
        CHECK_OK(dt_h5_open(in_scratch("paths.h5"), &open));
        for (int k = 0; k < 3; k++) {
            const char *path = paths[in_turn[k]];
            enum dt_h5_node node;
            uint64_t address;
            CHECK_OK(dt_h5_find(&open, path, &node, &address));
            CHECK(rows[in_turn[k]] > 0 ? node == DT_H5_DATASET : node != DT_H5_DATASET,
                  "%s after %s: kind %d", path, paths[in_turn[k ? k - 1 : 0]], (int)node);
            if (node != DT_H5_DATASET)
                continue;
            struct dt_h5_array array;
            bool found;
            CHECK_OK(dt_h5_array_open(&open, path, &array, &found));
            CHECK(found && array.shape[0] == rows[in_turn[k]], "%s after %s has %lld rows", path,
                  paths[in_turn[k ? k - 1 : 0]], (long long)array.shape[0]);
            dt_h5_array_close(&array);
        }
        dt_h5_close(&open);
    }
}

int main(void)
{
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    for (int i = 0; i < N; i++)
        numbers[i] = (uint16_t)(i * 7 % 251);
    dt_log_quiet(true);
    make_scratch();
    RUN(test_no_shards, test_no_hdf5, test_schemas, test_types, test_integers, test_storage,
        test_damaged_layout, test_damaged_types, test_pairs, test_long_pairs, test_widths,
        test_extras, test_vocabulary, test_many, test_globs, test_short, test_broadcast,
        test_keys_of_episodes, test_paths);
    remove_scratch();
    return test_end();
}
