// The choice among cuBLASLt's algorithms, on the simulated device and the library that stands in:
// the fastest deterministic one wins; a record is reused where it was made for this device and
// library, and ignored, saying why, where it was not or was damaged. Products are timed on operands
// that the cache does not hold, and in the form that adds to C as what it is. The
// device's clock stands still but for the durations that are told (SIMT_CUBLASLT_US).
#include "device_fixture.h"

#include "base/arena.h"

#include <stdatomic.h>
#include <unistd.h>

// ADDED to a shape's number: its form that adds to C. LARGE: a product that fills the cache twice.
enum { SHAPES = 3, LARGE = SHAPES + 1, ADDED = 8, L2 = 8192 };

static const char vector_wins[] = "vector=800,split=900,plain=1000,in_place=1,rounded=1";
static const char split_wins[] = "vector=900,split=800,plain=1000,in_place=1,rounded=1";
static const char untrue_wins[] = "vector=900,split=800,plain=1000,untrue=1";
static const char split_wins_added[] =
    "vector=800,split=900,plain=1000,vector+=900,split+=800,plain+=1000";
// Many of them make one measurement, which is exact to a hundredth.
static const char split_wins_shortly[] = "vector=8,split=7,plain=10";
// A thousandth decides nothing, a twentieth does: vector stands before split in the library's
// order.
static const char tie[] = "vector=1000,split=999,plain=1000";
static const char no_tie[] = "vector=1000,split=950,plain=1000";

static struct dt_gemm_args shape(int i)
{
    static const int64_t size[LARGE + 1][3] = {
        {16, 24, 64}, {32, 16, 48}, {24, 32, 32}, {16, 32, 80}, {32, 32, 128}};
    const int64_t *mnk = size[i % ADDED];
    int64_t m = mnk[0], n = mnk[1], k = mnk[2];
    return (struct dt_gemm_args){.a = dt_view_of(NULL, m, k, DT_BF16),
                                 .b = dt_view_of(NULL, k, n, DT_BF16),
                                 .c = dt_view_of(NULL, m, n, i == 1 ? DT_F32 : DT_BF16),
                                 .accumulate = i >= ADDED};
}

static void tell(const struct dt_backend *cuda, int i)
{
    struct dt_gemm_args args = shape(i);
    CHECK(dt_gemm_workspace(cuda, &args) > 0, "gemm's workspace");
}

static struct dt_backend open_with_shapes(void)
{
    struct dt_backend cuda = open_cuda();
    for (int i = SHAPES; i-- > 0;)
        tell(&cuda, i);
    return cuda;
}

static char *memory; // of the open device: operands, then the workspace
enum { OPERAND = 1 << 14 };

// Which algorithm multiplies a shape: the one that runs when it is asked to.
static const char *used(const struct dt_backend *cuda, int i)
{
    struct dt_gemm_args args = shape(i);
    const char *const *last = cublaslt_variable("simt_cublaslt_last");
    args.workspace_bytes = dt_gemm_workspace(cuda, &args);
    if (!memory)
        CHECK_OK(dt_alloc(cuda, 3 * OPERAND + args.workspace_bytes, &memory));
    args.a.data = memory;
    args.b.data = memory + OPERAND;
    args.c.data = memory + 2 * OPERAND;
    args.workspace = memory + 3 * OPERAND;
    CHECK_OK(dt_gemm(cuda, &args, NULL));
    CHECK_OK(dt_stream_sync(cuda, NULL));
    return *last;
}

static void close_device(struct dt_backend *cuda)
{
    if (memory)
        dt_free(cuda, memory);
    memory = NULL;
    dt_backend_close(cuda);
}

// ---- what goes to stderr meanwhile

static int stderr_kept;
static FILE *said_file;
static char said[8192];

static void listen(void)
{
    fflush(stderr);
    stderr_kept = dup(2);
    said_file = tmpfile();
    if (!said_file || stderr_kept < 0 || dup2(fileno(said_file), 2) < 0)
        exit(1);
}

