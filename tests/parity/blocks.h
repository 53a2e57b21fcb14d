// Blocks that an SM of a GPU runs concurrently (blocks.cu).
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct blocks_measured {
    int expected; // what cudaOccupancyMaxActiveBlocksPerMultiprocessor reports
    int least;    // the least of the maxima of all SMs
};

// Measures blocks of 128 threads with this much dynamic shared memory; false if a CUDA call failed.
bool blocks_measure(int64_t shared_bytes, struct blocks_measured *found);

#ifdef __cplusplus
}
#endif
