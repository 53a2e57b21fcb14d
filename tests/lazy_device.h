// A device over the CPU's memory that puts off all work. The work of a stream is done when the host
// waits for the stream, or waits for something that depends on it by an event. Where an event is
// missing or was recorded too early, its data are missing.
#pragma once

#include "backend/backend.h"

#include "test.h"

struct lazy_stream;
struct lazy_work {
    dt_status (*run)(const struct lazy_work *work);
    struct dt_device *device;
    union {
        struct {
            void *to;
            const void *from;
            int64_t bytes;
        } copy;
        struct {
            void *to;
            int byte;
            int64_t bytes;
        } fill;
        struct dt_cast_args cast;
        struct {
            struct lazy_stream *stream;
            int64_t at;
        } wait;
        struct {
            void *context;
            struct dt_collective call;
        } collective;
    };
};

struct lazy_stream {
    struct lazy_work *list; // [n]
    int64_t n, done;
};

struct lazy_event {
    struct lazy_stream *stream; // NULL: not recorded
    int64_t at;                 // how much work of `stream` comes before the event
};

static struct lazy_stream lazy_default;
static const struct dt_op_table *lazy_ops; // the CPU's

static inline struct lazy_stream *lazy_stream_of(struct dt_stream *stream)
{
    return stream ? (struct lazy_stream *)(void *)stream : &lazy_default;
}

static inline dt_status lazy_reach(struct lazy_stream *stream, int64_t at)
{
    while (stream->done < at) {
        const struct lazy_work work = stream->list[stream->done++];
        DT_TRY(work.run(&work));
    }
    return DT_OK;
}

static inline dt_status lazy_put(struct dt_stream *stream, struct lazy_work work)
{
    struct lazy_stream *s = lazy_stream_of(stream);
    s->list = realloc(s->list, (size_t)(s->n + 1) * sizeof *s->list);
    s->list[s->n++] = work;
    return DT_OK;
}

static inline dt_status lazy_run_copy(const struct lazy_work *w)
{
    memcpy(w->copy.to, w->copy.from, (size_t)w->copy.bytes);
    return DT_OK;
}

static inline dt_status lazy_copy(struct dt_device *device, void *to, const void *from,
                                  int64_t bytes, struct dt_stream *stream)
{
    return lazy_put(stream, (struct lazy_work){
                                .run = lazy_run_copy, .device = device, .copy = {to, from, bytes}});
}

static inline dt_status lazy_run_fill(const struct lazy_work *w)
{
    memset(w->fill.to, w->fill.byte, (size_t)w->fill.bytes);
    return DT_OK;
}

static inline dt_status lazy_fill(struct dt_device *device, void *to, int byte, int64_t bytes,
                                  struct dt_stream *stream)
{
    return lazy_put(stream, (struct lazy_work){
                                .run = lazy_run_fill, .device = device, .fill = {to, byte, bytes}});
}

static inline dt_status lazy_run_cast(const struct lazy_work *w)
{
    return lazy_ops->cast(w->device, &w->cast, NULL);
}

static inline dt_status lazy_cast(struct dt_device *device, const struct dt_cast_args *args,
                                  struct dt_stream *stream)
{
    return lazy_put(stream,
                    (struct lazy_work){.run = lazy_run_cast, .device = device, .cast = *args});
}

static inline dt_status lazy_run_wait(const struct lazy_work *w)
{
    return lazy_reach(w->wait.stream, w->wait.at);
}

static inline dt_status lazy_stream_wait(struct dt_device *device, struct dt_stream *stream,
                                         struct dt_event *event)
{
    const struct lazy_event *e = (struct lazy_event *)(void *)event;
    return e->stream ? lazy_put(stream, (struct lazy_work){.run = lazy_run_wait,
                                                           .device = device,
                                                           .wait = {e->stream, e->at}})
                     : DT_OK;
}

static inline dt_status lazy_stream_create(struct dt_device *device, bool urgent,
                                           struct dt_stream **stream)
{
    (void)device, (void)urgent;
    *stream = calloc(1, sizeof(struct lazy_stream));
    return DT_OK;
}

static inline dt_status lazy_stream_sync(struct dt_device *device, struct dt_stream *stream)
{
    (void)device;
    return lazy_reach(lazy_stream_of(stream), lazy_stream_of(stream)->n);
}

static inline void lazy_stream_destroy(struct dt_device *device, struct dt_stream *stream)
{
    (void)device;
    if (stream)
        free(lazy_stream_of(stream)->list);
    free(stream);
}

static inline dt_status lazy_event_create(struct dt_device *device, struct dt_event **event)
{
    (void)device;
    *event = calloc(1, sizeof(struct lazy_event));
    return DT_OK;
}

static inline void lazy_event_destroy(struct dt_device *device, struct dt_event *event)
{
    (void)device;
    free(event);
}

static inline dt_status lazy_event_record(struct dt_device *device, struct dt_event *event,
                                          struct dt_stream *stream)
{
    struct lazy_stream *s = lazy_stream_of(stream);
    (void)device;
    *(struct lazy_event *)(void *)event = (struct lazy_event){s, s->n};
    return DT_OK;
}

static inline dt_status lazy_event_sync(struct dt_device *device, struct dt_event *event)
{
    const struct lazy_event *e = (struct lazy_event *)(void *)event;
    (void)device;
    return e->stream ? lazy_reach(e->stream, e->at) : DT_OK;
}

static inline dt_status lazy_event_done(struct dt_device *device, struct dt_event *event,
                                        bool *done)
{
    const struct lazy_event *e = (struct lazy_event *)(void *)event;
    (void)device;
    *done = !e->stream || e->stream->done >= e->at;
    return DT_OK;
}

// Makes the device put off copies, fills and casts. It does other ops at once.
static inline void make_lazy(struct dt_device_table *table, struct dt_op_table *op)
{
    lazy_ops = &dt_cpu_op_table;
    table->unified = false;
    table->to_device = table->to_host = table->copy = lazy_copy;
    table->fill = lazy_fill;
    table->stream_create = lazy_stream_create;
    table->stream_destroy = lazy_stream_destroy;
    table->stream_wait = lazy_stream_wait;
    table->stream_sync = lazy_stream_sync;
    table->event_create = lazy_event_create;
    table->event_destroy = lazy_event_destroy;
    table->event_record = lazy_event_record;
    table->event_sync = lazy_event_sync;
    table->event_done = lazy_event_done;
    op->cast = lazy_cast;
}
