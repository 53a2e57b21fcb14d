// What the parts of the host execution model know of each other.
#pragma once

#include "simt.h"
#include "simt_run.h"

#include <stddef.h>

namespace simt
{
enum { WARP = 32, MAX_THREADS = 1024, SHARED_LIMIT = 48 << 10 };

// The first thing that went wrong since DT_LAUNCHED last asked; later ones are not kept.
void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool faulty(void);

int thread_index(void); // in its block
bool copies_are_lazy(void);

void memory_begin_block(size_t dynamic_bytes);
void memory_end_block(const char *kernel); // checks that nothing was written past the arrays
void memory_end_thread(void);              // copies that nobody waited for never arrive
} // namespace simt
