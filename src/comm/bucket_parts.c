// Sends and receives parts of a step's traffic.
#include "comm/bucket_parts.h"

// Copies elements `span` of a part between the device and the host, if these differ.
static dt_status copy(struct dt_buckets *b, const struct part *part, struct dt_span span,
                      bool to_host)
{
    int64_t each = dt_dtype_size(part->wire_type), bytes = (span.end - span.first) * each;
    char *host = (char *)part->host + span.first * each;
    char *wire = (char *)part->wire + span.first * each;
    if (host == wire)
        return DT_OK;
    return to_host ? dt_to_host(&b->backend, host, wire, bytes, b->stream)
                   : dt_to_device(&b->backend, wire, host, bytes, b->stream);
}

// Address of element `first` of an array.
static void *at(void *array, enum dt_dtype type, int64_t first)
{
    return (char *)array + first * dt_dtype_size(type);
}

// Converts between fp32 and bf16, on the buckets' stream.
static dt_status cast(struct dt_buckets *b, int64_t n, const void *x, enum dt_dtype x_type, void *y,
                      enum dt_dtype y_type)
{
    struct dt_cast_args args = {.n = n, .x = x, .x_type = x_type, .y = y, .y_type = y_type};
    return dt_cast(&b->backend, &args, b->stream);
}

// Copies those fp32 weights of elements [first, end) of the arena that are sent packed; weights[0]
// is element `origin`.
static dt_status copy_packed(struct dt_buckets *b, int64_t first, int64_t end, float *weights,
                             int64_t origin, bool pack)
{
    const struct dt_pieces *masters = &b->config.masters;
    for (struct dt_held h = {0}; dt_pieces_next(masters, masters->n, first, end, &h);) {
        float *place = weights + h.first - origin, *packed = b->packed + h.at;
        DT_TRY(dt_copy(&b->backend, pack ? packed : place, pack ? place : packed,
                       (h.end - h.first) * (int64_t)sizeof *packed, b->stream));
    }
    return DT_OK;
}

// Packs this rank's pieces, and on rank 0 what all ranks hold.
static dt_status pack_own(struct dt_buckets *b)
{
    int64_t bytes = b->config.masters.elements * (int64_t)sizeof *b->packed;
    float *own = b->config.own_weights;
    DT_TRY(dt_fill(&b->backend, b->packed, 0, bytes, b->stream));
    for (int64_t i = b->gradients.first; i < b->gradients.end; i++) {
        const struct part *part = &b->parts[i];
        int64_t first = part->first + part->in.first, end = part->first + part->in.end;
        if (part->operation == DT_REDUCE_SCATTER || b->comm->info.rank == 0)
            DT_TRY(copy_packed(b, first, end, own ? own + part->held : b->config.weights,
                               own ? first : 0, true));
    }
    return DT_OK;
}

// Copies the data to `wire`.
static dt_status pack(struct dt_buckets *b, const struct part *part)
{
    const int64_t n = part->out.end - part->out.first;
    if (part->data == b->packed)
        DT_TRY(pack_own(b));
    if (part->own && part->operation == DT_ALL_GATHER)
        return dt_copy(&b->backend, at(part->wire, part->wire_type, part->out.first), part->own,
                       n * dt_dtype_size(part->wire_type), b->stream);
    return part->wire == part->data
               ? DT_OK
               : cast(b, n, at(part->data, DT_F32, part->out.first), DT_F32,
                      at(part->wire, part->wire_type, part->out.first), part->wire_type);
}

// Adds this rank's new sums to `own`, or replaces it.
static dt_status keep(struct dt_buckets *b, const struct part *part)
{
    const int64_t n = part->in.end - part->in.first;
    const void *sums = at(part->wire, part->wire_type, part->in.first);
    struct dt_accumulate_args args = {.n = n, .x = sums, .x_type = part->wire_type, .y = part->own};
    return b->adds ? dt_accumulate(&b->backend, &args, b->stream)
                   : cast(b, n, sums, part->wire_type, part->own, DT_F32);
}

