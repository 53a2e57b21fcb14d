// Computes Philox4x32-10 and draws numbers from it. Constants and rounds are from Salmon et al.,
// SC11, table 2; tests/unit/test_rng.c has the authors' known-answer vectors.
#include "base/rng.h"

#include <math.h>

enum { ROUNDS = 10 };

static void philox_round(const uint32_t key[2], uint32_t x[4])
{
    uint64_t a = (uint64_t)0xD2511F53u * x[0], b = (uint64_t)0xCD9E8D57u * x[2];
    uint32_t y0 = (uint32_t)(b >> 32) ^ x[1] ^ key[0], y2 = (uint32_t)(a >> 32) ^ x[3] ^ key[1];
    x[0] = y0;
    x[1] = (uint32_t)b;
    x[2] = y2;
    x[3] = (uint32_t)a;
}

void dt_philox_block(const uint32_t key[2], const uint32_t counter[4], uint32_t out[4])
{
    uint32_t k[2] = {key[0], key[1]};
    for (int i = 0; i < 4; i++)
        out[i] = counter[i];
    for (int round = 0; round < ROUNDS; round++) {
        philox_round(k, out);
        k[0] += 0x9E3779B9u; // golden ratio
        k[1] += 0xBB67AE85u; // sqrt(3) - 1
    }
}

struct dt_philox dt_philox_init(uint64_t seed, uint32_t stream, uint64_t substream)
{
    return (struct dt_philox){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .counter = {0, (uint32_t)substream, (uint32_t)(substream >> 32), stream},
    };
}

uint32_t dt_philox_u32(struct dt_philox *rng)
{
    if (rng->left == 0) {
        dt_philox_block(rng->key, rng->counter, rng->out);
        rng->counter[0]++;
        rng->left = 4;
    }
    return rng->out[4 - rng->left--];
}

uint64_t dt_philox_below(struct dt_philox *rng, uint64_t n)
{
    uint64_t last = UINT64_MAX - (0 - n) % n; // the top 2^64 mod n words are rejected
    uint64_t word;
    do {
        uint64_t low = dt_philox_u32(rng);
        word = (uint64_t)dt_philox_u32(rng) << 32 | low;
    } while (word > last);
    return word % n;
}

void dt_philox_shuffle(struct dt_philox *rng, uint32_t *list, int64_t n)
{
    for (int64_t i = n - 1; i >= 1; i--) {
        int64_t j = (int64_t)dt_philox_below(rng, (uint64_t)i + 1);
        uint32_t kept = list[i];
        list[i] = list[j];
        list[j] = kept;
    }
}

float dt_philox_uniform(struct dt_philox *rng)
{
    return (float)(dt_philox_u32(rng) >> 8) * 0x1p-24f;
}

// Computes in double, so that the fp32 result hardly ever depends on the libm's last bits.
float dt_philox_normal(struct dt_philox *rng)
{
    const double two_pi = 6.283185307179586476925287;
    double radius = sqrt(-2.0 * log(1.0 - (double)dt_philox_uniform(rng))); // log of (0, 1]
    double angle = two_pi * (double)dt_philox_uniform(rng);
    return (float)(radius * cos(angle));
}
