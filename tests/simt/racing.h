// Kernels with planted races, each with a correct twin (`ordered`), and kernels that only look like
// races.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct planted_race {
    const char *says; // of the message; NULL: the accesses only look like a race
    const char *name;
    dt_status (*launch)(bool ordered); // what DT_LAUNCHED said
};
extern const struct planted_race planted_races[]; // ends with a row without a name

// Any accesses: round after round, and what ends each round.
enum { PLAY_BLOCKS = 2, PLAY_THREADS = 64, PLAY_BYTES = 16 };
struct play_access {
    int round, block, thread;
    int offset, bytes; // 1, 2, 4 or 8 of the PLAY_BYTES, aligned
    bool writes, shared;
};
struct play_end {
    int warp;      // of each block; -1: a barrier for all
    uint32_t mask; // of the warp's lanes; 0: nothing ends it
};
dt_status play(const struct play_access *accesses, int n, const struct play_end *ends, int rounds);

#ifdef __cplusplus
}
#endif
