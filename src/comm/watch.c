// The judgement: which ranks are dead, which one the others have waited for too long, and which
// rank reports it.
//
// Every rank judges by itself, from the beats that it receives, on the communication thread. Ranks
// do not ask each other, so a verdict needs no working peer. A rank may rely on this: what one rank
// knows, all ranks know after dt_watch_spread seconds; a rank that is declared dead or has reported
// stays so; between the first certainty of the end and the report every rank has time to write its
// record. It must not assume that all ranks judge alike at the same moment: the lowest live rank
// that is not at fault reports the failure, while the others stay quiet and are ended by its
// launcher. If that rank does not report in time, the others do.
//
// All times are on the watch's clock, which stops while this process is suspended, so that a
// suspended job resumes instead of timing out.
#include "comm/watch.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/waits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double soon = 0.2; // least time between beats, in periods

// How certain it is that others wait for a rank. Ranks with the highest grade are blamed.
enum blame {
    BLAME_NONE,    // it has entered what this rank waits for
    BLAME_WAITING, // it has not, but waits for another rank itself
    BLAME_LATE,    // it has not, and waits for nobody
    BLAME_SILENT,  // it is suspended or silent, whatever it has entered
};

// ---- time

// Whether `at` is set and the wait since then is over.
static bool has_passed(const struct dt_watch *watch, double at, enum dt_wait wait)
{
    return at > 0 && watch->clock - at >= dt_wait_s[wait];
}

static void advance_clock(struct dt_watch *watch, double timeout)
{
    double now = dt_seconds(), passed = now - watch->last_time;
    watch->last_time = now;
    watch->clock += fmin(passed, dt_wait_s[DT_PAUSED]);
    if (passed > dt_wait_s[DT_PAUSED])
        watch->woken_at = watch->clock;
    if (passed > timeout / 2)
        watch->overslept_at = watch->clock;
}

// Whether ranks beat fast, for a while after SIGTERM.
static bool is_hasty(const struct dt_watch *watch)
{
    return watch->terminated_at > 0 && !has_passed(watch, watch->terminated_at, DT_CALMED);
}

static double period_now(const struct dt_watch *watch)
{
    return is_hasty(watch) ? dt_wait_s[DT_HASTY_BEAT] : watch->period;
}

double dt_watch_spread(const struct dt_watch *watch)
{
    return (watch->n_links + 0.5) * period_now(watch);
}

bool dt_watch_is_heard(const struct dt_watch *watch)
{
    return watch->spoke_at > 0 && watch->clock - watch->spoke_at > dt_watch_spread(watch);
}

// ---- the dead

static bool is_neighbour(const struct dt_watch *watch, const struct dt_peer *peer)
{
    uint64_t space = watch->peers[watch->rank].process.space;
    return space != 0 && peer->process.space == space;
}

// After SIGTERM all ranks beat fast, so a live rank is heard in time. If another rank beats fast,
// all ranks got the signal.
static bool silent_since_terminated(const struct dt_watch *watch, const struct dt_peer *peer)
{
    bool others_hasty = watch->n_links <= 2;
    if (!is_hasty(watch) || !has_passed(watch, watch->terminated_at, DT_UNHEARD) ||
        peer->beat.number > peer->number_then)
        return false;
    for (int r = 0; r < watch->size; r++)
        if (r != watch->rank && watch->peers[r].beat.number > watch->peers[r].number_then + 9)
            others_hasty = true;
    return others_hasty;
}

// Whether the process of a rank on this host has been gone long enough for its message to have
// arrived. Slurm ends all ranks a second after one of several on a host died, so there is no time
// to wait for its silence.
static bool is_gone(const struct dt_watch *watch, struct dt_peer *peer)
{
    if (!is_neighbour(watch, peer) || watch->clock - peer->heard <= period_now(watch) ||
        dt_process_look(&peer->process) != DT_PROCESS_GONE)
        return false;
    if (peer->gone_at <= 0)
        peer->gone_at = watch->clock;
    return has_passed(watch, peer->gone_at, DT_GONE);
}