static void listened(void)
{
    fflush(stderr);
    dup2(stderr_kept, 2);
    close(stderr_kept);
    rewind(said_file);
    said[fread(said, 1, sizeof said - 1, said_file)] = '\0';
    fclose(said_file);
}

static char *choose(const struct dt_backend *cuda, const char *known)
{
    char *text = NULL;
    int64_t before = dt_memory_in_use(cuda);
    listen();
    dt_status status = cuda->table->choose(cuda->device, known, &text);
    listened();
    check_ok(status, "choose");
    CHECK_INT(dt_memory_in_use(cuda), before);
    if (!text)
        exit(test_end());
    return text;
}

static void use(const struct dt_backend *cuda, const char *text)
{
    listen();
    dt_status status = cuda->table->use(cuda->device, text);
    listened();
    check_ok(status, "use");
}

#define CHECK_SAID(word)                                                                           \
    CHECK(strstr(said, word), "on stderr stands \"%s\", which lacks \"%s\"", said, word)
#define CHECK_QUIET() CHECK(!said[0], "on stderr stands \"%s\"", said)

static void set_speeds(const char *speeds)
{
    setenv("SIMT_CUBLASLT_US", speeds, 1);
}

// ---- records, changed

static char *replaced(const char *text, const char *from, const char *to)
{
    const char *place = strstr(text, from);
    CHECK(place, "no %s in %s", from, text);
    if (!place)
        exit(test_end());
    char *other = malloc(strlen(text) + strlen(to) + 1);
    sprintf(other, "%.*s%s%s", (int)(place - text), text, to, place + strlen(from));
    return other;
}

// One record of vector, made once.
static char *record_of_vector(void)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(vector_wins);
    char *text = choose(&cuda, NULL);
    close_device(&cuda);
    return text;
}

static void test_fastest(void)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(vector_wins);
    char *first = choose(&cuda, NULL);
    CHECK_SAID("choosing GEMM algorithms for 3 shapes");
    for (int i = 0; i < SHAPES; i++)
        CHECK_STR(used(&cuda, i), "vector");
    const char *one = strstr(first, "m16 "), *two = strstr(first, "m24 ");
    CHECK(one && two && one < two, "the shapes are not sorted: %s", first);

    set_speeds(split_wins);
    char *second = choose(&cuda, NULL);
    for (int i = 0; i < SHAPES; i++)
        CHECK_STR(used(&cuda, i), "split");
    CHECK(strcmp(first, second) != 0, "other algorithms, the same text");
    free(second);
    free(first);
    close_device(&cuda);
}

// ---- products, watched

enum { PRODUCTS = 4096 };
static struct product {
    const char *algorithm;
    const void *a;
    float beta;
} products[PRODUCTS];
static int n_products;
static const struct dt_backend *watched;
static int64_t most_memory; // in use meanwhile

static void note(const char *algorithm, const void *a, float beta)
{
    int64_t memory_now = dt_memory_in_use(watched);
    most_memory = memory_now > most_memory ? memory_now : most_memory;
    if (n_products < PRODUCTS)
        products[n_products++] = (struct product){algorithm, a, beta};
}

// The products that choosing makes, until the next call.
static char *choose_watched(const struct dt_backend *cuda)
{
    _Atomic(void (*)(const char *, const void *, float)) *watch =
        cublaslt_variable("simt_cublaslt_watch");
    n_products = 0;
    most_memory = 0;
    watched = cuda;
    *watch = note;
    char *text = choose(cuda, NULL);
    *watch = NULL;
    CHECK(n_products < PRODUCTS, "more than %d products", PRODUCTS);
    return text;
}

// Since product i's operands were used before it, others have moved so many bytes.
static int64_t moved_since(int i, int64_t set)
{
    int64_t moved = 0;
    for (int j = i - 1; j >= 0 && products[j].a != products[i].a; j--)
        moved += set;
    return moved;
}

static int different_operands(void)
{
    int n = 0;
    for (int i = 0; i < n_products; i++) {
        int j = 0;
        while (products[j].a != products[i].a)
            j++;
        n += i == j;
    }
    return n;
}

