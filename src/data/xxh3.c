// Calls the library, except for long inputs on CPUs with AVX-512, where a checked read of tokens
// must keep up with the page cache. The library needs seven dependent operations per stripe. Here
// the secret stays in registers, there are several chains, and neighbouring lanes are swapped once
// per block, which gives the same sums.
#include "data/xxh3.h"

#include <xxhash.h>
#if __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h> // replaces XXH3_64bits; its own default on x86 is SSE2
#endif

#ifdef __x86_64__
#include <immintrin.h>
#include <string.h>

enum { STRIPE = 64, STRIPES = 16, BLOCK = STRIPE * STRIPES, SECRET = 192, LANES = 8 };

#define PRIME32_1 0x9E3779B1u
#define PRIME32_2 0x85EBCA77u
#define PRIME32_3 0xC2B2AE3Du
#define PRIME64_1 0x9E3779B185EBCA87u
#define PRIME64_2 0xC2B2AE3D27D4EB4Fu
#define PRIME64_3 0x165667B19E3779F9u
#define PRIME64_4 0x85EBCA77C2B2AE63u
#define PRIME64_5 0x27D4EB2F165667C5u
#define PRIME_MIX 0x165667919E3779F9u

// The specification's default secret.
static const uint8_t secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

#define AVX512 __attribute__((target("avx512f")))

// The products of a stripe: low times high half of each lane xor the secret.
AVX512 static inline __m512i products(__m512i data, __m512i key)
{
    __m512i mixed = _mm512_xor_si512(data, key);
    return _mm512_mul_epu32(mixed, _mm512_srli_epi64(mixed, 32));
}

AVX512 static inline __m512i swap_lanes(__m512i data)
{
    return _mm512_shuffle_epi32(data, _MM_PERM_BADC);
}

AVX512 static inline __m512i add_stripe(__m512i sums, const char *data, const uint8_t *key)
{
    __m512i stripe = _mm512_loadu_si512(data);
    __m512i product = products(stripe, _mm512_loadu_si512(key));
    return _mm512_add_epi64(sums, _mm512_add_epi64(product, swap_lanes(stripe)));
}

AVX512 static inline __m512i scramble(__m512i sums)
{
    const __m512i prime = _mm512_set1_epi64(PRIME32_1);
    __m512i mixed = _mm512_xor_si512(sums, _mm512_srli_epi64(sums, 47));
    mixed = _mm512_xor_si512(mixed, _mm512_loadu_si512(secret + SECRET - STRIPE));
    __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
    return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(high, 32));
}

AVX512 static inline __m512i add_block(__m512i sums, const char *data, const __m512i *keys)
{
    __m512i even = _mm512_setzero_si512(), odd = even, plain = even;
#pragma GCC unroll 16
    for (int i = 0; i < STRIPES; i += 2) {
        __m512i first = _mm512_loadu_si512(data + STRIPE * i);
        __m512i second = _mm512_loadu_si512(data + STRIPE * (i + 1));
        even = _mm512_add_epi64(even, products(first, keys[i]));
        odd = _mm512_add_epi64(odd, products(second, keys[i + 1]));
        plain = _mm512_add_epi64(_mm512_add_epi64(plain, first), second);
    }
    sums = _mm512_add_epi64(sums, _mm512_add_epi64(even, odd));
    return scramble(_mm512_add_epi64(sums, swap_lanes(plain)));
}

static uint64_t key_at(int64_t at)
{
    uint64_t key;
    memcpy(&key, secret + at, sizeof key);
    return key;
}

static uint64_t merge(const uint64_t *sums, size_t bytes)
{
    uint64_t hash = bytes * PRIME64_1;
    for (int i = 0; i < LANES; i += 2) {
        unsigned __int128 product = (unsigned __int128)(sums[i] ^ key_at(11 + 8 * i)) *
                                    (sums[i + 1] ^ key_at(11 + 8 * (i + 1)));
        hash += (uint64_t)product ^ (uint64_t)(product >> 64);
    }
    hash = (hash ^ hash >> 37) * PRIME_MIX;
    return hash ^ hash >> 32;
}

// For more than one block. The last stripe ends with the data and may overlap the previous one.
AVX512 static uint64_t hash_long(const char *data, size_t bytes)
{
    static const uint64_t start[LANES] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                          PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};
    const char *last = data + bytes - STRIPE;
    uint64_t merged[LANES];
    __m512i sums = _mm512_loadu_si512(start), keys[STRIPES];
    for (int i = 0; i < STRIPES; i++)
        keys[i] = _mm512_loadu_si512(secret + 8 * i);
    size_t blocks = (bytes - 1) / BLOCK, stripes = (bytes - 1) % BLOCK / STRIPE;
    for (size_t i = 0; i < blocks; i++, data += BLOCK)
        sums = add_block(sums, data, keys);
    for (size_t i = 0; i < stripes; i++)
        sums = add_stripe(sums, data + STRIPE * i, secret + 8 * i);
    sums = add_stripe(sums, last, secret + SECRET - STRIPE - 7);
    _mm512_storeu_si512(merged, sums);
    return merge(merged, bytes);
}
#endif

uint64_t dt_xxh3(const void *data, size_t bytes)
{
#ifdef __x86_64__
    if (bytes > BLOCK && __builtin_cpu_supports("avx512f"))
        return hash_long(data, bytes);
#endif
    return XXH3_64bits(data, bytes);
}
