// Tests the simulated CUDA runtime in every order of streams: a correct program gives correct
// results, a missing wait shows, and what CUDA forbids fails with CUDA's error.
#include "captured.h"
#include "cases.h"
#include "enqueue.h"
#include "test_kernels.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

enum { N = 200 };

#define OK(call) CHECK_CUDA(call, cudaSuccess)
#define CHECK_CUDA(call, want)                                                                     \
    do {                                                                                           \
        cudaError_t got_ = (call);                                                                 \
        CHECK(got_ == (want), "%s gives %s, not %s", #call, cudaGetErrorName(got_),                \
              cudaGetErrorName(want));                                                             \
    } while (0)

// ---- helpers

static float *device_array(void)
{
    float *x = NULL;
    OK(cudaMalloc((void **)&x, N * sizeof *x));
    return x;
}

static float *pinned_array(float value)
{
    float *x = NULL;
    OK(cudaHostAlloc((void **)&x, N * sizeof *x, cudaHostAllocDefault));
    for (int i = 0; i < N; i++)
        x[i] = value;
    return x;
}

static cudaStream_t new_stream(void)
{
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static cudaEvent_t new_event(void)
{
    cudaEvent_t event = NULL;
    OK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    return event;
}

static void follow(cudaStream_t stream, cudaStream_t other)
{
    cudaEvent_t event = new_event();
    OK(cudaEventRecord(event, other));
    OK(cudaStreamWaitEvent(stream, event, 0));
    OK(cudaEventDestroy(event));
}

static void copy_in(float *to, const float *from, cudaStream_t stream)
{
    OK(cudaMemcpyAsync(to, from, N * sizeof *to, cudaMemcpyHostToDevice, stream));
}

static void copy_out(float *to, const float *from, cudaStream_t stream)
{
    OK(cudaMemcpyAsync(to, from, N * sizeof *to, cudaMemcpyDeviceToHost, stream));
}

static void clear(float *x, cudaStream_t stream)
{
    OK(cudaMemsetAsync(x, 0, N * sizeof *x, stream));
}

static void work(dt_status status)
{
    CHECK(status == DT_OK, "%s", dt_error_current()->message);
    dt_error_clear();
}

static int all_are(const float *x, float value)
{
    for (int i = 0; i < N; i++)
        if (!(x[i] == value))
            return 0;
    return 1;
}

// ---- streams and events

static void test_stream_order(void)
{
    cudaStream_t stream = new_stream();
    float *x = device_array(), *in = pinned_array(3.0f), *out = pinned_array(0.0f);
    copy_in(x, in, stream);
    work(add(x, 2.0f, N, stream));
    work(scale(x, 4.0f, N, stream));
    copy_out(out, x, stream);
    OK(cudaStreamSynchronize(stream));
    CHECK(all_are(out, 20.0f), "%g", (double)out[0]);
    OK(cudaStreamQuery(stream));
    OK(cudaFree(x));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    OK(cudaStreamDestroy(stream));
}

// Passes a value between two streams that wait for each other in turn; `forgotten` names a wait
// that is left out.
static float to_and_fro(cudaStream_t first, cudaStream_t second, int forgotten)
{
    float *x = device_array(), *in = pinned_array(1.0f), *out = pinned_array(-1.0f);
    copy_in(x, in, first);
    work(add(x, 1.0f, N, first));
    if (!forgotten)
        follow(second, first);
    work(scale(x, 10.0f, N, second));
    follow(first, second);
    work(add(x, 5.0f, N, first));
    copy_out(out, x, first);
    OK(cudaDeviceSynchronize());
    float result = all_are(out, out[0]) ? out[0] : NAN;
    OK(cudaFree(x));
    OK(cudaFreeHost(in));
    OK(cudaFreeHost(out));
    return result;
}

static void test_event_waits(void)
{
    cudaStream_t older = new_stream(), newer = new_stream();
    for (int i = 0; i < 5; i++) {
        CHECK_NEAR(to_and_fro(older, newer, 0), 25.0, 0.0);
        CHECK_NEAR(to_and_fro(newer, older, 0), 25.0, 0.0);
        CHECK_NEAR(to_and_fro(NULL, older, 0), 25.0, 0.0);
    }
}

static void test_forgotten_wait(void)
{
    cudaStream_t older = new_stream(), newer = new_stream();
    int seen = to_and_fro(older, newer, 1) != 25.0f || to_and_fro(newer, older, 1) != 25.0f;
    if (seen && test_failures == 0)
        _exit(SEEN);
}

// The host reads a result without waiting for it.
static void test_forgotten_sync(void)
{
    cudaStream_t stream = new_stream();
    float *x = device_array(), *out = pinned_array(-1.0f);
    clear(x, stream);
    copy_out(out, x, stream);
    if (!all_are(out, 0.0f) && test_failures == 0)
        _exit(SEEN);
}

static void *use_own_stream(void *unused)
{
    (void)unused;
    cudaStream_t first = new_stream(), second = new_stream();
    for (int i = 0; i < 5; i++)
        CHECK_NEAR(to_and_fro(first, second, 0), 25.0, 0.0);
    return NULL;
}

static void test_host_threads(void)
{
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        CHECK_INT(pthread_create(&threads[i], NULL, use_own_stream, NULL), 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
}

static void test_events(void)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t event = new_event();
    float *x = device_array(), *out = pinned_array(-1.0f);
    OK(cudaEventQuery(event)); // it was never recorded
    OK(cudaEventSynchronize(event));
    clear(x, stream);
    copy_out(out, x, stream);
    OK(cudaEventRecord(event, stream));
    cudaError_t error, other = cudaSuccess;
    while ((error = cudaEventQuery(event)) == cudaErrorNotReady) {
        other = cudaErrorNotReady; // CUDA keeps this as the last error too
        usleep(100);
    }
    OK(error);
    CHECK(all_are(out, 0.0f), "%g", (double)out[0]);
    CHECK_CUDA(cudaGetLastError(), other);
    OK(cudaGetLastError());
}

// ---- work of libraries

struct baton {
    int *turn; // in host memory
    int mine;
    int *times_asked;
};

static bool wait_for_turn(void *context)
{
    struct baton *baton = context;
    ++*baton->times_asked;
    if (*baton->turn != baton->mine)
        return false;
    ++*baton->turn;
    return true;
}

// Each piece of work waits for one on another stream, as the ranks of a collective do.
static void test_enqueue(void)
{
    enum { STREAMS = 4 };
    int turn = 0, asked = 0;
    for (int i = STREAMS - 1; i >= 0; i--) {
        struct baton baton = {&turn, i, &asked};
        simt_enqueue("a baton", new_stream(), wait_for_turn, &baton, sizeof baton);
    }
    OK(cudaDeviceSynchronize());
    CHECK_INT(turn, STREAMS);
    CHECK(asked >= STREAMS, "asked %d times", asked);
}

static bool never(void *context)
{
    (void)context;
    return false;
}

// A process with unfinished work must end nevertheless.
static void test_exit_with_work(void)
{
    float *x = device_array();
    for (int i = 0; i < 20; i++)
        work(add(x, 1.0f, N, new_stream()));
    simt_enqueue("endless", new_stream(), never, NULL, 0);
}

// ---- graphs

struct rig {
    cudaStream_t stream, side;
    float *x, *y, *in, *out;
};

static struct rig new_rig(void)
{
    return (struct rig){new_stream(),   new_stream(),       device_array(),
                        device_array(), pinned_array(1.0f), pinned_array(-1.0f)};
}

static void begin(cudaStream_t stream)
{
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

// Captures out = x = 10 (in + 2) + 1 with the factor on the side stream, and y = 0 beside it.
static cudaGraph_t capture(const struct rig *r)
{
    cudaGraph_t graph = NULL;
    begin(r->stream);
    copy_in(r->x, r->in, r->stream);
    work(add(r->x, 2.0f, N, r->stream));
    follow(r->side, r->stream);
    work(scale(r->x, 10.0f, N, r->side));
    clear(r->y, r->stream);
    follow(r->stream, r->side);
    work(add(r->x, 1.0f, N, r->stream));
    copy_out(r->out, r->x, r->stream);
    OK(cudaStreamEndCapture(r->stream, &graph));
    return graph;
}

// Ends the capture and makes the graph launchable.
static cudaGraphExec_t end(cudaStream_t stream)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    return exec;
}

static void test_graph(void)
{
    struct rig r = new_rig();
    size_t nodes = 0;
    cudaGraphExec_t exec = NULL;
    cudaGraph_t graph = capture(&r);
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    CHECK_INT(nodes, 6);
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaDeviceSynchronize());
    CHECK(all_are(r.out, -1.0f), "a captured copy was done: %g", (double)r.out[0]);
    for (int i = 1; i <= 3; i++) {
        float *value = pinned_array((float)i);
        OK(cudaMemcpyAsync(r.in, value, N * sizeof *value, cudaMemcpyHostToHost, r.stream));
        OK(cudaGraphLaunch(exec, r.stream));
        OK(cudaStreamSynchronize(r.stream));
        CHECK(all_are(r.out, 10.0f * (float)(i + 2) + 1.0f), "launch %d: %g", i, (double)r.out[0]);
    }
    OK(cudaGraphExecDestroy(exec));
}

