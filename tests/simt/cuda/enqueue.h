// Enqueues work on a stream of the simulated device like a kernel launch, for the libraries that
// replace cuBLASLt and NCCL.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Enqueues after the work on `stream` (a cudaStream_t) or, during a capture, into the graph. The
// device's thread calls `run` on a copy of the `bytes` bytes at `context` repeatedly until it
// returns true; other streams continue between calls. Each launch of a graph starts from a fresh
// copy. Must not be called by `run`.
void simt_enqueue(const char *name, void *stream, bool (*run)(void *context), const void *context,
                  size_t bytes);

// The priority of the work that is running; call it from `run`. It is that of the stream. In a
// graph it is that of the captured stream if the graph was made to keep priorities, otherwise that
// of the stream it was launched into.
int simt_priority(void);

#ifdef __cplusplus
}
#endif
