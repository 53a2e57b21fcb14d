// Tests safetensors: what is written is read back, files of other writers are read, and every
// hostile header is refused with a message that names the file and what is wrong.
#include "base/safetensors.h"

#include "base/file.h"

#include "scratch.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

// TENSOR is a tensor in a header, ONE_F32 a header of one fp32 tensor.
#define TENSOR(name, dtype, shape, offsets)                                                        \
    "\"" name "\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}"
#define F32(name, shape, offsets) TENSOR(name, "\"F32\"", shape, offsets)
#define ONE_F32(shape, offsets)   "{" F32("a", shape, offsets) "}"

// Headers for 16 bytes of data, and a part of the message that each must give.

static const struct {
    const char *json, *message;
} hostile[] = {
    {"", "a header of 0 bytes"},
    {"{", "a header of 1 bytes"},
    {"[]", "does not begin with {"},
    {" {}", "does not begin with {"},
    {"{]", "not JSON"},
    {"{\"a\":", "not JSON"},
    {"{\"1\":1,", "not JSON"},
    {"{} x", "after the JSON"},
    {"{}{}", "after the JSON"},
    {"{}", "the tensors need 0 bytes, but the file has 16"},
    {"{\"a\":1}", "tensor a: not a JSON object"},
    {"{\"a\":[]}", "tensor a: not a JSON object"},
    {"{\"a\":null}", "tensor a: not a JSON object"},
    {"{\"a\":{}}", "dtype is missing"},
    {"{\"a\":{\"Dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", "dtype is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,16]}}", "shape is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4]}}", "data_offsets is missing"},
    {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}",
     "duplicate dtype"},
    {"{" TENSOR("a", "\"F33\"", "[4]", "[0,16]") "}", "dtype F33 is not known"},
    {"{" TENSOR("a", "\"f32\"", "[4]", "[0,16]") "}", "dtype f32 is not known"},
    {"{" TENSOR("a", "\"\\u001b[2J\"", "[4]", "[0,16]") "}", "dtype ? is not"},
    {"{" TENSOR("a", "4", "[4]", "[0,16]") "}", "dtype is not a string"},
    {ONE_F32("4", "[0,16]"), "shape is not a list"},
    {ONE_F32("[[4]]", "[0,16]"), "dimension 0 is not"},
    {ONE_F32("[4,\"1\"]", "[0,16]"), "dimension 1 is not"},
    {ONE_F32("[-4]", "[0,16]"), "dimension 0 is not"},
    {ONE_F32("[4.5]", "[0,16]"), "dimension 0 is not"},
    {ONE_F32("[1,1,1,1,1,1,1,1,4]", "[0,16]"), "more than 8 dimensions"},
    {ONE_F32("[3]", "[0,16]"), "16 bytes of data, its shape needs 12"},
    {"{" TENSOR("a", "\"F64\"", "[4]", "[0,16]") "}", "16 bytes of data, its shape needs 32"},
    // 2^40 * 2^24 elements are 0 modulo 2^64, and 2^62 fp32 elements are 0 bytes modulo 2^64.
    {ONE_F32("[1099511627776,16777216]", "[0,0]"), "2^63"},
    {ONE_F32("[2147483648,2147483648]", "[0,0]"), "2^63"},
    {"{" TENSOR("a", "\"F4\"", "[31]", "[0,16]") "}", "not of whole bytes"},
    {ONE_F32("[4]", "{}"), "not a list of two"},
    {ONE_F32("[4]", "[16]"), "not a list of two"},
    {ONE_F32("[4]", "[0,16,16]"), "not a list of two"},
    {ONE_F32("[4]", "[0,\"16\"]"), "not whole numbers"},
    {ONE_F32("[4]", "[-1,15]"), "not whole numbers"},
    {ONE_F32("[4]", "[0,16.5]"), "not whole numbers"},
    {ONE_F32("[4]", "[0,9007199254740993]"), "not whole numbers"},
    {ONE_F32("[4]", "[0,1e999]"), "not whole numbers"},
    {ONE_F32("[4]", "[0,18446744073709551632]"), "not whole numbers"},
    {ONE_F32("[4]", "[16,0]"), "reverse order"},
    {ONE_F32("[5]", "[0,20]"), "ends at 20, but the file has 16"},
    {ONE_F32("[3]", "[4,16]"), "gap"},
    {"{" F32("a", "[1]", "[0,4]") "," F32("b", "[2]", "[8,16]") "}",
     "tensor b begins at 8 of the data, the previous one ends at 4 (gap)"},
    {"{" F32("b", "[3]", "[4,16]") "," F32("a", "[2]", "[0,8]") "}",
     "tensor b begins at 4 of the data, the previous one ends at 8 (overlap)"},
    {"{" F32("a", "[4]", "[0,16]") "," F32("b", "[4]", "[0,16]") "}", "(overlap)"},
    {"{" F32("a", "[4]", "[0,16]") "," F32("b", "[0]", "[8,8]") "}", "(overlap)"},
    {ONE_F32("[3]", "[0,12]"), "the tensors need 12 bytes, but the file has 16"},
    {"{" F32("a", "[2]", "[0,8]") "," F32("a", "[2]", "[8,16]") "}", "duplicate tensor a"},
    {"{" F32("a", "[2]", "[0,8]") "," F32("\\u0061", "[2]", "[8,16]") "}", "duplicate tensor a"},
    {"{" F32("a\\u0000b", "[4]", "[0,16]") "}", "a zero byte in a name"},
    {"{" F32("a\\u001bb", "[4]", "[0,16]") "}", "control characters in its name"},
    {"{" F32("a\nb", "[4]", "[0,16]") "}", "control character in"},
    {"{" F32("a\xff", "[4]", "[0,16]") "}", "not UTF-8 at byte 3"},
    {"{\"\xc0\xaf\":1}", "not UTF-8 at byte 2"},         // an overlong '/'
    {"{\"\xe0\x80\xaf\":1}", "not UTF-8 at byte 2"},     // another one
    {"{\"\xed\xa0\x80\":1}", "not UTF-8 at byte 2"},     // half of a surrogate pair
    {"{\"\xf4\x90\x80\x80\":1}", "not UTF-8 at byte 2"}, // past U+10FFFF
    {"{\"\xe2\x82", "not UTF-8 at byte 2"},
    {"{\"__metadata__\":1}", "__metadata__ is not a JSON object"},
    {"{\"__metadata__\":{\"format\":1}}", "__metadata__: a value is not a string"},
    {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", "__metadata__: duplicate key"},
    {"{\"__metadata__\":{},\"__metadata__\":{}}", "duplicate __metadata__"},
};