// Launches of one graph on two streams run one after another, although neither stream waits.
static void test_launches_apart(void)
{
    struct rig r = new_rig();
    clear(r.x, r.stream);
    clear(r.y, r.stream);
    OK(cudaDeviceSynchronize());
    begin(r.stream);
    work(add(r.x, 1.0f, N, r.stream)); // x = 2 (x + 1): 2, 6, 14, 30 unless launches overlap
    work(scale(r.x, 2.0f, N, r.stream));
    cudaGraphExec_t exec = end(r.stream);
    for (int i = 0; i < 4; i++)
        OK(cudaGraphLaunch(exec, i % 2 ? r.stream : r.side));
    OK(cudaGraphExecDestroy(exec)); // a launch that is under way continues
    OK(cudaDeviceSynchronize());
    copy_out(r.out, r.x, r.stream);
    OK(cudaStreamSynchronize(r.stream));
    CHECK(all_are(r.out, 30.0f), "%g", (double)r.out[0]);
}

static void test_forgotten_wait_in_graph(void)
{
    struct rig r = new_rig();
    begin(r.side);
    follow(r.stream, r.side);
    copy_in(r.x, r.in, r.side);
    work(add(r.x, 2.0f, N, r.stream)); // should have waited for the copy
    follow(r.side, r.stream);
    copy_out(r.out, r.x, r.side);
    cudaGraphExec_t exec = end(r.side);
    int seen = 0;
    for (int i = 0; i < 8; i++) {
        OK(cudaGraphLaunch(exec, r.side));
        OK(cudaStreamSynchronize(r.side));
        seen += !all_are(r.out, 3.0f);
    }
    OK(cudaGraphExecDestroy(exec));
    if (seen && test_failures == 0)
        _exit(SEEN);
}

