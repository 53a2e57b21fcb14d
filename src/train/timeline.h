// Writes what all ranks did in the steps of log.trace_steps as one file for ui.perfetto.dev and
// chrome://tracing (Trace Event Format). There is a process for each rank, with tracks for
// compute (phases, and the ops in them), communication, input and checkpoints, and one for the
// host where the device works by itself. The spans are those kept by base/trace.h.
#pragma once

#include "base/trace.h"
#include "comm/comm.h"

// Writes the spans of all ranks on rank 0's clock. All ranks together. A file that cannot be
// written is a warning.
dt_status dt_timeline_write(struct dt_comm *comm, const char *path);

// The events of one rank, joined by commas, by malloc; `shift` is added to each time. Spans that
// overlap without nesting get tracks of their own.
dt_status dt_timeline_text(const struct dt_trace_span *spans, int64_t n, int64_t shift, int rank,
                           char **text);