static void test_hostile_headers(void)
{
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        // The call must overwrite it.
        struct dt_safetensors *file = (struct dt_safetensors *)scratch;
        size_t size = strlen(hostile[i].json);
        char *exact = malloc(size + !size); // a sanitizer reports reads past its end
        memcpy(exact, hostile[i].json, size);
        dt_status status = dt_safetensors_parse("model", exact, (int64_t)size, 16, &file);
        const char *message = dt_error_current()->message;
        CHECK(status == DT_USER && !file && strstr(message, hostile[i].message) &&
                  strncmp(message, "model: ", 7) == 0,
              "header %s: status %d: %s", hostile[i].json, (int)status, message);
        dt_error_clear();
        free(exact);
    }
}

// Cuts a good header at every place and changes every byte of it. The result is refused or
// accepted, and never crashes.
static void test_mangled_headers(void)
{
    static const char good[] =
        "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],"
        "\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"I8\",\"shape\":[8],"
        "\"data_offsets\":[8,16]}}";
    struct dt_safetensors *file;
    for (size_t cut = 0; cut < sizeof good - 1; cut++)
        CHECK(dt_safetensors_parse("model", good, (int64_t)cut, 16, &file) == DT_USER, "cut at %zu",
              cut);
    CHECK_OK(dt_safetensors_parse("model", good, sizeof good - 1, 16, &file));
    dt_safetensors_close(file);
    int taken = 0;
    for (size_t at = 0; at < sizeof good - 1; at++)
        for (int byte = 0; byte < 256; byte++) {
            char bad[sizeof good];
            memcpy(bad, good, sizeof good);
            bad[at] = (char)byte;
            taken += dt_safetensors_parse("model", bad, sizeof good - 1, 16, &file) == DT_OK;
            dt_safetensors_close(file);
        }
    dt_error_clear();
    // Accepted are the header itself, once for each byte, other letters in names and metadata, and
    // little else.
    CHECK(taken > (int)sizeof good && taken < 3000, "%d changed headers were taken", taken);
}

