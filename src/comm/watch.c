// The judgement: who is dead, whom the others have waited for too long, and which rank says so. Of
// the ranks that live and do not lag the lowest one speaks; the others keep silent and wait for the
// end.
#include "comm/watch.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double gap_s = 0.5;           // a longer pause between ticks: this process did not run
static const double soon = 0.2;            // of a period: the least time between beats
static const double hasty_period_s = 0.02; // of beats, when told to terminate
static const double hasty_s = 0.7;         // mpirun kills a second after SIGTERM
static const double hear_words_s = 0.2; // for another's last words to arrive before a death is seen
static const double hear_peers_s = 0.55;
static const double defer_s = 1.5;  // for the rank that should speak
static const double catch_up_s = 1; // for a process that was suspended to hear what came to pass
static const double linger_s = 2;   // for the launcher to end this process

static bool is_hasty(const struct dt_watch *watch)
{
    return watch->terminated_at > 0 && watch->clock - watch->terminated_at < hasty_s;
}

static double since_terminated(const struct dt_watch *watch)
{
    return is_hasty(watch) ? watch->clock - watch->terminated_at : 0;
}

static double period_now(const struct dt_watch *watch)
{
    return is_hasty(watch) ? hasty_period_s : watch->period;
}

double dt_watch_spread(const struct dt_watch *watch)
{
    return (watch->n_links + 0.5) * period_now(watch);
}

static bool is_neighbour(const struct dt_watch *watch, const struct dt_peer *peer)
{
    uint64_t space = watch->peers[watch->rank].process.space;
    return space != 0 && peer->process.space == space;
}

// Told to terminate, all ranks beat fast: one that lives is heard of in time. That all were told is
// known by another rank that does so.
static bool silent_when_told(const struct dt_watch *watch, const struct dt_peer *peer)
{
    bool others_hasty = watch->n_links <= 2;
    if (since_terminated(watch) < hear_peers_s || peer->beat.number > peer->number_then)
        return false;
    for (int r = 0; r < watch->size; r++)
        if (r != watch->rank && watch->peers[r].beat.number > watch->peers[r].number_then + 9)
            others_hasty = true;
    return others_hasty;
}

static bool is_dead(const struct dt_watch *watch, const struct dt_peer *peer)
{
    double silence = watch->clock - peer->heard;
    if (is_neighbour(watch, peer)) {
        bool look = since_terminated(watch) > hear_words_s ||
                    silence > (3 + watch->n_links) * watch->period;
        return look && dt_process_look(&peer->process) == DT_PROCESS_GONE;
    }
    return silence > dt_watch_silence(watch) || silent_when_told(watch, peer);
}

// Marks the dead; returns the lowest of them, or -1.
static int find_dead(struct dt_watch *watch)
{
    int first = -1;
    for (int r = watch->size - 1; r >= 0; r--) {
        struct dt_peer *peer = &watch->peers[r];
        if (r != watch->rank && !peer->dead)
            peer->dead = is_dead(watch, peer);
        if (peer->dead)
            first = r;
    }
    return first;
}

static bool is_suspended(const struct dt_watch *watch, const struct dt_peer *peer)
{
    return is_neighbour(watch, peer) && dt_process_look(&peer->process) == DT_PROCESS_STOPPED;
}

static bool stands_still(const struct dt_watch *watch, const struct dt_peer *peer)
{
    return is_suspended(watch, peer) || watch->clock - peer->heard > dt_watch_silence(watch);
}

static bool waits(const struct dt_beat *beat)
{
    return beat->oldest > 0 || beat->device_oldest > 0 || beat->peer >= 0;
}

// Who waits for whom: a rank in an exchange waits for its peer, which may wait in another exchange
// itself. The last of that chain.
static int end_of_exchanges(const struct dt_watch *watch)
{
    int rank = watch->rank;
    for (int hops = 0; hops < watch->size; hops++) {
        int peer = watch->peers[rank].beat.peer;
        if (peer < 0 || peer == watch->rank)
            break;
        rank = peer;
    }
    return rank;
}

// It has not begun what this rank waits in.
static bool is_awaited(const struct dt_watch *watch, int rank)
{
    int end = end_of_exchanges(watch);
    const struct dt_beat *waiter = &watch->peers[end].beat, *beat = &watch->peers[rank].beat;
    if (rank == watch->rank)
        return false;
    return beat->sequence < waiter->oldest || beat->device_sequence < waiter->device_oldest ||
           (rank == end && waiter->oldest == 0 && waiter->device_oldest == 0);
}

