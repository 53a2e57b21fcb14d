// Opening a shared library at run time: cuBLASLt and NCCL, which one program runs with and without.
#pragma once

#include "base/error.h"

struct dt_cuda_library {
    const char *name;           // "cuBLASLt", for messages
    const char *const *sonames; // tried in turn, NULL after the last
    const char *hint;           // what to install or set where none is found
};

struct dt_cuda_symbol {
    const char *name; // NULL after the last
    void *function;   // the address of a function pointer, =
};

// Fills the function pointers. The library stays open until the process ends: the driver keeps what
// it registered. No library, or one that lacks a symbol: DT_USER, naming the library and what the
// loader said of it.
dt_status dt_cuda_library_open(const struct dt_cuda_library *library,
                               const struct dt_cuda_symbol *symbols);
