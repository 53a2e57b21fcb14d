// Tests the device table of the CPU: memory is aligned, zeroed and counted; copies and fills write
// exactly what they should; wrong sizes are refused; the information is plausible.
#include "op_fixture.h"

#include "base/arena.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>

static int all_bytes(const unsigned char *x, int64_t n, int byte)
{
    for (int64_t i = 0; i < n; i++)
        if (x[i] != byte)
            return 0;
    return 1;
}

static void test_memory(const struct dt_backend *b, int64_t bytes)
{
    void *memory = NULL, *host = NULL;
    CHECK_OK(dt_alloc(b, bytes, &memory));
    CHECK_OK(dt_alloc_host(b, 100, &host));
    CHECK(memory && (uintptr_t)memory % DT_ARENA_ALIGN == 0, "%p is not aligned", memory);
    CHECK(all_bytes(memory, bytes, 0), "memory is not zeroed");
    CHECK_INT(dt_memory_in_use(b), bytes + 100);
    CHECK_OK(dt_fill(b, memory, 0xab, bytes, NULL));
    CHECK(all_bytes(memory, bytes, 0xab), "fill");
    int64_t some = bytes < 100 ? bytes : 100;
    CHECK_OK(dt_to_host(b, host, memory, some, NULL));
    CHECK(all_bytes(host, some, 0xab) && all_bytes((unsigned char *)host + some, 100 - some, 0),
          "to_host");
    dt_free_host(b, host);
    dt_free(b, memory);
    CHECK_INT(dt_memory_in_use(b), 0);
}

// Sizes on both sides of the one at which memory is split between threads.
enum { PART = 2 << 20, MOST = 3 * PART };
static const int64_t sizes[] = {1, PART - 64, PART - 1, PART, PART + 1, 2 * PART, MOST};

// Memory that was used before, which the system does not clear.
static void test_used_memory(const struct dt_backend *b)
{
    mallopt(M_MMAP_THRESHOLD, 4 * MOST);
    mallopt(M_TRIM_THRESHOLD, 16 * MOST);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        void *memory = NULL;
        for (int round = 0; round < 2; round++) {
            CHECK_OK(dt_alloc(b, sizes[i], &memory));
            CHECK(all_bytes(memory, sizes[i], 0), "%lld bytes are not zeroed", (long long)sizes[i]);
            memset(memory, 0xab, (size_t)sizes[i]);
            dt_free(b, memory);
        }
    }
}

// Copies random bytes and checks that nothing after their end is written.
static void test_copies(const struct dt_backend *b)
{
    enum { MORE = 64 };
    unsigned char *from = malloc(MOST + MORE), *to = malloc(MOST + MORE);
    struct dt_philox rng = dt_philox_init(1, 0, 0);
    for (int64_t i = 0; i < MOST + MORE; i++)
        from[i] = (unsigned char)dt_philox_below(&rng, 255); // never 255
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        memset(to, 255, MOST + MORE);
        CHECK_OK(dt_copy(b, to, from, sizes[i], NULL));
        CHECK(memcmp(to, from, (size_t)sizes[i]) == 0 && all_bytes(to + sizes[i], MORE, 255),
              "a copy of %lld bytes", (long long)sizes[i]);
    }
    free(from);
    free(to);
}

static void test_refusals(const struct dt_backend *b)
{
    void *memory = NULL;
    char byte = 0;
    CHECK_INT(dt_alloc(b, -1, &memory), DT_MACHINE);
    CHECK_INT(dt_alloc(b, INT64_MAX, &memory), DT_MACHINE);
    CHECK_INT(dt_alloc(b, (int64_t)1 << 50, &memory), DT_MACHINE);
    CHECK(!memory && dt_memory_in_use(b) == 0, "a refused allocation counts");
    CHECK_INT(dt_copy(b, &byte, &byte, -1, NULL), DT_MACHINE);
    CHECK_INT(dt_fill(b, &byte, 0, -1, NULL), DT_MACHINE);
    struct dt_backend other;
    CHECK_INT(dt_backend_open("cpu", 0, -1, &other), DT_USER);
    CHECK_INT(dt_backend_open("cpu", -1, 1, &other), DT_USER);
    CHECK_INT(dt_backend_open("cpu", 0, 1 << 20, &other), DT_USER);
    dt_error_clear();
}

// Returns the bytes that the kernel reports as available in a line in kB.
static double available(void)
{
    char line[128];
    double kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, "MemAvailable: %lf kB", &kilobytes);
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

// Compares both until they agree, at most a hundred times, since other processes use memory
// meanwhile.
static bool frees_what_is_available(const struct dt_backend *b)
{
    struct dt_device_info info;
    for (int i = 0; i < 100; i++) {
        check_ok(b->table->info(b->device, &info), "info");
        if (fabs((double)info.memory_free / available() - 1) < 0.002)
            return true;
    }
    return false;
}

static void test_info(void)
{
    struct dt_backend all = open_cpu(0), three = open_cpu(3);
    struct dt_device_info info;
    check_ok(all.table->info(all.device, &info), "info");
    CHECK(info.threads >= 1 && info.threads <= 4096, "%d threads", info.threads);
    CHECK(info.memory > 0 && info.memory_free > 0 && info.memory_free <= info.memory,
          "%lld of %lld free", (long long)info.memory_free, (long long)info.memory);
    CHECK(frees_what_is_available(&all), "%.0f bytes are available", available());
    CHECK(info.features[0], "features \"%s\"", info.features);
    check_ok(three.table->info(three.device, &info), "info");
    CHECK(info.threads == 3 && strstr(info.name, "3 threads"), "\"%s\"", info.name);
    dt_backend_close(&all);
    dt_backend_close(&three);
    dt_backend_close(&three); // closing twice does no harm
}

