// Races of kernels compiled with -fsanitize=thread, whose hooks (__tsan_…) stand at the end: the
// sanitizer's own library is not linked, since to it all of a launch is one thread.
//
// Two accesses to one byte, one of them a write, race when neither happens before the other:
// __syncthreads orders a block, __syncwarp the lanes of its mask; a launch's blocks are never
// ordered. Shuffles and ballots move registers and order no memory. An asynchronous copy is an
// access from its call until its thread has waited for it, unordered with all others. Threads need
// not really have met: what is compared is the order that the barriers make, so one order of
// threads finds what any would.
//
// Each 8 bytes have a list of the accesses that can still race; one that another stands for (see
// covers) is left out, so the lists stay short. memcpy and memset called by a kernel are not seen
// with g++, which has no hooks for them.
#include "race.h"
#include "model.h"
#include "site.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

namespace simt
{
enum { GRANULE = 8, PAGE = 4096, WARPS = MAX_THREADS / WARP };
enum { DIRECTORY_BITS = 18, DIRECTORIES = 1 << 18 }; // 2^18 pages a directory, 48 bits in all
// 128 MB of accesses. If a launch has more, later ones are compared only with these.
enum { ACCESSES_MOST = 4 << 20 };

struct access {
    const void *site;
    uint32_t next;
    uint32_t block, barriers; // barriers that the block had passed
    // Syncs: how many __syncwarp the warp had passed; lanes: who made the access.
    uint32_t syncs, lanes;
    uint16_t warp;
    uint8_t bytes; // a bit for each byte of the granule
    bool writes : 1, copy : 1, in_flight : 1;
};

// The list at `first` is valid if `generation` is that of the shadow.
struct granule {
    uint32_t generation, first;
};

struct shadow {
    std::vector<access> accesses; // [0] stands for none
    uint32_t generation, free;
    bool full;
};

static granule **directories[DIRECTORIES];
static shadow global_memory, shared_memory;

static const char *kernel_name;
static uintptr_t stacks_begin, stacks_size;
static bool found; // after a race, a launch reports nothing more

// The state of the block that is running.
static uint32_t barriers;
static uint32_t syncs[WARPS];
// known[w][i][j]: lane i knows what lane j did before this number of the warp's syncs. Zeros for a
// warp without syncs.
static uint32_t known[WARPS][WARP][WARP];

// ---- the order of a block

static void forget(shadow *s)
{
    s->accesses.clear();
    s->accesses.push_back({});
    s->free = 0;
    s->full = false;
    s->generation++;
}

void race_begin_launch(const char *kernel, const char *stacks, const char *stacks_end)
{
    kernel_name = kernel;
    stacks_begin = (uintptr_t)stacks;
    stacks_size = (uintptr_t)(stacks_end - stacks);
    found = false;
    forget(&global_memory);
}

void race_begin_block(void)
{
    barriers = 0;
    memset(syncs, 0, sizeof syncs);
    forget(&shared_memory);
}

void race_barrier(void)
{
    barriers++;
}

// Each lane of the mask learns what any of them knows, and everything that they did so far.
void race_warp_sync(int first, unsigned mask)
{
    const int warp = first / WARP;
    uint32_t joined[WARP] = {};
    if (syncs[warp]++ == 0)
        memset(known[warp], 0, sizeof known[warp]);
    for (int l = 0; l < WARP; l++)
        for (int other = 0; other < WARP && (mask >> l & 1u); other++)
            joined[other] = max(joined[other], known[warp][l][other]);
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1u)
            joined[l] = syncs[warp];
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1u)
            memcpy(known[warp][l], joined, sizeof joined);
}

// Returns the lanes of `old` whose access does not happen before `now`, which is an access of one
// lane.
static uint32_t unordered(const access &old, const access &now)
{
    if (old.in_flight || old.block != now.block)
        return old.lanes;
    if (old.barriers != now.barriers)
        return 0;
    if (old.warp != now.warp)
        return old.lanes;
    uint32_t lanes = old.lanes & ~now.lanes;
    const uint32_t *knows = known[now.warp][__builtin_ctz(now.lanes)];
    for (uint32_t left = syncs[now.warp] ? lanes : 0; left; left &= left - 1)
        if (knows[__builtin_ctz(left)] > old.syncs)
            lanes &= ~(left & -left);
    return lanes;
}

// ---- the lists

// Returns NULL if nothing is known about the page and nothing more is to be kept.
static granule *find_granule(uintptr_t at, bool full)
{
    const uintptr_t page = at / PAGE;
    granule **&directory = directories[page >> DIRECTORY_BITS & (DIRECTORIES - 1)];
    if (!directory)
        directory = static_cast<granule **>(calloc(1 << DIRECTORY_BITS, sizeof(granule *)));
    if (!directory)
        abort();
    granule *&granules = directory[page & ((1 << DIRECTORY_BITS) - 1)];
    if (!granules && full)
        return NULL;
    if (!granules)
        granules = static_cast<granule *>(calloc(PAGE / GRANULE, sizeof(granule)));
    if (!granules)
        abort();
    return &granules[at % PAGE / GRANULE];
}

