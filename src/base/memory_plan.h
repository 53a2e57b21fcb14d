// A memory plan lists, in named rows, the memory that a run will need, before anything is
// allocated. Each owner of memory adds the rows that it will allocate; `--check` prints them, and
// training and bench compare their sum with what the device has free.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { DT_MEMORY_ROWS = 32 };

struct dt_memory_row {
    const char *what; // "activations"
    int64_t bytes;
    bool host; // on the host (with unified memory also the device's)
};

struct dt_memory_plan {
    int n;
    struct dt_memory_row rows[DT_MEMORY_ROWS];
};

// 0 bytes add no row, and a row of the same name grows. `what` must outlive the plan.
void dt_memory_plan_add(struct dt_memory_plan *plan, const char *what, int64_t bytes, bool host);
// The sum of the rows, with or without host rows.
int64_t dt_memory_plan_bytes(const struct dt_memory_plan *plan, bool with_host);
