// Collectives on known values over 2 and 4 ranks. With a sound communicator the self-test reports
// nothing. If one rank's values are lost, every rank names the operation and that rank, and the
// benchmark counts the wrong values.
#include "base/clock.h"
#include "captured.h"

#include "bench/bench.h"
#include "comm/selftest.h"
#include <unistd.h>

static struct dt_comm *comm;
static struct dt_comm_table broken;
static const struct dt_comm_table *sound;
static enum dt_operation hit; // the operation that is broken
static int culprit;           // the rank whose values are lost
static bool late;             // they are lost when they arrive, not when they are sent
static double delay;          // seconds by which the culprit's exchanges start later

static void change(const struct dt_collective *c, bool mine)
{
    int64_t first = dt_operation_kinds[c->operation].in_blocks ? comm->info.rank * c->count : 0;
    if (comm->info.rank != culprit || c->operation != hit || c->count < 100)
        return;
    char *data = (char *)(mine ? (void *)(uintptr_t)c->mine : c->data);
    memset(data + first * dt_dtype_size(c->dtype), 0, (size_t)(90 * dt_dtype_size(c->dtype)));
}

static dt_status begin(struct dt_comm *c, const struct dt_collective *collective,
                       struct dt_request **request)
{
    if (c->info.rank == culprit && collective->operation == DT_EXCHANGE)
        dt_sleep(delay);
    if (!late)
        change(collective, collective->operation == DT_EXCHANGE);
    DT_TRY(sound->begin(c, collective, request));
    if (late && collective->operation == hit) { // waits here, to change the data that arrived
        DT_TRY(sound->wait(c, *request));
        *request = NULL;
        change(collective, false);
    }
    return DT_OK;
}

static dt_status wait_done(struct dt_comm *c, struct dt_request *request)
{
    return request ? sound->wait(c, request) : DT_OK;
}

static dt_status bench(enum dt_operation operation)
{
    return dt_bench_comm(comm, &(struct dt_bench_options){.device = DT_DEVICE_CPU,
                                                          .json = true,
                                                          .seconds = 1e-4,
                                                          .first = "8",
                                                          .last = "300K",
                                                          .factor = 37,
                                                          .collective = (int)operation + 1,
                                                          .type = (int)operation % 4});
}

static void check_found(enum dt_operation operation, const char *name, int rank, bool receives)
{
    char want[128];
    hit = operation;
    culprit = rank;
    late = receives;
    CHECK_OK(bench(operation));
    comm->table = &broken;
    CHECK_FAILS(bench(operation), DT_MACHINE, " wrong values");
    CHECK_INT(dt_comm_selftest(comm), DT_MACHINE);
    comm->table = sound;
    CHECK(comm->agreed, "not every rank has the error");
    snprintf(want, sizeof want, "communication self-test: %s of fp32 by mpi", name);
    CHECK_SAYS(want);
    snprintf(want, sizeof want, "rank %d on %s", rank, comm->info.host);
    CHECK_SAYS(want);
    dt_error_clear();
}

// Checks what rank 0 writes to stderr when all pairs of ranks exchange data and one rank is slow.
static void check_slow_rank(int rank)
{
    char want[128];
    hit = DT_OPERATIONS;
    culprit = rank;
    delay = 0.1; // far more than a busy machine adds to the best of five
    comm->table = &broken;
    capture_stderr();
    dt_status status = dt_bench_comm(
        comm,
        &(struct dt_bench_options){
            .device = DT_DEVICE_CPU, .pairs = true, .first = "8", .last = "64K", .factor = 2});
    const char *text = captured();
    comm->table = sound;
    delay = 0;
    CHECK_OK(status);
    snprintf(want, sizeof want, "mpi: rank %d on %s exchanges at 0.", rank, comm->info.host);
    CHECK(comm->info.rank > 0 || strstr(text, want), "no '%s' in: %s", want, text);
}

// The partner of a rank's partner is the rank itself. If the number of ranks is odd, the last rank
// has none.
static void test_partners(void)
{
    for (int size = 1; size <= 7; size++)
        for (int rank = 0; rank < size; rank++) {
            struct dt_comm_info info = {.rank = rank, .size = size};
            int partner = info.rank = dt_known_partner(&info);
            if (size % 2 && rank == size - 1)
                CHECK_INT(partner, -1);
            else
                CHECK(partner != rank && dt_known_partner(&info) == rank, "%d of %d: %d", rank,
                      size, partner);
        }
}

int main(void)
{
    CHECK_OK(dt_comm_open(DT_COMM_KIND_AUTO, &comm));
    sound = comm->table;
    broken = *sound;
    broken.begin = begin;
    broken.wait = wait_done;
    int last = comm->info.size - 1;
    CHECK_OK(dt_comm_selftest(comm));
    check_found(DT_ALLREDUCE, "all-reduce", last, false);
    check_found(DT_ALLREDUCE, "all-reduce", 1, true);
    check_found(DT_REDUCE_SCATTER, "reduce-scatter", last, true);
    check_found(DT_ALL_GATHER, "all-gather", 1, false);
    check_found(DT_BROADCAST, "broadcast", last, false);
    check_found(DT_EXCHANGE, "exchange", 1, false);
    if (last > 1) // with two ranks, neither is the slower one
        check_slow_rank(2);
    CHECK_OK(dt_comm_selftest(comm));
    dt_comm_close(comm);
    test_partners();
    return test_end();
}
