// Fibers: the switch between them, their stacks, and what AddressSanitizer must be told.
#include "fiber.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
enum { STACK = 256 << 10 };
#else
enum { STACK = 64 << 10 };
#endif

static struct fiber host; // the stack that enters fibers

#ifdef __x86_64__
extern "C" void simt_switch(void **save, void *place);
// Pushes the registers that a function must preserve, and exchanges the stack pointer.
__asm__(".text\n"
        ".globl simt_switch\n"
        ".type simt_switch, @function\n"
        "simt_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n"
        "    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n"
        "    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size simt_switch, . - simt_switch\n");

enum { SAVED = 6 };

// Six registers without a meaning, then `entry` as the address to return to, then a return address
// that is never used, so that the stack pointer is 8 off a multiple of 16, as after a call.
static void set_start(struct fiber *fiber, void (*entry)(void))
{
    uintptr_t *top = (uintptr_t *)(void *)(fiber->stack + fiber->size);
    top[-1] = 0;
    top[-2] = (uintptr_t)entry;
    for (int i = 0; i < SAVED; i++)
        top[-3 - i] = 0;
    fiber->place = top - 2 - SAVED;
}

static void exchange(struct fiber *from, struct fiber *to)
{
    simt_switch(&from->place, to->place);
}
#else
#include <ucontext.h>

static ucontext_t *context_of(struct fiber *fiber)
{
    if (!fiber->place)
        fiber->place = calloc(1, sizeof(ucontext_t));
    if (!fiber->place)
        abort();
    return (ucontext_t *)fiber->place;
}

static void set_start(struct fiber *fiber, void (*entry)(void))
{
    ucontext_t *context = context_of(fiber);
    getcontext(context);
    context->uc_stack.ss_sp = fiber->stack;
    context->uc_stack.ss_size = fiber->size;
    makecontext(context, entry, 0);
}

static void exchange(struct fiber *from, struct fiber *to)
{
    swapcontext(context_of(from), context_of(to));
}
#endif

static void leaving(void **fake_stack, const struct fiber *to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(fake_stack, to->stack, to->size);
#else
    (void)fake_stack, (void)to;
#endif
}

static void arrived(void *fake_stack, bool from_host)
{
#ifdef __SANITIZE_ADDRESS__
    const void *stack;
    size_t size;
    __sanitizer_finish_switch_fiber(fake_stack, &stack, &size);
    if (from_host)
        host.stack = (char *)const_cast<void *>(stack), host.size = size;
#else
    (void)fake_stack, (void)from_host;
#endif
}

void fiber_stacks(struct fiber *fibers, int n)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), each = page + STACK;
    char *memory = (char *)mmap(NULL, each * (size_t)n, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("simt: no memory for stacks");
        exit(1);
    }
    for (int i = 0; i < n; i++) {
        mprotect(memory + each * (size_t)i, page, PROT_NONE);
        // The tops of the stacks have different offsets in a page; otherwise they would share a few
        // sets of the cache.
        fibers[i] = {NULL, memory + each * (size_t)i + page, STACK - (size_t)(i % 64) * 64, NULL,
                     false};
    }
}

void fiber_reset(struct fiber *fiber, void (*entry)(void))
{
#ifdef __SANITIZE_ADDRESS__
    // Functions that returned have cleaned up. The frames that never return are left: if the fiber
    // was given up, these are all of them.
    size_t left = fiber->ended ? 4096 : fiber->size;
    __asan_unpoison_memory_region(fiber->stack + fiber->size - left, left);
#endif
    fiber->fake_stack = NULL;
    fiber->ended = false;
    set_start(fiber, entry);
}

void fiber_enter(struct fiber *fiber)
{
    leaving(&host.fake_stack, fiber);
    exchange(&host, fiber);
    arrived(host.fake_stack, false);
}

void fiber_leave(struct fiber *fiber, bool last)
{
    fiber->ended = last;
    leaving(last ? NULL : &fiber->fake_stack, &host);
    exchange(fiber, &host);
    arrived(fiber->fake_stack, true);
}

void fiber_started(void)
{
    arrived(NULL, true);
}
