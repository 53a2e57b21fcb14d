// The communication thread, the only caller of MPI. It opens MPI, posts requests in the order of
// the queue, progresses them (Open MPI makes no progress by itself), runs the watch, and closes
// MPI.
#include "comm/comm_mpi.h"

#include "base/clock.h"
#include "base/cores.h"
#include "base/log.h"
#include "base/trace.h"
#include "comm/waits.h"

#include <dlfcn.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum {
    SPIN_ROUNDS = 200,          // idle rounds before the thread sleeps between rounds
    SPIN_ROUNDS_WAITED = 20000, // … while a caller waits, whose core is idle anyway
};
static const char how_to_launch[] = "start it with `srun --mpi=pmix`, or with the mpirun of the "
                                    "MPI library that dtrain was built with";
static const double pause_s = 20e-6, pause_max_s = 100e-6;
static const double patience_s = 1e-3; // between rounds for messages that nobody waits for
static const double busy_s = 2e-6;     // a test that took longer moved data

static dt_status refuse_singletons(void)
{
    return DT_FAIL(DT_USER, how_to_launch, "%d processes were started, but %s sees only this one",
                   dt_comm_launched_size(), dt_comm_mpi_version());
}

// Whether this Open MPI certainly lacks PMI-1 and PMI-2: its folder of components has PMIx
// components, but none for PMI. MPI_Init would then end the process with its own message.
static bool lacks_pmi(void)
{
    static const char *const folders[] = {"openmpi*", "openmpi/lib/openmpi*"};
    void *init = dlsym(RTLD_DEFAULT, "MPI_Init_thread");
    Dl_info library;
    bool has_pmix = false, has_pmi = dlsym(RTLD_DEFAULT, "mca_pmix_s2_component") != NULL;
    const char *slash =
        init && dladdr(init, &library) != 0 ? strrchr(library.dli_fname, '/') : NULL;
    if (!slash) // MPI is linked into the program, which was found by PATH
        return false;
    int length = (int)(slash - library.dli_fname);
    for (int i = 0; i < 2; i++) {
        char pattern[PATH_MAX];
        glob_t found;
        snprintf(pattern, sizeof pattern, "%.*s/%s/mca_pmix_*.so", length, library.dli_fname,
                 folders[i]);
        if (glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t k = 0; k < found.gl_pathc; k++)
            has_pmi |= strstr(found.gl_pathv[k], "/mca_pmix_s1.so") != NULL ||
                       strstr(found.gl_pathv[k], "/mca_pmix_s2.so") != NULL;
        has_pmix = true;
        globfree(&found);
    }
    return has_pmix && !has_pmi;
}

static void start_phase(struct mpi_comm *mpi, const char *phase, int peer)
{
    atomic_store(&mpi->start_phase, phase);
    atomic_store(&mpi->start_peer, peer);
}

// Exchanges a message with each neighbour in the ring of ranks, so that an unreachable rank is
// found and named before anything waits for it inside the library.
static dt_status greet_neighbours(struct mpi_comm *mpi)
{
    int rank, size, done = 0;
    char mine = 0, theirs[2];
    MPI_Request messages[4];
    DT_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    DT_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    if (size == 1)
        return DT_OK;
    int peers[2] = {(rank + 1) % size, (rank + size - 1) % size};
    for (int i = 0; i < 2; i++) {
        DT_MPI(MPI_Irecv(&theirs[i], 1, MPI_CHAR, peers[i], 1 - i, MPI_COMM_WORLD, &messages[i]));
        DT_MPI(MPI_Isend(&mine, 1, MPI_CHAR, peers[i], i, MPI_COMM_WORLD, &messages[2 + i]));
    }
    for (int i = 0; i < 4; i += done) {
        start_phase(mpi, "the first message from rank", peers[i % 2]);
        DT_MPI(MPI_Test(&messages[i], &done, MPI_STATUS_IGNORE));
        if (!done)
            dt_sleep(pause_max_s);
    }
    return DT_OK;
}