static void test_isa(void)
{
    const char *had = getenv("DTRAIN_MAX_ISA");
    struct dt_device_info info;
    setenv("DTRAIN_MAX_ISA", "plain", 1);
    struct dt_backend cpu = open_cpu(1);
    check_ok(cpu.table->info(cpu.device, &info), "info");
    CHECK(!info.bf16 && strcmp(info.features, "plain x86-64") == 0, "features \"%s\"",
          info.features);
    dt_backend_close(&cpu);
    setenv("DTRAIN_MAX_ISA", "AVX3", 1);
    CHECK_FAILS(dt_backend_open("cpu", 0, 1, &cpu), DT_USER, "DTRAIN_MAX_ISA is \"AVX3\"");
    had ? setenv("DTRAIN_MAX_ISA", had, 1) : unsetenv("DTRAIN_MAX_ISA");
}

static void test_order(const struct dt_backend *b)
{
    struct dt_stream *stream = NULL;
    struct dt_event *event = NULL;
    bool done = false;
    CHECK_OK(dt_stream_create(b, &stream));
    CHECK_OK(dt_event_create(b, &event));
    CHECK_OK(dt_event_record(b, event, stream));
    CHECK_OK(dt_stream_wait(b, stream, event));
    CHECK_OK(dt_event_done(b, event, &done));
    CHECK_OK(dt_event_sync(b, event));
    CHECK_OK(dt_stream_sync(b, stream));
    CHECK(stream && event && done, "a stream, an event or its end is missing");
    dt_event_destroy(b, event);
    dt_stream_destroy(b, stream);
}

struct product {
    int64_t m, n, k, lda, ldb, ldc;
    dt_dtype type, c_type;
    bool trans_a, trans_b, accumulate;
};
enum { SIDE = 40 }; // the most rows and columns of an operand

static void multiply(const struct dt_backend *b, const struct product *p, float *c)
{
    static char zeros[SIDE * SIDE * sizeof(float)];
    void *x = normal_rows(p->type, SIDE, SIDE, SIDE, 1.0, 1);
    void *y = normal_rows(p->type, SIDE, SIDE, SIDE, 1.0, 2);
    struct dt_gemm_args args = {
        .a = {x, p->trans_a ? p->k : p->m, p->trans_a ? p->m : p->k, p->lda, p->type},
        .b = {y, p->trans_b ? p->n : p->k, p->trans_b ? p->k : p->n, p->ldb, p->type},
        .c = {c, p->m, p->n, p->ldc, p->c_type},
        .trans_a = p->trans_a,
        .trans_b = p->trans_b,
        .accumulate = p->accumulate};
    memcpy(c, zeros, sizeof zeros);
    if (p->accumulate)
        c[0] = 1;
    args.workspace_bytes = dt_gemm_workspace(b, &args);
    CHECK_OK(dt_alloc(b, args.workspace_bytes, &args.workspace));
    CHECK_OK(dt_gemm(b, &args, NULL));
    dt_free(b, args.workspace);
    release_all();
}

// A backend keeps parts of a product for the next one. After a product that differs in one respect,
// the result must be that of a backend that has computed nothing yet, on any number of threads.
static void test_kept_products(void)
{
    static const struct product products[] = {
        {12, 20, 28, 32, 33, 34, DT_F32, DT_F32, false, false, false},
        {13, 20, 28, 32, 33, 34, DT_F32, DT_F32, false, false, false},
        {12, 21, 28, 32, 33, 34, DT_F32, DT_F32, false, false, false},
        {12, 20, 27, 32, 33, 34, DT_F32, DT_F32, false, false, false},
        {12, 20, 28, 31, 33, 34, DT_F32, DT_F32, false, false, false},
        {12, 20, 28, 32, 32, 34, DT_F32, DT_F32, false, false, false},
        {12, 20, 28, 32, 33, 33, DT_F32, DT_F32, false, false, false},
        {12, 20, 28, 32, 33, 34, DT_BF16, DT_BF16, false, false, false},
        {12, 20, 28, 32, 33, 34, DT_BF16, DT_F32, false, false, false},
        {12, 20, 28, 32, 33, 34, DT_F32, DT_F32, true, false, false},
        {12, 20, 28, 32, 33, 34, DT_F32, DT_F32, false, true, false},
        {12, 20, 28, 32, 33, 34, DT_F32, DT_F32, false, false, true},
    };
    enum { N = sizeof products / sizeof *products };
    static float kept[SIDE * SIDE], fresh[SIDE * SIDE];
    for (int threads = 1; threads <= 2; threads++) {
        struct dt_backend all = open_cpu(threads);
        for (int i = 0; i < 2 * N; i++) {
            struct dt_backend one = open_cpu(3 - threads);
            multiply(&all, &products[i % N], kept);
            multiply(&one, &products[i % N], fresh);
            CHECK(memcmp(kept, fresh, sizeof kept) == 0, "%d threads, product %d", threads, i % N);
            CHECK(fresh[products[i % N].ldc] != 0, "product %d is nothing", i % N);
            dt_backend_close(&one);
        }
        dt_backend_close(&all);
    }
}

int main(void)
{
    struct dt_backend b = open_cpu(2);
    test_memory(&b, 0);
    test_memory(&b, 1);
    test_memory(&b, 100003);
    test_memory(&b, (5 << 20) + 7); // several threads zero it, on huge pages
    test_used_memory(&b);
    test_copies(&b);
    test_refusals(&b);
    test_order(&b);
    test_info();
    test_isa();
    test_kept_products();
    dt_backend_close(&b);
    return test_end();
}
