// Opens a shared library at run time: cuBLASLt and NCCL, so that one program runs with and without
// them.
#pragma once

#include "base/error.h"

struct dt_cuda_library {
    const char *name;           // "cuBLASLt", for messages
    const char *const *sonames; // tried in turn, NULL after the last
    const char *hint;           // what to install or set if none is found
};

struct dt_cuda_symbol {
    const char *name; // NULL after the last
    void *function;   // the address of the function pointer to set
};

// Sets the function pointers. The library stays open until the process ends, because the driver
// keeps pointers into it. DT_USER if the library or a symbol is missing: the message names it and
// quotes the loader.
dt_status dt_cuda_library_open(const struct dt_cuda_library *library,
                               const struct dt_cuda_symbol *symbols);