// A set of this shape's operands is less than the cache, so there are several. The last two
// products compare bits, and are not timed.
static void test_rotation(void)
{
    struct dt_backend cuda = open_cuda();
    struct dt_gemm_args args = shape(0);
    int64_t set =
        2 * (args.a.rows * args.a.cols + args.b.rows * args.b.cols + args.c.rows * args.c.cols);
    set_speeds(split_wins_shortly);
    tell(&cuda, 0);
    char *text = choose_watched(&cuda);
    CHECK(strstr(text, "\"microseconds\":\t7.0"), "no 7.0 in %s", text);
    int sets = different_operands(), n = n_products - 2;
    CHECK(sets * set >= 2 * L2, "%d sets of %lld bytes", sets, (long long)set);
    CHECK(n >= 3 * 5 * (100 / 10), "%d products are timed", n); // algorithms, rounds, 100 us each
    for (int i = sets; i < n; i++)
        CHECK(moved_since(i, set) >= L2, "product %d: its operands were used %lld bytes before", i,
              (long long)moved_since(i, set));
    // Each of a set's three operands is aligned; there are two stamps.
    int64_t bound = dt_gemm_workspace(&cuda, &args) + set + 2 * L2 + 4 * DT_ARENA_ALIGN;
    CHECK(most_memory <= bound, "%lld bytes in use, bound %lld", (long long)most_memory,
          (long long)bound);
    free(text);
    tell(&cuda, LARGE);
    text = choose_watched(&cuda);
    CHECK_INT(different_operands(), sets + 1);
    free(text);
    close_device(&cuda);
}

// The form that adds to C is timed as such, has an algorithm of its own, and keeps it in a record.
static void test_added(void)
{
    struct dt_backend cuda = open_cuda();
    set_speeds(split_wins_added);
    tell(&cuda, 0);
    tell(&cuda, ADDED);
    char *text = choose_watched(&cuda);
    CHECK_SAID("for 2 shapes");
    for (int i = 0; i < n_products; i++)
        CHECK(products[i].beta == (i < n_products / 2 ? 0.0f : 1.0f), "product %d of %d: beta %g",
              i, n_products, (double)products[i].beta);
    CHECK_STR(used(&cuda, 0), "vector");
    CHECK_STR(used(&cuda, ADDED), "split");
    CHECK(strstr(text, "align 16 16 16 accumulate\""), "no form that accumulates in %s", text);
    close_device(&cuda);

    cuda = open_cuda();
    use(&cuda, text);
    CHECK_QUIET();
    CHECK_STR(used(&cuda, 0), "vector");
    CHECK_STR(used(&cuda, ADDED), "split");
    free(text);
    close_device(&cuda);
}

// Without a choice the library's recommendation runs: the first that is deterministic.
static void test_recommended(void)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(split_wins);
    CHECK_STR(used(&cuda, 0), "vector");
    close_device(&cuda);
}

static void test_tie(void)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(tie);
    free(choose(&cuda, NULL));
    CHECK_STR(used(&cuda, 0), "vector");
    set_speeds(no_tie);
    char *text = choose(&cuda, NULL);
    CHECK_STR(used(&cuda, 0), "split");
    CHECK(strstr(text, "\"microseconds\":\t950.0"), "no 950.0 in %s", text);
    free(text);
    close_device(&cuda);
}

// "untrue" says that it sums in one sequence: only its bits give it away.
static void test_untrue(void)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(untrue_wins);
    setenv("SIMT_CUBLASLT_UNTRUE", "1", 1);
    char *text = choose(&cuda, NULL);
    unsetenv("SIMT_CUBLASLT_UNTRUE");
    for (int i = 0; i < SHAPES; i++)
        CHECK_STR(used(&cuda, i), "split");
    free(text);
    close_device(&cuda);
}

