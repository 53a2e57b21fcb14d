// The handlers do only what is async-signal-safe.
#include "train/signals.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t pending;
static struct dt_comm *volatile communicator;

static void request_stop(int signal)
{
    pending = signal;
}

static void request_end(int signal)
{
    pending = signal;
    if (communicator)
        dt_comm_terminated(communicator);
}

void dt_signals_install(struct dt_comm *comm)
{
    communicator = comm;
    struct sigaction stop = {.sa_handler = request_stop, .sa_flags = SA_RESTART};
    struct sigaction end = {.sa_handler = request_end, .sa_flags = SA_RESTART};
    struct sigaction interrupt = {.sa_handler = request_end,
                                  .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    sigaction(SIGUSR1, &stop, NULL);
    sigaction(SIGTERM, &end, NULL); // launchers send it more than once
    sigaction(SIGINT, &interrupt, NULL);
    signal(SIGPIPE, SIG_IGN); // a closed log pipe is an error of write, not an end without words
}

int dt_signals_pending(void)
{
    return pending;
}

const char *dt_signals_name(int signal)
{
    switch (signal) {
    case SIGUSR1:
        return "SIGUSR1";
    case SIGTERM:
        return "SIGTERM";
    case SIGINT:
        return "SIGINT";
    default:
        return "a signal to another rank";
    }
}
