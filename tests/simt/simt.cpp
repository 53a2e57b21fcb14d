// Runs a launch: blocks one after another, and the threads of a block in turns. A thread runs until
// it ends, or waits at a barrier or in an exchange of its warp. An exchange happens when all lanes
// of its mask wait in it, and a barrier opens when all threads of the block wait at it. If neither
// can happen, the fault is reported.
#include "model.h"

#include "cuda/enqueue.h"
#include "fiber.h"
#include "race.h"

#include <atomic>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace simt
{
enum state { READY, AT_BARRIER, IN_WARP, ENDED };

struct thread {
    enum state state;
    site at;
    enum kind kind; // the kind of exchange, and the value that the lane gives
    unsigned mask;
    int source;
    uint64_t value, result;
};

static struct fiber fibers[MAX_THREADS];
static struct thread threads[MAX_THREADS];
static dim3 indices[MAX_THREADS]; // threadIdx of each thread
static int n_threads, current;

static void (*body)(const void *);
static const void *body_context;

static enum simt_order order;
static uint32_t random_state = 1;
static thread_local char fault_text[1024];
static const struct runtime *under;

void fault(const char *format, ...)
{
    if (fault_text[0])
        return;
    va_list values;
    va_start(values, format);
    vsnprintf(fault_text, sizeof fault_text, format, values);
    va_end(values);
}

bool faulty(void)
{
    return fault_text[0] != 0;
}

bool take_fault(char *text, size_t size)
{
    bool any = faulty();
    snprintf(text, size, "%s", fault_text);
    fault_text[0] = 0;
    return any;
}

void run_under(const struct runtime *runtime)
{
    under = runtime;
}

dt_status launched(const char *op, const char *file, int line, const char *function)
{
    char text[sizeof fault_text];
    const char *what = take_fault(text, sizeof text) ? text : under ? under->failure() : NULL;
    if (!what)
        return DT_OK;
    return dt_error_raise(DT_MACHINE, file, line, function, NULL, "%s: %s", op, what);
}

int thread_index(void)
{
    return current;
}

int lane(void)
{
    return current % WARP;
}

uint64_t clock(void)
{
    struct timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

bool copies_are_lazy(void)
{
    return order == SIMT_DESCENDING || order == SIMT_WARP_AHEAD;
}

// ---- calls of a thread

static void wait_as(enum state state, site at)
{
    threads[current].state = state;
    threads[current].at = at;
    fiber_leave(&fibers[current], state == ENDED);
}

static void run_body(void)
{
    fiber_started();
    body(body_context);
    memory_end_thread();
    wait_as(ENDED, {"", 0, "its end"});
}

void barrier(site at)
{
    wait_as(AT_BARRIER, at);
}

uint64_t exchange(enum kind kind, unsigned mask, uint64_t value, int source, site at)
{
    struct thread *t = &threads[current];
    t->kind = kind;
    t->mask = mask;
    t->source = source;
    t->value = value;
    wait_as(IN_WARP, at);
    return t->result;
}

// ---- the order of turns

uint32_t random_below(uint32_t n) // xorshift32; good enough to shuffle
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state % n;
}

static void make_order(unsigned *index, unsigned n, enum simt_order by)
{
    for (unsigned i = 0; i < n; i++)
        index[i] = by == SIMT_DESCENDING ? n - 1 - i : i;
    if (by != SIMT_RANDOM && by != SIMT_WARP_AHEAD)
        return;
    for (unsigned i = n; i > 1; i--) {
        unsigned j = random_below(i), kept = index[i - 1];
        index[i - 1] = index[j];
        index[j] = kept;
    }
}

// ---- warps and barriers

static bool same_site(const site *a, const site *b)
{
    return a->line == b->line && a->what == b->what &&
           (a->file == b->file || strcmp(a->file, b->file) == 0);
}

// Returns the first lane of the asking thread's mask that is not in the same exchange, or -1.
static int missing_lane(int first, const struct thread *asker)
{
    for (int l = 0; l < WARP; l++) {
        const struct thread *t = &threads[first + l];
        bool takes_part = first + l < n_threads && t->state == IN_WARP && t->mask == asker->mask &&
                          t->kind == asker->kind && same_site(&t->at, &asker->at);
        if ((asker->mask >> l & 1u) && !takes_part)
            return l;
    }
    return -1;
}

static void complete(int first, unsigned mask)
{
    if (threads[first + __builtin_ctz(mask)].kind == WARP_SYNC)
        race_warp_sync(first, mask);
    uint64_t ballot = 0;
    for (int l = 0; l < WARP; l++)
        if ((mask >> l & 1u) && threads[first + l].value)
            ballot |= (uint64_t)1 << l;
    for (int l = 0; l < WARP; l++) {
        if (!(mask >> l & 1u))
            continue;
        struct thread *t = &threads[first + l];
        if (t->kind == SHUFFLE && !(mask >> t->source & 1u))
            fault("%s:%d: %s: lane %d reads lane %d, which is not in the mask 0x%08x", t->at.file,
                  t->at.line, t->at.what, l, t->source, mask);
        else if (t->kind == SHUFFLE)
            t->result = threads[first + t->source].value;
        else
            t->result = t->kind == BALLOT ? ballot : 0;
    }
    for (int l = 0; l < WARP; l++)
        if (mask >> l & 1u)
            threads[first + l].state = READY;
}

static bool exchange_in_warp(int first)
{
    bool any = false;
    for (int l = 0; l < WARP && first + l < n_threads; l++) {
        struct thread *t = &threads[first + l];
        if (t->state != IN_WARP)
            continue;
        if (!(t->mask >> l & 1u))
            fault("%s:%d: %s: lane %d is not in its own mask 0x%08x", t->at.file, t->at.line,
                  t->at.what, l, t->mask);
        else if (missing_lane(first, t) < 0)
            complete(first, t->mask), any = true;
    }
    return any;
}

static bool open_barrier(void)
{
    for (int i = 0; i < n_threads; i++)
        if (threads[i].state != AT_BARRIER || !same_site(&threads[i].at, &threads[0].at))
            return false;
    for (int i = 0; i < n_threads; i++)
        threads[i].state = READY;
    race_barrier();
    return true;
}

static void fault_between(const struct thread *a, int i, int j)
{
    const struct thread *b = &threads[j];
    if (j >= n_threads)
        fault("%s:%d: thread %d waits in %s for lane %d, which the block does not have", a->at.file,
              a->at.line, i, a->at.what, j % WARP);
    else if (b->state == ENDED)
        fault("%s:%d: thread %d waits in %s for thread %d, which has ended", a->at.file, a->at.line,
              i, a->at.what, j);
    else
        fault("%s:%d: thread %d waits in %s for thread %d, which waits in %s at %s:%d", a->at.file,
              a->at.line, i, a->at.what, j, b->at.what, b->at.file, b->at.line);
}

// Reports which threads wait for which when none can continue.
static void report_divergence(void)
{
    for (int i = 0; i < n_threads; i++)
        if (threads[i].state == IN_WARP) {
            int first = i - i % WARP;
            fault_between(&threads[i], i, first + missing_lane(first, &threads[i]));
            return;
        }
    int i = 0;
    while (threads[i].state != AT_BARRIER)
        i++;
    for (int j = 0; j < n_threads; j++)
        if (threads[j].state != AT_BARRIER || !same_site(&threads[i].at, &threads[j].at))
            fault_between(&threads[i], i, j);
}

// ---- blocks

// Gives a turn to every lane that can continue, and does exchanges when none can. Returns false if
// the warp is stuck.
static bool run_warp(int first)
{
    unsigned lanes[WARP], n = (unsigned)(n_threads - first < WARP ? n_threads - first : WARP);
    bool any = false;
    make_order(lanes, n, order);
    for (unsigned l = 0; l < n; l++)
        if (threads[first + (int)lanes[l]].state == READY) {
            current = first + (int)lanes[l];
            threadIdx = indices[current];
            fiber_enter(&fibers[current]);
            any = true;
        }
    return any || exchange_in_warp(first);
}

static bool run_warps(void)
{
    unsigned warps[MAX_THREADS / WARP], n = (unsigned)((n_threads + WARP - 1) / WARP);
    bool any = false;
    make_order(warps, n, order);
    for (unsigned w = 0; w < n; w++)
        while (run_warp((int)warps[w] * WARP)) {
            any = true;
            if (order != SIMT_WARP_AHEAD)
                break;
        }
    return any;
}

static bool all_ended(void)
{
    for (int i = 0; i < n_threads; i++)
        if (threads[i].state != ENDED)
            return false;
    return true;
}

static void run_block(const kernel_call &call)
{
    memory_begin_block(call.shared_bytes);
    race_begin_block();
    for (int i = 0; i < n_threads; i++) {
        threads[i].state = READY;
        fiber_reset(&fibers[i], run_body);
    }
    while (!faulty() && !all_ended())
        if (!run_warps() && !open_barrier())
            report_divergence();
    memory_end_block(call.name, call.shared_limit);
}

void execute(const kernel_call &call)
{
    if (!fibers[0].stack)
        fiber_stacks(fibers, MAX_THREADS);
    body = call.run;
    body_context = call.arguments;
    dim3 grid = gridDim = call.grid;
    blockDim = call.block;
    n_threads = (int)(call.block.x * call.block.y * call.block.z);
    for (unsigned i = 0; i < (unsigned)n_threads; i++)
        indices[i] = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    race_begin_launch(call.name, fibers[0].stack, fibers[MAX_THREADS - 1].stack + fibers[0].size);
    int64_t blocks = (int64_t)grid.x * grid.y * grid.z;
    for (int64_t b = 0; b < blocks && !faulty(); b++) {
        unsigned at = (unsigned)(order == SIMT_ASCENDING ? b : blocks - 1 - b);
        blockIdx = {at % grid.x, at / grid.x % grid.y, at / grid.x / grid.y};
        run_block(call);
    }
}

void start(const kernel_call &call, void *stream)
{
    dim3 grid = call.grid, block = call.block;
    int64_t size = (int64_t)block.x * block.y * block.z;
    if (size < 1 || size > MAX_THREADS || block.z > 64)
        fault("%s: a block of %u x %u x %u threads, not 1 to %d", call.name, block.x, block.y,
              block.z, (int)MAX_THREADS);
    else if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535u ||
             grid.z > 65535u)
        fault("%s: a grid of %u x %u x %u blocks; x goes to 2^31 - 1, y and z to 65535", call.name,
              grid.x, grid.y, grid.z);
    else if (under && !faulty())
        under->enqueue(call, stream);
    else if (!faulty())
        execute(call);
}

enum simt_order order_now(void)
{
    return order;
}
} // namespace simt

void simt_set_order(enum simt_order order, uint32_t seed)
{
    simt::order = order;
    simt::random_state = seed ? seed : 1;
}

const char *simt_order_name(enum simt_order order)
{
    static const char *const names[SIMT_ORDERS] = {"ascending", "descending", "random", "warp"};
    return names[order];
}