static void drop(shadow *s, uint32_t *link)
{
    const uint32_t index = *link;
    *link = s->accesses[index].next;
    s->accesses[index].next = s->free;
    s->free = index;
}

static void keep(shadow *s, granule *g, access now)
{
    uint32_t index = s->free;
    if (index) {
        s->free = s->accesses[index].next;
    } else if (s->accesses.size() < ACCESSES_MOST) {
        index = (uint32_t)s->accesses.size();
        s->accesses.push_back({});
    } else {
        if (!s->full)
            fprintf(stderr, "races of %s: only its first %d accesses are searched\n", kernel_name,
                    (int)ACCESSES_MOST);
        s->full = true;
        return;
    }
    now.next = g->first;
    s->accesses[index] = now;
    g->first = index;
}

static bool same_moment(const access &a, const access &b)
{
    return a.block == b.block && a.barriers == b.barriers && a.warp == b.warp && a.syncs == b.syncs;
}

// Whether every later access that races with `now` also races with `old`, made by the same thread
// at the same moment, or with `old` or `other` (which may be NULL): if these are of two blocks, or
// of two warps since the last barrier, nothing is ordered with both.
static bool covers(const access &old, const access *other, const access &now)
{
    if (same_moment(old, now) && (old.lanes & now.lanes))
        return true;
    if (!other)
        return false;
    if (old.block != other->block)
        return true;
    return old.block == now.block && old.barriers == now.barriers &&
           other->barriers == now.barriers && old.warp != other->warp;
}

static bool may_cover(const access &old, const access &now)
{
    return !old.in_flight && !(now.bytes & ~old.bytes) && (old.writes || !now.writes);
}

static bool is_covered(const shadow *s, const granule *g, const access &now)
{
    const access *other = NULL;
    for (uint32_t i = g->first; i; i = s->accesses[i].next) {
        const access &old = s->accesses[i];
        if (!may_cover(old, now))
            continue;
        if (covers(old, other, now))
            return true;
        other = &old;
    }
    return false;
}

static bool merges(access *old, const access &now)
{
    if (old->in_flight || now.in_flight || !same_moment(*old, now) || old->bytes != now.bytes ||
        old->writes != now.writes || old->copy != now.copy || old->site != now.site)
        return false;
    old->lanes |= now.lanes;
    return true;
}

// ---- reports

static void name_thread(const access &a, uint32_t lanes, char *text, size_t size)
{
    const unsigned thread = a.warp * (unsigned)WARP + (unsigned)__builtin_ctz(lanes);
    const unsigned at = a.block;
    snprintf(text, size, "thread (%u, %u, %u) of block (%u, %u, %u)", thread % blockDim.x,
             thread / blockDim.x % blockDim.y, thread / blockDim.x / blockDim.y, at % gridDim.x,
             at / gridDim.x % gridDim.y, at / gridDim.x / gridDim.y);
}

static const char *verb(const access &a)
{
    if (a.in_flight)
        return a.writes ? "writes by a copy not waited for" : "reads by a copy not waited for";
    if (a.copy)
        return a.writes ? "writes by a copy" : "reads by a copy";
    return a.writes ? "writes" : "reads";
}

static void report(uintptr_t granule_at, const access &old, uint32_t lanes, const access &now)
{
    const unsigned first = (unsigned)__builtin_ctz(old.bytes & now.bytes);
    const void *at = (const void *)(granule_at + first);
    char place[128], thread[2][96];
    if (memory_is_shared(at))
        memory_name(at, place, sizeof place);
    else
        snprintf(place, sizeof place, "global memory at %p", at);
    name_thread(old, lanes, thread[0], sizeof thread[0]);
    name_thread(now, now.lanes, thread[1], sizeof thread[1]);
    fault("%s: a race for %s: %s %s at %s; %s %s at %s; nothing orders the two", kernel_name, place,
          thread[0], verb(old), site_name(old.site).c_str(), thread[1], verb(now),
          site_name(now.site).c_str());
    found = true;
}

// ---- accesses

// Whether `now`, which happens after `old`, races with everything that `old` races with.
static bool replaces(const access &now, const access &old)
{
    return !(old.bytes & ~now.bytes) && (now.writes || !old.writes);
}