// How likely it is that all wait for this rank: most of all where it stands still, also within what
// the others wait in; where it is awaited and waits for nobody itself; where it is awaited.
static int blame(const struct dt_watch *watch, int rank)
{
    const struct dt_peer *peer = &watch->peers[rank];
    if (rank == watch->rank)
        return 0;
    if (stands_still(watch, peer))
        return 3;
    if (!is_awaited(watch, rank))
        return 0;
    return waits(&peer->beat) ? 1 : 2;
}

// The ranks with the most blame keep theirs; returns their number.
static int find_blamed(struct dt_watch *watch)
{
    int most = 1, n = 0;
    for (int r = 0; r < watch->size; r++) {
        watch->peers[r].blame = blame(watch, r);
        most = watch->peers[r].blame > most ? watch->peers[r].blame : most;
    }
    for (int r = 0; r < watch->size; r++) {
        watch->peers[r].blame = watch->peers[r].blame == most ? most : 0;
        n += watch->peers[r].blame > 0;
    }
    return n;
}

// A rank that is awaited and reports that it is busy gets the time-out from there on.
static void excuse_busy(struct dt_watch *watch)
{
    for (int r = 0; r < watch->size; r++)
        if (is_awaited(watch, r))
            watch->excused_at = fmax(watch->excused_at, watch->peers[r].busy_at);
}

double dt_watch_quiet(const struct dt_watch *watch)
{
    return watch->excused_at > 0 ? watch->clock - watch->excused_at : INFINITY;
}

static bool is_expired(const struct dt_watch *watch, const struct dt_watch_self *self)
{
    if (!waits(&self->beat) && self->device_waited <= 0)
        return false;
    if (fmin(fmax(self->waited, self->device_waited), dt_watch_quiet(watch)) > self->timeout)
        return true;
    for (int r = 0; r < watch->size; r++)
        if (watch->peers[r].beat.state == DT_PEER_EXPIRED)
            return true;
    return false;
}

// Of the ranks that could speak this is the lowest one, or the lower ones have been waited for. One
// that lives but is silent may hang inside MPI: Open MPI's TCP does for a while when a connection
// breaks.
static bool is_speaker(const struct dt_watch *watch, bool expired)
{
    if (watch->clock - watch->doomed_at > defer_s)
        return true;
    for (int r = 0; r < watch->rank; r++)
        if (!watch->peers[r].dead && !silent_when_told(watch, &watch->peers[r]) &&
            !(expired && watch->peers[r].blame))
            return false;
    return true;
}

static void describe_time(const struct dt_beat *beat, char *text, size_t size)
{
    if (beat->step < 0)
        snprintf(text, size, "before the first step, during %s", beat->phase);
    else
        snprintf(text, size, "at step %lld during %s", (long long)beat->step, beat->phase);
}

static void describe_others(int n, char *text, size_t size)
{
    snprintf(text, size, n > 0 ? " (and %d other%s)" : "", n, n > 1 ? "s" : "");
}

static void say_dead(const struct dt_watch *watch, int rank)
{
    const struct dt_peer *peer = &watch->peers[rank];
    char when[128], others[64];
    int n = -1;
    for (int r = 0; r < watch->size; r++)
        n += watch->peers[r].dead;
    describe_time(&peer->beat, when, sizeof when);
    describe_others(n, others, sizeof others);
    DT_FAIL(
        DT_MACHINE, NULL,
        "rank %d on host %s (pid %d)%s died %s%s; the job ends. Resume with the same command: it "
        "continues from the last checkpoint.",
        rank, peer->host, peer->process.pid, others, when,
        is_neighbour(watch, peer) ? "" : ", or its host cannot be reached");
    dt_die();
}

static void say_stalled(const struct dt_watch *watch, double timeout, int n_blamed)
{
    char when[128], others[64];
    int first = 0;
    if (n_blamed == 0) {
        describe_time(&watch->peers[watch->rank].beat, when, sizeof when);
        DT_FAIL(DT_MACHINE, NULL,
                "a collective of all ranks, %s, timed out after comm.timeout_s = %g s; the job "
                "ends. Look at the network between the hosts, then resume with the same command.",
                when, timeout);
        dt_die();
    }
    while (!watch->peers[first].blame)
        first++;
    const struct dt_peer *peer = &watch->peers[first];
    describe_time(&peer->beat, when, sizeof when);
    describe_others(n_blamed - 1, others, sizeof others);
    DT_FAIL(
        DT_MACHINE, NULL,
        "rank %d on host %s (pid %d)%s is %s %s: the others waited comm.timeout_s = %g s for it; "
        "the job ends. Look at that process and its host, or raise comm.timeout_s; then resume "
        "with the same command.",
        first, peer->host, peer->process.pid, others,
        is_suspended(watch, peer) ? "suspended (SIGSTOP)" : "stalled", when, timeout);
    dt_die();
}

