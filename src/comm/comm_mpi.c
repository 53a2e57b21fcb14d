// The interface of the MPI communicator: queues requests for the communication thread
// (comm_mpi_thread.c) and waits for them. The only MPI call here is the last one of an abort.
#include "comm/comm_mpi.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/waits.h"

#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const double slow_start_s = 2;

// Queues a request, which the thread owns until it is done.
static dt_status begin(struct dt_comm *comm, const struct dt_collective *call,
                       struct dt_request **result)
{
    struct mpi_comm *mpi = mpi_of(comm);
    struct dt_request *request;
    DT_TRY(DT_NEW(&request, 1, "a collective"));
    *request = (struct dt_request){.call = *call, .element_bytes = dt_dtype_size(call->dtype)};
    if (!dt_operation_kinds[call->operation].reduces) {
        request->call.count *= request->element_bytes;
        request->call.dtype = DT_U8;
        request->element_bytes = 1;
    }
    pthread_mutex_lock(&mpi->lock);
    if (call->operation != DT_EXCHANGE)
        request->sequence = ++mpi->sequence;
    *mpi->queue_end = request;
    mpi->queue_end = &request->next;
    pthread_mutex_unlock(&mpi->lock);
    sem_post(&mpi->wake);
    *result = request;
    return DT_OK;
}

static dt_status wait_for(struct dt_comm *comm, struct dt_request *request)
{
    struct mpi_comm *mpi = mpi_of(comm);
    dt_status status = DT_OK;
    atomic_fetch_add(&mpi->waiting, 1);
    pthread_mutex_lock(&mpi->lock);
    if (!request->done) // the thread makes more rounds while a caller waits
        sem_post(&mpi->wake);
    while (!request->done)
        pthread_cond_wait(&mpi->changed, &mpi->lock);
    pthread_mutex_unlock(&mpi->lock);
    atomic_fetch_sub(&mpi->waiting, 1);
    if (request->failure[0]) {
        if (!request->mismatch)
            dt_sleep(dt_wait_s[DT_FAILED]); // gives the watch time to find a dead peer
        status = DT_FAIL(DT_MACHINE, NULL, "%s: %s", dt_collective_name(&request->call),
                         request->failure);
    }
    free(request);
    return status;
}

static void release(struct mpi_comm *mpi)
{
    pthread_cond_destroy(&mpi->changed);
    pthread_mutex_destroy(&mpi->lock);
    sem_destroy(&mpi->wake);
    sem_destroy(&mpi->guard_wake);
    free(mpi);
}

static void end_guard(struct mpi_comm *mpi)
{
    atomic_store(&mpi->guard_ends, true);
    sem_post(&mpi->guard_wake);
    pthread_join(mpi->guard, NULL);
}

static void close_mpi(struct dt_comm *comm)
{
    struct mpi_comm *mpi = mpi_of(comm);
    // No rank leaves before all have arrived, so that a rank that is gone is a dead one.
    if (dt_barrier(comm) != DT_OK)
        dt_die();
    end_guard(mpi);
    pthread_mutex_lock(&mpi->lock);
    mpi->closing = true;
    pthread_mutex_unlock(&mpi->lock);
    sem_post(&mpi->wake);
    struct timespec until = dt_time_in(dt_wait_s[DT_FINALIZE]);
    if (pthread_clockjoin_np(mpi->thread, NULL, CLOCK_MONOTONIC, &until) != 0) {
        DT_FAIL(DT_MACHINE, NULL, "MPI_Finalize did not return within %g s",
                dt_wait_s[DT_FINALIZE]);
        dt_die();
    }
    release(mpi);
}

// The communication thread ends the job after informing the peers. A rank that does not report
// first leaves the end to the rank that does: the launcher ends all ranks when one aborts.
static void abort_mpi(struct dt_comm *comm, int code)
{
    struct mpi_comm *mpi = mpi_of(comm);
    if (dt_mpi_is_thread(mpi))
        dt_mpi_end(mpi, code);
    if (dt_mpi_is_guard(mpi)) // MPI cannot be called; the launcher notices the failed process
        _exit(code);
    if (!atomic_load(&mpi->speaks))
        dt_sleep(dt_wait_s[DT_UNCLAIMED]);
    atomic_store(&mpi->abort_code, code);
    sem_post(&mpi->wake);
    dt_sleep(dt_wait_s[DT_ABORT] + mpi->watch.n_links * mpi->watch.period);
    dt_mpi_end(mpi, code);
}

static void terminated(struct dt_comm *comm)
{
    struct mpi_comm *mpi = mpi_of(comm);
    atomic_store(&mpi->terminated, true);
    sem_post(&mpi->wake);
    sem_post(&mpi->guard_wake);
}

