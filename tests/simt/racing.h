// Kernels with planted races, each of which has a correct variant (`ordered`), and kernels that
// only look like races.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct planted_race {
    const char *says; // a part of the message; NULL: this only looks like a race
    const char *name;
    dt_status (*launch)(bool ordered); // returns the status of DT_LAUNCHED
};
extern const struct planted_race planted_races[]; // ends with a row without a name

// A kernel with arbitrary accesses in rounds, and what ends each round.
enum { PLAY_BLOCKS = 2, PLAY_THREADS = 64, PLAY_BYTES = 16 };
struct play_access {
    int round, block, thread;
    int offset, bytes; // 1, 2, 4 or 8 aligned bytes of the PLAY_BYTES
    bool writes, shared;
};
struct play_end {
    int warp;      // a warp of each block; -1: a barrier for all
    uint32_t mask; // lanes of the warp; 0: nothing ends the round
};
dt_status play(const struct play_access *accesses, int n, const struct play_end *ends, int rounds);

#ifdef __cplusplus
}
#endif
