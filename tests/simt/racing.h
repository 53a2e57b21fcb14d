// Kernels with planted races, each with a twin that has what orders the accesses (`ordered`), and
// such as look like races and are none. Each returns what DT_LAUNCHED said.
#pragma once

#include "base/error.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Shared memory between warps.
dt_status read_behind_write(bool ordered);
dt_status write_behind_read(bool ordered);
dt_status write_twice_the_same(bool ordered); // one value by two threads
dt_status second_round(bool ordered);         // a loop whose second turn writes what others read
dt_status dynamic_shared(bool ordered);
dt_status half_of_a_vector(bool ordered); // 4 bytes written within 16 that are read

// Within a warp.
dt_status lanes(bool ordered);
dt_status lanes_by_shuffle(bool ordered); // not ordered: by a shuffle alone, which orders nothing
dt_status lanes_of_a_mask(bool ordered);  // not ordered: the reader is not in the mask
dt_status lanes_in_a_chain(bool ordered); // lane 0 before 1 before 2, by masks of two

// Global memory.
dt_status threads_of_a_block(bool ordered);
dt_status two_blocks(bool ordered); // ordered: by two launches
dt_status block_reads_another(bool ordered);
dt_status whole_struct(bool ordered); // an assignment of 72 bytes

// Asynchronous copies.
dt_status copy_read_early(bool ordered);     // by its own thread
dt_status copy_read_by_others(bool ordered); // waited for; without the barrier
dt_status copy_over_readers(bool ordered);   // into what others still read
dt_status copy_waited_by_another(bool ordered);
dt_status copy_of_written(bool ordered); // its source, all threads', is written before it arrived
dt_status newer_copy_read(bool ordered); // of two groups; not ordered: waits for the older alone

// Right: bytes that lie together, what everybody reads, a thread's own locals and elements, and the
// block's sums and maxima one behind the other.
dt_status neighbouring_bytes(void);
dt_status all_read(void);
dt_status own_locals(void);
dt_status own_again(void);
dt_status reductions_in_a_row(void);

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