static enum dt_voice claim(struct dt_comm *comm)
{
    struct mpi_comm *mpi = mpi_of(comm);
    // Errors of the communication thread and the guard concern other ranks.
    bool is_watch = dt_mpi_is_thread(mpi) || dt_mpi_is_guard(mpi);
    if (is_watch ? mpi->watch.spoken : atomic_load(&mpi->doomed))
        return DT_VOICE_NONE;
    atomic_store(&mpi->speaks, true);
    sem_post(&mpi->wake);
    if (is_watch)
        return DT_VOICE_JOB;
    // Rank 0 logs until it hears that this rank reports the end, which nothing may follow.
    double until = dt_seconds() + dt_wait_s[DT_QUIET];
    while (comm->info.rank > 0 && !atomic_load(&mpi->heard) && dt_seconds() < until)
        dt_sleep(2e-3);
    return DT_VOICE_RANK;
}

static const struct dt_comm_table table = {"mpi",     begin,      wait_for, close_mpi,
                                           abort_mpi, terminated, claim};

// Whether /etc/hosts has a name, without asking a name server.
static bool is_in_hosts_file(const char *name)
{
    bool found = false;
    sethostent(0);
    for (const struct hostent *host; !found && (host = gethostent());) {
        found = strcmp(host->h_name, name) == 0;
        for (char **alias = host->h_aliases; *alias; alias++)
            found |= strcmp(*alias, name) == 0;
    }
    endhostent();
    return found;
}

// Open MPI 4 looks up "localhost" a dozen times at its start, which a name server may answer late
// or never.
static void report_slow_start(double seconds)
{
    if (seconds < slow_start_s || dt_comm_launched_rank() > 0)
        return;
    if (is_in_hosts_file("localhost"))
        dt_warn("MPI took %.1f s to start: the hosts may be busy, or load libraries from a slow "
                "file system",
                seconds);
    else
        dt_warn("MPI took %.1f s to start, most likely since it asked a name server for localhost, "
                "which is not in /etc/hosts: add the line \"127.0.0.1 localhost\" there",
                seconds);
}

// Between ranks of one machine, Open MPI sends a message up to its eager limit, 4 KB, at once. A
// longer one is transferred when the receiver asks for it, and both communication threads then wait
// for cores that compute otherwise. States that ranks exchange (comm.context) are often longer: a
// step of a small model takes a tenth less with this limit. A user's own setting stays.
static void raise_eager_limit(void)
{
    static const char *const settings[][2] = {
        {"OMPI_MCA_btl_vader_eager_limit", "65536"}, // Open MPI 4
        {"OMPI_MCA_btl_vader_max_send_size", "131072"},
        {"OMPI_MCA_btl_sm_eager_limit", "65536"}, // since Open MPI 5
        {"OMPI_MCA_btl_sm_max_send_size", "131072"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        setenv(settings[i][0], settings[i][1], 0);
}

static dt_status start(struct mpi_comm *mpi)
{
    const double begun = dt_seconds();
    raise_eager_limit(); // while no other thread runs
    if (pthread_create(&mpi->guard, NULL, dt_mpi_guard, mpi) != 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot start the thread that guards MPI");
    if (pthread_create(&mpi->thread, NULL, dt_mpi_thread, mpi) != 0) {
        end_guard(mpi);
        return DT_FAIL(DT_MACHINE, NULL, "cannot start the communication thread");
    }
    pthread_mutex_lock(&mpi->lock);
    while (!mpi->started)
        pthread_cond_wait(&mpi->changed, &mpi->lock);
    pthread_mutex_unlock(&mpi->lock);
    report_slow_start(dt_seconds() - begun);
    if (mpi->start_error.code == DT_OK)
        return DT_OK;
    pthread_join(mpi->thread, NULL);
    end_guard(mpi);
    return dt_error_restore(&mpi->start_error);
}

dt_status dt_comm_open_mpi(const struct dt_comm_limits *limits, struct dt_comm **comm)
{
    struct mpi_comm *mpi;
    dt_status status;
    DT_TRY(DT_NEW(&mpi, 1, "a communicator"));
    dt_comm_prepare(&mpi->base, &table, &mpi->control);
    dt_comm_set_timeout(&mpi->base, limits->wait_s);
    mpi->start_limit = limits->start_s;
    atomic_init(&mpi->abort_code, -1);
    atomic_init(&mpi->start_phase, "starting MPI");
    atomic_init(&mpi->start_peer, -1);
    mpi->queue_end = &mpi->queue;
    sem_init(&mpi->wake, 0, 0);
    sem_init(&mpi->guard_wake, 0, 0);
    pthread_mutex_init(&mpi->lock, NULL);
    pthread_cond_init(&mpi->changed, NULL);
    DT_TRY_GOTO(status, fail, start(mpi));
    *comm = &mpi->base;
    return DT_OK;
fail:
    release(mpi);
    return status;
}

const char *dt_comm_mpi_version(void)
{
    static char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0'; // after it: package, builder, date
    return version;
}
