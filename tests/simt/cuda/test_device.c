// Tests the device table of the CUDA backend on the simulated device. Each row of `cases` runs in
// its own process, since the environment describes the device. Memory, copies, events and graphs
// run in every order that the device may take.
#include "cases.h"
#include "device_fixture.h"

#include "backend/op_times.h"
#include "base/arena.h"

#include <pthread.h>

enum { N = 3000 }; // bytes; no multiple of anything

// Checks a call's status, and words in its message or hint.
static void expect(dt_status status, dt_status want, const char *words)
{
    char text[4096];
    dt_error_format(dt_error_current(), 0, text, sizeof text);
    CHECK(status == want, "status %d, not %d: %s", status, want, text);
    CHECK(strstr(text, words), "\"%s\" is not in: %s", words, text);
}

static void expect_none(const char *why, const char *remedy)
{
    struct dt_backend backend = {0};
    int n = -1;
    expect(dt_cuda_device_table.count(&n), DT_USER, why);
    CHECK_INT(n, 0);
    expect(dt_backend_open("cuda", 0, 1, &backend), DT_USER, why);
    expect(DT_USER, DT_USER, remedy);
    expect(DT_USER, DT_USER, "run.device = cpu");
}

// ---- no device

static void expect_versions(const char *first, const char *second)
{
    char text[512];
    dt_cuda_device_table.versions(text, sizeof text);
    CHECK(strstr(text, first) && strstr(text, second), "%s", text);
}

static void no_driver(void)
{
    expect_none("no NVIDIA driver found", "install NVIDIA's driver");
    expect_versions("CUDA        13.0, ", "no driver\n");
}

static void old_driver(void)
{
    expect_none("supports CUDA up to 12.4", "a newer driver");
    expect(DT_USER, DT_USER, "built with CUDA 13.0");
    expect_versions("CUDA        13.0, driver ", "for CUDA 12.4\n");
}

static void no_device(void)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    expect_none("the NVIDIA driver sees none", "--gres=gpu:1");
}

static void hidden_device(void)
{
    expect_none("CUDA_VISIBLE_DEVICES = \"7\"", "nvidia-smi -L");
}

static void no_such_index(void)
{
    struct dt_backend backend = {0};
    int n = 0;
    check_ok(dt_cuda_device_table.count(&n), "count");
    CHECK_INT(n, 2);
    expect(dt_backend_open("cuda", 2, 1, &backend), DT_USER, "no GPU 2: this process sees 2");
    expect(DT_USER, DT_USER, "fewer ranks");
    expect(dt_backend_open("cuda", -1, 1, &backend), DT_USER, "no GPU -1");
}

static void no_code(void)
{
    struct dt_backend backend = {0};
    expect(dt_backend_open("cuda", 0, 1, &backend), DT_USER, "(Simulated GPU) is sm_90");
    expect(DT_USER, DT_USER, "CMAKE_CUDA_ARCHITECTURES=90");
}

// ---- information about the device

static struct dt_device_info info_of(int index)
{
    struct dt_backend backend;
    struct dt_device_info info = {0};
    check_ok(dt_backend_open("cuda", index, 3, &backend), "dt_backend_open");
    check_ok(backend.table->info(backend.device, &info), "info");
    dt_backend_close(&backend);
    return info;
}

static char near[64]; // the device that the process was bound to last

bool __wrap_dt_cores_bind_near(const char *sysfs, const char *bus_id);
bool __wrap_dt_cores_bind_near(const char *sysfs, const char *bus_id)
{
    snprintf(near, sizeof near, "%s %s", sysfs, bus_id);
    return true;
}

static void describe(void)
{
    struct dt_device_info first = info_of(0), second = info_of(1);
    CHECK_STR(near, "/sys 0000:02:00.0");
    CHECK_STR(first.name, "Simulated GPU");
    CHECK_STR(first.features, "sm_90, 4 SMs, cuBLASLt 13.1.0");
    CHECK_STR(first.id, "GPU-73696d74-0000-0000-0000-000000000000");
    CHECK_STR(second.id, "GPU-73696d74-0000-0000-0000-000000000001");
    CHECK_INT(first.memory, 4 << 20);
    CHECK(first.memory_free > 0 && first.memory_free <= first.memory, "%lld bytes free",
          (long long)first.memory_free);
    CHECK_INT(first.threads, 3);
    CHECK(first.bf16 && first.bf16_faster, "sm_90 multiplies bf16");
    CHECK(first.peak_flops == 0, "not a device of any data sheet");
}

