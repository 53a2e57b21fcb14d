// A backend whose ops are the CUDA kernels, run on the host. Its memory and checks are the CPU's.
#pragma once

#include "op_fixture.h"
#include "simt_run.h"

#include "backend/backend.h"

extern const struct dt_op_table simt_op_table;

static inline struct dt_backend open_simt(void)
{
    struct dt_backend backend = open_cpu(1);
    backend.op = &simt_op_table;
    return backend;
}
