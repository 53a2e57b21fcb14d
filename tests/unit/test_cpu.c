// The CPU's device table: memory is aligned, zeroed and counted; copies and fills do what they say;
// wrong sizes are refused; the information makes sense.
#include "op_fixture.h"

#include "base/arena.h"

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
    check_ok(b->table->alloc(b->device, bytes, &memory), "alloc");
    check_ok(b->table->alloc_host(b->device, 100, &host), "alloc_host");
    CHECK(memory && (uintptr_t)memory % DT_ARENA_ALIGN == 0, "%p is not aligned", memory);
    CHECK(all_bytes(memory, bytes, 0), "memory is not zeroed");
    CHECK_INT(b->table->memory_in_use(b->device), bytes + 100);
    check_ok(b->table->fill(b->device, memory, 0xab, bytes, NULL), "fill");
    CHECK(all_bytes(memory, bytes, 0xab), "fill");
    int64_t some = bytes < 100 ? bytes : 100;
    check_ok(b->table->to_host(b->device, host, memory, some, NULL), "to_host");
    CHECK(all_bytes(host, some, 0xab) && all_bytes((unsigned char *)host + some, 100 - some, 0),
          "to_host");
    b->table->free_host(b->device, host);
    b->table->free(b->device, memory);
    CHECK_INT(b->table->memory_in_use(b->device), 0);
}

static void test_refusals(const struct dt_backend *b)
{
    void *memory = NULL;
    char byte = 0;
    CHECK_INT(b->table->alloc(b->device, -1, &memory), DT_MACHINE);
    CHECK_INT(b->table->alloc(b->device, INT64_MAX, &memory), DT_MACHINE);
    CHECK_INT(b->table->alloc(b->device, (int64_t)1 << 50, &memory), DT_MACHINE);
    CHECK(!memory && b->table->memory_in_use(b->device) == 0, "a refused allocation counts");
    CHECK_INT(b->table->copy(b->device, &byte, &byte, -1, NULL), DT_MACHINE);
    CHECK_INT(b->table->fill(b->device, &byte, 0, -1, NULL), DT_MACHINE);
    struct dt_backend other;
    CHECK_INT(dt_backend_open("cpu", 0, -1, &other), DT_USER);
    CHECK_INT(dt_backend_open("cpu", -1, 1, &other), DT_USER);
    CHECK_INT(dt_backend_open("cpu", 0, 1 << 20, &other), DT_USER);
    dt_error_clear();
}

static void test_info(void)
{
    struct dt_backend all = open_cpu(0), three = open_cpu(3);
    struct dt_device_info info;
    check_ok(all.table->info(all.device, &info), "info");
    CHECK(info.threads >= 1 && info.threads <= 4096, "%d threads", info.threads);
    CHECK(info.memory > 0 && info.memory_free > 0 && info.memory_free <= info.memory,
          "%lld of %lld free", (long long)info.memory_free, (long long)info.memory);
    CHECK(strstr(info.features, "oneDNN") != NULL, "features \"%s\"", info.features);
    check_ok(three.table->info(three.device, &info), "info");
    CHECK(info.threads == 3 && strstr(info.name, "3 threads"), "\"%s\"", info.name);
    dt_backend_close(&all);
    dt_backend_close(&three);
    dt_backend_close(&three); // twice does no harm
}

static void test_order(const struct dt_backend *b)
{
    struct dt_stream *stream = NULL;
    struct dt_event *event = NULL;
    bool done = false;
    check_ok(b->table->stream_create(b->device, &stream), "stream_create");
    check_ok(b->table->event_create(b->device, &event), "event_create");
    check_ok(b->table->event_record(b->device, event, stream), "event_record");
    check_ok(b->table->stream_wait(b->device, stream, event), "stream_wait");
    check_ok(b->table->event_done(b->device, event, &done), "event_done");
    check_ok(b->table->event_sync(b->device, event), "event_sync");
    check_ok(b->table->stream_sync(b->device, stream), "stream_sync");
    CHECK(stream && event && done, "a stream, an event or its end is missing");
    b->table->event_destroy(b->device, event);
    b->table->stream_destroy(b->device, stream);
}

int main(void)
{
    struct dt_backend b = open_cpu(2);
    test_memory(&b, 0);
    test_memory(&b, 1);
    test_memory(&b, 100003);
    test_memory(&b, (5 << 20) + 7); // zeroed by several threads, on huge pages
    test_refusals(&b);
    test_order(&b);
    test_info();
    dt_backend_close(&b);
    return test_end();
}
