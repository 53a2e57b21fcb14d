// Moves states and their gradients between ranks by exchanges of the communicator.
#include "train/relay.h"

#include "base/list.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

static dt_status exchange(struct dt_relay_state *r, const struct dt_collective *exchange)
{
    struct dt_relay_sends *list = &r->sends[r->side];
    if (!exchange->mine)
        return dt_collective(r->comm, exchange);
    DT_TRY(dt_list_grow(&list->requests, list->n, sizeof *list->requests));
    DT_TRY(dt_begin(r->comm, exchange, &list->requests[list->n]));
    list->n++;
    return DT_OK;
}

// Enqueues a message between devices.
static dt_status enqueue(struct dt_relay_state *r, bool sum, bool sends, bool onward, void *array,
                         int64_t bytes)
{
    static const enum dt_device_way ways[2][2] = {{DT_FROM_PREVIOUS, DT_FROM_NEXT},
                                                  {DT_TO_PREVIOUS, DT_TO_NEXT}};
    struct dt_relay_device *d = &r->device;
    struct dt_relay_channel *channel = &d->channels[sum];
    const struct dt_device_comm_table *table = d->comm->table;
    if (!sends)
        return table->message(d->comm, sum, ways[sends][onward], array, bytes, r->stream);
    DT_TRY(dt_event_record(d->backend, d->ready, r->stream));
    DT_TRY(dt_stream_wait(d->backend, channel->sends, d->ready));
    DT_TRY(table->message(d->comm, sum, ways[sends][onward], array, bytes, channel->sends));
    channel->sending[r->side] = true;
    return dt_event_record(d->backend, channel->sent[r->side], channel->sends);
}

// Sends or receives a state, or a sum, by MPI or between devices.
static dt_status transfer(struct dt_relay_state *r, bool sum, bool sends, bool onward,
                          uint32_t name, void *array, int64_t bytes)
{
    if (r->device.comm)
        return enqueue(r, sum, sends, onward, array, bytes);
    return exchange(r, &(struct dt_collective){.operation = DT_EXCHANGE,
                                               .dtype = DT_U8,
                                               .peer = onward ? r->next : r->previous,
                                               .count = bytes,
                                               .mine = sends ? array : NULL,
                                               .data = sends ? NULL : array,
                                               .signature = name + r->window,
                                               .overtakes = sum});
}

static dt_status move(void *context, bool sends, bool onward, uint32_t name, void *array,
                      int64_t bytes)
{
    return transfer(context, false, sends, onward, name, array, bytes);
}

// All messages are on their way before this rank waits for the first.
static dt_status swap(void *context, bool spreads, uint32_t name, void *own, void *all,
                      int64_t bytes)
{
    struct dt_relay_state *r = context;
    const int rank = r->comm->info.rank, first = rank / r->ranks * r->ranks;
    const int64_t each = bytes / (r->ranks * r->parts);
    for (int64_t part = 0; part < r->parts; part++)
        for (int64_t k = 0; k < r->ranks; k++) {
            void *here = (char *)own + (k * r->parts + part) * each,
                 *there = (char *)all + (part * r->ranks + k) * each;
            const struct dt_collective both = {.operation = DT_EXCHANGE,
                                               .dtype = DT_U8,
                                               .peer = first + (int)k,
                                               .count = each,
                                               .mine = spreads ? here : there,
                                               .data = spreads ? there : here,
                                               .signature = name + r->window};
            if (both.peer == rank)
                memcpy(both.data, both.mine, (size_t)each);
            else
                DT_TRY(exchange(r, &both));
        }
    return dt_relay_settle(r, r->side);
}

// Sums go from each segment to the one before.
dt_status dt_relay_sum(struct dt_relay_state *r, bool sends, uint32_t name, void *array,
                       int64_t bytes)
{
    return transfer(r, true, sends, !sends, name, array, bytes);
}

void dt_relay_create(struct dt_comm *comm, int64_t context, int64_t parts, struct dt_relay_state *r)
{
    const int size = (int)context, rank = comm->info.rank, first = rank / size * size;
    *r = (struct dt_relay_state){.comm = comm,
                                 .relay = {move, swap, r},
                                 .ranks = size,
                                 .parts = parts,
                                 .next = first + (rank + 1) % size,
                                 .previous = first + (rank + size - 1) % size};
}

dt_status dt_relay_connect(struct dt_relay_state *r, const struct dt_backend *backend,
                           struct dt_device_comm *device_comm, bool sums)
{
    struct dt_relay_device *d = &r->device;
    *d = (struct dt_relay_device){.comm = device_comm, .backend = backend, .n = sums ? 2 : 1};
    DT_TRY(dt_event_create(backend, &d->ready));
    for (int i = 0; i < d->n; i++) {
        DT_TRY(dt_stream_create_urgent(backend, &d->channels[i].sends));
        for (int side = 0; side < 2; side++)
            DT_TRY(dt_event_create(backend, &d->channels[i].sent[side]));
    }
    return DT_OK;
}

static void destroy_device(struct dt_relay_device *d)
{
    dt_event_destroy(d->backend, d->ready);
    for (int i = 0; i < d->n; i++) {
        for (int side = 0; side < 2; side++)
            dt_event_destroy(d->backend, d->channels[i].sent[side]);
        dt_stream_destroy(d->backend, d->channels[i].sends);
    }
}

void dt_relay_destroy(struct dt_relay_state *r)
{
    if (r->device.backend)
        destroy_device(&r->device);
    for (int side = 0; side < 2; side++)
        free(r->sends[side].requests);
    *r = (struct dt_relay_state){0};
}

dt_status dt_relay_settle(struct dt_relay_state *r, int side)
{
    struct dt_relay_sends *list = &r->sends[side];
    struct dt_relay_device *d = &r->device;
    r->side = side;
    for (int i = 0; i < d->n; i++) {
        struct dt_relay_channel *channel = &d->channels[i];
        if (channel->sending[side])
            DT_TRY(dt_stream_wait(d->backend, r->stream, channel->sent[side]));
        channel->sending[side] = false;
    }
    while (list->n > 0)
        DT_TRY(dt_wait(r->comm, list->requests[--list->n]));
    return DT_OK;
}