// Marks the dead ranks; returns the lowest of them, or -1.
static int find_dead(struct dt_watch *watch)
{
    int first = -1;
    for (int r = watch->size - 1; r >= 0; r--) {
        struct dt_peer *peer = &watch->peers[r];
        int lost = peer->beat.lost;
        if (r != watch->rank && is_gone(watch, peer)) {
            peer->gone = true;
            watch->lost = r;
        }
        if (lost >= 0 && lost != watch->rank)
            watch->peers[lost].gone = true;
    }
    for (int r = watch->size - 1; r >= 0; r--) {
        struct dt_peer *peer = &watch->peers[r];
        peer->dead |= peer->gone; // ranks of other hosts are judged by their silence
        if (r != watch->rank && !is_neighbour(watch, peer))
            peer->dead |= watch->clock - peer->heard > dt_watch_silence(watch) ||
                          silent_since_terminated(watch, peer);
        if (peer->dead)
            first = r;
    }
    return first;
}

// ---- the stalled

static bool is_suspended(const struct dt_watch *watch, const struct dt_peer *peer)
{
    return is_neighbour(watch, peer) && dt_process_look(&peer->process) == DT_PROCESS_STOPPED;
}

static bool waits(const struct dt_beat *beat)
{
    return beat->oldest > 0 || beat->device_oldest > 0 || beat->peer >= 0;
}

// Whether `rank` has not yet entered the collective or exchange that this rank waits for.
static bool is_awaited(const struct dt_watch *watch, int rank)
{
    int end = watch->rank; // end of the chain of exchanges, each waiting for its peer
    for (int hops = 0; hops < watch->size; hops++) {
        int peer = watch->peers[end].beat.peer;
        if (peer < 0 || peer == watch->rank)
            break;
        end = peer;
    }
    const struct dt_beat *waiter = &watch->peers[end].beat, *beat = &watch->peers[rank].beat;
    if (rank == watch->rank)
        return false;
    return beat->sequence < waiter->oldest || beat->device_sequence < waiter->device_oldest ||
           (rank == end && waiter->oldest == 0 && waiter->device_oldest == 0);
}

static enum blame blame(const struct dt_watch *watch, int rank, double timeout)
{
    const struct dt_peer *peer = &watch->peers[rank];
    // A rank silent for half of the time-out, but at least several beats, is blamed without looking
    // further.
    double most = fmax(timeout / 2, (3 + watch->n_links) * watch->period);
    if (rank == watch->rank)
        return BLAME_NONE;
    if (is_suspended(watch, peer) ||
        watch->clock - peer->heard > fmin(most, dt_watch_silence(watch)))
        return BLAME_SILENT;
    if (!is_awaited(watch, rank))
        return BLAME_NONE;
    return waits(&peer->beat) ? BLAME_WAITING : BLAME_LATE;
}

// Marks the ranks with the most blame; returns their number.
static int find_blamed(struct dt_watch *watch, double timeout)
{
    int most = BLAME_WAITING, n = 0;
    for (int r = 0; r < watch->size; r++) {
        watch->peers[r].blame = (int)blame(watch, r, timeout);
        most = watch->peers[r].blame > most ? watch->peers[r].blame : most;
    }
    for (int r = 0; r < watch->size; r++)
        n += watch->peers[r].blamed = watch->peers[r].blame == most;
    return n;
}

double dt_watch_quiet(const struct dt_watch *watch)
{
    return watch->excused_at > 0 ? watch->clock - watch->excused_at : INFINITY;
}

static bool hears(const struct dt_watch *watch, enum dt_peer_state state)
{
    for (int r = 0; r < watch->size; r++)
        if (r != watch->rank && watch->peers[r].beat.state == (int32_t)state)
            return true;
    return false;
}

static bool is_expired(const struct dt_watch *watch, const struct dt_watch_self *self)
{
    double waited = fmin(fmax(self->waited, self->device_waited), dt_watch_quiet(watch));
    if (!waits(&self->beat) && self->device_waited <= 0)
        return false;
    return waited > self->timeout || hears(watch, DT_PEER_EXPIRED);
}

// ---- the last words

// Whether this is the lowest rank that could report, or lower ranks have had their time. A live but
// silent rank may hang inside MPI, as Open MPI's TCP does for a while when a connection breaks.
static bool is_speaker(const struct dt_watch *watch, bool expired)
{
    if (has_passed(watch, watch->doomed_at, DT_DEFERRED))
        return true;
    for (int r = 0; r < watch->rank; r++) {
        const struct dt_peer *peer = &watch->peers[r];
        if (!peer->dead && !silent_since_terminated(watch, peer) && !(expired && peer->blamed))
            return false;
    }
    return true;
}

static void describe_time(const struct dt_peer *peer, char *text, size_t size)
{
    if (peer->beat.step < 0)
        snprintf(text, size, "before the first step, during %s", peer->beat.phase);
    else
        snprintf(text, size, "at step %lld during %s", (long long)peer->beat.step,
                 peer->beat.phase);
}