// Copies the result of the collective to its destination.
static dt_status unpack(struct dt_buckets *b, const struct part *part)
{
    const int64_t n = part->in.end - part->in.first;
    void *data = at(part->data, DT_F32, part->in.first);
    if (part->own && part->operation != DT_ALL_GATHER)
        return keep(b, part);
    if (part->wire != part->data)
        DT_TRY(cast(b, n, at(part->wire, part->wire_type, part->in.first), part->wire_type, data,
                    DT_F32));
    DT_TRY(copy_packed(b, part->packed.first, part->packed.end, b->config.weights, 0, false));
    return part->copy ? cast(b, n, data, DT_F32, part->copy + part->in.first, DT_BF16) : DT_OK;
}

static struct dt_collective collective(const struct dt_buckets *b, const struct part *part,
                                       void *data)
{
    return (struct dt_collective){
        .operation = part->operation,
        .reduce = DT_SUM,
        .dtype = part->wire_type,
        .count = part->elements / (part->operation == DT_ALLREDUCE ? 1 : b->comm->info.size),
        .data = data,
        .order = part->wire_type == DT_I64 || part->operation == DT_ALL_GATHER ? DT_SUM_FAST
                                                                               : b->config.order};
}

dt_status dt_parts_post(struct dt_buckets *b, bool wait)
{
    for (; b->posted < b->queued; b->posted++) {
        struct part *part = &b->parts[b->queue[b->posted % b->n_parts]];
        bool arrived = true;
        if (wait)
            DT_TRY(dt_event_sync(&b->backend, part->sent));
        else
            DT_TRY(dt_event_done(&b->backend, part->sent, &arrived));
        if (!arrived)
            return DT_OK;
        struct dt_collective call = collective(b, part, part->host);
        DT_TRY(dt_begin(b->comm, &call, &part->request));
    }
    return DT_OK;
}

dt_status dt_part_send(struct dt_buckets *b, int64_t i)
{
    struct part *part = &b->parts[i];
    if (b->alone)
        return DT_OK;
    if (b->config.between_devices && !b->device_comm)
        return DT_FAIL(DT_MACHINE, NULL, "buckets were never connected");
    DT_TRY(dt_event_record(&b->backend, part->ready, b->config.stream));
    DT_TRY(dt_stream_wait(&b->backend, b->stream, part->ready));
    DT_TRY(pack(b, part));
    part->travels = true;
    if (b->device_comm) {
        struct dt_collective call = collective(b, part, part->wire);
        DT_TRY(b->device_comm->table->enqueue(b->device_comm, (int)i, &call, b->stream));
        DT_TRY(unpack(b, part));
        return dt_event_record(&b->backend, part->sent, b->stream);
    }
    DT_TRY(copy(b, part, part->out, true));
    b->queue[b->queued++ % b->n_parts] = i;
    DT_TRY(dt_event_record(&b->backend, part->sent, b->stream));
    return dt_parts_post(b, false);
}

static dt_status receive(struct dt_buckets *b, struct part *part)
{
    part->travels = false;
    if (!b->device_comm) {
        struct dt_request *request = part->request;
        part->request = NULL;
        DT_TRY(dt_wait(b->comm, request));
        DT_TRY(copy(b, part, part->in, false));
        DT_TRY(unpack(b, part));
        DT_TRY(dt_event_record(&b->backend, part->sent, b->stream));
    }
    return dt_stream_wait(&b->backend, b->config.stream, part->sent);
}

dt_status dt_parts_receive(struct dt_buckets *b, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++) {
        if (!b->parts[i].travels)
            continue;
        if (!b->device_comm)
            DT_TRY(dt_parts_post(b, true));
        DT_TRY(receive(b, &b->parts[i]));
    }
    return DT_OK;
}
