// The watch: what every rank of an MPI job knows of every other, and what follows from it. It
// runs on the communication thread. Ranks send what they know to the ranks 1, 2, 4, 8, … places
// further, over log2(size) connections each, so news reaches all within log2(size) beats,
// whoever has died.
#pragma once

#include "comm/comm.h"
#include "comm/process.h"

#include <mpi.h>

enum { DT_LINKS_MAX = 31, DT_PHASE_NAME = 40 };

enum dt_peer_state {
    DT_PEER_WORKS,
    DT_PEER_FAILED,  // its device's collectives fail; it will report how unless the watch knows why
    DT_PEER_EXPIRED, // one of its collectives has outlasted the time-out
    DT_PEER_SPOKE,   // has written the last words, or is about to
};

// What a rank reports of itself; its peers forward it unchanged. The thread fills in all but the
// first three fields, at each tick.
struct dt_beat {
    int64_t number; // counts its beats, so that newer replaces older
    int32_t rank;
    int32_t state;
    char phase[DT_PHASE_NAME];
    int64_t step;            // -1: before the first
    int64_t sequence;        // collectives it has begun
    int64_t oldest;          // the oldest of them that is not complete; 0: none
    int64_t device_sequence; // the same two of those that its device does; oldest is 0 also where
    int64_t device_oldest;   // the host waits for it, as far as any other
    int64_t reports;         // of being busy (dt_comm_busy)
    int32_t peer;            // whom it waits for in an exchange; -1: nobody
    int32_t lost;            // a rank whose process, on its host, is gone; -1: none
};

struct dt_peer {
    struct dt_beat beat; // the newest known
    double heard;        // when that came, on the watch's clock
    double busy_at;      // when `reports` last grew, likewise; 0: never
    int64_t number_then; // beat.number when SIGTERM came
    double gone_at;      // since when its process, on this host, is known to be gone; 0: it is not
    bool gone;           // its process is, as found here or reported by a rank on its host
    bool dead;           // gone, or silent for too long
    int blame;           // watch.c: how surely others wait for it
    bool blamed;         // no rank has more
    char host[DT_HOST_NAME];
    struct dt_process process;
};

struct dt_link {
    int to, from;
    MPI_Request sending, receiving;
    struct dt_beat *out, *in; // [size]
    bool ended;               // the peer has closed it
};

struct dt_watch {
    MPI_Comm comm;
    int rank, size;
    int lost;              // a rank of this host whose process is gone; -1: none
    struct dt_peer *peers; // [size], own included
    struct dt_beat *buffers;
    struct dt_link links[DT_LINKS_MAX];
    int n_links;
    double period;
    double last_time; // of dt_seconds, at the last tick
    double clock;     // seconds during which this process ran: a suspended job resumes
    double next_beat;
    // Times on that clock; 0: never.
    double terminated_at; // when SIGTERM came
    double woken_at;      // when this process ran again, after a while in which it did not
    double overslept_at;  // the same, after so long that others may have timed out
    double excused_at;    // when a rank that this one waited for last reported that it is busy
    double doomed_at;     // since when a death or time-out is known here
    double spoke_at;      // when this rank first sent that it has claimed the last words
    // Read by the communication thread after a tick.
    bool spoken;       // some rank has written the last words
    bool hears_failed; // a device's collectives have failed on another rank
    bool wants_record; // this rank should write its record now: the end is near
};

// What the thread reports to the watch at each tick.
struct dt_watch_self {
    struct dt_beat beat;
    double waited;        // seconds since the oldest collective or exchange began, on the watch's
    double device_waited; // clock; the same of the device's
    double timeout;
    bool device_failed;
    bool has_record; // the ranks have records to write, before the last words
    bool terminated; // SIGTERM came since the last tick
    bool speaks;     // this rank has claimed the last words
};

// watch_beat.c: the links.
dt_status dt_watch_open(struct dt_watch *watch, const char *host);
void dt_watch_close(struct dt_watch *watch); // collective: every peer closes its links too
void dt_watch_listen(struct dt_watch *watch);
void dt_watch_send(struct dt_watch *watch, enum dt_peer_state state);
// Waits a moment for what was sent to go out.
void dt_watch_flush(struct dt_watch *watch);
// Seconds of silence after which a rank counts as dead.
double dt_watch_silence(const struct dt_watch *watch);
// Returns an error that names the function where an MPI call fails.
#define DT_MPI(call) DT_TRY(dt_mpi_status(call, #call))
dt_status dt_mpi_status(int code, const char *call);

// watch.c: the judgement.
// Listens, beats and judges where that is due. Ends the process by dt_die where a rank is dead, or
// a collective has timed out, and this rank is the one to report it.
void dt_watch_tick(struct dt_watch *watch, struct dt_watch_self *self);
// Ends the process by dt_die, blaming a dead rank of this host; where there is none and `anyway`, a
// rank on another. On another thread, while the communication thread hangs inside MPI: that one may
// return at any moment, so the watch is only read.
void dt_watch_report_lost(const struct dt_watch *watch, bool anyway);
// Seconds in which a beat of this rank reaches all others.
double dt_watch_spread(const struct dt_watch *watch);
// Whether all ranks know that this one has claimed the last words.
bool dt_watch_is_heard(const struct dt_watch *watch);
// Seconds since a rank that this one waits for reported that it is busy: waits count from there.
double dt_watch_quiet(const struct dt_watch *watch);