static void compare(shadow *s, granule *g, uintptr_t at, const access &now)
{
    if (!now.in_flight && is_covered(s, g, now))
        return;
    bool merged = false;
    for (uint32_t *link = &g->first; *link;) {
        access *old = &s->accesses[*link];
        const uint32_t lanes = unordered(*old, now);
        if (lanes && (old->bytes & now.bytes) && (old->writes || now.writes))
            return report(at, *old, lanes, now);
        merged = merged || merges(old, now);
        if (!lanes && replaces(now, *old))
            drop(s, link);
        else
            link = &old->next;
    }
    if (!merged)
        keep(s, g, now);
}

static access by_current_thread(bool writes, const void *site)
{
    const int thread = thread_index();
    access a = {};
    a.site = site;
    a.block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    a.barriers = barriers;
    a.warp = (uint16_t)(thread / WARP);
    a.syncs = syncs[a.warp];
    a.lanes = 1u << thread % WARP;
    a.writes = writes;
    return a;
}

template <class Visit> static void each_granule(const void *p, size_t bytes, Visit visit)
{
    shadow *s = memory_is_shared(p) ? &shared_memory : &global_memory;
    uintptr_t at = (uintptr_t)p;
    const uintptr_t end = at + bytes;
    while (at < end) {
        const uintptr_t begin = at / GRANULE * GRANULE, next = begin + GRANULE;
        const unsigned from = (unsigned)(at - begin);
        const unsigned to = (unsigned)((next < end ? next : end) - begin);
        granule *g = find_granule(begin, s->full);
        if (g && g->generation != s->generation)
            *g = {s->generation, 0};
        if (g)
            visit(s, g, begin, (uint8_t)((1u << to) - (1u << from)));
        at = next;
    }
}

static void touch(const void *p, size_t bytes, access now)
{
    each_granule(p, bytes, [&](shadow *s, granule *g, uintptr_t at, uint8_t mask) {
        now.bytes = mask;
        if (!found)
            compare(s, g, at, now);
    });
}

static bool is_own(const void *p)
{
    return (uintptr_t)p - stacks_begin < stacks_size;
}

// Called by the hooks. Outside of kernels, on other stacks than theirs, the launchers run.
static void touch_from(const void *p, size_t bytes, bool writes, const void *site)
{
    // All threads read these all the time.
    const bool is_builtin = p == &threadIdx.x || p == &blockIdx.x || p == &blockDim.x;
    if (!found && !is_own(p) && !is_builtin && is_own(__builtin_frame_address(0)))
        touch(p, bytes, by_current_thread(writes, site));
}

static void begin_side(const void *p, size_t bytes, bool writes, const void *site)
{
    access now = by_current_thread(writes, site);
    now.copy = now.in_flight = true;
    touch(p, bytes, now);
}

void race_copy_begins(const void *to, const void *from, size_t bytes, const void *site)
{
    begin_side(from, bytes, false, site);
    begin_side(to, bytes, true, site);
}

static bool is_same_copy(const access &a, const access &b)
{
    return a.in_flight && a.block == b.block && a.warp == b.warp && a.lanes == b.lanes &&
           a.bytes == b.bytes && a.writes == b.writes;
}

// The copy has ended: its access now belongs to its thread.
static void arrive_side(const void *p, size_t bytes, bool writes)
{
    each_granule(p, bytes, [&](shadow *s, granule *g, uintptr_t at, uint8_t mask) {
        access now = by_current_thread(writes, NULL);
        now.bytes = mask;
        uint32_t *link = &g->first;
        while (*link && !is_same_copy(s->accesses[*link], now))
            link = &s->accesses[*link].next;
        if (!*link)
            return;
        now.site = s->accesses[*link].site;
        now.copy = true;
        drop(s, link);
        if (!found)
            compare(s, g, at, now);
    });
}

void race_copy_arrives(const void *to, const void *from, size_t bytes)
{
    arrive_side(from, bytes, false);
    arrive_side(to, bytes, true);
}
} // namespace simt

// ---- the hooks that the compiler calls

#define HOOK(name, bytes, writes)                                                                  \
    extern "C" void name(void *p);                                                                 \
    void name(void *p)                                                                             \
    {                                                                                              \
        simt::touch_from(p, bytes, writes, __builtin_return_address(0));                           \
    }
#define HOOKS(bytes)                                                                               \
    HOOK(__tsan_read##bytes, bytes, false)                                                         \
    HOOK(__tsan_write##bytes, bytes, true)                                                         \
    HOOK(__tsan_unaligned_read##bytes, bytes, false)                                               \
    HOOK(__tsan_unaligned_write##bytes, bytes, true)

HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

extern "C" {
void __tsan_init(void);
void __tsan_func_entry(void *caller);
void __tsan_func_exit(void);
void __tsan_read_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes);
}

void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}

void __tsan_read_range(void *p, size_t bytes)
{
    simt::touch_from(p, bytes, false, __builtin_return_address(0));
}

void __tsan_write_range(void *p, size_t bytes)
{
    simt::touch_from(p, bytes, true, __builtin_return_address(0));
}
