// The guard is a thread that never calls MPI. If an MPI call does not return, the communication
// thread makes no round and its watch is silent too. Then the guard ends the process: at the
// time-out, or when a launcher sends SIGTERM because a rank died. (Open MPI 4 hangs like this when
// a TCP connection breaks: it waits for mpirun, which kills a second after SIGTERM.)
#include "comm/comm_mpi.h"

#include "base/clock.h"
#include "comm/waits.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static const double patrol_s = 1, nap_s = 0.01;

bool dt_mpi_is_guard(const struct mpi_comm *mpi)
{
    return pthread_equal(pthread_self(), mpi->guard);
}

// Counts naps instead of time, because on a crowded machine the communication thread gets no CPU
// time either.
static void look_for_the_lost(struct mpi_comm *mpi)
{
    uint64_t pulse = atomic_load(&mpi->pulse);
    double hung = 0;
    for (double t = 0; t < dt_wait_s[DT_TERMINATION] && !atomic_load(&mpi->guard_ends);
         t += nap_s) {
        dt_sleep(nap_s);
        uint64_t newest = atomic_load(&mpi->pulse);
        hung = newest == pulse ? hung + nap_s : 0;
        pulse = newest;
        if (hung > dt_wait_s[DT_HUNG])
            dt_watch_report_lost(&mpi->watch, hung > dt_wait_s[DT_LOST]);
    }
}

// Limits the wait until the first round: ranks hang in MPI_Init or MPI_Comm_dup if one never
// starts, or if hosts cannot reach each other. The lowest waiting rank reports; its end makes the
// launcher end the others, which takes mpirun a few seconds between hosts, or more if they are
// busy.
static void check_start(struct mpi_comm *mpi, double waited)
{
    double limit = mpi->start_limit;
    char host[DT_HOST_NAME] = "", peer[32] = "";
    int rank = dt_comm_launched_rank();
    if (waited < limit + (rank == 0 ? 0 : rank < 50 ? 10 + 0.1 * rank : 15))
        return;
    gethostname(host, sizeof host - 1);
    if (atomic_load(&mpi->start_peer) >= 0)
        snprintf(peer, sizeof peer, " %d", atomic_load(&mpi->start_peer));
    DT_FAIL(DT_MACHINE,
            "check that every rank is running, and that the hosts reach each other over TCP (a "
            "firewall?); where hosts have several networks, name one that all share: "
            "OMPI_MCA_btl_tcp_if_include=eth0 OMPI_MCA_oob_tcp_if_include=eth0 (or 10.0.0.0/8); or "
            "raise comm.start_timeout_s",
            "rank %d on %s, start-up: %s%s timed out after comm.start_timeout_s = %g s", rank, host,
            atomic_load(&mpi->start_phase), peer, limit);
    dt_die();
}

// The guard counts its own rounds instead of comparing clocks, so that a suspended job resumes.
void *dt_mpi_guard(void *mpi_comm)
{
    struct mpi_comm *mpi = mpi_comm;
    uint64_t pulse = 0;
    double stuck = 0;
    sigset_t all;
    sigfillset(&all); // signal handlers run on the program's other threads
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    while (!atomic_load(&mpi->guard_ends)) {
        struct timespec until = dt_time_in(patrol_s);
        if (sem_clockwait(&mpi->guard_wake, CLOCK_MONOTONIC, &until) == 0) {
            if (atomic_load(&mpi->pulse) > 0)
                look_for_the_lost(mpi);
            continue;
        }
        uint64_t newest = atomic_load(&mpi->pulse);
        stuck = newest == pulse ? stuck + patrol_s : 0;
        pulse = newest;
        if (newest == 0)
            check_start(mpi, stuck);
        else if (stuck > dt_wait_s[DT_STUCK] + atomic_load(&mpi->control.timeout_s)) {
            // Most likely the call waits for a dead rank, and no launcher reported it.
            dt_watch_report_lost(&mpi->watch, true);
            DT_FAIL(DT_MACHINE, "look for network faults in the launcher's output",
                    "an MPI call did not return for %.0f s", stuck);
            dt_die();
        }
    }
    return NULL;
}
