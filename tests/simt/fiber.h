// One thread of execution inside another: a stack and a place to go on. On x86-64 by a switch of a
// dozen instructions (16 ns a pair, where ucontext takes 331), elsewhere by ucontext.
// AddressSanitizer is told of every switch.
#pragma once

#include <stddef.h>

struct fiber {
    void *place; // where it goes on: a stack pointer, or a ucontext_t
    char *stack; // lowest byte
    size_t size;
    void *fake_stack; // AddressSanitizer's
    bool ended;       // left for the last time
};

// Memory for n stacks, each above a page that may not be touched; never given back.
void fiber_stacks(struct fiber *fibers, int n);
// Makes the fiber start at `entry`, which must not return. What ran on its stack is forgotten.
void fiber_reset(struct fiber *fiber, void (*entry)(void));
// Runs the fiber until it calls fiber_leave.
void fiber_enter(struct fiber *fiber);
// Back to where fiber_enter was called; `last`: the fiber will not be entered again.
void fiber_leave(struct fiber *fiber, bool last);
// The first thing that an entry does.
void fiber_started(void);
