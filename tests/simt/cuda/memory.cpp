// Memory of the devices and pinned memory of the host. Both are host memory, and are NaN until they
// are written.
#include "cudart.h"

#include <map>
#include <stdio.h>
#include <stdlib.h>

namespace simt
{
enum { PINNED = -1, ALIGNMENT = 512, FRESH_BYTE = 0xff };

struct block {
    size_t bytes;
    int device; // or PINNED
};
static std::map<uintptr_t, block> &blocks = *new std::map<uintptr_t, block>;

// Counts allocations, and prints their number at the end if SIMT_COUNT is set.
static struct tally {
    size_t device, pinned;
    ~tally()
    {
        if (getenv("SIMT_COUNT"))
            fprintf(stderr, "simt: %zu device and %zu pinned allocations\n", device, pinned);
    }
} made;

static size_t used(int device)
{
    size_t bytes = 0;
    for (const auto &entry : blocks)
        if (entry.second.device == device)
            bytes += entry.second.bytes;
    return bytes;
}

static cudaError_t allocate(void **memory, size_t bytes, int device)
{
    *memory = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (posix_memalign(memory, ALIGNMENT, bytes) != 0)
        return cudaErrorMemoryAllocation;
    memset(*memory, FRESH_BYTE, bytes);
    blocks[(uintptr_t)*memory] = {bytes, device};
    (device == PINNED ? made.pinned : made.device)++;
    return cudaSuccess;
}

// Work that is under way may use the memory, so it is completed first.
static cudaError_t release(guard &hold, void *memory, bool pinned)
{
    cudaError_t error = refuse_while_capturing();
    if (error || !memory)
        return error;
    auto found = blocks.find((uintptr_t)memory);
    if (found == blocks.end() || (found->second.device == PINNED) != pinned)
        return cudaErrorInvalidValue;
    blocks.erase(found);
    error = wait_for_all(hold);
    free(memory);
    return error;
}

static const std::pair<const uintptr_t, block> *block_at(const void *at)
{
    auto next = blocks.upper_bound((uintptr_t)at);
    if (next == blocks.begin())
        return NULL;
    const auto &one = *--next;
    return (uintptr_t)at < one.first + one.second.bytes ? &one : NULL;
}

static bool inside(const void *at, size_t bytes, bool pinned)
{
    const auto *one = block_at(at);
    return one && (one->second.device == PINNED) == pinned &&
           bytes <= one->first + one->second.bytes - (uintptr_t)at;
}

bool in_device_memory(const void *at, size_t bytes)
{
    return inside(at, bytes, false);
}

bool in_pinned_memory(const void *at, size_t bytes)
{
    return inside(at, bytes, true);
}

bool touches_device_memory(const void *at, size_t bytes)
{
    const auto *first = block_at(at), *last = block_at((const char *)at + (bytes ? bytes - 1 : 0));
    return (first && first->second.device != PINNED) || (last && last->second.device != PINNED);
}
} // namespace simt

using namespace simt;

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    return call([&](guard &) {
        *total = environment().memory;
        *free_bytes = *total - used(current_device());
        return cudaSuccess;
    });
}

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    return call([&](guard &) {
        cudaError_t error = refuse_while_capturing();
        if (error)
            return error;
        if (!memory)
            return cudaErrorInvalidValue;
        if (bytes > environment().memory - used(current_device()))
            return cudaErrorMemoryAllocation;
        return allocate(memory, bytes, current_device());
    });
}

cudaError_t cudaFree(void *memory)
{
    return call([&](guard &hold) { return release(hold, memory, false); });
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned int flags)
{
    return call([&](guard &) {
        cudaError_t error = refuse_while_capturing();
        if (error)
            return error;
        if (!memory || flags > (cudaHostAllocPortable | cudaHostAllocMapped))
            return cudaErrorInvalidValue;
        return allocate(memory, bytes, PINNED);
    });
}

cudaError_t cudaFreeHost(void *memory)
{
    return call([&](guard &hold) { return release(hold, memory, true); });
}
