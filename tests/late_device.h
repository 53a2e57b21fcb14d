// A device whose copies are done as late as possible: when the host waits for one.
#pragma once

#include "backend/backend.h"

#include "test.h"

enum { LATE_MOST = 1024 };
static struct {
    void *to;
    const void *from;
    int64_t bytes;
} late_copies[LATE_MOST];
static int n_late; // copies that were requested and not yet done

static inline dt_status copy_late(struct dt_device *device, void *to, const void *from,
                                  int64_t bytes, struct dt_stream *stream)
{
    (void)device, (void)stream;
    CHECK(n_late < LATE_MOST, "copies that nobody waits for");
    late_copies[n_late].to = to;
    late_copies[n_late].from = from;
    late_copies[n_late].bytes = bytes;
    n_late += n_late < LATE_MOST - 1;
    return DT_OK;
}

static inline dt_status sync_late_stream(struct dt_device *device, struct dt_stream *stream)
{
    (void)device, (void)stream;
    for (int i = 0; i < n_late; i++)
        memcpy(late_copies[i].to, late_copies[i].from, (size_t)late_copies[i].bytes);
    n_late = 0;
    return DT_OK;
}

static inline dt_status sync_late_event(struct dt_device *device, struct dt_event *event)
{
    (void)event;
    return sync_late_stream(device, NULL);
}

static inline void make_late(struct dt_device_table *table)
{
    table->to_device = table->to_host = table->copy = copy_late;
    table->stream_sync = sync_late_stream;
    table->event_sync = sync_late_event;
}