static bool stays_undone(void *context)
{
    int *count = context;
    return ++*count == 3;
}

// Each launch starts from the context at the time of the capture.
static void test_enqueue_in_graph(void)
{
    cudaStream_t stream = new_stream();
    int count = 0;
    begin(stream);
    simt_enqueue("three times", stream, stays_undone, &count, sizeof count);
    cudaGraphExec_t exec = end(stream);
    for (int i = 0; i < 3; i++)
        OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(exec));
    CHECK_INT(count, 0);
}

// ---- what captures forbid

static void check_invalid(const struct rig *r)
{
    enum cudaStreamCaptureStatus status;
    cudaGraph_t graph = NULL;
    OK(cudaStreamIsCapturing(r->stream, &status));
    CHECK_INT(status, cudaStreamCaptureStatusInvalidated);
    CHECK_CUDA(cudaMemsetAsync(r->x, 0, 4, r->stream), cudaErrorStreamCaptureInvalidated);
    CHECK_CUDA(cudaStreamEndCapture(r->stream, &graph), cudaErrorStreamCaptureInvalidated);
    CHECK(!graph, "a graph of an invalid capture");
    OK(cudaStreamIsCapturing(r->stream, &status));
    CHECK_INT(status, cudaStreamCaptureStatusNone);
}

#define FORBIDDEN(r, call, error)                                                                  \
    do {                                                                                           \
        begin((r)->stream);                                                                        \
        CHECK_CUDA(call, error);                                                                   \
        check_invalid(r);                                                                          \
    } while (0)

