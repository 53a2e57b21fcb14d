// Work on a stream of the simulated device, for the libraries that stand in for cuBLASLt and NCCL:
// as a kernel launch puts it there.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Behind what `stream` (a cudaStream_t) holds; where the stream is being captured, into the graph.
// The device's thread calls `run` on a copy of the `bytes` bytes at `context`, again and again
// until it returns true; between two calls other streams go on. At each launch of a graph it starts
// from a fresh copy. Not from within `run`.
void simt_enqueue(const char *name, void *stream, bool (*run)(void *context), const void *context,
                  size_t bytes);

// The priority of the work in hand, from within `run`: that of its stream; in a graph of the stream
// that it was captured from, where the graph was made to keep that, else of the one launched into.
int simt_priority(void);

#ifdef __cplusplus
}
#endif
