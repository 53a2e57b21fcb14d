// A job that runs one all-reduce a step until a rank fails in the way that FATE names; with `sleep`
// all ranks above it fail too. In the mode `exchange`, ranks first pass data on to the next rank,
// as ranks that share a window do with states, and in the mode `hand-on` to the rank before, as
// they do with reproducible sums, and in the mode `swap` every rank exchanges data with every other
// one, as they do around attention that reads both ways; the rank fails before or during that.
//   comm_victim sum | exchange | hand-on | swap FATE RANK [TIMEOUT_S]
#include "tests/victim.h"

enum { FATAL_STEP = 8, STEPS = 12, ELEMENTS = 300000, BUSY_S = 4 };

static dt_status meet(const char *fate)
{
    wait_for_beats();
    mark_fate();
    if (strcmp(fate, "exit") == 0)
        _exit(0);
    if (strncmp(fate, "busy", 4) == 0)
        for (double until = dt_seconds() + BUSY_S; dt_seconds() < until; dt_sleep(0.2))
            dt_comm_busy(comm);
    if (strcmp(fate, "busy-hang") == 0) {
        mark_fate();
        dt_sleep(60);
    }
    return suffer(fate);
}

static void stop(void)
{
    wait_for_beats();
    mark_fate();
    raise(SIGSTOP);
}

// Runs a collective. With `stops`, this rank stops inside the collective: it has announced and
// begun it, and the other ranks have not joined. With `late`, this rank is one of the others and
// joins late.
static dt_status run(const struct dt_collective *c, bool stops, bool late)
{
    struct dt_request *request;
    if (late)
        dt_sleep(1);
    DT_TRY(dt_begin(comm, c, &request));
    if (stops)
        stop();
    return dt_wait(comm, request);
}

// Receives from the rank before this one and sends to the one after it, or with `hands_on` the
// other way round. A rank that lies sends fewer or more elements than the next one expects, or the
// data of another step.
static dt_status pass_on(float *x, bool hands_on, const char *lie, bool stops, bool late)
{
    const int rank = comm->info.rank, last = comm->info.size - 1;
    struct dt_collective c = {.operation = DT_EXCHANGE,
                              .dtype = DT_F32,
                              .count = ELEMENTS / 2,
                              .signature = FATAL_STEP,
                              .overtakes = hands_on};
    if (rank != (hands_on ? last : 0)) {
        c.peer = hands_on ? rank + 1 : rank - 1;
        c.data = x;
        DT_TRY(run(&c, stops, late));
        stops = late = false;
    }
    if (rank == (hands_on ? 0 : last))
        return DT_OK;
    c.peer = hands_on ? rank - 1 : rank + 1;
    c.mine = x;
    c.data = NULL;
    c.count = strcmp(lie, "short") == 0  ? c.count / 2
              : strcmp(lie, "long") == 0 ? ELEMENTS
                                         : c.count;
    c.signature -= strcmp(lie, "other") == 0;
    return run(&c, stops, late);
}

// With `stops`, this rank stops when it has begun all its exchanges.
static dt_status swap(float *x, bool stops, bool late)
{
    enum { RANKS = 4 };
    struct dt_request *requests[RANKS] = {NULL};
    if (late)
        dt_sleep(1);
    for (int peer = 0; peer < RANKS; peer++) {
        const int64_t n = ELEMENTS / (2 * RANKS);
        const struct dt_collective both = {.operation = DT_EXCHANGE,
                                           .dtype = DT_F32,
                                           .peer = peer,
                                           .count = n,
                                           .mine = x + peer * n,
                                           .data = x + (RANKS + peer) * n,
                                           .signature = FATAL_STEP};
        if (peer != comm->info.rank)
            DT_TRY(dt_begin(comm, &both, &requests[peer]));
    }
    if (stops)
        stop();
    for (int peer = 0; peer < RANKS; peer++)
        if (requests[peer])
            DT_TRY(dt_wait(comm, requests[peer]));
    return DT_OK;
}

static dt_status step(int64_t number, const char *mode, const char *fate, int victim)
{
    static float x[ELEMENTS];
    const struct dt_collective sum = {
        .operation = DT_ALLREDUCE, .dtype = DT_F32, .count = ELEMENTS, .data = x};
    bool above = comm->info.rank > victim && strcmp(fate, "sleep") == 0;
    bool mine = (comm->info.rank == victim || above) && number == FATAL_STEP;
    dt_comm_progress(comm, number, "forward");
    dt_sleep(0.01);
    dt_comm_progress(comm, number, "backward");
    if (mine)
        DT_TRY(meet(fate));
    if (number == FATAL_STEP && strcmp(fate, "term") == 0) // a launcher signals all ranks at once
        raise(SIGTERM);
    bool within = number == FATAL_STEP && strcmp(fate, "within") == 0;
    if (number == FATAL_STEP && strcmp(mode, "swap") == 0) {
        DT_TRY(swap(x, within && mine, within && !mine));
        within = false;
    } else if (number == FATAL_STEP && strcmp(mode, "sum") != 0) {
        bool hands_on = strcmp(mode, "hand-on") == 0;
        DT_TRY(pass_on(x, hands_on, mine ? fate : "", within && mine, within && !mine));
        within = false;
    }
    return run(&sum, within && mine, within && !mine);
}

static dt_status train(const char *mode, const char *fate, int victim)
{
    dt_status status = DT_OK;
    mark_fate(); // the time of failures that come before a step
    if (strcmp(fate, "agree") == 0 && comm->info.rank == victim)
        status = DT_FAIL(DT_USER, "give another shard", "the shard is broken");
    DT_TRY(dt_agree(comm, status));
    for (int64_t number = 1; number <= STEPS; number++)
        DT_TRY(step(number, mode, fate, victim));
    if (strcmp(fate, "term") == 0) {
        dt_sleep(1.5); // longer than the survivors of a death look for its cause
        if (!atomic_load(&terminated))
            return DT_FAIL(DT_MACHINE, NULL, "the signal was lost");
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    open_job(DT_COMM_KIND_AUTO, argv[4]);
    return close_job(train(argv[1], argv[2], atoi(argv[3])));
}
