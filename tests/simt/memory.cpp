// The shared memory of a block and the asynchronous copies of its threads. Shared arrays come from
// an arena, are NaN when a block starts, and have red zones between them: AddressSanitizer reports
// accesses to these, and without it they are checked when the block ends.
#include "model.h"
#include "race.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, size)   ((void)(at), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(at, size) ((void)(at), (void)(size))
#endif

namespace simt
{
enum { RED = 64, RED_BYTE = 0x5a, FRESH_BYTE = 0xff, ARENA = 512 << 10 };

struct array {
    const void *key; // of the declaration; NULL: the dynamic array
    site at;
    size_t first, bytes;
};

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    bool committed_after; // the last of its group
    bool late;            // the bytes are still to be moved
};

alignas(16) static char arena[ARENA];
static size_t arena_end;
static std::vector<array> arrays;
static std::vector<copy> copies[MAX_THREADS];

static size_t rounded(size_t bytes)
{
    return (bytes + 15) / 16 * 16;
}

static std::mutex allowed_lock;
static int64_t shared_most = SHARED_MOST;
static std::map<const void *, size_t> allowed; // bytes of dynamic shared memory, by kernel

bool allow_shared(const void *kernel, int64_t bytes)
{
    std::lock_guard<std::mutex> guard(allowed_lock);
    if (bytes > shared_most - SHARED_ARRAYS)
        return false;
    allowed[kernel] = (size_t)bytes;
    return true;
}

size_t shared_limit(const void *kernel)
{
    std::lock_guard<std::mutex> guard(allowed_lock);
    auto found = allowed.find(kernel);
    size_t bytes = found == allowed.end() ? 0 : found->second + SHARED_ARRAYS;
    return std::max(bytes, (size_t)SHARED_LIMIT);
}

static void *place(const void *key, size_t bytes, site at)
{
    size_t whole = rounded(bytes) + RED;
    if (arena_end + whole > ARENA) {
        fault("%s:%d: the shared array %s has %zu bytes, far more than a block may have", at.file,
              at.line, at.what, bytes);
        return arena + RED; // too small; the block has failed anyway
    }
    char *memory = arena + arena_end;
    ASAN_UNPOISON_MEMORY_REGION(memory, whole);
    memset(memory, FRESH_BYTE, bytes);
    memset(memory + bytes, RED_BYTE, whole - bytes);
    ASAN_POISON_MEMORY_REGION(memory + bytes, whole - bytes);
    arrays.push_back({key, at, arena_end, bytes});
    arena_end += whole;
    return memory;
}

static size_t bytes_used(void)
{
    size_t bytes = 0;
    for (const array &a : arrays)
        bytes += rounded(a.bytes);
    return bytes;
}

void memory_begin_block(size_t dynamic_bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(arena, RED);
    memset(arena, RED_BYTE, RED);
    ASAN_POISON_MEMORY_REGION(arena, ARENA);
    arrays.clear();
    arena_end = RED;
    for (std::vector<copy> &queue : copies)
        queue.clear();
    if (dynamic_bytes > 0)
        place(NULL, dynamic_bytes, {"the launch", 0, "dynamic shared memory"});
}

void *shared(const void *key, size_t bytes, site at)
{
    for (const array &a : arrays)
        if (a.key == key)
            return arena + a.first;
    return place(key, bytes, at);
}

void *shared_dynamic(void)
{
    for (const array &a : arrays)
        if (a.key == NULL)
            return arena + a.first;
    return place(NULL, 0, {"the launch", 0, "dynamic shared memory"});
}

bool memory_is_shared(const void *at)
{
    return (uintptr_t)at - (uintptr_t)arena < ARENA;
}

void memory_name(const void *at, char *text, size_t size)
{
    const size_t place = (uintptr_t)at - (uintptr_t)arena;
    snprintf(text, size, "shared memory outside the arrays");
    for (const array &a : arrays)
        if (place >= a.first && place < a.first + a.bytes)
            snprintf(text, size, "%s + %zu", a.at.what, place - a.first);
}

static bool red_zone_whole(size_t first, size_t end)
{
    ASAN_UNPOISON_MEMORY_REGION(arena + first, end - first);
    return std::all_of(arena + first, arena + end, [](char c) { return c == RED_BYTE; });
}

void memory_end_block(const char *kernel, size_t shared_limit)
{
    if (!red_zone_whole(0, RED))
        fault("%s wrote below its shared arrays", kernel);
    for (const array &a : arrays)
        if (!red_zone_whole(a.first + a.bytes, a.first + rounded(a.bytes) + RED))
            fault("%s wrote past the end of %s (%zu bytes, %s:%d)", kernel, a.at.what, a.bytes,
                  a.at.file, a.at.line);
    if (bytes_used() > shared_limit)
        fault("%s uses %zu bytes of shared memory, more than the %zu that it may have (%d where it "
              "was not allowed more)",
              kernel, bytes_used(), shared_limit, (int)SHARED_LIMIT);
}

static void begin(const copy &c, const void *site)
{
    copies[thread_index()].push_back(c);
    race_copy_begins(c.to, c.from, c.bytes, site);
    if (!c.late)
        memcpy(c.to, c.from, c.bytes);
}

void copy_async(void *to, const void *from, size_t bytes)
{
    bool sized = bytes == 4 || bytes == 8 || bytes == 16;
    if (!sized || (uintptr_t)to % bytes != 0 || (uintptr_t)from % bytes != 0)
        fault("an asynchronous copy of %zu bytes from %p to %p: 4, 8 or 16, and aligned to that",
              bytes, from, to);
    else
        begin({to, from, bytes, false, copies_are_lazy()}, __builtin_return_address(0));
}

void matrix_row(const void *at)
{
    if (!memory_is_shared(at) || (uintptr_t)at % 16 != 0)
        fault("a matrix row at %p: in shared memory, and aligned to 16 bytes", at);
}

// A group without copies is kept as a copy of nothing.
void copy_commit(void)
{
    copies[thread_index()].push_back({NULL, NULL, 0, true, false});
}

static void arrive(const copy &c)
{
    if (c.late)
        memcpy(c.to, c.from, c.bytes);
    race_copy_arrives(c.to, c.from, c.bytes);
}

void copy_wait(int newest)
{
    std::vector<copy> &queue = copies[thread_index()];
    int groups = 0;
    for (const copy &c : queue)
        groups += c.committed_after;
    size_t done = 0;
    while (groups > newest) {
        const copy &c = queue[done++];
        if (c.committed_after)
            groups--;
        else
            arrive(c);
    }
    queue.erase(queue.begin(), queue.begin() + (ptrdiff_t)done);
}

void memory_end_thread(void)
{
    copies[thread_index()].clear();
}
} // namespace simt

void simt_set_shared_most(int64_t bytes)
{
    std::lock_guard<std::mutex> guard(simt::allowed_lock);
    simt::shared_most = bytes;
}
