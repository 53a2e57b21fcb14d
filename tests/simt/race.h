// Events that the host execution model reports to race.cpp in the build that detects races
// (dt_simt_race, SIMT_RACES). In other builds the calls are empty.
#pragma once

#include <stddef.h>

namespace simt
{
#ifdef SIMT_RACES
// Begins a launch. Memory below the end of the stacks and from their begin on belongs to one
// thread.
void race_begin_launch(const char *kernel, const char *stacks, const char *stacks_end);
void race_begin_block(void);
void race_barrier(void);                       // a barrier of the whole block opened
void race_warp_sync(int first, unsigned mask); // in the warp whose lane 0 is thread `first`
// The current thread begins an asynchronous copy; the copy arrives when the thread has waited for
// it.
void race_copy_begins(const void *to, const void *from, size_t bytes, const void *site);
void race_copy_arrives(const void *to, const void *from, size_t bytes);
#else
static inline void race_begin_launch(const char *, const char *, const char *) {}
static inline void race_begin_block(void) {}
static inline void race_barrier(void) {}
static inline void race_warp_sync(int, unsigned) {}
static inline void race_copy_begins(const void *, const void *, size_t, const void *) {}
static inline void race_copy_arrives(const void *, const void *, size_t) {}
#endif
} // namespace simt
