// Private to this folder: how each communicator is opened, the kinds of collectives, and the state
// of job control that all communicators share.
#pragma once

#include "comm/comm.h"
#include "comm/job_control.h"

#include <pthread.h>
#include <stdatomic.h>

// Progress and failures of the collectives between devices, written by the device communicator's
// watchdog (device_comm.h). With it a rank that others wait for in NCCL is found and named like one
// that they wait for in MPI.
struct dt_comm_devices {
    _Atomic(int64_t) begun;    // collectives that the device has begun
    _Atomic(int64_t) oldest;   // the collective it waits in, counted from 1; 0: none
    _Atomic(int) peer;         // the rank it waits for in an exchange; -1: none
    _Atomic(double) waited;    // seconds
    _Atomic(bool) failed;      // a collective of this rank failed
    _Atomic(bool) peer_failed; // one of another rank failed; written by the communicator
    _Atomic(double) quiet;     // seconds since a rank that this one waits for last reported being
                               // busy; written by the communicator
};

struct dt_job_control {
    _Atomic(int64_t) step;
    _Atomic(const char *) phase;
    _Atomic(int64_t) reports; // calls of dt_comm_busy
    _Atomic(double) timeout_s;
    _Atomic(bool) spoken; // another rank has reported the end of the job, so this one stays quiet
    struct dt_comm_devices devices;
    pthread_mutex_t record_lock;
    _Atomic(dt_comm_record *) record; // NULL: there is no device communicator
    void *record_context;
};

dt_status dt_comm_open_self(struct dt_comm **comm);
dt_status dt_comm_open_mpi(const struct dt_comm_limits *limits, struct dt_comm **comm);

// Fills what all backends share, except `info`.
void dt_comm_prepare(struct dt_comm *comm, const struct dt_comm_table *table,
                     struct dt_job_control *control);

// Appends "rank 2 on n1, step 41, backward: ".
void dt_comm_append_place(const struct dt_comm *comm, char *text, size_t size);

// "all-reduce", "send".
const char *dt_collective_name(const struct dt_collective *collective);
// Elements of `data`, including all blocks.
int64_t dt_collective_elements(const struct dt_comm_info *info,
                               const struct dt_collective *collective);
bool dt_can_reduce(enum dt_dtype dtype);
dt_status dt_collective_check(const struct dt_comm *comm, const struct dt_collective *collective);

bool dt_launched_by_mpi(void); // started by a launcher that MPI_Init can talk to
bool dt_launched_by_pmi(void); // … that offers PMI-1 or PMI-2, but not PMIx
