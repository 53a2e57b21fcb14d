// Messages by NCCL: exchanges between two ranks, and messages between neighbours in a ring.
#include "test_nccl.h"

// Ranks 0 and 1 exchange both ways, then rank 1 sends alone; the others do nothing.
static void check_exchange(struct dt_device_comm *nccl, const struct buffers *buffers,
                           dt_dtype type, int64_t n)
{
    int rank = comm->info.rank;
    int64_t bytes = 2 * n * dt_dtype_size(type), wrong = 0;
    char *second = (char *)buffers->device + bytes / 2;
    struct dt_collective c = {.operation = DT_EXCHANGE,
                              .dtype = type,
                              .peer = 1 - rank,
                              .count = n,
                              .data = second,
                              .mine = buffers->device};
    if (rank > 1 || comm->info.size == 1)
        return;
    fill_exact(buffers->host, type, 2 * n, rank, 0);
    to_device(buffers, bytes);
    need(dt_nccl_table.enqueue(nccl, 2, &c, stream));
    c.data = rank == 0 ? buffers->device : NULL;
    c.mine = rank == 1 ? second : NULL; // which came from rank 0
    need(dt_nccl_table.enqueue(nccl, 2, &c, stream));
    to_host(buffers, bytes);
    for (int64_t i = 0; i < n; i++)
        wrong += get(buffers->host, type, i) != exact(type, i, rank, 0) ||
                 get(buffers->host, type, n + i) != exact(type, i, 1 - rank, 0);
    CHECK(wrong == 0, "exchange of %lld %s: %lld are wrong", (long long)n, dt_dtype_name(type),
          (long long)wrong);
}

// Each rank sends two messages in one direction and then receives two. This cannot hang, since
// sends are on their own streams. A collective overtakes messages that nobody receives yet, and so
// does the second message, which has its own channel.
static void check_way(struct dt_device_comm *nccl, const struct buffers *buffers,
                      struct dt_stream *const sends[2], bool back)
{
    const int rank = comm->info.rank, size = comm->info.size;
    const int from = (rank + (back ? 1 : size - 1)) % size;
    const int64_t sizes[] = {7, MOST}, bytes = (7 + MOST) * (int64_t)sizeof(int64_t);
    int64_t *device = buffers->device, *host = buffers->host, wrong = 0;
    fill_exact(host, DT_I64, 7 + MOST, rank, back);
    to_device(buffers, bytes);
    need(dt_stream_sync(&backend, stream));
    for (int64_t i = 0, at = 0; i < 2; at += sizes[i++])
        need(dt_nccl_table.message(nccl, (int)i, back ? DT_TO_PREVIOUS : DT_TO_NEXT, device + at,
                                   sizes[i] * (int64_t)sizeof *device, sends[i]));
    device += 7 + MOST;
    need(enqueue(nccl, 0, DT_ALLREDUCE, device, 1, DT_I64));
    need(dt_stream_sync(&backend, stream));
    for (int64_t i = 1; i >= 0; i--)
        need(dt_nccl_table.message(nccl, (int)i, back ? DT_FROM_NEXT : DT_FROM_PREVIOUS,
                                   device + i * sizes[0], sizes[i] * (int64_t)sizeof *device,
                                   stream));
    need(dt_to_host(&backend, host, device, bytes, stream));
    need(dt_stream_sync(&backend, stream));
    for (int i = 0; i < 2; i++)
        need(dt_stream_sync(&backend, sends[i]));
    for (int64_t i = 0; i < 7 + MOST; i++)
        wrong += (double)host[i] != exact(DT_I64, i, from, back);
    CHECK(wrong == 0, "messages %s: %lld elements are wrong", back ? "back" : "forth",
          (long long)wrong);
}

static void check_ring(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    const struct nccl_comm *of = (const struct nccl_comm *)nccl;
    struct dt_stream *sends[2];
    if (comm->info.size == 1) {
        CHECK_FAILS(dt_nccl_table.message(nccl, 0, DT_TO_NEXT, buffers->device, 1, stream),
                    DT_MACHINE, "a message between devices that form no ring");
        return;
    }
    for (int i = 0; i < 2; i++)
        need(dt_stream_create(&backend, &sends[i]));
    check_way(nccl, buffers, sends, false);
    check_way(nccl, buffers, sends, true);
    for (int i = COLLECTIVES; i < COLLECTIVES + 2 * DT_DEVICE_WAYS; i++) {
        CHECK_INT(of->counts[i].begun, 1);
        CHECK_INT(of->counts[i].done, 1);
    }
    for (int i = 0; i < 2; i++)
        dt_stream_destroy(&backend, sends[i]);
}

void test_messages(struct dt_device_comm *nccl, const struct buffers *buffers)
{
    static const dt_dtype types[] = {DT_F32, DT_BF16, DT_F64, DT_I64};
    static const int64_t counts[] = {0, 1, 7, MOST};
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            check_exchange(nccl, buffers, types[t], counts[i]);
    check_ring(nccl, buffers);
}
