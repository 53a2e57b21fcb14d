// Elementary functions in fp32 for loops that the compiler vectorises: no branches, no calls, no
// tables. a * b + c becomes one FMA where the CPU has it: files that include this are compiled with
// -ffp-contract=fast. NaN stays NaN (do not compile with -ffinite-math-only). The polynomials are
// minimax fits in relative error, made for this file.
#pragma once

#include <stdint.h>
#include <string.h>

#define DT_INLINE static inline __attribute__((always_inline))

// One build runs well on every x86-64: DT_CLONES compiles a function three times and the loader
// picks by CPU. Sanitizer builds get the plain form, because the loader picks before their runtime
// is up.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__x86_64__) ||       \
    defined(__clang__)
#define DT_CLONES
#else
#define DT_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif

DT_INLINE float dt_float_of_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

DT_INLINE uint32_t dt_bits_of_float(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// e^x within 1.2 ulp on [-86.9, 88.72]; below that 0 (subnormals are flushed), above it infinity.
// x = n ln 2 + r, |r| <= ln 2 / 2; e^r by a polynomial of degree 6 (3e-9), 2^n by exponent bits, in
// two factors so that n = 128 is still finite.
DT_INLINE float dt_expf(float x)
{
    const float shift = 0x1.8p23f; // adding it rounds to an integer in the low bits
    x = x < -87.3f ? -87.3f : x;
    x = x > 89.2f ? 89.2f : x;
    float t = x * 0x1.715476p0f + shift;
    float n = t - shift;
    float r = x - n * 0x1.63p-1f; // ln 2 in two parts; n times the first is exact
    r = r + n * 0x1.bd0106p-13f;
    float p = 0x1.6a2438p-10f;
    p = p * r + 0x1.1239e2p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    float half_scale =
        dt_float_of_bits((dt_bits_of_float(t) + 126u) << 23); // 2^(n-1), 0 for n = -126
    return (p + p) * half_scale;
}

DT_INLINE float dt_sigmoidf(float x)
{
    return 1.0f / (1.0f + dt_expf(-x));
}

// tanh x: x times a series in x² where 1 - 2 / (e^2x + 1) would cancel.
DT_INLINE float dt_tanhf(float x)
{
    float w = x * x;
    float p = -0x1.226e36p-7f; // 1/3, 2/15, 17/315, 62/2835, 1382/155925
    p = p * w + 0x1.664f48p-6f;
    p = p * w - 0x1.ba1ba2p-5f;
    p = p * w + 0x1.111112p-3f;
    p = p * w - 0x1.555556p-2f;
    p = x + x * w * p;
    float far = 1.0f - 2.0f / (dt_expf(2.0f * x) + 1.0f);
    return w < 0.0625f ? p : far;
}

// (1 - |tanh x|) / 2, precise where 1 - |tanh x| would cancel.
DT_INLINE float dt_tanh_gapf(float x)
{
    float e = dt_expf(x < 0.0f ? x + x : -(x + x));
    return e / (1.0f + e);
}

DT_INLINE float dt_siluf(float x)
{
    return x * dt_sigmoidf(x);
}

// log(1 + u) for u in [0, 1], small relative error down to u = 0: 2 atanh(s) with s = u / (2 + u).
DT_INLINE float dt_log1pf_unit(float u)
{
    float s = u / (2.0f + u), w = s * s;
    float p = 0x1.1efa3ap-3f;
    p = p * w + 0x1.1eb5bcp-3f;
    p = p * w + 0x1.99d280p-3f;
    p = p * w + 0x1.555500p-2f;
    return (s + s) * (1.0f + w * p);
}

// log(1 + e^x); x itself from about 16 on (there the rest is below half an ulp), e^x for very
// negative x.
DT_INLINE float dt_softplusf(float x)
{
    float positive = x < 0.0f ? 0.0f : x; // NaN stays
    return positive + dt_log1pf_unit(dt_expf(x < 0.0f ? x : -x));
}
