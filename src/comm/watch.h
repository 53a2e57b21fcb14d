// The watch collects what every rank of an MPI job knows of every other, and decides what follows.
// It runs on the communication thread. Each rank sends what it knows to the ranks 1, 2, 4, 8, …
// places further, over log2(size) connections, so news reaches all ranks within log2(size) beats
// even if some have died.
#pragma once

#include "comm/comm.h"
#include "comm/process.h"

#include <mpi.h>

enum { DT_LINKS_MAX = 31, DT_PHASE_NAME = 40 };

enum dt_peer_state {
    DT_PEER_WORKS,
    DT_PEER_FAILED,  // its device's collectives fail; it reports that unless the watch knows why
    DT_PEER_EXPIRED, // one of its collectives has outlasted the time-out
    DT_PEER_SPOKE,   // has reported the end of the job, or is about to
};

// What a rank reports about itself; peers forward it unchanged. The thread fills in all but the
// first three fields at each tick.
struct dt_beat {
    int64_t number; // counts its beats; a higher number replaces a lower one
    int32_t rank;
    int32_t state;
    char phase[DT_PHASE_NAME];
    int64_t step;            // -1: before the first
    int64_t sequence;        // collectives it has begun
    int64_t oldest;          // the oldest incomplete collective; 0: none
    int64_t device_sequence; // the same of its device; oldest is also 0 while
    int64_t device_oldest;   // the host waits for it and no rank is ahead
    int64_t reports;         // calls of dt_comm_busy
    int32_t peer;            // the rank it waits for in an exchange; -1: none
    int32_t lost;            // a rank on its host whose process is gone; -1: none
};

struct dt_peer {
    struct dt_beat beat; // its newest beat
    double heard;        // when the beat arrived, on the watch's clock
    double busy_at;      // when `reports` last grew, on that clock; 0: never
    int64_t number_then; // beat.number when SIGTERM came
    double gone_at;      // since when its process, on this host, is known to be gone; 0: not gone
    bool gone;           // its process is gone, as found here or reported by a rank on its host
    bool dead;           // gone, or silent for too long
    int blame;           // watch.c: how certain it is that others wait for it
    bool blamed;         // its blame is the highest
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
    struct dt_peer *peers; // [size], including this rank
    struct dt_beat *buffers;
    struct dt_link links[DT_LINKS_MAX];
    int n_links;
    double period;
    double last_time; // dt_seconds at the last tick
    double clock;     // seconds during which this process ran, without suspensions
    double next_beat;
    // Times on that clock; 0: never.
    double terminated_at; // when SIGTERM came
    double woken_at;      // when this process resumed after a suspension
    double overslept_at;  // … after one so long that others may have timed out
    double excused_at;    // when a rank that this one waited for last reported being busy
    double doomed_at;     // since when a death or time-out is known here
    double spoke_at;      // when this rank first sent that it will report the end
    // Read by the communication thread after a tick.
    bool spoken;       // some rank has reported the end of the job
    bool hears_failed; // a device's collectives have failed on another rank
    bool wants_record; // this rank should write its record now, before the end
};

// What the communication thread reports to the watch at each tick.
struct dt_watch_self {
    struct dt_beat beat;
    double waited;        // seconds since the oldest collective or exchange began, of the host
    double device_waited; // and of its device, on the watch's clock
    double timeout;
    bool device_failed;
    bool has_record; // ranks have records to write before the report of the end
    bool terminated; // SIGTERM came since the last tick
    bool speaks;     // this rank will report the end
};

// watch_beat.c: the connections.
dt_status dt_watch_open(struct dt_watch *watch, const char *host);
void dt_watch_close(struct dt_watch *watch); // collective: every peer closes its connections too
void dt_watch_listen(struct dt_watch *watch);
void dt_watch_send(struct dt_watch *watch, enum dt_peer_state state);
// Waits a moment until sent beats have left.
void dt_watch_flush(struct dt_watch *watch);
// Seconds of silence after which a rank counts as dead.
double dt_watch_silence(const struct dt_watch *watch);
// Returns an error that names the MPI function if the call fails.
#define DT_MPI(call) DT_TRY(dt_mpi_status(call, #call))
dt_status dt_mpi_status(int code, const char *call);

// watch.c: the judgement. Receives and sends beats and judges them when due. Ends the process by
// dt_die if a rank is dead, or a collective has timed out, and this rank is to report it.
void dt_watch_tick(struct dt_watch *watch, struct dt_watch_self *self);
// Ends the process by dt_die, blaming a dead rank of this host or, with `anyway`, a rank on another
// host. Called by another thread while the communication thread hangs inside MPI; since that thread
// may return at any moment, this only reads the watch.
void dt_watch_report_lost(const struct dt_watch *watch, bool anyway);
// Seconds in which a beat of this rank reaches all ranks.
double dt_watch_spread(const struct dt_watch *watch);
// Whether all ranks know that this one will report the end.
bool dt_watch_is_heard(const struct dt_watch *watch);
// Seconds since a rank that this one waits for last reported being busy; waits count from then.
double dt_watch_quiet(const struct dt_watch *watch);