static void same_id(void)
{
    CHECK_STR(info_of(0).id, info_of(1).id);
}

// Peaks in FLOP/s as data sheets state them; 0 for a part of a device, a mobile device, and names
// that only begin like a known one.
static void peak(void)
{
    CHECK_NEAR(info_of(0).peak_flops, atof(getenv("PEAK")), 0);
}

// ---- memory

static void *host_array(const struct dt_backend *cuda, int64_t bytes)
{
    void *memory = NULL;
    CHECK_OK(dt_alloc_host(cuda, bytes, &memory));
    return memory;
}

static void *device_array(const struct dt_backend *cuda, int64_t bytes)
{
    void *memory = NULL;
    CHECK_OK(dt_alloc(cuda, bytes, &memory));
    CHECK_INT((uintptr_t)memory % DT_ARENA_ALIGN, 0);
    return memory;
}

static struct dt_stream *stream_of(const struct dt_backend *cuda)
{
    struct dt_stream *stream = NULL;
    CHECK_OK(dt_stream_create(cuda, &stream));
    return stream;
}

static struct dt_event *event_of(const struct dt_backend *cuda)
{
    struct dt_event *event = NULL;
    CHECK_OK(dt_event_create(cuda, &event));
    return event;
}

static int64_t others(const void *memory, int64_t bytes, unsigned char byte)
{
    int64_t n = 0;
    for (int64_t i = 0; i < bytes; i++)
        n += ((const unsigned char *)memory)[i] != byte;
    return n;
}

// Checks that memory is zeroed, on a stream that waits for nothing.
static void expect_zeroed(const struct dt_backend *cuda, const void *memory)
{
    struct dt_stream *stream = stream_of(cuda);
    unsigned char *seen = host_array(cuda, N);
    memset(seen, 1, N);
    CHECK_OK(dt_to_host(cuda, seen, memory, N, stream));
    CHECK_OK(dt_stream_sync(cuda, stream));
    CHECK_INT(others(seen, N, 0), 0);
    dt_free_host(cuda, seen);
    dt_stream_destroy(cuda, stream);
}

static void allocation(void)
{
    struct dt_backend cuda = open_cuda();
    int64_t before = dt_memory_in_use(&cuda);
    void *first = device_array(&cuda, N), *none = device_array(&cuda, 0);
    void *second = device_array(&cuda, N), *refused = NULL;
    CHECK(none && none != first && none != second, "no bytes have an address too");
    expect_zeroed(&cuda, first);
    expect_zeroed(&cuda, second);
    CHECK_INT(dt_memory_in_use(&cuda) - before, 2 * N);
    dt_free(&cuda, first);
    CHECK_INT(dt_memory_in_use(&cuda) - before, N);
    dt_free(&cuda, none);
    dt_free(&cuda, second);
    dt_free(&cuda, NULL);
    CHECK_INT(dt_memory_in_use(&cuda), before);
    expect(dt_alloc(&cuda, -1, &refused), DT_MACHINE, "-1 bytes");
    expect(dt_alloc_host(&cuda, -1, &refused), DT_MACHINE, "-1 bytes");
    void *pinned = host_array(&cuda, 0);
    CHECK(pinned, "no bytes have an address too");
    dt_free_host(&cuda, pinned);
    dt_free_host(&cuda, NULL);
    dt_backend_close(&cuda);
}

// Allocation fails, and the operation after it is not blamed for that.
static void out_of_memory(void)
{
    struct dt_backend cuda = open_cuda();
    struct dt_stream *stream = stream_of(&cuda);
    void *refused = NULL, *half = device_array(&cuda, 2 << 20);
    expect(dt_alloc(&cuda, 3 << 20, &refused), DT_MACHINE, "3.1 MB requested");
    expect(DT_MACHINE, DT_MACHINE, "of 4.2 MB free");
    expect(DT_MACHINE, DT_MACHINE, "2.1 MB used by this rank");
    expect(DT_MACHINE, DT_MACHINE, "GPU 0 (Simulated GPU)");
    expect(DT_MACHINE, DT_MACHINE, "data.micro_batch, or set model.recompute");
    dt_error_clear();
    uint64_t *time = device_array(&cuda, sizeof *time);
    struct dt_stamp_args args = {.time = time};
    CHECK_OK(dt_stamp(&cuda, &args, stream));
    CHECK_OK(dt_stream_sync(&cuda, stream));
    dt_free(&cuda, half);
    half = device_array(&cuda, 3 << 20);
    dt_free(&cuda, half);
    dt_free(&cuda, time);
    dt_stream_destroy(&cuda, stream);
    dt_backend_close(&cuda);
}