static void test_deep_and_large(void)
{
    enum { DEEP = 200000, COMMAS = 4000100 };
    struct dt_safetensors *file;
    char *text = malloc(COMMAS + 16);
    memset(text, '[', DEEP);
    memcpy(text, "{\"a\":", 5);
    CHECK_FAILS(dt_safetensors_parse("model", text, DEEP, 0, &file), DT_USER, "not JSON");
    memset(text, ',', COMMAS);
    memcpy(text, "{\"a\":[", 6);
    CHECK_FAILS(dt_safetensors_parse("model", text, COMMAS, 0, &file), DT_USER, "4000000 values");
    memset(text, ',', COMMAS); // in a string they separate no values
    memcpy(text, "{\"__metadata__\":{\"a\":\"", 22);
    memcpy(text + COMMAS, "\"}}", 3);
    CHECK_OK(dt_safetensors_parse("model", text, COMMAS + 3, 0, &file));
    dt_safetensors_close(file);
    free(text);
}

static void put_file(const char *name, uint64_t length, const char *header, int64_t data_bytes)
{
    char bytes[1024] = "";
    memcpy(bytes, &length, 8);
    memcpy(bytes + 8, header, strlen(header));
    CHECK_OK(dt_write_file_atomic(in_scratch("%s", name), bytes,
                                  8 + (int64_t)strlen(header) + data_bytes));
}

static void test_hostile_files(void)
{
    static const char header[] = ONE_F32("[4]", "[0,16]");
    static const struct {
        const char *name;
        uint64_t length; // the length of the header that the file states
        int64_t data_bytes;
        const char *says;
    } wrong[] = {
        {"past", 1000, 16, "past: a header of 1000"},
        {"one-past", sizeof header + 16, 16, "the file has"},
        {"huge", UINT64_MAX, 16, "18446744073709551615"},
        {"huge", 100000001, 16, "at most 100000000"},
        {"cut", sizeof header - 1, 15, "cut: tensor a: its data end"},
        {"long", sizeof header - 1, 17, "the file has 17 bytes"},
    };
    struct dt_safetensors *file;
    CHECK_FAILS(dt_safetensors_open(in_scratch("absent"), &file), DT_USER, "absent: No such file");
    CHECK_FAILS(dt_safetensors_open(scratch, &file), DT_USER, "is a folder");
    CHECK_FAILS(dt_safetensors_open("/dev/zero", &file), DT_USER, "not a regular file");
    CHECK_OK(dt_write_file_atomic(in_scratch("empty"), "", 0));
    CHECK_FAILS(dt_safetensors_open(in_scratch("empty"), &file), DT_USER, "empty has 0 bytes");
    CHECK_OK(dt_write_file_atomic(in_scratch("short"), "1234567", 7));
    CHECK_FAILS(dt_safetensors_open(in_scratch("short"), &file), DT_USER, "short has 7 bytes");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put_file(wrong[i].name, wrong[i].length, header, wrong[i].data_bytes);
        CHECK_FAILS(dt_safetensors_open(in_scratch("%s", wrong[i].name), &file), DT_USER,
                    wrong[i].says);
    }
    CHECK(!file, "a file came with an error");
    put_file("good", sizeof header - 1, header, 16);
    CHECK_OK(dt_safetensors_open(in_scratch("good"), &file));
    dt_safetensors_close(file);
}

