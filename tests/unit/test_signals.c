// SIGTERM and SIGINT reach the communicator, also those that arrived before it was set. After it
// was removed no signal reaches it.
#include "train/signals.h"

#include "test.h"

#include <signal.h>

static _Atomic int told;

static void count(struct dt_comm *comm)
{
    (void)comm;
    told++;
}

static void send(int signal, int want)
{
    kill(getpid(), signal);
    for (int waits = 0; waits < 5000 && (dt_signals_pending() != signal || told < want); waits++)
        usleep(1000);
    CHECK_INT(dt_signals_pending(), signal);
    CHECK_INT(told, want);
}

int main(void)
{
    const struct dt_comm_table table = {.terminated = count};
    struct dt_comm comm = {.table = &table};
    dt_signals_hold();
    CHECK_OK(dt_signals_receive());
    send(SIGTERM, 0);
    dt_signals_set_comm(&comm);
    CHECK_INT(told, 1);
    send(SIGUSR1, 1); // requests a stop and ends no rank
    send(SIGTERM, 2);
    send(SIGINT, 3);
    dt_signals_set_comm(NULL);
    send(SIGTERM, 3);
    return test_end();
}