// ---- copies, events

// Two streams, events, and memory of the device and of the host.
struct rig {
    struct dt_backend cuda;
    struct dt_stream *main, *side;
    struct dt_event *fork, *join;
    unsigned char *memory, *out;
};

static struct rig open_rig(void)
{
    struct rig rig = {.cuda = open_cuda()};
    rig.main = stream_of(&rig.cuda), rig.side = stream_of(&rig.cuda);
    rig.fork = event_of(&rig.cuda), rig.join = event_of(&rig.cuda);
    rig.memory = device_array(&rig.cuda, N);
    rig.out = host_array(&rig.cuda, N);
    return rig;
}

static void close_rig(struct rig *rig)
{
    dt_free(&rig->cuda, rig->memory);
    dt_free_host(&rig->cuda, rig->out);
    dt_event_destroy(&rig->cuda, rig->fork);
    dt_event_destroy(&rig->cuda, rig->join);
    dt_stream_destroy(&rig->cuda, rig->main);
    dt_stream_destroy(&rig->cuda, rig->side);
    dt_backend_close(&rig->cuda);
}

static void copies(void)
{
    struct rig r = open_rig();
    unsigned char *in = host_array(&r.cuda, N), *other = device_array(&r.cuda, N);
    CHECK_INT(others(r.out, N, 0), 0);
    for (int i = 0; i < N; i++)
        in[i] = (unsigned char)(i % 251);
    CHECK_OK(dt_to_device(&r.cuda, r.memory, in, N, r.main));
    CHECK_OK(dt_copy(&r.cuda, other, r.memory, N, r.main));
    CHECK_OK(dt_fill(&r.cuda, other + N - 7, 9, 7, r.main));
    CHECK_OK(dt_to_host(&r.cuda, r.out, other, N, r.main));
    CHECK_OK(dt_stream_sync(&r.cuda, r.main));
    CHECK(memcmp(in, r.out, N - 7) == 0, "the way there and back");
    CHECK_INT(others(r.out + N - 7, 7, 9), 0);
    CHECK_OK(dt_to_device(&r.cuda, NULL, NULL, 0, r.main));
    CHECK_OK(dt_fill(&r.cuda, NULL, 0, 0, r.main));
    expect(dt_to_device(&r.cuda, r.memory, in, -1, r.main), DT_MACHINE, "-1 bytes");
    expect(dt_to_host(&r.cuda, r.out, r.memory, -1, r.main), DT_MACHINE, "-1 bytes");
    expect(dt_copy(&r.cuda, r.memory, other, -1, r.main), DT_MACHINE, "-1 bytes");
    expect(dt_fill(&r.cuda, r.memory, 0, -1, r.main), DT_MACHINE, "-1 bytes");
    // An error of CUDA's must say what was being done and why it failed.
    expect(dt_copy(&r.cuda, r.memory, other, 2 * N, r.main), DT_MACHINE,
           "copying 6000 bytes on the GPU failed: ");
    expect(DT_MACHINE, DT_MACHINE, "(cudaErrorInvalidValue)");
    struct dt_stamp_args args = {.time = (uint64_t *)(void *)r.memory};
    CHECK_OK(dt_stamp(&r.cuda, &args, r.main));
    CHECK_OK(dt_stream_sync(&r.cuda, r.main));
    dt_free_host(&r.cuda, in);
    dt_free(&r.cuda, other);
    close_rig(&r);
}

static void events(void)
{
    struct rig r = open_rig();
    bool done = false;
    for (int round = 1; round < 20; round++) {
        CHECK_OK(dt_fill(&r.cuda, r.memory, round, N, r.main));
        CHECK_OK(dt_event_record(&r.cuda, r.fork, r.main));
        CHECK_OK(dt_stream_wait(&r.cuda, r.side, r.fork));
        CHECK_OK(dt_to_host(&r.cuda, r.out, r.memory, N, r.side));
        CHECK_OK(dt_event_record(&r.cuda, r.join, r.side));
        CHECK_OK(dt_stream_wait(&r.cuda, r.main, r.join));
        if (round % 2)
            CHECK_OK(dt_event_sync(&r.cuda, r.join));
        else
            for (done = false; !done;)
                CHECK_OK(dt_event_done(&r.cuda, r.join, &done));
        CHECK_INT(others(r.out, N, (unsigned char)round), 0);
    }
    // Asking for an event that has not come leaves no error for the next launch.
    struct dt_stamp_args args = {.time = (uint64_t *)(void *)r.memory};
    CHECK_OK(dt_event_record(&r.cuda, r.fork, r.main));
    CHECK_OK(dt_event_done(&r.cuda, r.fork, &done));
    CHECK_OK(dt_stamp(&r.cuda, &args, r.main));
    CHECK_OK(dt_stream_sync(&r.cuda, r.main));
    close_rig(&r);
}

