// Job control: heartbeats tell every rank what its peers are doing (step, phase), so that a dead or
// stalled rank can be named. After a time-out, or when a peer is dead, the watch ends the process
// by dt_die (base/error.h). Uses the communicator (comm.h).
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_comm;

// Records what this rank's training thread is doing, for heartbeats, the final error message and
// the trace. Cheap; called only by that thread. `phase` is a string literal ("forward", "reading
// data", "validation").
void dt_comm_progress(struct dt_comm *comm, int64_t step, const char *phase);
// What the training thread recorded last. Thread-safe.
void dt_comm_last_progress(const struct dt_comm *comm, int64_t *step, const char **phase);

// Seconds that a collective may wait for a rank before the job ends. Default: DT_COMM_TIMEOUT_S, or
// wait_s of dt_comm_open_within.
void dt_comm_set_timeout(struct dt_comm *comm, double seconds);
// Reports that this rank is busy with long local work while its peers wait for it in a collective:
// they count comm.timeout_s from its last report. A rank that saves, loads or prunes a checkpoint
// calls this at the start and after each piece of the work (a file, a tensor, a block), so a rank
// that hangs stops reporting and is named in time. Cheap and thread-safe, but never call it from a
// thread that would keep running while the work hangs. Call dt_comm_progress before the first
// report, to name the phase.
void dt_comm_busy(struct dt_comm *comm);

// ---- the end

// Ends the job immediately with this exit code. Thread-safe.
_Noreturn void dt_comm_abort(struct dt_comm *comm, int code);
// If `status` is an error of this rank alone and there are other ranks, ends the job immediately.
// Call before freeing memory that running collectives use, and before anything in which peers would
// wait. Otherwise returns `status`.
dt_status dt_comm_end_if_alone(const struct dt_comm *comm, dt_status status);
// Called by the handler of SIGTERM and SIGINT, which also requests a stop; async-signal-safe.
// mpirun sends SIGTERM when a rank has died, a second before SIGKILL. During that second the
// survivors look for a dead rank, and end the job by dt_die if they find one.
void dt_comm_terminated(struct dt_comm *comm);

#define DT_LAST_WORDS_BEGIN "dtrain: error: "
// For the function that main registers with dt_die_register: returns the text that this rank must
// write to stderr in one write(2), "dtrain: error: rank 2 on n1, step 41, backward: …", before it
// calls dt_comm_abort(comm, code). 0 bytes: write nothing, another rank reports.
size_t dt_comm_last_words(struct dt_comm *comm, const struct dt_error *error, int debug, char *text,
                          size_t size);

// Writes the record of this rank's device collectives before the job ends, once, in one write(2).
// always: even if none is running.
typedef void dt_comm_record(void *context, bool always);
// Registers the device communicator's record; NULL removes it. dt_comm_last_words writes it before
// this rank's message; the communicator writes it when a peer is lost or device collectives fail on
// any rank.
void dt_comm_set_record(struct dt_comm *comm, dt_comm_record *record, void *context);
void dt_comm_write_record(struct dt_comm *comm, bool always); // thread-safe