// Open MPI 4 sends a warning about a lost TCP connection to mpirun and waits until mpirun has read
// it. But mpirun reads nothing while it ends a job, so the thread would hang just when the watch
// must find the lost rank. Therefore dtrain logs such warnings itself, on one line.
static int log_warning(const char *file, const char *topic, bool header, ...)
{
    char *(*format)(const char *, const char *, bool, va_list) =
        (char *(*)(const char *, const char *, bool, va_list))dlsym(RTLD_DEFAULT,
                                                                    "opal_show_help_vstring");
    va_list arguments;
    va_start(arguments, header);
    char *text = format ? format(file, topic, false, arguments) : NULL;
    va_end(arguments);
    for (char *end = text; end && (end = strchr(end, '\n'));)
        *end = ' ';
    dt_warn("Open MPI says: %s", text ? text : topic);
    free(text);
    return 0;
}

// In Open MPI 4 `opal_show_help` is a variable; in other versions it is a function.
static void log_warnings_here(void)
{
    if (strncmp(dt_comm_mpi_version(), "Open MPI v4.", 12) != 0)
        return;
    int (**show)(const char *, const char *, bool, ...) =
        (int (**)(const char *, const char *, bool, ...))dlsym(RTLD_DEFAULT, "opal_show_help");
    if (show)
        *show = log_warning;
}

static dt_status start(struct mpi_comm *mpi)
{
    struct dt_comm_info *info = &mpi->base.info;
    char host[MPI_MAX_PROCESSOR_NAME];
    int is_open, provided, length, *largest_tag, known;
    MPI_Comm local;
    MPI_Initialized(&is_open);
    if (is_open)
        return DT_FAIL(DT_MACHINE, NULL, "MPI was already initialized in this process");
    if (dt_comm_launched_size() > 1 && !dt_launched_by_mpi())
        return refuse_singletons();
    if (dt_launched_by_pmi() && lacks_pmi())
        return DT_FAIL(DT_USER, how_to_launch,
                       "the launcher offers PMI-1 or PMI-2 (srun --mpi=pmi2), but %s here only "
                       "supports PMIx",
                       dt_comm_mpi_version());
    // Serialized instead of funneled, because another thread may have to abort.
    start_phase(mpi, "MPI_Init_thread", -1);
    DT_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided));
    if (provided < MPI_THREAD_SERIALIZED)
        return DT_FAIL(DT_MACHINE, "use an MPI library with MPI_THREAD_SERIALIZED",
                       "this MPI library supports thread level %d only", provided);
    log_warnings_here();
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN); // inherited by duplicates
    DT_TRY(greet_neighbours(mpi));
    start_phase(mpi, "MPI_Comm_dup", -1);
    DT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->world));
    DT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->ring_world));
    DT_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &mpi->overtaking_world));
    DT_MPI(MPI_Comm_get_attr(mpi->world, MPI_TAG_UB, &largest_tag, &known));
    mpi->tags = (uint32_t)(known ? *largest_tag : 32767) + 1; // MPI promises these
    DT_MPI(MPI_Comm_rank(mpi->world, &info->rank));
    DT_MPI(MPI_Comm_size(mpi->world, &info->size));
    if (info->size == 1 && dt_comm_launched_size() > 1)
        return refuse_singletons();
    DT_MPI(MPI_Get_processor_name(host, &length));
    snprintf(info->host, sizeof info->host, "%.*s", DT_HOST_NAME - 1, host);
    start_phase(mpi, "MPI_Comm_split_type", -1);
    DT_MPI(MPI_Comm_split_type(mpi->world, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local));
    DT_MPI(MPI_Comm_rank(local, &info->local_rank));
    DT_MPI(MPI_Comm_size(local, &info->local_size));
    DT_MPI(MPI_Comm_free(&local));
    DT_TRY(dt_mpi_reductions(mpi));
    DT_TRY(dt_watch_open(&mpi->watch, info->host));
    return DT_OK;
}

// Returns a request to its caller, who may free it immediately.
static void finish(struct mpi_comm *mpi, struct dt_request *request, int code)
{
    int length;
    dt_trace_end(DT_LANE_COMM, dt_collective_name(&request->call), request->posted,
                 dt_collective_elements(&mpi->base.info, &request->call) * request->element_bytes);
    free(request->pieces);
    if (code != MPI_SUCCESS)
        MPI_Error_string(code, request->failure, &length);
    request->mismatch |= code == MPI_ERR_TRUNCATE;
    pthread_mutex_lock(&mpi->lock);
    request->done = true;
    pthread_cond_broadcast(&mpi->changed);
    pthread_mutex_unlock(&mpi->lock);
}