// A step has more ops than there are stamps: the others are not timed and write no stamp.
static void many_times(void)
{
    enum { TIMED = 16384, CALLS = TIMED + 3 };
    struct dt_backend cuda = open_cuda();
    struct dt_stream *stream = stream_of(&cuda);
    struct dt_trace_counter counters[DT_TRACE_COUNTERS];
    const struct dt_op_cost cost = {.bytes = 2};
    const struct dt_trace_span *spans;
    int64_t lost;
    struct dt_op_times *times;
    CHECK_OK(dt_trace_open(TIMED));
    dt_trace_keep(true);
    CHECK_OK(dt_op_times_create(&cuda, NULL, &times));
    CHECK_INT(dt_memory_in_use(&cuda), 2 * TIMED * sizeof(uint64_t));
    dt_op_times_start(times, DT_LANE_OP);
    for (int i = 0; i < CALLS; i++) {
        CHECK_OK(dt_op_times_begin(times, stream));
        CHECK_OK(dt_op_times_end(times, DT_LANE_OP, "op", NULL, &cost, stream));
    }
    CHECK_OK(dt_op_times_stop(times, stream));
    CHECK_OK(dt_stream_sync(&cuda, stream));
    dt_op_times_collect(times);
    CHECK_INT(dt_trace_counters(counters), 1);
    CHECK_INT(counters[0].count, TIMED);
    CHECK_NEAR(counters[0].work.bytes, 2 * TIMED, 0);
    CHECK(counters[0].seconds > 0, "%d ops took %g s", TIMED, counters[0].seconds);
    CHECK_INT(dt_trace_spans(&spans, &lost), TIMED);
    uint64_t apart = spans[TIMED - 1].begin - spans[0].end;
    CHECK(apart > 0 && apart < UINT64_C(1000000000000),
          "the last op begins %llu ns after the first", (unsigned long long)apart);
    dt_op_times_destroy(times);
    dt_trace_close();
    dt_stream_destroy(&cuda, stream);
    dt_backend_close(&cuda);
}

// ---- graphs

// Enqueues memory = 5 on the main stream, then out = memory on the side stream. The streams join
// unless `lost`.
static void put_work(const struct rig *rig, bool lost)
{
    CHECK_OK(dt_fill(&rig->cuda, rig->memory, 5, N, rig->main));
    CHECK_OK(dt_event_record(&rig->cuda, rig->fork, rig->main));
    CHECK_OK(dt_stream_wait(&rig->cuda, rig->side, rig->fork));
    CHECK_OK(dt_to_host(&rig->cuda, rig->out, rig->memory, N, rig->side));
    CHECK_OK(dt_event_record(&rig->cuda, rig->join, rig->side));
    if (!lost)
        CHECK_OK(dt_stream_wait(&rig->cuda, rig->main, rig->join));
}

// Calls of other threads do not break a capture.
static void *other_thread(void *context)
{
    const struct rig *rig = context;
    void *pinned = host_array(&rig->cuda, N), *memory = device_array(&rig->cuda, N);
    dt_free_host(&rig->cuda, pinned);
    dt_free(&rig->cuda, memory);
    return NULL;
}

static void graphs(void)
{
    struct rig rig = open_rig();
    struct dt_graph *graph = NULL;
    pthread_t other;
    CHECK_OK(dt_capture_begin(&rig.cuda, rig.main));
    put_work(&rig, false);
    CHECK_INT(pthread_create(&other, NULL, other_thread, &rig), 0);
    CHECK_INT(pthread_join(other, NULL), 0);
    CHECK_OK(dt_capture_end(&rig.cuda, rig.main, &graph));
    CHECK_INT(others(rig.out, N, 0), 0); // captured and not done
    for (int launch = 0; launch < 3; launch++) {
        memset(rig.out, 1, N);
        CHECK_OK(dt_graph_launch(&rig.cuda, graph, rig.main));
        CHECK_OK(dt_stream_sync(&rig.cuda, rig.main));
        CHECK_INT(others(rig.out, N, 5), 0);
    }
    dt_graph_destroy(&rig.cuda, graph);
    dt_graph_destroy(&rig.cuda, NULL);
    close_rig(&rig);
}

