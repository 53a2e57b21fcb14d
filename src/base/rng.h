// Philox4x32-10 [Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11]: a keyed,
// counter-based generator. A value depends on its key and counter only, so initialisation and data
// order are the same on any number of ranks and threads.
#pragma once

#include <stdint.h>

struct dt_philox {
    uint32_t key[2];
    uint32_t counter[4]; // next block
    uint32_t out[4];     // the block being handed out
    int left;            // words of it not yet handed out
};

// out = philox4x32-10(key, counter).
void dt_philox_block(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4]);

// A stream keyed by (seed, stream, substream): the key is the seed's two halves (low first), the
// counter starts at {0, low half of substream, high half of substream, stream} and its first word
// counts blocks, carrying into no other: a stream is 2^34 words long.
struct dt_philox dt_philox_init(uint64_t seed, uint32_t stream, uint64_t substream);
uint32_t dt_philox_u32(struct dt_philox *rng);
// Uniform in [0, n), n >= 1, without bias: x mod n of the first 64-bit word x (its low half drawn
// first) below the largest multiple of n up to 2^64. The data order depends on this.
uint64_t dt_philox_below(struct dt_philox *rng, uint64_t n);
// Permutes list[0, n) by Fisher-Yates: for i = n-1 … 1, swaps i and j = below(i + 1). The data
// order depends on this.
void dt_philox_shuffle(struct dt_philox *rng, uint32_t *list, int64_t n);
// Uniform in [0, 1) with 24 bits.
float dt_philox_uniform(struct dt_philox *rng);
// Standard normal by Box-Muller on two uniforms u, v: sqrt(-2 ln(1 - u)) cos(2 pi v); the second
// value is dropped. |x| is at most sqrt(48 ln 2) = 5.77.
float dt_philox_normal(struct dt_philox *rng);
