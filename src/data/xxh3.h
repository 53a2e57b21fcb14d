// xxhash.h, with XXH3 by the widest vectors of the CPU where the library has them (x86): its own
// default there is SSE2, which is no faster than xxh64.
#pragma once

#include <xxhash.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> // replaces XXH3_64bits and XXH3_64bits_update
#endif
