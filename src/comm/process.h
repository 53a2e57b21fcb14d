// Tells whether another process of this machine still runs, by /proc.
#pragma once

#include <stdint.h>

// Identifies a process uniquely: a pid may be reused, and may mean another process in another
// container.
struct dt_process {
    uint64_t space;   // boot and pid namespace in which `pid` counts; 0: unknown
    uint64_t started; // clock ticks since boot
    int32_t pid;
};

enum dt_process_state { DT_PROCESS_RUNS, DT_PROCESS_STOPPED, DT_PROCESS_GONE };

struct dt_process dt_process_self(void);
// `process` must be of the same space as this process, and that not 0.
enum dt_process_state dt_process_look(const struct dt_process *process);