// What other writers may do: members and tensors in any order, spaces, unknown members and element
// types, empty tensors, and scalars.
static void test_foreign_header(void)
{
    static const char header[] =
        "{ \"a\" : "
        "{\"data_offsets\":[4,12],\"shape\":[2,2],\"dtype\":\"BF16\",\"note\":{\"x\":[1]}},\n"
        "\"empty\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[4,4]},"
        "\"scalar\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"\\u00e9\\\"\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[12,16]} }   ";
    static const char *const names[] = {"scalar", "empty", "a", "\xc3\xa9\""};
    struct dt_safetensors *file;
    float x;
    CHECK_OK(dt_safetensors_parse("m", header, sizeof header - 1, 16, &file));
    CHECK_INT(file->n_tensors, 4);
    for (int i = 0; i < 4; i++)
        CHECK_STR(file->tensors[i].name, names[i]);
    const struct dt_safetensor *a = dt_safetensors_find(file, "a");
    CHECK(a && a->dtype == DT_BF16 && a->n_dims == 2 && a->shape[0] == 2 && a->shape[1] == 2, "a");
    CHECK_INT(a->begin, 8 + sizeof header - 1 + 4);
    CHECK_INT(a->bytes, 8);
    CHECK_INT(dt_safetensors_find(file, "scalar")->count, 1);
    CHECK_INT(dt_safetensors_find(file, "empty")->count, 0);
    CHECK(!dt_safetensors_find(file, "A"), "names differ in case");
    const struct dt_safetensor *strange = dt_safetensors_find(file, names[3]);
    CHECK_INT(strange->dtype, DT_DTYPE_COUNT);
    CHECK_FAILS(dt_safetensors_read_f32(file, strange, 0, 1, &x), DT_USER,
                "is F8_E4M3, which cannot");
    dt_safetensors_close(file);
}

static const struct dt_safetensors_entry entries[] = {
    {"backbone.w", DT_F32, 2, {77, 513}}, // 39,501 elements: several chunks of a reader
    {"b16", DT_BF16, 3, {3, 1, 6001}},    {"f16", DT_F16, 1, {5}},
    {"scalar", DT_F32, 0, {0}},           {"none", DT_F32, 2, {0, 9}},
    {"odd \"name\"\\", DT_U8, 1, {3}},    {"i8", DT_I8, 1, {18003}},
};
enum { N_ENTRIES = sizeof entries / sizeof *entries };
static const uint16_t halves[5] = {0x3c00, 0xc500, 0x0001, 0x7bff, 0xfc00};
static const float half_values[5] = {1, -5, 0x1p-24f, 65504, -INFINITY};

static float value(int64_t i)
{
    return (float)(i % 1999) * 0.25f - 200;
}

static void write_data(struct dt_safetensors_writer *writer)
{
    float scalar = -0.5f;
    for (int64_t i = 0; i < 77 * 513;) { // pieces of many sizes
        float piece[700];
        int64_t n = 1 + i % 700;
        for (int64_t j = 0; j < n && i + j < 77 * 513; j++)
            piece[j] = value(i + j);
        n = n < 77 * 513 - i ? n : 77 * 513 - i;
        CHECK_OK(dt_safetensors_write(writer, piece, 4 * n));
        i += n;
    }
    dt_bf16 *b16 = malloc(18003 * sizeof *b16);
    for (int64_t i = 0; i < 18003; i++)
        b16[i] = dt_f32_to_bf16(value(i));
    CHECK_OK(dt_safetensors_write(writer, b16, 2 * 18003));
    free(b16);
    CHECK_OK(dt_safetensors_write(writer, halves, sizeof halves));
    CHECK_OK(dt_safetensors_write(writer, &scalar, 4));
    CHECK_OK(dt_safetensors_write(writer, "abc", 3));
    int8_t *i8 = malloc(18003);
    for (int64_t i = 0; i < 18003; i++)
        i8[i] = (int8_t)(i % 251 - 125);
    CHECK_OK(dt_safetensors_write(writer, i8, 18003));
    free(i8);
}

