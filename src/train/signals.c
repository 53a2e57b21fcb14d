// A separate thread receives signals by sigwait; they are blocked on all others, because a handler
// could call almost nothing and would interrupt libraries anywhere. A blocked signal stays pending,
// even across execv, so that from the first line of main on no signal is lost and none ends the
// process.
#include "train/signals.h"

#include "comm/job_control.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The signals that ask a run to stop. SIGHUP, sent when a terminal closes, stays ignored under
// nohup(1).
static const struct {
    int number;
    const char *name;
} stops[] = {{SIGUSR1, "SIGUSR1"}, {SIGHUP, "SIGHUP"}, {SIGTERM, "SIGTERM"}, {SIGINT, "Ctrl-C"}};
enum { STOPS = sizeof stops / sizeof *stops };

static atomic_int pending;
static atomic_bool report_wanted;
// The training thread may close the communicator while the signal thread reports to it.
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct dt_comm *communicator; // guarded by the lock

static sigset_t all_received(void)
{
    sigset_t signals;
    struct sigaction hangup;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR2);
    for (int i = 0; i < STOPS; i++)
        sigaddset(&signals, stops[i].number);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler == SIG_IGN)
        sigdelset(&signals, SIGHUP);
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

static void *receive(void *nothing)
{
    sigset_t signals = all_received();
    int received, interrupts = 0;
    while (sigwait(&signals, &received) == 0) {
        if (received == SIGUSR2) {
            atomic_store(&report_wanted, true);
            continue;
        }
        atomic_store(&pending, received);
        report_termination(received);
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

// launch/run.sh turns signals into SIGUSR1, which mpirun forwards, and writes the first signal's
// name to this file.
static const char *forwarded(void)
{
    static char name[16];
    const char *path = getenv("DTRAIN_ASKED_BY");
    FILE *file = path ? fopen(path, "r") : NULL;
    int found = file ? fscanf(file, "%15s", name) : 0;
    if (file)
        fclose(file);
    return found == 1 ? name : NULL;
}

const char *dt_signals_name(int signal)
{
    const char *name = signal == SIGUSR1 ? forwarded() : NULL;
    if (name)
        return name;
    for (int i = 0; i < STOPS; i++)
        if (stops[i].number == signal)
            return stops[i].name;
    return "a signal to another rank";
}
