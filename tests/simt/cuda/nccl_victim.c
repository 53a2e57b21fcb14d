// A job that trains nothing. Each step launches a graph of two sums by NCCL and waits for it in the
// device, as dtrain's own thread does. One rank fails in the way that FATE names.
// With "ring-FATE" a step is a message that goes round all ranks instead.
//   nccl_victim FATE RANK [TIMEOUT_S]
#include "comm/device_comm.h"
#include "tests/victim.h"

enum { FATAL_STEP = 11, STEPS = 20, ELEMENTS = 3000, COLLECTIVES = 2 };

static struct dt_backend backend;
static struct dt_stream *stream;
static struct dt_device_comm *nccl;
static void *memory;
static int victim;
static bool ring;

static dt_status sum(int index)
{
    struct dt_collective c = {.operation = DT_ALLREDUCE,
                              .dtype = DT_F32,
                              .count = ELEMENTS,
                              .data = (float *)memory + ELEMENTS * index};
    return dt_nccl_table.enqueue(nccl, index, &c, stream);
}

// Rank 0 waits in its device for something that the victim never sends. The other ranks wait in the
// next sum.
static dt_status receive_from_victim(bool mine)
{
    struct dt_collective c = {.operation = DT_EXCHANGE, .count = 1, .peer = victim, .data = memory};
    if (mine)
        dt_sleep(60);
    if (comm->info.rank == 0)
        DT_TRY(dt_nccl_table.enqueue(nccl, COLLECTIVES, &c, stream));
    return DT_OK;
}

// Rank 0 sends it first and receives it last.
static dt_status pass_message(void)
{
    const bool first = comm->info.rank == 0;
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_nccl_table.message(nccl, 0, first == (i == 0) ? DT_TO_NEXT : DT_FROM_PREVIOUS,
                                     memory, ELEMENTS, stream));
    return DT_OK;
}

static dt_status work(struct dt_graph *graph)
{
    return ring ? pass_message() : dt_graph_launch(&backend, graph, stream);
}

// Fails before the work of a step, or within it ("kill-within").
static dt_status meet(const char *fate, bool mine, struct dt_graph *graph)
{
    if (strcmp(fate, "kill-within") == 0) {
        DT_TRY(work(graph));
        dt_sleep(0.3); // time for the devices to enter it
        wait_for_beats();
        mark_fate();
        if (mine)
            raise(SIGKILL);
        return DT_OK;
    }
    if (mine)
        wait_for_beats();
    mark_fate();
    if (mine)
        DT_TRY(suffer(fate));
    if (strcmp(fate, "idle") == 0)
        dt_sleep(mine ? 3.2 : 2.5);
    // Runs the second sum without the first, as weights are gathered for a validation between
    // steps.
    for (int i = 0; i < 2 && strcmp(fate, "uneven") == 0; i++)
        DT_TRY(sum(1));
    if (strcmp(fate, "uneven") == 0)
        DT_TRY(dt_stream_sync(&backend, stream));
    if (strcmp(fate, "mute") == 0)
        DT_TRY(receive_from_victim(mine));
    return work(graph);
}

static dt_status step(int64_t number, const char *fate, struct dt_graph *graph)
{
    dt_comm_progress(comm, number, "backward");
    DT_TRY(number == FATAL_STEP ? meet(fate, comm->info.rank == victim, graph) : work(graph));
    DT_TRY(dt_stream_sync(&backend, stream));
    return DT_OK;
}

static dt_status train(const char *fate)
{
    struct dt_graph *graph;
    int mute = strcmp(fate, "mute") == 0; // needs one more collective
    int64_t bytes = (int64_t)sizeof(float) * ELEMENTS * COLLECTIVES;
    DT_TRY(dt_backend_open("cuda", comm->info.local_rank, 1, &backend));
    DT_TRY(dt_stream_create(&backend, &stream));
    DT_TRY(dt_alloc(&backend, bytes, &memory));
    mark_fate(); // the time of failures while NCCL opens
    if (comm->info.rank == victim && strcmp(fate, "kill-opening") == 0)
        raise(SIGKILL);
    DT_TRY(dt_nccl_table.open(&(struct dt_device_comm_config){.comm = comm,
                                                              .backend = &backend,
                                                              .n_collectives = COLLECTIVES + mute,
                                                              .ring = ring ? comm->info.size : 0,
                                                              .channels = 1},
                              &nccl));
    DT_TRY(dt_capture_begin(&backend, stream));
    for (int i = 0; i < COLLECTIVES; i++)
        DT_TRY(sum(i));
    DT_TRY(dt_capture_end(&backend, stream, &graph));
    for (int64_t number = 1; number <= STEPS; number++)
        DT_TRY(step(number, fate, graph));
    dt_graph_destroy(&backend, graph);
    dt_nccl_table.close(nccl);
    dt_free(&backend, memory);
    dt_stream_destroy(&backend, stream);
    dt_backend_close(&backend);
    return DT_OK;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    dt_nccl_table.prepare();
    open_job(DT_COMM_KIND_MPI, argv[3]);
    victim = atoi(argv[2]);
    ring = strncmp(argv[1], "ring-", 5) == 0;
    return close_job(train(argv[1] + (ring ? 5 : 0)));
}