static void check_data(const struct dt_safetensors *file)
{
    const struct dt_safetensor *w = dt_safetensors_find(file, "backbone.w");
    const struct dt_safetensor *b16 = dt_safetensors_find(file, "b16");
    float *x = malloc((size_t)w->count * sizeof *x);
    int wrong = 0;
    CHECK_OK(dt_safetensors_read_f32(file, w, 0, w->count, x));
    for (int64_t i = 0; i < w->count; i++)
        wrong += x[i] != value(i);
    CHECK_OK(dt_safetensors_read_f32(file, b16, 0, b16->count, x));
    for (int64_t i = 0; i < b16->count; i++)
        wrong += x[i] != dt_bf16_to_f32(dt_f32_to_bf16(value(i)));
    CHECK_OK(dt_safetensors_read_f32(file, dt_safetensors_find(file, "i8"), 1, 18002, x));
    for (int64_t i = 0; i < 18002; i++)
        wrong += x[i] != (float)((i + 1) % 251 - 125);
    CHECK_INT(wrong, 0);
    // A part that ends with the tensor.
    CHECK_OK(dt_safetensors_read_f32(file, b16, 17000, 1003, x));
    CHECK(x[1002] == dt_bf16_to_f32(dt_f32_to_bf16(value(18002))), "%g", (double)x[1002]);
    CHECK_OK(dt_safetensors_read_f32(file, w, 513, 2, x));
    CHECK(x[0] == value(513) && x[1] == value(514), "%g %g", (double)x[0], (double)x[1]);
    CHECK_OK(dt_safetensors_read_f32(file, dt_safetensors_find(file, "f16"), 0, 5, x));
    CHECK(memcmp(x, half_values, sizeof half_values) == 0, "%g %g %g %g %g", (double)x[0],
          (double)x[1], (double)x[2], (double)x[3], (double)x[4]);
    CHECK_OK(dt_safetensors_read_f32(file, dt_safetensors_find(file, "none"), 0, 0, x));
    CHECK_FAILS(dt_safetensors_read_f32(file, b16, 17000, 1004, x), DT_USER,
                "tensor b16 has 18003");
    CHECK_FAILS(dt_safetensors_read_f32(file, b16, -1, 1, x), DT_USER, "b16");
    CHECK_FAILS(dt_safetensors_read_f32(file, b16, 1, INT64_MAX, x), DT_USER, "b16");
    free(x);
}

static int n_synced, sync_error;

int fdatasync(int fd)
{
    (void)fd;
    n_synced++;
    errno = sync_error;
    return sync_error ? -1 : 0;
}

// Bytes are synced while they are written, and a failed sync fails the write.
static void test_synced(void)
{
    static const struct dt_safetensors_entry entry = {"bytes", DT_U8, 1, {2400}};
    const int64_t before = dt_safetensors_sync_bytes;
    struct dt_safetensors_writer *writer;
    char piece[400] = "";
    dt_safetensors_sync_bytes = 1000;
    CHECK_OK(dt_safetensors_create(in_scratch("synced"), &entry, 1, NULL, 0, &writer));
    for (int i = 0; i < 5; i++)
        CHECK_OK(dt_safetensors_write(writer, piece, sizeof piece));
    CHECK_INT(n_synced, 1); // after the third write, with the header
    sync_error = EIO;
    CHECK_FAILS(dt_safetensors_write(writer, piece, sizeof piece), DT_MACHINE, "synced: Input");
    dt_safetensors_discard(writer);
    sync_error = 0;
    dt_safetensors_sync_bytes = before;
}