// "rank 2 on host n1 (pid 4711) (and 1 other)"
static void describe_rank(const struct dt_peer *peer, int n, char *text, size_t size)
{
    snprintf(text, size, "rank %d on host %s (pid %d)", peer->beat.rank, peer->host,
             peer->process.pid);
    if (n > 1)
        dt_append(text, size, " (and %d other%s)", n - 1, n > 2 ? "s" : "");
}

// Reports n dead ranks, the lowest of which is `first`.
static _Noreturn void report_dead(const struct dt_watch *watch, int first, int n)
{
    const struct dt_peer *peer = &watch->peers[first];
    char who[256], when[128];
    describe_rank(peer, n, who, sizeof who);
    describe_time(peer, when, sizeof when);
    dt_log_quiet(true);
    DT_FAIL(DT_MACHINE, NULL,
            "%s died %s%s; the job ends. Resume with the same command: it continues from the last "
            "checkpoint.",
            who, when,
            peer->gone || is_neighbour(watch, peer) ? "" : ", or its host cannot be reached");
    dt_die();
}

// Lists the ranks of other hosts: "rank 1 on host n1 (pid 4711), rank 2 on host n2 (pid 4712), …".
// Returns how many there are; *first is the lowest.
static int describe_distant(const struct dt_watch *watch, char *text, size_t size, int *first)
{
    enum { LISTED = 4 };
    int n = 0;
    *text = '\0';
    for (int r = 0; r < watch->size; r++) {
        char who[256];
        if (r == watch->rank || is_neighbour(watch, &watch->peers[r]))
            continue;
        describe_rank(&watch->peers[r], 1, who, sizeof who);
        *first = n == 0 ? r : *first;
        if (n++ < LISTED)
            dt_append(text, size, "%s%s", n > 1 ? ", " : "", who);
    }
    if (n > LISTED)
        dt_append(text, size, ", …");
    return n;
}

void dt_watch_report_lost(const struct dt_watch *watch, bool anyway)
{
    char who[1280], when[128];
    int first = -1, n = 0;
    for (int r = watch->size - 1; r >= 0; r--) {
        const struct dt_peer *peer = &watch->peers[r];
        bool dead = r != watch->rank && is_neighbour(watch, peer) &&
                    dt_process_look(&peer->process) == DT_PROCESS_GONE;
        n += dead;
        first = dead ? r : first;
    }
    if (n > 0)
        report_dead(watch, first, n);
    n = anyway ? describe_distant(watch, who, sizeof who, &first) : 0;
    if (n == 0)
        return;
    if (n == 1)
        report_dead(watch, first, 1);
    describe_time(&watch->peers[watch->rank], when, sizeof when);
    DT_FAIL(DT_MACHINE, NULL,
            "one of %d ranks on other hosts died %s, or its host cannot be reached; the job ends. "
            "It is one of %s: see the launcher's output. Resume with the same command: it "
            "continues from the last checkpoint.",
            n, when, who);
    dt_die();
}

static _Noreturn void report_stalled(const struct dt_watch *watch, double timeout, int n)
{
    char who[256], when[128];
    int first = 0;
    while (n > 0 && !watch->peers[first].blamed)
        first++;
    const struct dt_peer *peer = &watch->peers[n > 0 ? first : watch->rank];
    describe_rank(peer, n, who, sizeof who);
    describe_time(peer, when, sizeof when);
    if (n > 0)
        DT_FAIL(DT_MACHINE, NULL,
                "%s is %s %s: the others waited comm.timeout_s = %g s for it; the job ends. Look "
                "at that process and its host, or raise comm.timeout_s; then resume with the same "
                "command.",
                who, is_suspended(watch, peer) ? "suspended (SIGSTOP)" : "stalled", when, timeout);
    else
        DT_FAIL(DT_MACHINE, NULL,
                "a collective of all ranks, %s, timed out after comm.timeout_s = %g s; the job "
                "ends. Look at the network between the hosts, then resume with the same command.",
                when, timeout);
    dt_die();
}

// Whether to wait because a rank of another host is blamed for its silence: if comm.timeout_s is
// shorter than the silence of the dead, only that silence shows whether the rank stalls or died.
static bool waits_for_silence(const struct dt_watch *watch)
{
    for (int r = 0; r < watch->size; r++)
        if (watch->peers[r].blamed && watch->peers[r].blame == BLAME_SILENT &&
            !is_neighbour(watch, &watch->peers[r]))
            return true;
    return false;
}

