// A thread of execution inside another: a stack and a place to resume. On x86-64 a switch is a
// dozen instructions (16 ns per pair, ucontext takes 331), elsewhere ucontext. AddressSanitizer is
// informed of every switch.
#pragma once

#include <stddef.h>

struct fiber {
    void *place; // where it resumes: a stack pointer, or a ucontext_t
    char *stack; // lowest byte
    size_t size;
    void *fake_stack; // AddressSanitizer's
    bool ended;       // left for the last time
};

// Allocates n stacks, each above a guard page; never freed.
void fiber_stacks(struct fiber *fibers, int n);
// Makes the fiber start at `entry`, which must not return. Discards what ran on its stack.
void fiber_reset(struct fiber *fiber, void (*entry)(void));
// Runs the fiber until it calls fiber_leave.
void fiber_enter(struct fiber *fiber);
// Returns to the call of fiber_enter; `last`: the fiber will not be entered again.
void fiber_leave(struct fiber *fiber, bool last);
// The first thing that an entry does.
void fiber_started(void);
