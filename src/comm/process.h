// Checks in /proc whether another process of this machine still runs.
#pragma once

#include <stdint.h>

// Identifies a process uniquely, since a pid may be reused and differs between containers.
struct dt_process {
    uint64_t space;   // boot and pid namespace of `pid`; 0: unknown
    uint64_t started; // clock ticks since boot
    int32_t pid;
};

enum dt_process_state { DT_PROCESS_RUNS, DT_PROCESS_STOPPED, DT_PROCESS_GONE };

struct dt_process dt_process_self(void);
// `process` must have the same, non-zero space as this process.
enum dt_process_state dt_process_look(const struct dt_process *process);
