// Shared by tests on the simulated device: the backend "cuda", arrays of tests/op_fixture.h that
// are copied to the device and back with their guard bands, and variables of the library that
// replaces cuBLASLt.
#pragma once

#include "op_fixture.h"

#include <dlfcn.h>

static inline struct dt_backend open_cuda(void)
{
    return open_backend("cuda", 1);
}

// Copies a guarded array and its bands to the device. free_on frees the copy.
static inline void *copy_on(const struct dt_backend *backend, const void *data)
{
    int64_t bytes = guarded_size(data) + 2 * GUARD;
    void *base = NULL;
    CHECK_OK(dt_alloc(backend, bytes, &base));
    CHECK_OK(dt_to_device(backend, base, (const char *)data - GUARD, bytes, NULL));
    return (char *)base + GUARD;
}

static inline void copy_back(const struct dt_backend *backend, void *data, const void *twin)
{
    int64_t bytes = guarded_size(data) + 2 * GUARD;
    CHECK_OK(dt_to_host(backend, (char *)data - GUARD, (const char *)twin - GUARD, bytes, NULL));
    CHECK_OK(dt_stream_sync(backend, NULL));
}

static inline void free_on(const struct dt_backend *backend, void *twin)
{
    dt_free(backend, (char *)twin - GUARD);
}

// Returns a variable of the replacing library, which the device must have opened.
static inline void *cublaslt_variable(const char *name)
{
    void *library = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_NOLOAD);
    void *variable = library ? dlsym(library, name) : NULL;
    CHECK(variable, "the library has no %s: is it the one that stands in?", name);
    if (!variable)
        exit(test_end());
    return variable;
}
