// Messages between neighbours of a ring of ranks. Each channel of an edge of the ring has an NCCL
// communicator of its two ranks, the earlier one first, so that no message waits for another
// channel's, or for a collective. NCCL runs what is enqueued on a communicator one after the other,
// in the order of the calls, whatever their streams: both ranks must make their calls of a channel
// in one order.
//
// The edges have colours, such that no rank has two of one colour, and open and close colour by
// colour: two ranks that wait for each other then wait in the same edge.
#include "comm/comm_nccl.h"

static bool is_send(enum dt_device_way way)
{
    return way == DT_TO_NEXT || way == DT_TO_PREVIOUS;
}

static bool is_next(enum dt_device_way way)
{
    return way == DT_TO_NEXT || way == DT_FROM_NEXT;
}

// The rank of the job that is next to this one.
static int neighbour(const struct nccl_comm *nccl, bool next)
{
    const int first = nccl->comm->info.rank - nccl->place;
    return first + (nccl->place + (next ? 1 : nccl->ring - 1)) % nccl->ring;
}

// The communicator with that rank: edge i is between places i and i + 1.
static int pair_with(const struct nccl_comm *nccl, int channel, bool next)
{
    const int edge = (nccl->place + (next ? 0 : nccl->ring - 1)) % nccl->ring,
              colour = edge == nccl->ring - 1 && nccl->ring % 2 == 1 ? 2 : edge % 2;
    return NCCL_PAIRS + channel * NCCL_COLOURS + colour;
}

// Sends a byte both ways: at the first message NCCL connects two ranks, which then wait for each
// other on the host.
static dt_status try_pair(struct nccl_comm *nccl, const struct nccl_group *group)
{
    const struct dt_backend *backend = nccl->backend;
    struct dt_stream *stream = NULL;
    char *bytes = NULL;
    dt_status status;
    DT_TRY_GOTO(status, out, dt_stream_create(backend, &stream));
    DT_TRY_GOTO(status, out, dt_alloc(backend, 2, &bytes));
    const struct nccl_messages both = {.index = group->index,
                                       .peer = 1 - group->rank,
                                       .dtype = DT_U8,
                                       .out = bytes,
                                       .n_out = 1,
                                       .in = bytes + 1,
                                       .n_in = 1};
    DT_TRY_GOTO(status, out, dt_nccl_exchange(nccl, &both, stream));
    DT_TRY_GOTO(status, out, dt_stream_sync(backend, stream));
out:
    dt_free(backend, bytes);
    if (stream)
        dt_stream_destroy(backend, stream);
    return status;
}

dt_status dt_nccl_open_ring(struct nccl_comm *nccl)
{
    for (int index = NCCL_PAIRS; index < NCCL_PAIRS + nccl->channels * NCCL_COLOURS; index++) {
        const int channel = (index - NCCL_PAIRS) / NCCL_COLOURS;
        const bool next = pair_with(nccl, channel, true) == index,
                   previous = pair_with(nccl, channel, false) == index;
        struct nccl_group pair = {.index = index, .size = next || previous ? 2 : 0, .rank = !next};
        DT_TRY(dt_agree(nccl->comm, next ? dt_nccl_make_id(nccl, &pair) : DT_OK));
        if (pair.size > 0)
            DT_TRY(dt_exchange(nccl->comm, neighbour(nccl, next), next ? &pair.id : NULL,
                               next ? NULL : &pair.id, (int64_t)sizeof pair.id));
        DT_TRY(dt_nccl_connect(nccl, &pair));
        DT_TRY(dt_agree(nccl->comm, pair.size > 0 ? try_pair(nccl, &pair) : DT_OK));
    }
    return DT_OK;
}

dt_status dt_nccl_message(struct dt_device_comm *comm, int channel, enum dt_device_way way,
                          void *data, int64_t bytes, struct dt_stream *stream)
{
    struct nccl_comm *nccl = (struct nccl_comm *)comm;
    const int index = nccl->n_collectives + (int)way * nccl->channels + channel;
    const bool sends = is_send(way), next = is_next(way);
    if (nccl->ring < 2 || channel >= nccl->channels)
        return DT_FAIL(DT_MACHINE, NULL, "a message between devices that form no ring");
    const struct dt_collective c = {.operation = DT_EXCHANGE,
                                    .dtype = DT_U8,
                                    .peer = neighbour(nccl, next),
                                    .count = bytes,
                                    .mine = sends ? data : NULL,
                                    .data = sends ? NULL : data};
    const struct nccl_messages messages = {.index = pair_with(nccl, channel, next),
                                           .peer = next,
                                           .dtype = DT_U8,
                                           .out = c.mine,
                                           .n_out = sends ? bytes : 0,
                                           .in = c.data,
                                           .n_in = sends ? 0 : bytes};
    DT_TRY(dt_nccl_call_begins(nccl, index, &c, 0, stream));
    DT_TRY(dt_nccl_exchange(nccl, &messages, stream));
    return dt_nccl_call_ends(nccl, index, &c, bytes, stream);
}