static void post_requests(struct mpi_comm *mpi, struct dt_request *fresh)
{
    struct dt_request **end = &mpi->active;
    while (*end)
        end = &(*end)->next;
    while (fresh) {
        struct dt_request *request = fresh;
        fresh = request->next;
        request->next = NULL;
        request->since = mpi->watch.clock;
        request->posted = dt_trace_begin();
        int code = dt_mpi_post(mpi, request);
        if (code != MPI_SUCCESS) {
            finish(mpi, request, code);
            continue;
        }
        *end = request;
        end = &request->next;
    }
}

// Makes one round over all active requests; returns whether anything moved.
static bool advance(struct mpi_comm *mpi)
{
    bool moved = false, done;
    double before = dt_seconds();
    int tests = 1, ring_code = dt_mpi_advance_rings(mpi, &moved);
    if (ring_code != MPI_SUCCESS)
        memset(mpi->rings, 0, sizeof mpi->rings); // their requests fail now and are freed
    struct dt_request **link = &mpi->active;
    while (*link) {
        struct dt_request *request = *link;
        int code = dt_mpi_test(mpi, request, &done);
        if (code == MPI_SUCCESS && request->ring)
            code = ring_code;
        tests++;
        if (!done && code == MPI_SUCCESS) {
            link = &request->next;
            continue;
        }
        moved = true;
        *link = request->next;
        finish(mpi, request, code);
    }
    return moved || dt_seconds() - before > tests * busy_s;
}

static void sleep_until_woken(struct mpi_comm *mpi, double seconds)
{
    struct timespec until = dt_time_in(seconds);
    sem_clockwait(&mpi->wake, CLOCK_MONOTONIC, &until);
}

static bool only_sends(const struct dt_request *request)
{
    while (request && request->call.operation == DT_EXCHANGE && !request->call.data)
        request = request->next;
    return !request;
}

// Pauses after a round. During collectives the thread first spins, then sleeps between rounds, to
// leave the cores of a full machine to the compute threads. Open MPI completes most sends only
// after the receiver's thread has polled, often tens of milliseconds later, and a send that no
// caller waits for needs few rounds until then.
static void rest(struct mpi_comm *mpi, int fruitless)
{
    bool waited = atomic_load(&mpi->waiting) > 0;
    int spins = waited ? SPIN_ROUNDS_WAITED : SPIN_ROUNDS;
    double pause = pause_s * (1 + (fruitless - spins) / 16);
    if (!mpi->active)
        sleep_until_woken(mpi, fmax(0, mpi->watch.next_beat - mpi->watch.clock));
    else if (fruitless > 0 && !waited && only_sends(mpi->active))
        sleep_until_woken(mpi, patience_s);
    else if (fruitless > spins)
        sleep_until_woken(mpi, pause < pause_max_s ? pause : pause_max_s);
    else if (fruitless > 0 && waited)
        sched_yield();
}

static void watch(struct mpi_comm *mpi)
{
    struct dt_comm_devices *devices = &mpi->control.devices;
    const struct dt_request *oldest = mpi->active;
    int peer = oldest && oldest->sequence == 0 ? oldest->call.peer : atomic_load(&devices->peer);
    struct dt_watch_self self = {
        .beat = {.sequence = mpi->begun,
                 .oldest = oldest ? oldest->sequence : 0,
                 .device_sequence = atomic_load(&devices->begun),
                 .device_oldest = atomic_load(&devices->oldest),
                 .peer = peer,
                 .reports = atomic_load(&mpi->control.reports)},
        .waited = oldest ? mpi->watch.clock - oldest->since : 0,
        .device_waited = atomic_load(&devices->waited),
        .timeout = atomic_load(&mpi->control.timeout_s),
        .device_failed = atomic_load(&devices->failed),
        .has_record = atomic_load(&mpi->control.record) != NULL,
        .terminated = atomic_exchange(&mpi->terminated, false),
        .speaks = atomic_load(&mpi->speaks),
    };
    const char *phase;
    dt_comm_last_progress(&mpi->base, &self.beat.step, &phase);
    snprintf(self.beat.phase, sizeof self.beat.phase, "%s", phase);
    dt_watch_tick(&mpi->watch, &self);
    atomic_store(&mpi->doomed, mpi->watch.spoken || mpi->watch.doomed_at > 0);
    atomic_store(&mpi->heard, dt_watch_is_heard(&mpi->watch));
    atomic_store(&mpi->control.spoken, mpi->watch.spoken);
    atomic_store(&devices->quiet, dt_watch_quiet(&mpi->watch));
    atomic_store(&devices->peer_failed, mpi->watch.hears_failed);
    if (mpi->watch.wants_record)
        dt_comm_write_record(&mpi->base, true);
}

