// A hash of small keys for tables in memory: FNV-1a [Fowler, Noll, Vo] over 32-bit words.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// Hashes `bytes` bytes, a multiple of 4. Padding in a key must be zero.
static inline uint32_t dt_hash_words(const void *key, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t at = 0; at < bytes; at += sizeof(uint32_t)) {
        uint32_t word;
        memcpy(&word, (const char *)key + at, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
    }
    return (uint32_t)(hash >> 32);
}