// In another process other speeds hold; the record decides, and comes out as it went in.
static void test_known(const char *record)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(split_wins);
    char *text = choose(&cuda, record);
    CHECK_QUIET();
    CHECK_STR(text, record);
    CHECK_STR(used(&cuda, 2), "vector");
    free(text);
    tell(&cuda, SHAPES); // which the record lacks
    text = choose(&cuda, record);
    CHECK_SAID("for 1 shape\n");
    CHECK_STR(used(&cuda, 2), "vector");
    CHECK_STR(used(&cuda, SHAPES), "split");
    free(text);
    close_device(&cuda);
}

static void test_use(const char *record)
{
    struct dt_backend cuda = open_cuda();
    set_speeds(split_wins);
    tell(&cuda, 0);
    char *split = choose(&cuda, NULL);
    close_device(&cuda);

    cuda = open_cuda();
    use(&cuda, split);
    CHECK_QUIET();
    tell(&cuda, 1);
    tell(&cuda, 0); // told after the record came
    CHECK_STR(used(&cuda, 0), "split");
    CHECK_STR(used(&cuda, 1), "vector"); // not in it: what the library recommends
    use(&cuda, record);
    CHECK_STR(used(&cuda, 0), "vector");
    use(&cuda, split);
    CHECK_STR(used(&cuda, 0), "split");
    use(&cuda, "no record");
    CHECK_SAID("ignoring the");
    CHECK_STR(used(&cuda, 0), "vector");
    free(split);
    close_device(&cuda);
}

// A record that must not be taken as a whole: every shape is chosen anew, and stderr says why.
static void check_ignored(const char *record, const char *why)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(split_wins);
    char *text = choose(&cuda, record);
    CHECK_SAID(why);
    CHECK_SAID("for 3 shapes");
    for (int i = 0; i < SHAPES; i++)
        CHECK_STR(used(&cuda, i), "split");
    free(text);
    close_device(&cuda);
}

static void test_made_elsewhere(const char *record)
{
    setenv("SIMT_CUBLASLT_VERSION", "130200", 1);
    check_ignored(record, "cublaslt was 130100 when they were chosen, but is 130200 here");
    unsetenv("SIMT_CUBLASLT_VERSION");
    static const char *const change[][3] = {
        {"\"device\":\t\"", "\"device\":\t\"Other ", "device was Other "},
        {"\"capability\":\t\"", "\"capability\":\t\"1", "capability was 1"},
        {"\"multiprocessors\":\t", "\"multiprocessors\":\t1", "multiprocessors was 1"},
    };
    for (size_t i = 0; i < sizeof change / sizeof *change; i++) {
        char *other = replaced(record, change[i][0], change[i][1]);
        check_ignored(other, change[i][2]);
        free(other);
    }
}

static void test_damaged(const char *record)
{
    check_ignored("", "is not JSON");
    check_ignored("[]", "must hold a JSON object");
    check_ignored("{}", "device is missing");
    char *cut = strdup(record);
    cut[strlen(cut) / 2] = '\0';
    check_ignored(cut, "is not JSON");
    free(cut);
    char *other = replaced(record, "\"gemm\":", "\"mmeg\":");
    check_ignored(other, "gemm is missing");
    free(other);
}

// One algorithm of a record that must not be taken: its shape alone is chosen anew. The first in
// the text is that of shape(0).
static void check_one_ignored(char *record, const char *why)
{
    struct dt_backend cuda = open_with_shapes();
    set_speeds(split_wins);
    char *text = choose(&cuda, record);
    CHECK_SAID(why);
    CHECK_SAID("for 1 shape\n");
    CHECK_STR(used(&cuda, 0), "split");
    CHECK_STR(used(&cuda, 1), "vector");
    CHECK_STR(used(&cuda, 2), "vector");
    free(text);
    free(record);
    close_device(&cuda);
}

