// The mark on the CPU: the monotonic clock.
#include "kernels/cpu.h"

#include <time.h>

DT_OP_CPU(stamp)
{
    if (args->time) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        *args->time = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }
    if (args->count)
        __atomic_fetch_add(args->count, 1, __ATOMIC_RELEASE);
    return DT_OK;
}
