// The CPU forms of the ops and what they know of their device. DT_OP_CPU(scan_forward) is the head
// of scan_forward_cpu, which does the work on arguments that were checked above it: the work is
// done when it returns, so no form looks at `stream`. DT_OP_CPU_WORKSPACE(scan_forward) is the head
// of scan_forward_cpu_workspace, the bytes that it needs for these shapes. Every parallel region
// has device->threads threads; no bit of a result may depend on that number.
#pragma once

#include "kernels/ops.h"

struct dt_device {
    int threads;           // >= 1, of every parallel region
    int64_t memory_in_use; // bytes; changed atomically
};

#define DT_OP_CPU(op)           DT_OP_HEAD(op, cpu)
#define DT_OP_CPU_WORKSPACE(op) DT_OP_WORKSPACE_HEAD(op, cpu)
#define DECLARE(op)             DT_OP_CPU(op);
#define DECLARE_BOTH(op)                                                                           \
    DT_OP_CPU(op);                                                                                 \
    DT_OP_CPU_WORKSPACE(op);
DT_OPS_BY_WORKSPACE(DECLARE_BOTH, DECLARE)
#undef DECLARE
#undef DECLARE_BOTH
