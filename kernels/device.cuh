// What a .cu file may use. nvcc compiles the source for GPUs, and the host's C++ compiler for the
// tests, where tests/simt/simt.h executes it. So kernels are launched by DT_LAUNCH, declare shared
// memory by DT_SHARED, and use no inline PTX, atomics, __activemask or implicit lockstep without
// __syncwarp. Return early only if the whole block returns, since others would wait at barriers.
#pragma once

#include "base/error.h"
#include "base/view.h"
#include "kernels/cuda.h"

#include <math.h>
#include <type_traits>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_pipeline.h>
#include <cuda_runtime.h>

// DT_LAUNCH((kernel<a, b>), grid, block, bytes of dynamic shared memory, stream, args…): the kernel
// is in parentheses. grid and block are dim3 or a number; no {…} among the arguments.
#define DT_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                  \
    (kernel)<<<(grid), (block), (size_t)(shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__)

// return DT_LAUNCHED("cast"): the status of the launches before it.
#define DT_LAUNCHED(op) dt_launched(cudaGetLastError(), (op), __FILE__, __LINE__, __func__)

static inline dt_status dt_launched(cudaError_t error, const char *op, const char *file, int line,
                                    const char *function)
{
    if (error == cudaSuccess)
        return DT_OK;
    return dt_error_raise(DT_MACHINE, file, line, function, NULL, "%s: kernel launch failed: %s",
                          op, cudaGetErrorString(error));
}

// Launchers call this. It allows later launches of `kernel` this many bytes of dynamic shared
// memory, and returns false if the device has less. Every GPU allows 48 KB, including all of a
// kernel's arrays, without this.
template <class... P> static inline bool dt_allow_shared(void (*kernel)(P...), int64_t bytes)
{
    const cudaFuncAttribute most = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (bytes <= INT32_MAX && cudaFuncSetAttribute(kernel, most, (int)bytes) == cudaSuccess)
        return true;
    (void)cudaGetLastError(); // an answer, not a failure of the launches
    return false;
}

// DT_SHARED(float, tile, [32][33]); aligned to 16 bytes, uninitialised.
#define DT_SHARED(T, name, ...) __shared__ __align__(16) T name __VA_ARGS__
// T *name: the launch's dynamic shared memory, aligned to 16 bytes; all uses name the same bytes.
#define DT_SHARED_DYN(T, name)                                                                     \
    extern __shared__ __align__(16) unsigned char dt_dynamic_shared[];                             \
    T *const name = reinterpret_cast<T *>(dt_dynamic_shared)

#else
#include "simt.h"
#endif

#define DT_DEVICE static __device__ __forceinline__

enum { DT_WARP = 32 };
static const unsigned DT_WHOLE_WARP = 0xffffffffu;

// ---- storage: fp32 or bf16, computed on as fp32

// Element [row, col] of a view of T.
template <class T> DT_DEVICE T *dt_at(dt_view view, int64_t row, int64_t col = 0)
{
    return (T *)view.data + row * view.stride + col;
}