static void test_forbidden_in_capture(void)
{
    struct rig r = new_rig();
    void *memory;
    float pageable[N];
    cudaEvent_t outside = new_event();
    OK(cudaEventRecord(outside, r.side));
    FORBIDDEN(&r, cudaStreamSynchronize(r.stream), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaStreamSynchronize(r.side), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaStreamQuery(r.stream), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaDeviceSynchronize(), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaEventQuery(outside), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaFree(r.y), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaHostAlloc(&memory, 16, 0), cudaErrorStreamCaptureUnsupported);
    FORBIDDEN(&r, cudaStreamWaitEvent(r.stream, outside, 0), cudaErrorStreamCaptureIsolation);
    FORBIDDEN(&r, cudaMemcpyAsync(pageable, r.x, sizeof pageable, cudaMemcpyDeviceToHost, r.stream),
              cudaErrorStreamCaptureUnsupported);
    OK(cudaStreamSynchronize(r.side));
}

static void test_captured_events(void)
{
    struct rig r = new_rig();
    cudaEvent_t event = new_event();
    for (int i = 0; i < 3; i++) {
        begin(r.stream);
        OK(cudaEventRecord(event, r.stream));
        if (i == 0)
            CHECK_CUDA(cudaEventQuery(event), cudaErrorCapturedEvent);
        else if (i == 1)
            CHECK_CUDA(cudaEventSynchronize(event), cudaErrorCapturedEvent);
        else
            CHECK_CUDA(cudaStreamWaitEvent(NULL, event, 0), cudaErrorStreamCaptureImplicit);
        check_invalid(&r);
    }
    begin(r.stream);
    OK(cudaEventRecord(event, r.stream));
    OK(cudaGraphExecDestroy(end(r.stream)));
    CHECK_CUDA(cudaStreamWaitEvent(r.side, event, 0), cudaErrorCapturedEvent);
    OK(cudaEventRecord(event, r.side));
    OK(cudaEventSynchronize(event));
}

static void test_joining(void)
{
    struct rig r = new_rig();
    cudaGraph_t graph = NULL;
    CHECK_CUDA(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeThreadLocal),
               cudaErrorStreamCaptureUnsupported);
    CHECK_CUDA(cudaStreamEndCapture(r.stream, &graph), cudaErrorIllegalState);
    begin(r.stream);
    CHECK_CUDA(cudaStreamBeginCapture(r.stream, cudaStreamCaptureModeThreadLocal),
               cudaErrorIllegalState);
    // CUDA keeps it; the next launch would return it.
    CHECK_CUDA(cudaGetLastError(), cudaErrorIllegalState);
    follow(r.side, r.stream);
    work(add(r.x, 1.0f, N, r.side));
    CHECK_CUDA(cudaStreamEndCapture(r.stream, &graph), cudaErrorStreamCaptureUnjoined);
    CHECK(!graph, "a graph of an unjoined capture");
    begin(r.stream);
    follow(r.side, r.stream);
    CHECK_CUDA(cudaStreamEndCapture(r.side, &graph), cudaErrorStreamCaptureUnmatched);
    check_invalid(&r);
    begin(r.side);
    begin(r.stream);
    cudaEvent_t event = new_event();
    OK(cudaEventRecord(event, r.side));
    CHECK_CUDA(cudaStreamWaitEvent(r.stream, event, 0), cudaErrorStreamCaptureMerge);
    check_invalid(&r);
}