static void test_round_trip(void)
{
    static const char *const metadata[] = {"format", "pt", "a\nb", "\xe2\x82\xac"};
    struct dt_safetensors_writer *writer;
    struct dt_safetensors *file;
    int64_t size, hashed_size;
    uint64_t hash, hash_of_file;
    const char *path = in_scratch("model.safetensors");
    CHECK_OK(dt_safetensors_create(path, entries, N_ENTRIES, metadata, 2, &writer));
    write_data(writer);
    CHECK_OK(dt_safetensors_finish(writer, &size, &hash));
    CHECK_OK(dt_hash_file(path, &hash_of_file, &hashed_size));
    CHECK(hash == hash_of_file && size == hashed_size, "hash or size differ from the file's");

    CHECK_OK(dt_safetensors_open(path, &file));
    CHECK_INT(file->n_tensors, N_ENTRIES);
    CHECK_STR(dt_safetensors_metadata(file, "format"), "pt");
    CHECK_STR(dt_safetensors_metadata(file, "a\nb"), "\xe2\x82\xac");
    CHECK(!dt_safetensors_metadata(file, "Format"), "keys differ in case");
    CHECK_INT(file->tensors[0].begin % 8, 0);
    for (int i = 0; i < N_ENTRIES; i++) {
        const struct dt_safetensor *tensor = dt_safetensors_find(file, entries[i].name);
        CHECK(tensor && tensor->dtype == entries[i].dtype && tensor->n_dims == entries[i].n_dims &&
                  memcmp(tensor->shape, entries[i].shape, sizeof tensor->shape) == 0,
              "tensor %s", entries[i].name);
    }
    check_data(file);
    dt_safetensors_close(file);
}

// The format leaves no choice: a file has exactly these bytes.
static void test_exact_bytes(void)
{
    static const char header[] =
        "{\"tt\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}       ";
    struct dt_safetensors_writer *writer;
    const struct dt_safetensors_entry entry = {"tt", DT_F32, 2, {1, 2}};
    char *text, want[8 + sizeof header - 1 + 8] = {sizeof header - 1};
    int64_t size;
    float x[2] = {1, -2};
    CHECK_INT((sizeof header - 1) % 8, 0);
    memcpy(want + 8, header, sizeof header - 1);
    memcpy(want + 8 + sizeof header - 1, x, 8);
    CHECK_OK(dt_safetensors_create(in_scratch("t"), &entry, 1, NULL, 0, &writer));
    CHECK_OK(dt_safetensors_write(writer, x, 8));
    CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
    CHECK_OK(dt_read_file(in_scratch("t"), 1000, &text, &size));
    CHECK(size == sizeof want && memcmp(text, want, sizeof want) == 0, "%lld bytes: %s",
          (long long)size, text + 8);
    free(text);
}

static void test_offsets_are_plain_digits(void) // beyond 10^15, where %g uses exponents
{
    const struct dt_safetensors_entry entry = {"t", DT_F32, 2, {1ll << 29, 1ll << 20}};
    struct dt_safetensors_writer *writer;
    char *text;
    int64_t size;
    CHECK_OK(dt_safetensors_create(in_scratch("t"), &entry, 1, NULL, 0, &writer));
    CHECK_OK(dt_read_file(in_scratch("t"), 1000, &text, &size));
    CHECK(strstr(text + 8, "[536870912,1048576],\"data_offsets\":[0,2251799813685248]"), "%s",
          text + 8);
    free(text);
    dt_safetensors_discard(writer);
}

static void test_every_type_can_be_written(void)
{
    for (int type = 0; type < DT_DTYPE_COUNT; type++) {
        struct dt_safetensors_entry entry = {"x", (dt_dtype)type, 1, {2}};
        struct dt_safetensors_writer *writer;
        struct dt_safetensors *file;
        const char *path = in_scratch("typed.safetensors");
        CHECK_OK(dt_safetensors_create(path, &entry, 1, NULL, 0, &writer));
        CHECK_OK(dt_safetensors_write(writer, "12345678ABCDEFGH", 2 * dt_dtype_size(entry.dtype)));
        CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
        CHECK_OK(dt_safetensors_open(path, &file));
        CHECK_INT(file->tensors[0].dtype, type);
        dt_safetensors_close(file);
    }
}

