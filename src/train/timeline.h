// Writes the spans of all ranks in the steps of log.trace_steps (base/trace.h) as one file for
// ui.perfetto.dev and chrome://tracing (Trace Event Format). Each rank is a process with tracks for
// compute (phases and their ops), communication, input and checkpoints, and a track for the host if
// the device is asynchronous.
#pragma once

#include "base/trace.h"
#include "comm/comm.h"

// Writes the spans of all ranks on rank 0's clock. Collective. If the file cannot be written,
// warns.
dt_status dt_timeline_write(struct dt_comm *comm, const char *path);

// The events of one rank, joined by commas; caller frees. `shift` is added to each time. Spans that
// overlap without nesting get separate tracks.
dt_status dt_timeline_text(const struct dt_trace_span *spans, int64_t n, int64_t shift, int rank,
                           char **text);