bool dt_mpi_is_thread(const struct mpi_comm *mpi)
{
    return pthread_equal(pthread_self(), mpi->self);
}

static void give_up(int signal)
{
    (void)signal;
    _exit(DT_MACHINE);
}

_Noreturn void dt_mpi_end(struct mpi_comm *mpi, int code)
{
    sigset_t alarms;
    // Inform the peers, so that no rank reports as a death what this rank has already reported;
    // once it aborts, the launcher ends the ranks that would pass this on.
    if (dt_mpi_is_thread(mpi) && atomic_load(&mpi->speaks)) {
        do {
            watch(mpi);
            dt_sleep(2e-3);
        } while (!dt_watch_is_heard(&mpi->watch));
        dt_watch_flush(&mpi->watch);
    }
    dt_log_quiet(true); // Open MPI also reports its abort
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    signal(SIGALRM, give_up); // MPI_Abort waits for the launcher, which may be gone
    pthread_sigmask(SIG_UNBLOCK, &alarms, NULL);
    alarm((unsigned)dt_wait_s[DT_LAUNCHER]);
    MPI_Abort(MPI_COMM_WORLD, code);
    _exit(code);
}

static void serve(struct mpi_comm *mpi)
{
    int fruitless = 0, code;
    bool closing = false;
    prctl(PR_SET_TIMERSLACK, 1000); // ns; the default of 50 us would double the pauses
    while (!closing || mpi->active) {
        while (sem_trywait(&mpi->wake) == 0)
            ;
        pthread_mutex_lock(&mpi->lock);
        struct dt_request *fresh = mpi->queue;
        mpi->queue = NULL;
        mpi->queue_end = &mpi->queue;
        mpi->begun = mpi->sequence;
        closing = mpi->closing;
        pthread_mutex_unlock(&mpi->lock);
        post_requests(mpi, fresh);
        fruitless = advance(mpi) || fresh ? 0 : fruitless + 1;
        atomic_fetch_add(&mpi->pulse, 1);
        code = atomic_load(&mpi->abort_code);
        if (code >= 0)
            dt_mpi_end(mpi, code);
        watch(mpi);
        if (!closing)
            rest(mpi, fruitless);
    }
}

void *dt_mpi_thread(void *mpi_comm)
{
    struct mpi_comm *mpi = mpi_comm;
    sigset_t all;
    mpi->self = pthread_self();
    // If bound to the rank's core, this thread would run only instead of a compute thread.
    dt_cores_free_thread();
    sigfillset(&all); // handlers run on the program's own threads
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    dt_status status = start(mpi);
    if (status != DT_OK)
        dt_error_take(&mpi->start_error);
    pthread_mutex_lock(&mpi->lock);
    mpi->started = true;
    pthread_cond_broadcast(&mpi->changed);
    pthread_mutex_unlock(&mpi->lock);
    if (status != DT_OK) // without MPI_Finalize, which would wait for the others: their launcher
        return NULL;     // ends them
    serve(mpi);
    dt_watch_close(&mpi->watch);
    dt_mpi_free_reductions(mpi);
    MPI_Comm_free(&mpi->overtaking_world);
    MPI_Comm_free(&mpi->ring_world);
    MPI_Comm_free(&mpi->world);
    MPI_Finalize();
    return NULL;
}
