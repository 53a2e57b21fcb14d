// The guard: a thread that never calls MPI. Where the communication thread makes no round, because
// a call to MPI does not return, its watch is silent too: this one ends the process instead, at the
// time-out, or when a launcher sends SIGTERM because a rank died. (Open MPI 4 hangs like that when
// a TCP connection breaks: it waits for mpirun, which kills a second after SIGTERM.)
#include "comm/comm_mpi.h"

#include "base/clock.h"

#include <math.h>
#include <signal.h>

static const double patrol_s = 1, nap_s = 0.01;
static const double termination_s = 1; // after SIGTERM; mpirun kills then
static const double hangs_s = 0.2;     // without a round, to look for a dead rank on this host
static const double is_lost_s = 0.5;   // the same, to blame a rank on another

bool dt_mpi_is_guard(const struct mpi_comm *mpi)
{
    return pthread_equal(pthread_self(), mpi->guard);
}

// A nap that lasts longer than it should counts little: on a crowded machine the communication
// thread gets no time either.
static void look_for_the_lost(struct mpi_comm *mpi)
{
    uint64_t pulse = atomic_load(&mpi->pulse);
    double hung = 0, now = dt_seconds(), end = now + termination_s;
    while (now < end && !atomic_load(&mpi->guard_ends)) {
        double before = now;
        dt_sleep(nap_s);
        now = dt_seconds();
        uint64_t newest = atomic_load(&mpi->pulse);
        hung = newest == pulse ? hung + fmin(now - before, 2 * nap_s) : 0;
        pulse = newest;
        if (hung > hangs_s)
            dt_watch_report_lost(&mpi->watch, hung > is_lost_s);
    }
}

// Seconds are counted, not clocks compared: a suspended job resumes.
void *dt_mpi_guard(void *mpi_comm)
{
    struct mpi_comm *mpi = mpi_comm;
    uint64_t pulse = 0;
    double stuck = 0;
    sigset_t all;
    sigfillset(&all); // handlers run on the program's own threads
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&mpi->guard_ends)) {
        struct timespec until = dt_time_in(patrol_s);
        if (sem_clockwait(&mpi->guard_wake, CLOCK_MONOTONIC, &until) == 0) {
            look_for_the_lost(mpi);
            continue;
        }
        uint64_t newest = atomic_load(&mpi->pulse);
        stuck = newest == pulse ? stuck + patrol_s : 0;
        pulse = newest;
        if (stuck > 5 + atomic_load(&mpi->control.timeout_s)) {
            DT_FAIL(DT_MACHINE, "look for network faults in the launcher's output",
                    "an MPI call did not return for %.0f s", stuck);
            dt_die();
        }
    }
    return NULL;
}
