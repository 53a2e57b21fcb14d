// Signals are received on a thread of their own, by sigwait, and are blocked on all others: a
// handler could not run where GEMM does (oneDNN's generated code uses the stack pointer for other
// things, seen in 2.6.3: a frame would overwrite the heap one time in fifteen). A blocked signal
// stays pending, also through execv: none is lost, and none ends the process, from the first line
// of main on.
#include "train/signals.h"

#include "comm/job_control.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

static atomic_int pending;
static atomic_bool report_wanted;
// Closed by the training thread while the signal thread may report to it.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dt_comm *communicator; // under the lock

// SIGHUP, sent when a terminal is closed, is not among them where nohup(1) has it ignored.
static sigset_t all_received(void)
{
    sigset_t signals;
    struct sigaction hangup;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGUSR2);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN)
        sigaddset(&signals, SIGHUP);
    return signals;
}

void dt_signals_hold(void)
{
    sigset_t signals = all_received();
    pthread_sigmask(SIG_BLOCK, &signals, NULL);
}

void dt_signals_release(void)
{
    sigset_t signals = all_received();
    pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
}

static void report_termination(int signal)
{
    pthread_mutex_lock(&lock);
    if (communicator && (signal == SIGTERM || signal == SIGINT))
        dt_comm_terminated(communicator);
    pthread_mutex_unlock(&lock);
}

static void count(int signal)
{
    if (signal == SIGUSR2) {
        atomic_store(&report_wanted, true);
        return;
    }
    atomic_store(&pending, signal);
    report_termination(signal);
}

static void *receive(void *nothing)
{
    sigset_t signals = all_received();
    int received, interrupts = 0;
    while (sigwait(&signals, &received) == 0) {
        count(received);
        if (received == SIGINT && ++interrupts > 1) {
            signal(SIGINT, SIG_DFL);
            dt_signals_release();
            raise(SIGINT);
        }
    }
    return nothing;
}

dt_status dt_signals_receive(void)
{
    pthread_t thread;
    int code = pthread_create(&thread, NULL, receive, NULL);
    if (code != 0)
        return DT_FAIL(DT_MACHINE, NULL, "pthread_create failed for the signal thread: %s",
                       strerror(code));
    pthread_detach(thread);
    signal(SIGPIPE, SIG_IGN); // a closed log pipe is an error of write, not a silent end
    return DT_OK;
}

void dt_signals_set_comm(struct dt_comm *comm)
{
    pthread_mutex_lock(&lock);
    communicator = comm;
    pthread_mutex_unlock(&lock);
    report_termination(atomic_load(&pending));
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
