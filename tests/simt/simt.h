// The host execution model: what kernels/device.cuh takes from CUDA, for a C++ compiler. Every CUDA
// thread is a fiber, blocks run one after another, all on one thread of the host. It shows that
// indexing, barriers and shuffles are correct, but nothing about speed. After a faulty launch (a
// barrier not reached by all, a shuffle without its lanes, a write past a shared array) DT_LAUNCHED
// fails.
#pragma once

#include "base/dtype.h"
#include "base/error.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __shared__   static_assert(false, "shared memory is declared by DT_SHARED");

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
extern dim3 threadIdx, blockIdx, blockDim, gridDim;

struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}

static inline float __uint_as_float(unsigned bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
static inline unsigned __float_as_uint(float x)
{
    unsigned bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

// On a GPU the fast form differs by a few ulp. This is a macro because the C library has a function
// of this name.
#define __expf(x) expf(x)
template <class T> static inline T min(T a, T b)
{
    return b < a ? b : a;
}
template <class T> static inline T max(T a, T b)
{
    return a < b ? b : a;
}

namespace simt
{
struct site {
    const char *file;
    int line;
    const char *what;
};

enum kind { SHUFFLE, BALLOT, WARP_SYNC };

// A kernel and its arguments, which are `bytes` bytes at `arguments`.
struct kernel_call {
    const char *name;
    dim3 grid, block;
    size_t shared_bytes; // dynamic
    size_t shared_limit; // of dynamic and other arrays together
    void (*run)(const void *arguments);
    const void *arguments;
    size_t bytes;
};
// Runs the kernel at once or, with a simulated runtime (model.h), puts it on the stream.
void start(const kernel_call &call, void *stream);
void *shared(const void *key, size_t bytes, site at);
// Allows later launches of `kernel` so many bytes of dynamic shared memory. Returns false if the
// device has less.
bool allow_shared(const void *kernel, int64_t bytes);
size_t shared_limit(const void *kernel);
void *shared_dynamic(void);
void barrier(site at);
// SHUFFLE returns the value of lane `source`, BALLOT a bit for each lane with a value other than 0.
uint64_t exchange(kind kind, unsigned mask, uint64_t value, int source, site at);
int lane(void);
dt_status launched(const char *op, const char *file, int line, const char *function);
uint64_t clock(void);

// A result that the special function unit may return for y: it has a relative error of up to
// `error`, which depends on y alone, and is 0 for subnormal numbers.
static inline float approximate(float y, float error)
{
    uint32_t bits;
    memcpy(&bits, &y, sizeof bits);
    const float part = (float)(int32_t)(bits * 2654435761u) * 0x1p-31f; // between -1 and 1
    return fabsf(y) < 0x1p-126f ? 0.0f : y * (1.0f + error * part);
}
void copy_async(void *shared, const void *global, size_t bytes);
void copy_commit(void);
void matrix_row(
    const void *shared); // a row for tensor cores, in shared memory, aligned to 16 bytes
void copy_wait(int newest);

template <class T> struct exactly {
    using type = T;
};

template <class... P>
void launch(const char *name, dim3 grid, dim3 block, size_t shared_bytes, void *stream,
            void (*kernel)(P...), typename exactly<P>::type... args)
{
    auto body = [=] { kernel(args...); };
    static_assert(std::is_trivially_copyable<decltype(body)>::value, "arguments are copied bytes");
    auto run = [](const void *context) { (*static_cast<const decltype(body) *>(context))(); };
    size_t limit = shared_limit((const void *)kernel);
    start({name, grid, block, shared_bytes, limit, run, &body, sizeof body}, stream);
}

template <class T> T shuffle(unsigned mask, T x, int source, site at)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one register or two");
    uint64_t bits = 0;
    memcpy(&bits, &x, sizeof x);
    bits = exchange(SHUFFLE, mask, bits, source, at);
    memcpy(&x, &bits, sizeof x);
    return x;
}
} // namespace simt

#define DT_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                  \
    simt::launch(#kernel, (grid), (block), (size_t)(shared_bytes), (void *)(stream), (kernel),     \
                 __VA_ARGS__)
#define DT_LAUNCHED(op) simt::launched((op), __FILE__, __LINE__, __func__)

template <class... P> static inline bool dt_allow_shared(void (*kernel)(P...), int64_t bytes)
{
    return simt::allow_shared((const void *)kernel, bytes);
}

template <class... P> static inline void scan_prefer_shared(void (*)(P...)) {}

template <class... P> static inline int scan_blocks_held(void (*)(P...), int, int64_t)
{
    return 0;
}

#define DT_SHARED(T, name, ...)                                                                    \
    static char name##_key;                                                                        \
    T(&name)                                                                                       \
    __VA_ARGS__ = *static_cast<T(*) __VA_ARGS__>(                                                  \
        simt::shared(&name##_key, sizeof(T __VA_ARGS__), {__FILE__, __LINE__, #name}))
#define DT_SHARED_DYN(T, name) T *const name = static_cast<T *>(simt::shared_dynamic())

// The defaults are the line of the caller, where a thread waits.
#define SIMT_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(SIMT_HERE)
{
    simt::barrier({file, line, "__syncthreads"});
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, SIMT_HERE)
{
    simt::exchange(simt::WARP_SYNC, mask, 0, 0, {file, line, "__syncwarp"});
}
template <class T>
static inline T __shfl_sync(unsigned mask, T x, int source, int width = 32, SIMT_HERE)
{
    int first = simt::lane() & ~(width - 1);
    return simt::shuffle(mask, x, first + (source & (width - 1)), {file, line, "__shfl_sync"});
}
template <class T>
static inline T __shfl_up_sync(unsigned mask, T x, unsigned delta, int width = 32, SIMT_HERE)
{
    int lane = simt::lane(), from = lane - (int)delta, first = lane & ~(width - 1);
    return simt::shuffle(mask, x, from < first ? lane : from, {file, line, "__shfl_up_sync"});
}
template <class T>
static inline T __shfl_down_sync(unsigned mask, T x, unsigned delta, int width = 32, SIMT_HERE)
{
    int lane = simt::lane(), from = lane + (int)delta, last = lane | (width - 1);
    return simt::shuffle(mask, x, from > last ? lane : from, {file, line, "__shfl_down_sync"});
}
template <class T>
static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = 32, SIMT_HERE)
{
    int lane = simt::lane(), from = lane ^ bits;
    return simt::shuffle(mask, x, from > (lane | (width - 1)) ? lane : from,
                         {file, line, "__shfl_xor_sync"});
}
static inline unsigned __ballot_sync(unsigned mask, int predicate, SIMT_HERE)
{
    return (unsigned)simt::exchange(simt::BALLOT, mask, predicate != 0, 0,
                                    {file, line, "__ballot_sync"});
}
static inline int __clz(int x)
{
    return x ? __builtin_clz((unsigned)x) : 32;
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline void __threadfence_system(void) {}

static inline void __pipeline_memcpy_async(void *shared, const void *global, size_t bytes)
{
    simt::copy_async(shared, global, bytes);
}
static inline void __pipeline_commit(void)
{
    simt::copy_commit();
}
static inline void __pipeline_wait_prior(int newest)
{
    simt::copy_wait(newest);
}