// The NULL stream would wait for one of two streams that are captured at the same time.
static void test_null_stream(void)
{
    struct rig r = new_rig();
    cudaStream_t blocking = NULL;
    begin(r.stream);
    clear(r.y, NULL);
    OK(cudaGraphExecDestroy(end(r.stream)));
    OK(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
    begin(blocking);
    CHECK_CUDA(cudaMemsetAsync(r.y, 0, N * sizeof *r.y, NULL), cudaErrorStreamCaptureImplicit);
    OK(cudaGraphExecDestroy(end(blocking)));
    clear(r.y, NULL);
    OK(cudaStreamSynchronize(NULL));
}

static void *do_elsewhere(void *context)
{
    const struct rig *r = context;
    void *memory = NULL;
    cudaGraph_t graph = NULL;
    OK(cudaMalloc(&memory, 16));
    OK(cudaFree(memory));
    clear(r->y, r->side);
    OK(cudaStreamSynchronize(r->side));
    CHECK_CUDA(cudaStreamEndCapture(r->stream, &graph), cudaErrorStreamCaptureWrongThread);
    return NULL;
}

// A capture of one thread does not restrict other threads.
static void test_other_thread(void)
{
    struct rig r = new_rig();
    pthread_t thread;
    begin(r.stream);
    CHECK_INT(pthread_create(&thread, NULL, do_elsewhere, &r), 0);
    pthread_join(thread, NULL);
    OK(cudaGraphExecDestroy(end(r.stream)));
}

// ---- memory and copies

static void test_memory(void) // SIMT_MEMORY=100000
{
    void *a = NULL, *b = NULL;
    size_t free_bytes = 0, total = 0;
    OK(cudaMalloc(&a, 60000));
    CHECK_INT(((unsigned char *)a)[59999], 0xff);
    OK(cudaMemGetInfo(&free_bytes, &total));
    CHECK_INT(free_bytes, 40000);
    CHECK_INT(total, 100000);
    CHECK_CUDA(cudaMalloc(&b, 40001), cudaErrorMemoryAllocation);
    CHECK_CUDA(cudaPeekAtLastError(), cudaErrorMemoryAllocation);
    CHECK_CUDA(cudaGetLastError(), cudaErrorMemoryAllocation);
    OK(cudaGetLastError());
    OK(cudaFree(a));
    CHECK_CUDA(cudaFree(a), cudaErrorInvalidValue);
    OK(cudaMalloc(&b, 100000));
    OK(cudaFree(NULL));
    CHECK_CUDA(cudaFreeHost(b), cudaErrorInvalidValue);
}

static void test_copies(void)
{
    struct rig r = new_rig();
    float host[N], back[N];
    size_t bytes = sizeof host;
    for (int i = 0; i < N; i++)
        host[i] = 7.0f;
    OK(cudaMemcpyAsync(r.x, host, bytes, cudaMemcpyHostToDevice, r.stream));
    memset(host, 0, sizeof host); // the source was read already
    OK(cudaMemcpyAsync(r.y, r.x, bytes, cudaMemcpyDeviceToDevice, r.stream));
    OK(cudaMemcpyAsync(back, r.y, bytes, cudaMemcpyDefault, r.stream));
    CHECK(all_are(back, 7.0f), "%g", (double)back[0]); // the data have arrived
    CHECK_CUDA(cudaMemcpyAsync(r.x, host, bytes + 1, cudaMemcpyHostToDevice, r.stream),
               cudaErrorInvalidValue);
    CHECK_CUDA(cudaMemcpyAsync(r.x, r.y, bytes, cudaMemcpyHostToDevice, r.stream),
               cudaErrorInvalidValue);
    CHECK_CUDA(cudaMemcpyAsync(host, r.y, bytes, cudaMemcpyDeviceToDevice, r.stream),
               cudaErrorInvalidValue);
    CHECK_CUDA(cudaMemsetAsync(r.x + 1, 0, bytes, r.stream), cudaErrorInvalidValue);
    CHECK_CUDA(cudaMemsetAsync(host, 0, bytes, r.stream), cudaErrorInvalidValue);
    CHECK_CUDA(cudaMemsetAsync(r.x, 0, bytes, (cudaStream_t)host), cudaErrorInvalidResourceHandle);
}

// ---- faults

static void test_fault_is_told_once(void)
{
    cudaStream_t first = new_stream(), second = new_stream();
    int lines = 0;
    capture_stderr();
    part_at_barrier(first);
    part_at_barrier(second);
    cudaError_t error = cudaDeviceSynchronize();
    for (const char *at = captured(); (at = strstr(at, "simt: ")); at++)
        lines++;
    CHECK_CUDA(error, cudaErrorLaunchFailure);
    CHECK_INT(lines, 1);
    dt_error_clear();
}

static void test_fault(void)
{
    cudaStream_t stream = new_stream();
    float *x = device_array();
    CHECK_FAILS(launch_too_wide(stream), DT_MACHINE, "32 x 32 x 2");
    OK(cudaStreamSynchronize(stream));
    part_at_barrier(stream);
    CHECK_CUDA(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    CHECK_CUDA(cudaMemsetAsync(x, 0, 4, stream), cudaErrorLaunchFailure);
    CHECK_CUDA(cudaGetLastError(), cudaErrorLaunchFailure);
    CHECK_CUDA(cudaGetLastError(), cudaErrorLaunchFailure);
    CHECK_INT(add(x, 1.0f, N, stream), DT_MACHINE);
    CHECK_CUDA(cudaFree(x), cudaErrorLaunchFailure);
}

// ---- devices

static void test_two_devices(void) // SIMT_DEVICES=2
{
    struct cudaDeviceProp first, second;
    char bus[2][16];
    int n = 0;
    OK(cudaGetDeviceCount(&n));
    CHECK_INT(n, 2);
    OK(cudaGetDeviceProperties(&first, 0));
    OK(cudaGetDeviceProperties(&second, 1));
    CHECK(memcmp(&first.uuid, &second.uuid, sizeof first.uuid) != 0, "one UUID for two devices");
    OK(cudaDeviceGetPCIBusId(bus[0], sizeof bus[0], 0));
    OK(cudaDeviceGetPCIBusId(bus[1], sizeof bus[1], 1));
    CHECK(strcmp(bus[0], bus[1]) != 0, "both at %s", bus[0]);
    CHECK_CUDA(cudaSetDevice(2), cudaErrorInvalidDevice);
    cudaStream_t stream = new_stream();
    OK(cudaSetDevice(1));
    CHECK_INT(add(NULL, 1.0f, N, stream), DT_MACHINE); // the stream belongs to the other device
    dt_error_clear();
}

static void test_one_uuid(void) // SIMT_DEVICES=2 SIMT_UUID=same
{
    struct cudaDeviceProp first, second;
    OK(cudaGetDeviceProperties(&first, 0));
    OK(cudaGetDeviceProperties(&second, 1));
    CHECK(memcmp(&first.uuid, &second.uuid, sizeof first.uuid) == 0, "UUIDs differ");
}

static void test_no_device(void) // SIMT_DEVICES=0
{
    int n = 1;
    void *memory = NULL;
    CHECK_CUDA(cudaGetDeviceCount(&n), cudaErrorNoDevice);
    CHECK_INT(n, 0);
    CHECK_CUDA(cudaMalloc(&memory, 16), cudaErrorNoDevice);
}

static void test_old_driver(void) // SIMT_DRIVER=12080
{
    int n = 1, driver = 0;
    CHECK_CUDA(cudaGetDeviceCount(&n), cudaErrorInsufficientDriver);
    OK(cudaDriverGetVersion(&driver));
    CHECK_INT(driver, 12080);
}

static const struct test_case cases[] = {
    {NAMED(test_stream_order), .orders = ORDERS},
    {NAMED(test_event_waits), .orders = ORDERS},
    {NAMED(test_host_threads), .orders = ORDERS},
    {NAMED(test_events), .orders = ORDERS},
    {NAMED(test_enqueue), .orders = ORDERS},
    {NAMED(test_exit_with_work), .orders = ORDERS},
    {NAMED(test_graph), .orders = ORDERS},
    {NAMED(test_launches_apart), .orders = ORDERS},
    {NAMED(test_enqueue_in_graph), .orders = ORDERS},
    {NAMED(test_other_thread), .orders = ORDERS},
    {NAMED(test_copies), .orders = ORDERS},
    {NAMED(test_fault), .orders = ORDERS},
    {NAMED(test_fault_is_told_once), .orders = ORDERS},
    // In ascending and descending order the missing wait certainly shows.
    {NAMED(test_forgotten_wait), .orders = ORDERS, .seen = 2},
    {NAMED(test_forgotten_sync), .orders = ORDERS, .seen = 2},
    {NAMED(test_forgotten_wait_in_graph), .orders = ORDERS, .seen = 1},
    {NAMED(test_forbidden_in_capture), .orders = 1},
    {NAMED(test_captured_events), .orders = 1},
    {NAMED(test_joining), .orders = 1},
    {NAMED(test_null_stream), .orders = 1},
    {NAMED(test_memory), .orders = 1, .environment = {"SIMT_MEMORY=100000"}},
    {NAMED(test_two_devices), .orders = 1, .environment = {"SIMT_DEVICES=2"}},
    {NAMED(test_one_uuid), .orders = 1, .environment = {"SIMT_DEVICES=2", "SIMT_UUID=same"}},
    {NAMED(test_no_device), .orders = 1, .environment = {"SIMT_DEVICES=0"}},
    {NAMED(test_old_driver), .orders = 1, .environment = {"SIMT_DRIVER=12080"}},
};

int main(void)
{
    run_cases(cases, sizeof cases / sizeof *cases);
    return test_end();
}