// Runs a launcher's statement with T = float or dt_bf16.
#define DT_STORAGE_SWITCH(type, T, ...)                                                            \
    do {                                                                                           \
        if ((type) == DT_BF16) {                                                                   \
            using T = dt_bf16;                                                                     \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = float;                                                                       \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

// Launchers call this. It runs the statement with N = most if arrays may be accessed that many
// elements at a time (dt_aligned), else with N = 1.
#define DT_WIDE_SWITCH(wide, N, most, ...)                                                         \
    do {                                                                                           \
        if (wide) {                                                                                \
            constexpr int N = most;                                                                \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int N = 1;                                                                   \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

DT_DEVICE float dt_to_f32(float x)
{
    return x;
}

DT_DEVICE float dt_to_f32(dt_bf16 x)
{
    return __uint_as_float((unsigned)x << 16);
}

// Round to nearest, ties to even; every NaN becomes the hardware's own.
DT_DEVICE dt_bf16 dt_round_bf16(float x)
{
#ifdef __CUDACC__
    return __bfloat16_as_ushort(__float2bfloat16_rn(x));
#else
    return x == x ? dt_f32_to_bf16(x) : 0x7fff;
#endif
}

template <class T> DT_DEVICE T dt_from_f32(float x);

template <> __device__ __forceinline__ float dt_from_f32<float>(float x)
{
    return x;
}

template <> __device__ __forceinline__ dt_bf16 dt_from_f32<dt_bf16>(float x)
{
    return dt_round_bf16(x);
}

template <class T> DT_DEVICE float dt_get(dt_view view, int64_t row, int64_t col)
{
    return dt_to_f32(*dt_at<T>(view, row, col));
}

template <class T> DT_DEVICE void dt_put(dt_view view, int64_t row, int64_t col, float x)
{
    *dt_at<T>(view, row, col) = dt_from_f32<T>(x);
}

DT_DEVICE unsigned dt_bf16_pair(float low, float high)
{
#ifdef __CUDACC__
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high); // one instruction for both
    return (unsigned)__bfloat16_as_ushort(pair.x) | (unsigned)__bfloat16_as_ushort(pair.y) << 16;
#else
    return (unsigned)dt_round_bf16(low) | (unsigned)dt_round_bf16(high) << 16;
#endif
}

DT_DEVICE void dt_unpair(unsigned pair, float *out)
{
    out[0] = __uint_as_float(pair << 16);
    out[1] = __uint_as_float(pair & 0xffff0000u);
}

// dt_load<N>(p, out): N neighbours as fp32. N is 1, 2, 4 or 8, for fp32 any multiple of 4. Accesses
// have 16 bytes, or all bytes if fewer, and p must be aligned to that (dt_aligned).
template <int N> DT_DEVICE void dt_load(const float *p, float (&out)[N])
{
    if constexpr (N == 1)
        out[0] = p[0];
    if constexpr (N == 2) {
        float2 v = *reinterpret_cast<const float2 *>(p);
        out[0] = v.x, out[1] = v.y;
    }
#pragma unroll
    for (int i = 0; i + 4 <= N; i += 4) {
        float4 v = *reinterpret_cast<const float4 *>(p + i);
        out[i] = v.x, out[i + 1] = v.y, out[i + 2] = v.z, out[i + 3] = v.w;
    }
}

template <int N> DT_DEVICE void dt_load(const dt_bf16 *p, float (&out)[N])
{
    if constexpr (N == 8) {
        uint4 v = *reinterpret_cast<const uint4 *>(p);
        dt_unpair(v.x, out), dt_unpair(v.y, out + 2);
        dt_unpair(v.z, out + 4), dt_unpair(v.w, out + 6);
    } else if constexpr (N == 4) {
        uint2 v = *reinterpret_cast<const uint2 *>(p);
        dt_unpair(v.x, out), dt_unpair(v.y, out + 2);
    } else if constexpr (N == 2) {
        dt_unpair(*reinterpret_cast<const unsigned *>(p), out);
    } else {
        static_assert(N == 1, "1, 2, 4 or 8 elements at a time");
        out[0] = dt_to_f32(p[0]);
    }
}

// dt_store<N>(p, in) is the reverse of dt_load.
template <int N> DT_DEVICE void dt_store(float *p, const float (&in)[N])
{
    if constexpr (N == 1)
        p[0] = in[0];
    if constexpr (N == 2)
        *reinterpret_cast<float2 *>(p) = make_float2(in[0], in[1]);
#pragma unroll
    for (int i = 0; i + 4 <= N; i += 4)
        *reinterpret_cast<float4 *>(p + i) = make_float4(in[i], in[i + 1], in[i + 2], in[i + 3]);
}

template <int N> DT_DEVICE void dt_store(dt_bf16 *p, const float (&in)[N])
{
    if constexpr (N == 8) {
        *reinterpret_cast<uint4 *>(p) =
            make_uint4(dt_bf16_pair(in[0], in[1]), dt_bf16_pair(in[2], in[3]),
                       dt_bf16_pair(in[4], in[5]), dt_bf16_pair(in[6], in[7]));
    } else if constexpr (N == 4) {
        *reinterpret_cast<uint2 *>(p) =
            make_uint2(dt_bf16_pair(in[0], in[1]), dt_bf16_pair(in[2], in[3]));
    } else if constexpr (N == 2) {
        *reinterpret_cast<unsigned *>(p) = dt_bf16_pair(in[0], in[1]);
    } else {
        static_assert(N == 1, "1, 2, 4 or 8 elements at a time");
        p[0] = dt_round_bf16(in[0]);
    }
}

// N unconverted neighbours, 2 to 16 bytes, for values that are loaded long before use. dt_fetch
// loads them (aligned as for dt_load), dt_unpack converts them to fp32.
template <int BYTES>
using dt_word = std::conditional_t<
    BYTES == 16, uint4,
    std::conditional_t<BYTES == 8, uint2, std::conditional_t<BYTES == 4, unsigned, uint16_t>>>;
template <class T, int N> struct dt_packed {
    dt_word<N *(int)sizeof(T)> word;
};

template <int N, class T> DT_DEVICE dt_packed<T, N> dt_fetch(const T *p)
{
    return *reinterpret_cast<const dt_packed<T, N> *>(p);
}

template <class T, int N> DT_DEVICE void dt_unpack(const dt_packed<T, N> &packed, float (&out)[N])
{
    dt_load<N>(reinterpret_cast<const T *>(&packed), out);
}

// Tells a launcher whether rows at `p`, `stride` elements of `size` bytes apart, may be accessed N
// elements at a time. There is nothing to access at NULL.
template <int N>
static inline bool dt_aligned_rows(const void *p, int64_t stride, int64_t size = sizeof(float))
{
    const int64_t bytes = N * size < 16 ? N * size : 16;
    return !p || ((int64_t)((uintptr_t)p % (uintptr_t)bytes) == 0 && stride * size % bytes == 0);
}

template <int N> static inline bool dt_aligned_one(const dt_view &view)
{
    return dt_aligned_rows<N>(view.data, view.stride, dt_dtype_size(view.dtype));
}

template <int N, class T> static inline bool dt_aligned_one(const T *p)
{
    return dt_aligned_rows<N>(p, 0, sizeof(T));
}

// dt_aligned for several arrays: views, and pointers to the elements of one row.
template <int N, class... A> static inline bool dt_aligned(const A &...arrays)
{
    return (... && dt_aligned_one<N>(arrays));
}

// Carves a launcher's workspace into arrays aligned to DT_CARVED bytes. If `at` is NULL, it only
// measures.
enum { DT_CARVED = 256 };
struct dt_carver {
    char *at;
    int64_t used;
};

static inline dt_carver dt_carve_from(void *workspace)
{
    const uintptr_t skip = -(uintptr_t)workspace % DT_CARVED;
    return {workspace ? (char *)workspace + skip : nullptr, workspace ? 0 : DT_CARVED};
}

template <class P> static inline void dt_carve(dt_carver *carver, P *&array, int64_t bytes)
{
    array = carver->at ? (P *)(carver->at + carver->used) : nullptr;
    carver->used += (bytes + DT_CARVED - 1) / DT_CARVED * DT_CARVED;
}

// ---- functions of the special function unit, one instruction each, relative error below 3e-7

// 2^x; 0 where that is below 2^-126.
DT_DEVICE float dt_exp2(float x)
{
#ifdef __CUDACC__
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return x == 0.0f ? 1.0f : simt::approximate(exp2f(x), 0x1p-22f);
#endif
}

// 1 / x; 0 where that is below 2^-126.
DT_DEVICE float dt_reciprocal(float x)
{
#ifdef __CUDACC__
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return simt::approximate(1.0f / x, 0x1p-23f);
#endif
}

static const float DT_LOG2_E = 1.44269504f, DT_LN_2 = 0.69314718f;

// σ(x); its relative error grows with |x| / 2 · 2^-24, that of x log2(e) in fp32.
DT_DEVICE float dt_sigmoid(float x)
{
    return dt_reciprocal(1.0f + dt_exp2(-DT_LOG2_E * x));
}

// log(1 + e^x)
DT_DEVICE float dt_softplus(float x)
{
    return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x)));
}