// Called when the end is certain. If this rank is to report it, dt_die does not return. If another
// rank has reported it, or should, its launcher ends this process soon; otherwise this process ends
// itself.
static void end(struct dt_watch *watch, const struct dt_watch_self *self, int dead, bool expired)
{
    int n_blamed = expired ? find_blamed(watch, self->timeout) : 0, n_dead = 0;
    if (watch->doomed_at <= 0) // send this news immediately
        watch->doomed_at = watch->next_beat = watch->clock;
    if (dead >= 0)
        dt_log_quiet(true);
    if (watch->spoken ? !has_passed(watch, watch->doomed_at, DT_SPOKEN)
                      : !is_speaker(watch, expired))
        return;
    if (watch->overslept_at > 0 && !has_passed(watch, watch->overslept_at, DT_OVERSLEPT))
        return; // the others may have ended because of this rank
    if (self->has_record &&
        !has_passed(watch, watch->doomed_at + dt_watch_spread(watch), DT_RECORDED))
        return; // first all ranks learn of it and write their records
    for (int r = 0; r < watch->size; r++)
        n_dead += watch->peers[r].dead;
    if (dead >= 0)
        report_dead(watch, dead, n_dead);
    if (n_blamed == 0 || !waits_for_silence(watch))
        report_stalled(watch, self->timeout, n_blamed);
}

// ---- a tick

// Whether a beat is due: regularly, or sooner when the state of this rank changes: immediately when
// it will report the end, soon for a new step or phase.
static bool is_due(const struct dt_watch *watch, const struct dt_watch_self *self)
{
    const struct dt_beat *last = &watch->peers[watch->rank].beat;
    if (watch->clock >= watch->next_beat || (self->speaks && last->state != DT_PEER_SPOKE))
        return true;
    return watch->next_beat - watch->clock < (1 - soon) * watch->period &&
           (self->beat.step != last->step || strcmp(self->beat.phase, last->phase) != 0);
}

// Whether this rank should write its record, as every rank does before the report of the end. Beats
// from before a suspension or SIGTERM are outdated: the report may have been written since, and
// nothing may follow it.
static bool should_record(const struct dt_watch *watch)
{
    bool is_old = watch->terminated_at > 0 ||
                  (watch->woken_at > 0 && !has_passed(watch, watch->woken_at, DT_WOKEN));
    bool failed = hears(watch, DT_PEER_EXPIRED) || watch->hears_failed;
    return !watch->spoken && (watch->doomed_at > 0 || (failed && !is_old));
}

static enum dt_peer_state state(const struct dt_watch_self *self, bool expired)
{
    if (self->speaks)
        return DT_PEER_SPOKE;
    if (expired)
        return DT_PEER_EXPIRED;
    return self->device_failed ? DT_PEER_FAILED : DT_PEER_WORKS;
}

void dt_watch_tick(struct dt_watch *watch, struct dt_watch_self *self)
{
    struct dt_beat *mine = &watch->peers[watch->rank].beat;
    advance_clock(watch, self->timeout);
    if (self->terminated && !is_hasty(watch)) {
        watch->terminated_at = watch->next_beat = watch->clock;
        for (int r = 0; r < watch->size; r++)
            watch->peers[r].number_then = watch->peers[r].beat.number;
    }
    if (!is_due(watch, self))
        return;
    dt_watch_listen(watch);
    self->beat.number = mine->number;
    self->beat.rank = watch->rank;
    self->beat.lost = watch->lost;
    *mine = self->beat;
    for (int r = 0; r < watch->size; r++) // an awaited rank may report being busy
        if (is_awaited(watch, r))
            watch->excused_at = fmax(watch->excused_at, watch->peers[r].busy_at);
    bool expired = is_expired(watch, self);
    dt_watch_send(watch, state(self, expired));
    watch->next_beat = watch->clock + period_now(watch);
    if (self->speaks && watch->spoke_at <= 0)
        watch->spoke_at = watch->clock;
    if (self->speaks) // it is ending already
        return;
    int dead = find_dead(watch);
    if (dead >= 0 || expired || watch->spoken)
        end(watch, self, dead, expired);
    else
        watch->doomed_at = 0; // a rank that was awaited for too long has arrived
    watch->hears_failed = hears(watch, DT_PEER_FAILED);
    watch->wants_record = should_record(watch);
}
