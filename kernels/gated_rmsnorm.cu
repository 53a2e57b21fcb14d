// RMSNorm of a gated input on CUDA.
//
// Forward: a warp owns a row of a group, and a lane handles eight neighbours at a time (one if rows
// are unaligned). It reads x and z a second time, from the L1 cache, to scale them; keeping them
// would take a register per element to save an exponential. Bytes per element in bf16: x 2, z 2, y
// 2.
//
// Backward: as in rmsnorm_residual, a block walks its share of the rows of a group. A thread owns
// the same columns in every row, so it accumulates its part of dweight alone, in shared memory (in
// the workspace if a group is too wide), and writes it once per block; a second launch adds the
// parts in order. Bytes per element in bf16: x, z and dy 6, read a second time from caches, dx and
// dz 4.
//
// The floor of each direction is its bytes over copy bandwidth.
#include "kernels/partials.cuh"

enum {
    WARPS = 4,           // rows of a forward block
    THREADS = 128,       // threads of a backward block
    WIDE = 8,            // elements per thread at a time
    MAX_PARTS = 1024,    // backward blocks per group, each with a part of dweight
    SHARED_WIDTH = 8192, // columns whose sums fit into shared memory
};

// g = x silu(z)
template <int N, class T> DT_DEVICE void load_gated(const T *x, const T *z, float (&g)[N])
{
    float gate[N];
    dt_load<N>(x, g);
    dt_load<N>(z, gate);
#pragma unroll
    for (int k = 0; k < N; k++)
        g[k] *= gate[k] * dt_sigmoid(gate[k]);
}

template <int N, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS)
    forward_kernel(dt_gated_rmsnorm_forward_args a)
{
    const int64_t pair = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (pair >= a.x.rows * a.groups)
        return; // the whole warp
    const int64_t row = pair / a.groups, group = pair % a.groups, width = a.x.cols / a.groups;
    const T *x = dt_at<T>(a.x, row, group * width), *z = dt_at<T>(a.z, row, group * width);
    T *y = dt_at<T>(a.y, row, group * width); // may be x: a lane reads before it writes
    const float *weight = a.weight + group * width;
    float sum = 0.0f;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        float g[N];
        load_gated<N>(x + i, z + i, g);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += g[k] * g[k];
    }
    const float rstd = 1.0f / sqrtf(dt_warp_sum(sum) / (float)width + a.eps);
    if (a.rstd && threadIdx.x == 0)
        a.rstd[pair] = rstd;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        float g[N], w[N];
        load_gated<N>(x + i, z + i, g);
        dt_load<N>(weight + i, w);
#pragma unroll
        for (int k = 0; k < N; k++)
            g[k] = g[k] * rstd * w[k];
        dt_store<N>(y + i, g);
    }
}

DT_OP_CUDA(gated_rmsnorm_forward)
{
    const bool wide = args->x.cols / args->groups % WIDE == 0 &&
                      dt_aligned<WIDE>(args->x, args->z, args->y, args->weight);
    DT_STORAGE_SWITCH(args->x.dtype, T,
                      DT_WIDE_SWITCH(wide, N, WIDE,
                                     DT_LAUNCH((forward_kernel<N, T>),
                                               dt_blocks(args->x.rows * args->groups, WARPS),
                                               dim3(DT_WARP, WARPS), 0, stream, *args)));
    return DT_LAUNCHED("gated_rmsnorm_forward");
}

// ---- backward

// A thread's columns of dweight, `sums`, are in shared memory or in the block's part itself.
template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    backward_kernel(dt_gated_rmsnorm_backward_args a, int64_t rows_each, bool in_shared)
{
    DT_SHARED_DYN(float, columns);
    const int64_t width = a.x.cols / a.groups, share = blockIdx.x / a.groups;
    const int64_t group = blockIdx.x % a.groups, first = group * width;
    float *part = (float *)a.workspace + share * a.x.cols + first;
    float *sums = in_shared ? columns : part;
    const float *weight = a.weight + first;
    const int64_t from = share * rows_each, end = dt_least(from + rows_each, a.x.rows);
    const int64_t mine = (int64_t)threadIdx.x * N;
    const float zeros[N] = {};
    for (int64_t i = mine; i < width; i += THREADS * N)
        dt_store<N>(sums + i, zeros);
    for (int64_t row = from; row < end; row++) {
        const T *x = dt_at<T>(a.x, row, first), *z = dt_at<T>(a.z, row, first);
        const T *dy = dt_at<T>(a.dy, row, first);
        const float rstd = a.rstd[row * a.groups + group];
        float sum = 0.0f; // Σ q n
        for (int64_t i = mine; i < width; i += THREADS * N) {
            float g[N], d[N], w[N], dw[N];
            load_gated<N>(x + i, z + i, g);
            dt_load<N>(dy + i, d);
            dt_load<N>(weight + i, w);
            dt_load<N>(sums + i, dw);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float dn = d[k] * (g[k] * rstd);
                dw[k] += dn;
                sum += dn * w[k];
            }
            dt_store<N>(sums + i, dw);
        }
        const float mean = dt_block_sum<THREADS>(sum) / (float)width;
        for (int64_t i = mine; i < width; i += THREADS * N) { // dx may be dy: read before written
            float v[N], gate[N], d[N], w[N];
            dt_load<N>(x + i, v);
            dt_load<N>(z + i, gate);
            dt_load<N>(dy + i, d);
            dt_load<N>(weight + i, w);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float sigmoid = dt_sigmoid(gate[k]), silu = gate[k] * sigmoid;
                const float dg = rstd * (d[k] * w[k] - v[k] * silu * rstd * mean);
                d[k] = dg * silu;
                gate[k] = dg * v[k] * sigmoid * (1.0f + gate[k] * (1.0f - sigmoid));
            }
            dt_store<N>(dt_at<T>(a.dx, row, first + i), d);
            dt_store<N>(dt_at<T>(a.dz, row, first + i), gate);
        }
    }
    for (int64_t i = mine; i < width && in_shared; i += THREADS * N) {
        float v[N]; // a thread's own columns: no barrier
        dt_load<N>(columns + i, v);
        dt_store<N>(part + i, v);
    }
}

DT_OP_CUDA(gated_rmsnorm_backward)
{
    const int64_t width = args->x.cols / args->groups, each = rows_of_part(args->x.rows, MAX_PARTS);
    const unsigned blocks = (unsigned)(parts_of(args->x.rows, MAX_PARTS) * args->groups);
    const bool in_shared = width <= SHARED_WIDTH;
    const int64_t shared = in_shared ? width * (int64_t)sizeof(float) : 0;
    const bool wide =
        width % WIDE == 0 && dt_aligned<WIDE>(args->x, args->z, args->dy, args->dx, args->dz,
                                              args->weight, (const float *)args->workspace);
    DT_STORAGE_SWITCH(args->x.dtype, T,
                      DT_WIDE_SWITCH(wide, N, WIDE,
                                     DT_LAUNCH((backward_kernel<N, T>), blocks, THREADS, shared,
                                               stream, *args, each, in_shared)));
    partials_launch({(const float *)args->workspace, parts_of(args->x.rows, MAX_PARTS),
                     args->x.cols, 0, NULL, args->dweight, NULL, args->accumulate},
                    stream);
    return DT_LAUNCHED("gated_rmsnorm_backward");
}

DT_OP_CUDA_WORKSPACE(gated_rmsnorm_backward)
{
    return parts_of(args->x.rows, MAX_PARTS) * args->x.cols * (int64_t)sizeof(float);
}