static void broken_graphs(void)
{
    struct rig rig = open_rig();
    struct dt_graph *graph = NULL;
    void *refused;
    DT_FAIL(DT_USER, NULL, "an old story");
    CHECK_OK(dt_capture_begin(&rig.cuda, rig.main));
    CHECK_OK(dt_error_current()->code); // else it would be reported as the capture's error
    put_work(&rig, true);
    dt_status status = dt_capture_end(&rig.cuda, rig.main, &graph);
    expect(status, DT_MACHINE, "capturing a graph failed: ");
    expect(status, DT_MACHINE, "(cudaErrorStreamCaptureUnjoined)");

    CHECK_OK(dt_capture_begin(&rig.cuda, rig.main));
    status = dt_alloc(&rig.cuda, N, &refused);
    expect(status, DT_MACHINE, "allocating 3000 bytes on GPU 0");
    status = dt_capture_end(&rig.cuda, rig.main, &graph);
    expect(status, DT_MACHINE, "broken by this error: \"allocating 3000 bytes on GPU 0");
    dt_error_clear();

    put_work(&rig, false); // the streams can be used as before
    CHECK_OK(dt_stream_sync(&rig.cuda, rig.main));
    CHECK_INT(others(rig.out, N, 5), 0);
    close_rig(&rig);
}

// A capture that is cancelled, be it whole, unjoined or broken by CUDA, leaves no graph and no
// captured stream, and the error stays that of the failed operation.
static void cancelled_captures(void)
{
    struct rig rig = open_rig();
    void *refused;
    for (int kind = 0; kind < 3; kind++) {
        CHECK_OK(dt_capture_begin(&rig.cuda, rig.main));
        put_work(&rig, kind == 1);
        if (kind == 2)
            CHECK_INT(dt_alloc(&rig.cuda, N, &refused), DT_MACHINE);
        dt_status status = DT_FAIL(DT_MACHINE, NULL, "an op failed");
        dt_capture_cancel(&rig.cuda, rig.main);
        expect(status, DT_MACHINE, "an op failed");
        memset(rig.out, 1, N);
        put_work(&rig, false);
        CHECK_OK(dt_stream_sync(&rig.cuda, rig.main));
        CHECK_INT(others(rig.out, N, 5), 0);
    }
    dt_error_clear();
    close_rig(&rig);
}

// ---- list of cases

static const struct test_case cases[] = {
    {NAMED(no_driver), .orders = 1, .environment = {"SIMT_DRIVER=0"}},
    {NAMED(old_driver), .orders = 1, .environment = {"SIMT_DRIVER=12040"}},
    {NAMED(no_device), .orders = 1, .environment = {"SIMT_DEVICES=0"}},
    {NAMED(hidden_device), .orders = 1,
     .environment = {"SIMT_DEVICES=0", "CUDA_VISIBLE_DEVICES=7"}},
    {NAMED(no_such_index), .orders = 1, .environment = {"SIMT_DEVICES=2"}},
    {NAMED(no_code), .orders = 1, .environment = {"SIMT_CODE=none"}},
    {NAMED(describe), .orders = 1, .environment = {"SIMT_DEVICES=2", "SIMT_MEMORY=4194304"}},
    {NAMED(same_id), .orders = 1, .environment = {"SIMT_DEVICES=2", "SIMT_UUID=same"}},
#define PEAK(name, flops)                                                                          \
    NAMED(peak), .orders = 1, .environment = {"SIMT_NAME=NVIDIA " name, "PEAK=" flops}
    {PEAK("H100 80GB HBM3", "989.4e12")},
    {PEAK("H100 PCIe", "756.5e12")},
    {PEAK("A100-SXM4-40GB", "312e12")},
    {PEAK("L40S", "362e12")},
    {PEAK("GeForce RTX 4090", "165.2e12")},
    {PEAK("H100 80GB HBM3 MIG 3g.40gb", "0")},
    {PEAK("GeForce RTX 4090 Laptop GPU", "0")},
    {PEAK("L400", "0")},
    {NAMED(out_of_memory), .orders = 1, .environment = {"SIMT_MEMORY=4194304"}},
    {NAMED(many_times), .orders = 1},
    {NAMED(allocation), .orders = ORDERS},
    {NAMED(copies), .orders = ORDERS},
    {NAMED(events), .orders = ORDERS},
    {NAMED(graphs), .orders = ORDERS},
    {NAMED(broken_graphs), .orders = ORDERS},
    {NAMED(cancelled_captures), .orders = ORDERS},
};

int main(void)
{
    run_cases(cases, sizeof cases / sizeof *cases);
    return test_end();
}