// (1 - |tanh x|) / 2, precise where 1 - |tanh x| would cancel.
DT_DEVICE float dt_tanh_gap(float x)
{
    const float e = expf(-2.0f * fabsf(x));
    return e / (1.0f + e);
}

// ---- indices: 64 bits wherever an offset into an array is made

DT_DEVICE int64_t dt_thread_index(void) // in a grid of one dimension
{
    return (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
}

static inline __host__ __device__ int64_t dt_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline __host__ __device__ int64_t dt_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// Blocks for n elements, `each` per block, at least one; grid.x is at most 2^31 - 1.
static inline unsigned dt_blocks(int64_t n, int64_t each)
{
    return (unsigned)(n > 0 ? dt_div_up(n, each) : 1);
}

// ---- the device's clock, in ns

DT_DEVICE uint64_t dt_device_clock(void)
{
#ifdef __CUDACC__
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
#else
    return simt::clock();
#endif
}

// ---- sums and maxima in a fixed order, the same value in every thread. Called by whole warps
// (dt_warp_…) or whole blocks of THREADS, a multiple of 32 up to 1024 (dt_block_…). T is float,
// double or an integer.

template <class T> DT_DEVICE T dt_warp_sum(T x)
{
#pragma unroll
    for (int lane = DT_WARP / 2; lane > 0; lane /= 2)
        x += __shfl_xor_sync(DT_WHOLE_WARP, x, lane);
    return x;
}

DT_DEVICE float dt_warp_max(float x)
{
#pragma unroll
    for (int lane = DT_WARP / 2; lane > 0; lane /= 2)
        x = fmaxf(x, __shfl_xor_sync(DT_WHOLE_WARP, x, lane));
    return x;
}

// Combines the warps' values in the order of the warps.
template <int THREADS, class T, class Combine>
DT_DEVICE T dt_block_combine(T x, const Combine &combine)
{
    static_assert(THREADS % DT_WARP == 0 && THREADS <= 1024, "whole warps");
    DT_SHARED(T, warps, [THREADS / DT_WARP]);
    if (threadIdx.x % DT_WARP == 0)
        warps[threadIdx.x / DT_WARP] = x;
    __syncthreads();
    T all = warps[0];
#pragma unroll
    for (int i = 1; i < THREADS / DT_WARP; i++)
        all = combine(all, warps[i]);
    __syncthreads(); // `warps` may be written again
    return all;
}

template <int THREADS, class T> DT_DEVICE T dt_block_sum(T x)
{
    return dt_block_combine<THREADS>(dt_warp_sum(x), [](T a, T b) { return a + b; });
}

template <int THREADS> DT_DEVICE float dt_block_max(float x)
{
    return dt_block_combine<THREADS>(dt_warp_max(x), [](float a, float b) { return fmaxf(a, b); });
}

// ---- asynchronous copies into shared memory, so that loads of the next tile overlap the work on
// this one. BYTES: 4, 8 or 16, with both sides aligned to it. A thread commits its copies as a
// group and waits until all but its newest N groups have arrived; __syncthreads must follow before
// others read them.

template <int BYTES> DT_DEVICE void dt_copy_async(void *shared, const void *global)
{
    __pipeline_memcpy_async(shared, global, BYTES);
}

DT_DEVICE void dt_copy_commit(void)
{
    __pipeline_commit();
}

// The toolkit's wait is an asm volatile without "memory" clobber, so the compiler could move reads
// of copied data before the wait, or reuse values read before it. The added barrier is no
// instruction.
template <int N> DT_DEVICE void dt_copy_wait(void)
{
    __pipeline_wait_prior(N);
    asm volatile("" ::: "memory");
}

// ---- tensor cores: products of small matrices of bf16 with fp32 sums, by whole warps. Lane 4 g +
// t holds of A [16, 16] elements (g, 2t…), (g + 8, 2t…), (g, 2t + 8…), (g + 8, 2t + 8…), of B [16,
// 8] elements (2t…, g), (2t + 8…, g), and of C [16, 8] elements (g, 2t…), (g + 8, 2t…): two
// neighbours each, along k in A and B (PTX ISA, mma.m16n8k16).

// C += A · B, B = (b0, b1).
DT_DEVICE void dt_mma(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
#ifdef __CUDACC__
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    const int lane = (int)threadIdx.x % DT_WARP, g = lane / 4, t = lane % 4;
    const unsigned b[2] = {b0, b1};
    for (int s = 0; s < 4; s++) { // elements 2s, 2s + 1, 2s + 8, 2s + 9 along k
        unsigned row[4], col[2][2];
        for (int i = 0; i < 4; i++)
            row[i] = __shfl_sync(DT_WHOLE_WARP, a[i], 4 * g + s);
        for (int n = 0; n < 2; n++)
            for (int i = 0; i < 2; i++)
                col[n][i] = __shfl_sync(DT_WHOLE_WARP, b[i], 4 * (2 * t + n) + s);
        for (int i = 0; i < 4; i++) { // c[i] is in row g + 8 (i / 2), column 2t + i % 2
            float x[4], y[4];
            dt_unpair(row[i / 2], x), dt_unpair(row[i / 2 + 2], x + 2);
            dt_unpair(col[i % 2][0], y), dt_unpair(col[i % 2][1], y + 2);
            c[i] += x[0] * y[0] + x[1] * y[1] + x[2] * y[2] + x[3] * y[3];
        }
    }
#endif
}

// Loads four matrices of 8 x 8 from shared memory. Lane l names row l % 8 of matrix l / 8, which is
// aligned to 16 bytes; lane 4 g + t gets of each matrix elements (g, 2t…) or, `across`, (2t…, g).
template <bool across> DT_DEVICE void dt_mma_load(unsigned (&m)[4], const dt_bf16 *row)
{
#ifdef __CUDACC__
    const unsigned at = (unsigned)__cvta_generic_to_shared(row);
    if constexpr (across)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(at)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                     : "r"(at)
                     : "memory");
#else
    const int lane = (int)threadIdx.x % DT_WARP, g = lane / 4, t = lane % 4;
    simt::matrix_row(row);
    for (int i = 0; i < 4; i++) {
        const dt_bf16 *x = __shfl_sync(DT_WHOLE_WARP, row, 8 * i + (across ? 2 * t : g));
        const dt_bf16 *y = __shfl_sync(DT_WHOLE_WARP, row, 8 * i + (across ? 2 * t + 1 : g));
        m[i] = across ? (unsigned)x[g] | (unsigned)y[g] << 16
                      : (unsigned)x[2 * t] | (unsigned)y[2 * t + 1] << 16;
    }
#endif
}
