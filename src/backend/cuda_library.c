// dlopen with errors that say what to do.
#include "backend/cuda_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static dt_status no_library(const struct dt_cuda_library *library, const char *said)
{
    return DT_FAIL(DT_USER, library->hint, "%s cannot be loaded: %s", library->name, said);
}

// Opens the first name that can be opened. On failure, `said` is the loader's message about the
// first name, the current version.
static void *open_first(const struct dt_cuda_library *library, char *said, size_t size)
{
    void *handle = NULL;
    said[0] = '\0';
    for (const char *const *soname = library->sonames; *soname && !handle; soname++) {
        handle = dlopen(*soname, RTLD_NOW | RTLD_LOCAL);
        if (!handle && !said[0])
            snprintf(said, size, "%s", dlerror());
    }
    return handle;
}

dt_status dt_cuda_library_open(const struct dt_cuda_library *library,
                               const struct dt_cuda_symbol *symbols)
{
    char said[512];
    void *handle = open_first(library, said, sizeof said);
    if (!handle)
        return no_library(library, said);
    for (const struct dt_cuda_symbol *symbol = symbols; symbol->name; symbol++) {
        void *address = dlsym(handle, symbol->name);
        if (!address) {
            snprintf(said, sizeof said, "%s", dlerror()); // it names file and symbol
            return no_library(library, said);
        }
        memcpy(symbol->function, &address, sizeof address);
    }
    return DT_OK;
}
