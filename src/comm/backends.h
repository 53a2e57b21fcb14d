// Inside the room: how each communicator is opened, and the state of job control that all share.
#pragma once

#include "comm/comm.h"
#include "comm/job_control.h"

#include <pthread.h>
#include <stdatomic.h>

// Whose error is reported, by the one rank that writes to stderr at the end.
enum dt_voice {
    DT_VOICE_NONE, // another rank reports it
    DT_VOICE_RANK, // this rank's own failure
    DT_VOICE_JOB,  // a complete sentence about a peer
};

struct dt_job_control_table {
    void (*abort)(struct dt_comm *comm, int code); // ends the job at once; does not return
    void (*terminated)(struct dt_comm *comm);      // async-signal-safe
    enum dt_voice (*claim)(struct dt_comm *comm);  // may this rank speak? Informs the peers
};

// Progress of the collectives between devices, and whether they fail: written by the watchdog of
// the device communicator (device_comm.h), so that a rank which others wait for there is found and
// named like one they wait for in MPI.
struct dt_comm_devices {
    _Atomic(int64_t) begun;    // collectives that the device has begun
    _Atomic(int64_t) oldest;   // the one it waits in, counted from 1; 0: none
    _Atomic(int) peer;         // whom it waits for in an exchange; -1: nobody
    _Atomic(double) waited;    // seconds
    _Atomic(bool) failed;      // on this rank
    _Atomic(bool) peer_failed; // on another: written by the communicator
    _Atomic(double) quiet;     // seconds since a rank that this one waits for last reported that it
                               // is busy: written by the communicator
};

struct dt_job_control {
    const struct dt_job_control_table *table;
    _Atomic(int64_t) step;
    _Atomic(const char *) phase;
    _Atomic(int64_t) reports; // of being busy
    _Atomic(double) timeout_s;
    _Atomic(bool) spoken; // another rank has written the last words: nothing may follow them
    struct dt_comm_devices devices;
    pthread_mutex_t record_lock;
    _Atomic(dt_comm_record *) record; // NULL: there is no device communicator
    void *record_context;
};

dt_status dt_comm_open_self(struct dt_comm **comm);
dt_status dt_comm_open_mpi(const struct dt_comm_limits *limits, struct dt_comm **comm);

// Fills what all backends share, except `info`.
void dt_comm_prepare(struct dt_comm *comm, const struct dt_comm_table *table,
                     struct dt_job_control *control, const struct dt_job_control_table *job_table);

// "all-reduce", "send".
const char *dt_collective_name(const struct dt_collective *collective);
bool dt_can_reduce(enum dt_dtype dtype);
dt_status dt_collective_check(const struct dt_comm *comm, const struct dt_collective *collective);

bool dt_launched_by_mpi(void); // a launcher that MPI_Init can talk to started this process
bool dt_launched_by_pmi(void); // one that offers PMI-1 or PMI-2, and not PMIx
