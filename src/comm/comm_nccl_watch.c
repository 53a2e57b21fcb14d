// The watchdog of the NCCL communicator: a thread that looks at the device's counts ten times a
// second. It waits for nothing but its own sleep, so it ends the job even if the program's thread
// waits for the device forever. The communicator's watch (watch.c) judges which rank is to blame
// for a collective that does not end, by what this thread writes to struct dt_comm_devices.
#include "comm/comm_nccl.h"

#include "base/clock.h"
#include "base/text.h"
#include "comm/waits.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

enum { SHOWN = 10, SHOWN_DONE = 4, SHOWN_NEXT = 2 }; // collectives in a record
static const double period_s = 0.1;

// ---- the record

enum { RECORD = 4096 }; // bytes of its text

static struct nccl_counts read_counts(const struct nccl_comm *nccl, int index)
{
    const struct nccl_counts *counts = &nccl->counts[index];
    struct nccl_counts now;
    now.done = __atomic_load_n(&counts->done, __ATOMIC_ACQUIRE); // first: never exceeds begun
    now.begun = __atomic_load_n(&counts->begun, __ATOMIC_ACQUIRE);
    now.since = __atomic_load_n(&counts->since, __ATOMIC_RELAXED);
    return now;
}

// The last collective that began before the collective `than`; -1: the last of all. Compares begin
// times, not numbers of calls, which differ for collectives that are not in every step (weights
// gathered for a validation).
static int began_before(const struct nccl_comm *nccl, int than)
{
    struct nccl_counts limit = than >= 0 ? read_counts(nccl, than) : (struct nccl_counts){0};
    uint64_t latest = 0;
    int found = -1;
    for (int i = 0; i < nccl->n; i++) {
        struct nccl_counts counts = read_counts(nccl, i);
        bool is_before =
            than < 0 || counts.since < limit.since || (counts.since == limit.since && i < than);
        if (counts.begun > 0 && is_before && counts.since >= latest) {
            latest = counts.since;
            found = i;
        }
    }
    return found;
}

static void describe(const struct nccl_comm *nccl, int index, int64_t round, char text[RECORD])
{
    const struct nccl_call *call = &nccl->calls[index];
    struct nccl_counts counts = read_counts(nccl, index);
    const char *name = atomic_load(&call->name);
    dt_append(text, RECORD, "  %s %d of %d, call %lld", name ? name : "collective", index + 1,
              nccl->n, (long long)round + 1);
    if (name && atomic_load(&call->bytes) > 0)
        dt_append(text, RECORD, ", %lld bytes of %s", (long long)atomic_load(&call->bytes),
                  dt_dtype_name((dt_dtype)atomic_load(&call->dtype)));
    if (counts.done > round)
        dt_append(text, RECORD, ": done\n");
    else if (counts.begun > round)
        dt_append(text, RECORD, ": running for %.1f s\n",
                  atomic_load(&nccl->clock) - atomic_load(&call->since));
    else
        dt_append(text, RECORD, ": not started\n");
}

// Describes the last collectives begun, including a few that are done, and those that follow them
// in a step, one per line. Returns whether any is running.
static bool describe_last(const struct nccl_comm *nccl, char text[RECORD])
{
    int shown[SHOWN], n = 0, done = 0, last = began_before(nccl, -1);
    bool runs = false;
    for (int i = last; i >= 0 && n < SHOWN && done < SHOWN_DONE; i = began_before(nccl, i)) {
        struct nccl_counts counts = read_counts(nccl, i);
        bool is_done = counts.done == counts.begun;
        shown[n++] = i;
        done += is_done;
        runs |= !is_done;
    }
    while (n-- > 0)
        describe(nccl, shown[n], read_counts(nccl, shown[n]).begun - 1, text);
    for (int k = 1; k <= SHOWN_NEXT && k <= nccl->n; k++) {
        int next = (last + k) % nccl->n;
        describe(nccl, next, read_counts(nccl, next).begun, text);
    }
    return runs;
}

// The registered dt_comm_record: one line per collective begun, and the few after them. Its first
// line does not start like a message: mpirun stops reading when it sees a death until it has killed
// all ranks, and then reads them in any order, but the last "dtrain: " line must be the report of
// the end.
static void write_record(void *context, bool always)
{
    struct nccl_comm *nccl = context;
    char text[RECORD] = "nccl: ";
    if (nccl->recorded)
        return;
    dt_comm_append_place(nccl->comm, text, RECORD);
    dt_append(text, RECORD, "the last collectives\n");
    if (!describe_last(nccl, text) && !always)
        return;
    nccl->recorded = true;
    if (write(STDERR_FILENO, text, strlen(text)) < 0) // there is nowhere to report this
        return;
}

// ---- the end

static double stagger(const struct nccl_comm *nccl)
{
    return dt_wait_s[DT_DEVICE_TURN] * fmin(nccl->comm->info.rank, 3);
}

dt_status dt_nccl_failed(struct nccl_comm *nccl, ncclResult_t result, const char *what)
{
    atomic_store(&nccl->comm->control->devices.failed, true);
    dt_comm_write_record(nccl->comm, true);
    if (nccl->comm->info.size > 1)
        dt_sleep(dt_wait_s[DT_DEVICE_FAILED] + stagger(nccl));
    return dt_nccl_error(nccl, result, what);
}

