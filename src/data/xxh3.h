// Computes XXH3 of 64 bits, seed 0 [xxHash specification 0.2, "XXH3 algorithm"], the checksum of
// shards.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Computes XXH3_64bits(), faster.
uint64_t dt_xxh3(const void *data, size_t bytes);