// The end is certain. Where this rank speaks, dt_die does not return; where another has spoken, or
// should, its launcher ends this process soon, and if not, it ends itself.
static void end(struct dt_watch *watch, const struct dt_watch_self *self, int dead, bool expired)
{
    if (watch->doomed_at <= 0)
        watch->doomed_at = watch->clock;
    if (dead >= 0)
        dt_log_quiet(true);
    if (watch->spoken && watch->clock - watch->doomed_at < linger_s)
        return;
    int n_blamed = expired ? find_blamed(watch) : 0;
    if (!watch->spoken && !is_speaker(watch, expired))
        return;
    if (self->has_record && watch->clock - watch->doomed_at < dt_watch_spread(watch) + hear_words_s)
        return; // all hear of it and write their records first
    if (dead >= 0)
        say_dead(watch, dead);
    say_stalled(watch, self->timeout, n_blamed);
}

static void advance_clock(struct dt_watch *watch)
{
    double now = dt_seconds(), passed = now - watch->last_time;
    watch->last_time = now;
    watch->clock += passed < gap_s ? passed : gap_s;
    if (passed > gap_s)
        watch->woken_at = watch->clock;
}

static void note_termination(struct dt_watch *watch, bool terminated)
{
    if (!terminated || is_hasty(watch))
        return;
    watch->terminated_at = watch->clock;
    watch->next_beat = watch->clock;
    for (int r = 0; r < watch->size; r++)
        watch->peers[r].number_then = watch->peers[r].beat.number;
}

// What this rank says of itself, told at once when it claims the last words.
static void beat(struct dt_watch *watch, const struct dt_watch_self *self, bool expired)
{
    enum dt_peer_state state = self->device_failed ? DT_PEER_FAILED : DT_PEER_WORKS;
    if (expired)
        state = DT_PEER_EXPIRED;
    if (self->speaks)
        state = DT_PEER_SPOKE;
    dt_watch_send(watch, state);
    watch->next_beat = watch->clock + period_now(watch);
}

// At its time, and earlier where there is news: the claim to the last words at once, a new step or
// phase soon.
static bool is_due(const struct dt_watch *watch, const struct dt_watch_self *self)
{
    const struct dt_beat *told = &watch->peers[watch->rank].beat;
    if (watch->clock >= watch->next_beat || (self->speaks && told->state != DT_PEER_SPOKE))
        return true;
    return watch->next_beat - watch->clock < (1 - soon) * watch->period &&
           (self->beat.step != told->step || strcmp(self->beat.phase, told->phase) != 0);
}

static bool is_told(const struct dt_watch *watch, enum dt_peer_state state)
{
    for (int r = 0; r < watch->size; r++)
        if (r != watch->rank && watch->peers[r].beat.state == (int32_t)state)
            return true;
    return false;
}

// What peers told while this process did not run, or before it was told to terminate, is old: the
// last words may have been spoken since, and nothing may follow them.
static bool is_behind(const struct dt_watch *watch)
{
    return watch->terminated_at > 0 ||
           (watch->woken_at > 0 && watch->clock - watch->woken_at < catch_up_s);
}

// Every rank writes its record before the last words.
static bool should_record(const struct dt_watch *watch)
{
    bool told = is_told(watch, DT_PEER_EXPIRED) || is_told(watch, DT_PEER_FAILED);
    return !watch->spoken && (watch->doomed_at > 0 || (told && !is_behind(watch)));
}

static void describe_self(struct dt_watch *watch, const struct dt_beat *now)
{
    struct dt_beat *mine = &watch->peers[watch->rank].beat;
    int64_t number = mine->number;
    *mine = *now;
    mine->number = number;
    mine->rank = watch->rank;
}

void dt_watch_tick(struct dt_watch *watch, const struct dt_watch_self *self)
{
    bool expired;
    int dead;
    advance_clock(watch);
    note_termination(watch, self->terminated);
    if (!is_due(watch, self))
        return;
    dt_watch_listen(watch);
    describe_self(watch, &self->beat);
    excuse_busy(watch);
    expired = is_expired(watch, self);
    beat(watch, self, expired);
    if (self->speaks) // it ends already
        return;
    dead = find_dead(watch);
    if (dead >= 0 || expired || watch->spoken)
        end(watch, self, dead, expired);
    else
        watch->doomed_at = 0; // whom others waited for too long has come
    watch->wants_record = should_record(watch);
}

double dt_watch_next(const struct dt_watch *watch)
{
    double left = watch->next_beat - watch->clock;
    return left > 0 ? left : 0;
}

bool dt_watch_hears_failure(const struct dt_watch *watch)
{
    return is_told(watch, DT_PEER_FAILED);
}

bool dt_watch_is_doomed(const struct dt_watch *watch)
{
    return watch->spoken || watch->doomed_at > 0;
}
