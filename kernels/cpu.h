// The CPU implementations of the ops. DT_OP_CPU(scan_forward) declares scan_forward_cpu: its caller
// has checked the arguments, the work is done when it returns, and it ignores `stream`.
// DT_OP_CPU_WORKSPACE(scan_forward) declares scan_forward_cpu_workspace, which returns the bytes
// that it needs for these shapes. Every parallel region has device->threads threads, and no bit of
// a result may depend on their number.
#pragma once

#include "kernels/ops.h"

struct dt_device {
    int threads;           // >= 1
    int64_t memory_in_use; // bytes, updated atomically
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
