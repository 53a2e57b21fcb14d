// Blocks that a multiprocessor of a GPU runs side by side (blocks.cu).
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct blocks_measured {
    int expected; // by cudaOccupancyMaxActiveBlocksPerMultiprocessor
    int least;    // of all multiprocessors' most
};

// Of 128 threads with so many bytes of dynamic shared memory; false where a call of CUDA failed.
bool blocks_measure(int64_t shared_bytes, struct blocks_measured *found);

#ifdef __cplusplus
}
#endif