// Gives the communicator's watch, which knows more, the time to end the job; ends it otherwise.
static _Noreturn void expire(struct nccl_comm *nccl, const char *what, double timeout_s)
{
    dt_comm_write_record(nccl->comm, true);
    if (nccl->comm->info.size > 1)
        dt_sleep(dt_wait_s[DT_DEVICE_EXPIRED] + stagger(nccl));
    DT_FAIL(DT_MACHINE,
            "look at the network between the hosts and at the GPUs (nvidia-smi, dmesg), or raise "
            "comm.timeout_s; then resume with the same command",
            "%s timed out after comm.timeout_s = %g s", what, timeout_s);
    dt_die();
}

// ---- the look

struct progress {
    int64_t begun, done; // collectives
    int peer;            // peer of a running exchange, of a receive if there is one; -1: none
    double waited;
};

// Updates with the collective `index` what the device has begun, waits in and waits for.
static void look(struct nccl_comm *nccl, int index, double clock, struct progress *progress)
{
    struct nccl_call *call = &nccl->calls[index];
    struct nccl_counts now = read_counts(nccl, index);
    int peer = atomic_load(&call->peer);
    if (now.begun != call->seen.begun || now.done != call->seen.done)
        atomic_store(&call->since, clock);
    call->seen = now;
    if (atomic_load(&call->name) && peer >= 0) { // an exchange is not counted by the other ranks
        if (now.begun > now.done)
            progress->peer = peer;
    } else {
        progress->begun += now.begun;
        progress->done += now.done;
    }
    if (now.begun > now.done)
        progress->waited = fmax(progress->waited, clock - atomic_load(&call->since));
}

static ncclResult_t ask(struct nccl_comm *nccl)
{
    ncclResult_t result = ncclSuccess, asked = ncclSuccess;
    if (pthread_mutex_trylock(&nccl->lock) != 0)
        return ncclSuccess; // the caller is in NCCL and polls itself
    for (int i = 0; i < NCCL_COMMS && asked == ncclSuccess; i++) {
        if (nccl->nccl[i])
            asked = nccl->library.CommGetAsyncError(nccl->nccl[i], &result);
        if (asked == ncclSuccess && result != ncclInProgress)
            asked = result;
    }
    pthread_mutex_unlock(&nccl->lock);
    return asked;
}

static void tick(struct nccl_comm *nccl)
{
    struct dt_comm_devices *devices = &nccl->comm->control->devices;
    double clock = atomic_load(&nccl->clock) + dt_nccl_elapsed(&nccl->last_time);
    int64_t left = atomic_load(&nccl->left), entered = atomic_load(&nccl->entered);
    if (entered != nccl->entered_seen)
        nccl->entered_since = clock;
    nccl->entered_seen = entered;
    double called = entered > left ? clock - nccl->entered_since : 0; // not yet returned
    double timeout_s = atomic_load(&nccl->comm->control->timeout_s);
    struct progress now = {.peer = -1};
    atomic_store(&nccl->clock, clock);
    for (int i = 0; i < nccl->n; i++)
        look(nccl, i, clock, &now);
    atomic_store(&devices->begun, now.begun);
    // A rank whose call does not return may still be as far as the others.
    atomic_store(&devices->oldest, now.begun > now.done ? now.done + 1
                                   : called > 0         ? now.begun
                                                        : 0);
    atomic_store(&devices->peer, now.peer);
    atomic_store(&devices->waited, fmax(now.waited, called));
    if (fmin(now.waited, atomic_load(&devices->quiet)) > timeout_s)
        expire(nccl, "a collective between GPUs", timeout_s);
    if (called > timeout_s)
        expire(nccl, "a call to NCCL", timeout_s);
    ncclResult_t result = ask(nccl);
    if (result != ncclSuccess) {
        dt_nccl_failed(nccl, result, "a collective between GPUs");
        dt_die();
    }
}

static void *watch(void *context)
{
    struct nccl_comm *nccl = context;
    sigset_t all;
    sigfillset(&all); // signal handlers run on the program's other threads
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    nccl->last_time = dt_seconds();
    for (;;) {
        struct timespec until = dt_time_in(period_s);
        if (sem_clockwait(&nccl->stop, CLOCK_MONOTONIC, &until) == 0)
            return NULL;
        tick(nccl);
    }
}

dt_status dt_nccl_watch_start(struct nccl_comm *nccl)
{
    if (pthread_create(&nccl->thread, NULL, watch, nccl) != 0)
        return DT_FAIL(DT_MACHINE, NULL, "cannot start the thread that watches NCCL");
    nccl->has_thread = true;
    dt_comm_set_record(nccl->comm, write_record, nccl);
    return DT_OK;
}

void dt_nccl_watch_stop(struct nccl_comm *nccl)
{
    struct dt_comm_devices *devices = &nccl->comm->control->devices;
    if (!nccl->has_thread)
        return;
    sem_post(&nccl->stop);
    pthread_join(nccl->thread, NULL);
    dt_comm_set_record(nccl->comm, NULL, NULL);
    atomic_store(&devices->oldest, 0);
    atomic_store(&devices->peer, -1);
    atomic_store(&devices->waited, 0);
}