static void test_writer_failures(void)
{
    const struct dt_safetensors_entry entry = {"t", DT_F32, 1, {4}}, twice[] = {entry, entry},
                                      negative = {"t", DT_F32, 1, {-4}},
                                      vast = {"t", DT_F32, 2, {1ll << 40, 1ll << 40}},
                                      reserved = {"__metadata__", DT_F32, 1, {4}};
    struct dt_safetensors_writer *writer;
    float x[5] = {0};
    CHECK_FAILS(dt_safetensors_create(in_scratch("no/t"), &entry, 1, NULL, 0, &writer), DT_USER,
                "no/t: No such file");
    CHECK_FAILS(dt_safetensors_create(in_scratch("new"), twice, 2, NULL, 0, &writer), DT_USER,
                "duplicate tensor t");
    CHECK_FAILS(dt_safetensors_create(in_scratch("new"), &negative, 1, NULL, 0, &writer),
                DT_MACHINE, "impossible");
    CHECK_FAILS(dt_safetensors_create(in_scratch("new"), &vast, 1, NULL, 0, &writer), DT_MACHINE,
                "impossible");
    CHECK_FAILS(dt_safetensors_create(in_scratch("new"), &reserved, 1, NULL, 0, &writer), DT_USER,
                "__metadata__");
    CHECK(!writer && !dt_file_exists(in_scratch("new")), "something was left of a failed create");

    CHECK_OK(dt_safetensors_create(in_scratch("new"), &entry, 1, NULL, 0, &writer));
    CHECK_OK(dt_safetensors_write(writer, x, 12));
    CHECK_FAILS(dt_safetensors_write(writer, x, 5), DT_MACHINE, "1 more bytes");
    CHECK_FAILS(dt_safetensors_finish(writer, NULL, NULL), DT_MACHINE, "announced");
    CHECK(!dt_file_exists(in_scratch("new")), "a file with too few bytes stayed");
    CHECK_OK(dt_safetensors_create(in_scratch("new"), &entry, 1, NULL, 0, &writer));
    dt_safetensors_discard(writer);
    CHECK(!dt_file_exists(in_scratch("new")), "a discarded file stayed");
    dt_safetensors_discard(NULL);
    dt_safetensors_close(NULL);
}

// A size limit simulates a disk that fills up.
static void test_full_disk(void)
{
    const struct dt_safetensors_entry entry = {"t", DT_F32, 1, {4096}};
    struct dt_safetensors_writer *writer;
    static const float x[4096];
    CHECK_OK(dt_safetensors_create(in_scratch("full"), &entry, 1, NULL, 0, &writer));
    limit_file_size(8192);
    CHECK_FAILS(dt_safetensors_write(writer, x, sizeof x), DT_MACHINE, "full: File too large");
    limit_file_size(RLIM_INFINITY);
    dt_safetensors_discard(writer);
    CHECK(!dt_file_exists(in_scratch("full")), "half a file stayed");
}

// A file is cut while it is open.
static void test_cut_under_way(void)
{
    struct dt_safetensors *file;
    float x[2];
    CHECK_OK(dt_safetensors_open(in_scratch("model.safetensors"), &file));
    const struct dt_safetensor *w = dt_safetensors_find(file, "backbone.w");
    CHECK_INT(truncate(in_scratch("model.safetensors"), w->begin + 6), 0);
    CHECK_FAILS(dt_safetensors_read_f32(file, w, 0, 2, x), DT_USER,
                "model.safetensors ends at byte");
    dt_safetensors_close(file);
}

int main(void)
{
    make_scratch();
    RUN(test_hostile_headers, test_mangled_headers, test_deep_and_large, test_hostile_files,
        test_foreign_header, test_round_trip, test_synced, test_exact_bytes,
        test_offsets_are_plain_digits, test_every_type_can_be_written, test_writer_failures,
        test_full_disk, test_cut_under_way);
    remove_scratch();
    return test_end();
}
