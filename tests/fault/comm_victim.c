// A job that only all-reduces, once per step, until one rank fails in the way that FATE names; with
// `sleep` those above it too.
//   comm_victim FATE RANK [TIMEOUT_S]
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

// Stops inside a collective that it has begun and announced, before the others join it.
static dt_status stop_within(float *x, bool mine)
{
    struct dt_request *request;
    if (!mine)
        dt_sleep(1);
    DT_TRY(dt_begin(comm,
                    &(struct dt_collective){
                        .operation = DT_ALLREDUCE, .dtype = DT_F32, .count = ELEMENTS, .data = x},
                    &request));
    if (mine) {
        wait_for_beats();
        mark_fate();
        raise(SIGSTOP);
    }
    return dt_wait(comm, request);
}

// The rank before the victim waits for what it never sends, the one before that for it; the others
// come to the next all-reduce.
static dt_status pass_on(float *x, int victim)
{
    int rank = comm->info.rank;
    if (rank == victim) {
        wait_for_beats();
        mark_fate();
        dt_sleep(60);
    }
    if (rank == victim - 1 || rank == victim - 2)
        DT_TRY(dt_collective(comm, &(struct dt_collective){.operation = DT_EXCHANGE,
                                                           .dtype = DT_F32,
                                                           .peer = rank + 1,
                                                           .count = ELEMENTS,
                                                           .data = x}));
    return DT_OK;
}

static dt_status step(int64_t number, const char *fate, int victim)
{
    static float x[ELEMENTS];
    bool above = comm->info.rank > victim && strcmp(fate, "sleep") == 0;
    bool mine = (comm->info.rank == victim || above) && number == FATAL_STEP;
    dt_comm_progress(comm, number, "forward");
    dt_sleep(0.01);
    dt_comm_progress(comm, number, "backward");
    if (mine)
        DT_TRY(meet(fate));
    if (number == FATAL_STEP && strcmp(fate, "within") == 0)
        return stop_within(x, mine);
    if (number == FATAL_STEP && strcmp(fate, "mute") == 0)
        DT_TRY(pass_on(x, victim));
    if (number == FATAL_STEP && strcmp(fate, "term") == 0) // as a launcher does, to all at once
        raise(SIGTERM);
    DT_TRY(dt_allreduce(comm, x, ELEMENTS, DT_F32, DT_SUM));
    return DT_OK;
}

static dt_status train(const char *fate, int victim)
{
    dt_status status = DT_OK;
    mark_fate(); // of what fails before its step
    if (strcmp(fate, "agree") == 0 && comm->info.rank == victim)
        status = DT_FAIL(DT_USER, "give another shard", "the shard is broken");
    DT_TRY(dt_agree(comm, status));
    for (int64_t number = 1; number <= STEPS; number++)
        DT_TRY(step(number, fate, victim));
    if (strcmp(fate, "term") == 0) {
        dt_sleep(1.5); // past the time in which the survivors of a death would look for it
        if (!atomic_load(&terminated))
            return DT_FAIL(DT_MACHINE, NULL, "the signal was lost");
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    open_job(DT_COMM_KIND_AUTO, argv[3]);
    return close_job(train(argv[1], atoi(argv[2])));
}
