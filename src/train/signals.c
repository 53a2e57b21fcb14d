// Signals are handled on a thread of their own, and are blocked where GEMM runs: oneDNN's generated
// code uses the stack pointer for other things (seen in 2.6.3: it points into the heap about one
// time in fifteen), where a handler's frame would overwrite the heap. The handlers do only what is
// async-signal-safe.
#include "train/signals.h"

#include "comm/job_control.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static atomic_int pending;
static atomic_bool report_wanted;
static struct dt_comm *_Atomic communicator;

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

static void *wait_for_signals(void *nothing)
{
    for (;;)
        pause();
    return nothing;
}

static void request_report(int signal)
{
    (void)signal;
    report_wanted = true;
}

// Threads that are created later block the signals too.
static dt_status create_thread(void)
{
    pthread_t thread;
    sigset_t signals;
    int code = pthread_create(&thread, NULL, wait_for_signals, NULL);
    if (code != 0)
        return DT_FAIL(DT_MACHINE, NULL, "pthread_create failed for the signal thread: %s",
                       strerror(code));
    pthread_detach(thread);
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigaddset(&signals, SIGHUP);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
    return DT_OK;
}

dt_status dt_signals_install(struct dt_comm *comm)
{
    communicator = comm;
    DT_TRY(create_thread());
    struct sigaction stop = {.sa_handler = request_stop, .sa_flags = SA_RESTART};
    struct sigaction end = {.sa_handler = request_end, .sa_flags = SA_RESTART};
    struct sigaction interrupt = {.sa_handler = request_end,
                                  .sa_flags = SA_RESTART | (int)SA_RESETHAND};
    struct sigaction report = {.sa_handler = request_report, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &stop, NULL);
    sigaction(SIGUSR2, &report, NULL);
    struct sigaction hangup; // the terminal was closed; nohup(1) has it ignored
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &stop, NULL);
    sigaction(SIGTERM, &end, NULL); // launchers send it more than once
    sigaction(SIGINT, &interrupt, NULL);
    signal(SIGPIPE, SIG_IGN); // a closed log pipe is an error of write, not a silent end
    return DT_OK;
}

int dt_signals_pending(void)
{
    return pending;
}

bool dt_signals_report_wanted(void)
{
    return atomic_exchange(&report_wanted, false);
}

const char *dt_signals_name(int signal)
{
    switch (signal) {
    case SIGUSR1:
        return "SIGUSR1";
    case SIGHUP:
        return "SIGHUP";
    case SIGTERM:
        return "SIGTERM";
    case SIGINT:
        return "SIGINT";
    default:
        return "a signal to another rank";
    }
}
