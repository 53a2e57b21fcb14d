// Job control: every rank knows by heartbeat what its peers are doing (step, phase), so that a dead
// or stalled rank can be named. A wait that outlasts the time-out, or a dead peer, ends the process
// by dt_die (base/error.h) from the watch itself. Uses the communicator (comm.h).
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dt_comm;

// Says what this rank's training thread is doing, for heartbeats, last words and the trace. It is
// cheap, and called by that thread alone. `phase` is a string literal ("forward", "reading data",
// "validation").
void dt_comm_progress(struct dt_comm *comm, int64_t step, const char *phase);
// What the training thread said last; any thread may ask.
void dt_comm_last_progress(const struct dt_comm *comm, int64_t *step, const char **phase);

// Seconds that a collective may wait for a rank, after which the job ends; until set,
// DT_COMM_TIMEOUT_S, or wait_s of dt_comm_open_within.
void dt_comm_set_timeout(struct dt_comm *comm, double seconds);
// Reports that this rank is busy with long work of its own, while its peers wait for it in a
// collective: they count comm.timeout_s from its last report. So a rank that saves, loads or prunes
// a checkpoint calls this at the start and after each piece of the work (a file, a tensor, a block
// written); one that hangs reports nothing and is named in time. Cheap, any thread: call it as
// often as is convenient, but never from a thread that would go on while the work itself hangs.
// dt_comm_progress says which phase that is, before the first report.
void dt_comm_busy(struct dt_comm *comm);

// ---- the end

// Ends the job at once with this exit code, from any thread; does not return.
_Noreturn void dt_comm_abort(struct dt_comm *comm, int code);
// Ends the job at once where `status` is an error of this rank alone and there are others: before
// memory is freed that collectives under way still use, and before anything in which its peers
// would wait. Otherwise returns `status`.
dt_status dt_comm_end_if_alone(const struct dt_comm *comm, dt_status status);
// Called where SIGTERM and SIGINT arrive, besides requesting a stop; async-signal-safe.
// mpirun sends SIGTERM when a rank died, a second before SIGKILL: within it the survivors look for
// a dead rank, and end the job by dt_die if they find one.
void dt_comm_terminated(struct dt_comm *comm);

#define DT_LAST_WORDS_BEGIN "dtrain: error: "
// For the function that main registers with dt_die_register: gives the text that this rank must
// write to stderr, in one write(2), as "dtrain: error: rank 2 on n1, step 41, backward: …". 0
// bytes: another rank has spoken or will, write nothing. Then dt_comm_abort(comm, code).
size_t dt_comm_last_words(struct dt_comm *comm, const struct dt_error *error, int debug, char *text,
                          size_t size);

// Reports the collectives of this rank's device before the job ends, once, in one
// write(2). always: also where none is under way.
typedef void dt_comm_record(void *context, bool always);
// Registers the device communicator's record; NULL removes it, after which it is not called.
// dt_comm_last_words writes it before the words of this rank, and the communicator where a peer is
// lost or a device's collectives fail on any rank.
void dt_comm_set_record(struct dt_comm *comm, dt_comm_record *record, void *context);
void dt_comm_write_record(struct dt_comm *comm, bool always); // any thread
