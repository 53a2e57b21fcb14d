// Monotonic time for measuring, sleeping and waiting.
#pragma once

#include <stdint.h>
#include <time.h>

static inline uint64_t dt_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec;
}

static inline double dt_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// The time `seconds` from now, for functions that wait until CLOCK_MONOTONIC reaches it.
static inline struct timespec dt_time_in(double seconds)
{
    double then = dt_seconds() + seconds;
    return (struct timespec){(time_t)then, (long)(1e9 * (then - (double)(time_t)then))};
}

// Sleeps the whole time even if signals arrive.
static inline void dt_sleep(double seconds)
{
    struct timespec until = dt_time_in(seconds);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) != 0)
        ;
}