// The record's first algorithm in the place of another: its index in the stand-in's table, which is
// the first byte of its eight words, and the settings that go with it.
static char *with_algorithm(const char *record, const char *index, const char *settings)
{
    const char *from = strstr(record, "\"algorithm\""), *end = strstr(from, "\"swizzle\"");
    const char *hex = strchr(from + 11, '"') + 1;
    char *other = malloc(strlen(record) + 200);
    sprintf(other, "%.*s\"algorithm\": \"%s%.126s\", %s, %s", (int)(from - record), record, index,
            hex + 2, settings, end);
    return other;
}

static void test_algorithms_refused(const char *record)
{
    check_one_ignored(replaced(record, "\"algorithm\":\t\"0", "\"algorithm\":\t\"x"),
                      "128 hexadecimal digits");
    check_one_ignored(replaced(record, "\"algorithm\":\t\"0", "\"algorithm\":\t\""),
                      "128 hexadecimal digits");
    check_one_ignored(replaced(record, "\"tile\":\t", "\"tile\":\t1"), "tile is 1");
    check_one_ignored(replaced(record, "\"microseconds\":\t", "\"microseconds\":\t-"),
                      "microseconds is -");
    check_one_ignored(with_algorithm(record, "00",
                                     "\"id\": 21, \"tile\": 20, \"stages\": 10, \"split_k\": 4, "
                                     "\"reduction\": 1"),
                      "it is not deterministic");
    check_one_ignored(with_algorithm(record, "01",
                                     "\"id\": 66, \"tile\": 20, \"stages\": 36, \"split_k\": 1, "
                                     "\"reduction\": 0"),
                      "not on this architecture");
    check_one_ignored(with_algorithm(record, "99",
                                     "\"id\": -1, \"tile\": -1, \"stages\": -1, "
                                     "\"split_k\": -1, \"reduction\": -1"),
                      "swizzle is 0");
}

// Where no algorithm is left, the error says what was wrong with each.
static void test_none_left(const char *fault, const char *why)
{
    struct dt_backend cuda = open_with_shapes();
    char *text = NULL;
    setenv("SIMT_CUBLASLT_FAIL", fault, 1);
    listen();
    dt_status status = cuda.table->choose(cuda.device, NULL, &text);
    listened();
    unsetenv("SIMT_CUBLASLT_FAIL");
    CHECK_INT(status, DT_MACHINE);
    CHECK(strstr(dt_error_current()->message, why), "\"%s\" lacks \"%s\"",
          dt_error_current()->message, why);
    dt_error_clear();
    close_device(&cuda);
}

// The device is full: what the library recommends stays, and a record of it is written.
static void test_no_memory(void)
{
    struct dt_backend cuda = open_with_shapes();
    struct dt_device_info info;
    void *block = NULL;
    set_speeds(split_wins);
    check_ok(cuda.table->info(cuda.device, &info), "info");
    CHECK_OK(dt_alloc(&cuda, info.memory_free - (1 << 20), &block));
    char *text = choose(&cuda, NULL);
    CHECK_SAID("not timing GEMM algorithms");
    dt_free(&cuda, block);
    CHECK_STR(used(&cuda, 0), "vector");
    char *again = choose(&cuda, text);
    CHECK_QUIET();
    CHECK_STR(again, text);
    free(again);
    free(text);
    close_device(&cuda);
}

int main(void)
{
    setenv("SIMT_CLOCK", "still", 1);
    setenv("SIMT_L2", "8192", 1);
    setenv("SIMT_MEMORY", "67108864", 1);
    setenv("SIMT_SM", "80", 1); // a smaller workspace
    char *record = record_of_vector();
    atomic_int *objects = cublaslt_variable("simt_cublaslt_objects");
    test_fastest();
    test_rotation();
    test_added();
    test_recommended();
    test_tie();
    test_untrue();
    test_none_left("matmul", ": 3 did not run, 0 could not be captured in a graph, 0 gave");
    test_none_left("captured", ": 0 did not run, 3 could not be captured in a graph, 0 gave");
    test_known(record);
    test_use(record);
    test_made_elsewhere(record);
    test_damaged(record);
    test_algorithms_refused(record);
    test_no_memory();
    CHECK_INT(*objects, 0);
    free(record);
    return test_end();
}
