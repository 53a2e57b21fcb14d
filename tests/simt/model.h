// Shared by the parts of the host execution model.
#pragma once

#include "simt.h"
#include "simt_run.h"

#include <stddef.h>

namespace simt
{
enum { WARP = 32, MAX_THREADS = 1024 };
// Bytes of shared memory for a block: what every GPU gives; the most that a kernel may be allowed
// at first; and the part of that for arrays that are not dynamic.
enum { SHARED_LIMIT = 48 << 10, SHARED_MOST = 227 << 10, SHARED_ARRAYS = 1 << 10 };

// Records the first fault of the calling thread since DT_LAUNCHED or take_fault was last called;
// later ones are dropped.
void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
bool faulty(void);
// Copies the fault to `text` and clears it; false if there is none.
bool take_fault(char *text, size_t size);

int thread_index(void); // within its block
bool copies_are_lazy(void);

// Runs all blocks of a launch that fits, on the calling thread, which must be the same in all calls
// of a process.
void execute(const kernel_call &call);
uint32_t random_below(uint32_t n); // depends on the seed of simt_set_order
enum simt_order order_now(void);

// A simulated CUDA runtime (cuda/), if the process has one.
struct runtime {
    void (*enqueue)(const kernel_call &call, void *stream);
    const char *(*failure)(void); // the error that DT_LAUNCHED reports, or NULL
};
void run_under(const struct runtime *runtime);

void memory_begin_block(size_t dynamic_bytes);
// Checks that nothing was written beyond the arrays, and that they fit.
void memory_end_block(const char *kernel, size_t shared_limit);
void memory_end_thread(void); // copies that were not waited for never arrive
bool memory_is_shared(const void *at);
void memory_name(const void *at, char *text, size_t size); // of what is shared: "tile + 24"
} // namespace simt
