// Residual addition and RMSNorm on CUDA.
//
// Forward: a warp owns a row; a lane handles eight neighbours at a time (one if the row is
// unaligned), adds x, squares, and after one warp sum scales its elements. Rows of common widths
// (768, 1024, 1536, 2048, 2560) stay in registers, with all loads in flight at once; other rows are
// read again, 4 bytes per element from the L2 cache. Bytes per element in bf16: residual 4, x 2,
// residual_out 4, y 2.
//
// Backward: a block walks its share of the rows. A thread owns the same columns in every row, so it
// accumulates its part of dweight alone and writes it once per block; a second launch adds the
// parts in order. In rows of up to 3072 elements a thread has one vector of eight, and keeps its
// elements, its weights and its part of dweight in registers. Wider rows are read twice, with the
// part in shared memory (in the workspace if a row is too wide). Bytes per element in bf16: dy 2,
// residual 4, dresidual 4 in and 4 out, dx 2; rows that are read twice take 10 more from caches,
// including weights and sums.
//
// The floor of each direction is its bytes over copy bandwidth.
#include "kernels/partials.cuh"

enum {
    WARPS = 4,           // rows per forward block
    THREADS = 128,       // threads of a backward block
    WIDE = 8,            // elements per thread at a time
    MAX_PARTS = 1024,    // backward blocks, each with a part of dweight
    SHARED_WIDTH = 8192, // columns whose sums fit into shared memory
    SUM_COLUMNS = 32,
    SUM_ROWS = 32,
};

// r = residual + x for N elements from i on; x may be NULL.
template <int N, class T>
DT_DEVICE void load_sum(const float *residual, const T *x, int64_t i, float (&r)[N])
{
    dt_load<N>(residual + i, r);
    if (!x)
        return;
    float add[N];
    dt_load<N>(x + i, add);
#pragma unroll
    for (int k = 0; k < N; k++)
        r[k] += add[k];
}

template <int N, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS)
    forward_kernel(dt_rmsnorm_residual_forward_args a)
{
    const int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y, width = a.y.cols;
    if (row >= a.y.rows)
        return; // the whole warp
    const float *residual = a.residual + row * width;
    const T *x = a.x.data ? dt_at<T>(a.x, row) : nullptr;
    float *out = a.residual_out ? a.residual_out + row * width : nullptr;
    float sum = 0.0f;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        float r[N];
        load_sum<N>(residual, x, i, r);
#pragma unroll
        for (int k = 0; k < N; k++)
            sum += r[k] * r[k];
        if (out)
            dt_store<N>(out + i, r);
    }
    const float rstd = 1.0f / sqrtf(dt_warp_sum(sum) / (float)width + a.eps);
    if (a.rstd && threadIdx.x == 0)
        a.rstd[row] = rstd;
    if (out) // may be residual, to which this thread has added x by now
        residual = out, x = nullptr;
    for (int64_t i = (int64_t)threadIdx.x * N; i < width; i += DT_WARP * N) {
        float r[N], w[N];
        load_sum<N>(residual, x, i, r);
        dt_load<N>(a.weight + i, w);
#pragma unroll
        for (int k = 0; k < N; k++)
            r[k] = r[k] * rstd * w[k];
        dt_store<N>(dt_at<T>(a.y, row, i), r);
    }
}

// The minimum of blocks per SM that leaves the compiler enough registers to load a whole row at
// once.
constexpr int kept_forward(int vectors)
{
    return vectors <= 4 ? 6 : 2;
}

// forward_kernel for a row of VECTORS * 256 elements, which lanes read once and keep. Sums are in
// the order of forward_kernel<WIDE>.
template <int VECTORS, class T>
__global__ static void __launch_bounds__(DT_WARP *WARPS, kept_forward(VECTORS))
    forward_kept_kernel(dt_rmsnorm_residual_forward_args a)
{
    int64_t row = (int64_t)blockIdx.x * WARPS + threadIdx.y;
    if (row >= a.y.rows)
        return; // the whole warp
    constexpr int STEP = DT_WARP * WIDE;
    int64_t first = threadIdx.x * WIDE, at = row * a.y.cols + first;
    float r[VECTORS][WIDE], x[VECTORS][WIDE], sum = 0.0f;
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
        dt_load<WIDE>(a.residual + at + v * STEP, r[v]);
    if (a.x.data) {
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            dt_load<WIDE>(dt_at<T>(a.x, row, first + v * STEP), x[v]);
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
#pragma unroll
            for (int k = 0; k < WIDE; k++)
                r[v][k] += x[v][k];
    }
    if (a.residual_out)
#pragma unroll
        for (int v = 0; v < VECTORS; v++)
            dt_store<WIDE>(a.residual_out + at + v * STEP, r[v]);
#pragma unroll
    for (int v = 0; v < VECTORS; v++)
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            sum += r[v][k] * r[v][k];
    float rstd = 1.0f / sqrtf(dt_warp_sum(sum) / (float)a.y.cols + a.eps);
    if (a.rstd && threadIdx.x == 0)
        a.rstd[row] = rstd;
#pragma unroll
    for (int v = 0; v < VECTORS; v++) {
        float w[WIDE];
        dt_load<WIDE>(a.weight + first + v * STEP, w);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            w[k] = r[v][k] * rstd * w[k];
        dt_store<WIDE>(dt_at<T>(a.y, row, first + v * STEP), w);
    }
}

template <int VECTORS, class T>
static bool forward_kept(const dt_rmsnorm_residual_forward_args *a, dt_stream *stream)
{
    if (a->y.cols != VECTORS * DT_WARP * WIDE)
        return false;
    DT_LAUNCH((forward_kept_kernel<VECTORS, T>), dt_blocks(a->y.rows, WARPS), dim3(DT_WARP, WARPS),
              0, stream, *a);
    return true;
}

template <class T>
static void forward_typed(const dt_rmsnorm_residual_forward_args *a, dt_stream *stream)
{
    unsigned blocks = dt_blocks(a->y.rows, WARPS);
    dim3 block(DT_WARP, WARPS);
    if (a->y.cols % WIDE != 0 ||
        !dt_aligned<WIDE>(a->residual, a->x, a->residual_out, a->weight, a->y))
        DT_LAUNCH((forward_kernel<1, T>), blocks, block, 0, stream, *a);
    else if (!forward_kept<3, T>(a, stream) && !forward_kept<4, T>(a, stream) &&
             !forward_kept<6, T>(a, stream) && !forward_kept<8, T>(a, stream) &&
             !forward_kept<10, T>(a, stream))
        DT_LAUNCH((forward_kernel<WIDE, T>), blocks, block, 0, stream, *a);
}

DT_OP_CUDA(rmsnorm_residual_forward)
{
    DT_STORAGE_SWITCH(args->y.dtype, T, forward_typed<T>(args, stream));
    return DT_LAUNCHED("rmsnorm_residual_forward");
}

// ---- backward

// A thread's columns of dweight, `sums`, are in shared memory or in the block's part itself.
template <int N, class T>
__global__ static void __launch_bounds__(THREADS)
    backward_kernel(dt_rmsnorm_residual_backward_args a, int64_t rows_each, bool in_shared)
{
    DT_SHARED_DYN(float, columns);
    const int64_t width = a.dy.cols, first = (int64_t)threadIdx.x * N;
    float *part = (float *)a.workspace + blockIdx.x * width, *sums = in_shared ? columns : part;
    const int64_t from = blockIdx.x * rows_each, end = dt_least(from + rows_each, a.dy.rows);
    const float zeros[N] = {};
    for (int64_t i = first; i < width; i += THREADS * N)
        dt_store<N>(sums + i, zeros);
    for (int64_t row = from; row < end; row++) {
        const T *dy = dt_at<T>(a.dy, row);
        const float *residual = a.residual + row * width, rstd = a.rstd[row];
        float *dresidual = a.dresidual + row * width, sum = 0.0f; // Σ g n
        for (int64_t i = first; i < width; i += THREADS * N) {
            float d[N], r[N], w[N], dw[N];
            dt_load<N>(dy + i, d);
            dt_load<N>(residual + i, r);
            dt_load<N>(a.weight + i, w);
            dt_load<N>(sums + i, dw);
#pragma unroll
            for (int k = 0; k < N; k++) {
                float dn = d[k] * (r[k] * rstd);
                dw[k] += dn;
                sum += dn * w[k];
            }
            dt_store<N>(sums + i, dw);
        }
        const float mean = dt_block_sum<THREADS>(sum) / (float)width;
        for (int64_t i = first; i < width; i += THREADS * N) {
            float d[N], r[N], w[N], dr[N] = {};
            dt_load<N>(dy + i, d);
            dt_load<N>(residual + i, r);
            dt_load<N>(a.weight + i, w);
            if (!a.first)
                dt_load<N>(dresidual + i, dr);
#pragma unroll
            for (int k = 0; k < N; k++)
                dr[k] += rstd * (d[k] * w[k] - r[k] * rstd * mean);
            dt_store<N>(dresidual + i, dr);
            if (a.dx.data)
                dt_store<N>(dt_at<T>(a.dx, row, i), dr);
        }
    }
    for (int64_t i = first; i < width && in_shared; i += THREADS * N) {
        float v[N]; // a thread's own columns: no barrier
        dt_load<N>(columns + i, v);
        dt_store<N>(part + i, v);
    }
}

// The minimum of blocks per SM: 1024 threads, so that a batch's parts are one wave. From sm_100 on
// the compiler would spill.
constexpr int kept_backward(int threads)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    return 768 / threads;
#else
    return 1024 / threads;
#endif
}

// The backward kernel for rows with one vector per thread, which keeps its elements for their
// second use, and its weights and its part of dweight over all rows, in registers.
template <int N_THREADS, class T>
__global__ static void __launch_bounds__(N_THREADS, kept_backward(N_THREADS))
    backward_kept_kernel(dt_rmsnorm_residual_backward_args a, int64_t rows_each)
{
    int64_t from = blockIdx.x * rows_each, end = dt_least(from + rows_each, a.dy.rows);
    int64_t column = (int64_t)threadIdx.x * WIDE;
    bool in_row = column < a.dy.cols;
    float w[WIDE] = {}, dw[WIDE] = {};
    if (in_row)
        dt_load<WIDE>(a.weight + column, w);
    for (int64_t i = from; i < end; i++) {
        const float *residual = a.residual + i * a.dy.cols + column;
        const T *dy = (const T *)a.dy.data + i * a.dy.stride + column;
        float *dresidual = a.dresidual + i * a.dy.cols + column;
        float d[WIDE] = {}, r[WIDE] = {}, dr[WIDE] = {}, rstd = a.rstd[i], sum = 0.0f;
        if (in_row) {
            dt_load<WIDE>(dy, d);
            dt_load<WIDE>(residual, r);
            if (!a.first)
                dt_load<WIDE>(dresidual, dr);
        }
#pragma unroll
        for (int k = 0; k < WIDE; k++) {
            float dn = d[k] * (r[k] * rstd);
            dw[k] += dn;
            sum += dn * w[k];
        }
        float mean = dt_block_sum<N_THREADS>(sum) / (float)a.dy.cols;
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            dr[k] += rstd * (d[k] * w[k] - r[k] * rstd * mean);
        if (in_row) {
            dt_store<WIDE>(dresidual, dr);
            if (a.dx.data)
                dt_store<WIDE>(dt_at<T>(a.dx, i, column), dr);
        }
    }
    if (in_row)
        dt_store<WIDE>((float *)a.workspace + blockIdx.x * a.dy.cols + column, dw);
}

// dweight (+)= Σ parts: 32 columns per block, 32 threads per column.
__global__ static void __launch_bounds__(SUM_COLUMNS *SUM_ROWS)
    dweight_kernel(int64_t width, int64_t parts, const float *part, bool accumulate, float *dweight)
{
    DT_SHARED(float, sums, [SUM_ROWS][SUM_COLUMNS]);
    int64_t column = (int64_t)blockIdx.x * SUM_COLUMNS + threadIdx.x;
    float sum = 0.0f;
    if (column < width)
        for (int64_t p = threadIdx.y; p < parts; p += SUM_ROWS)
            sum += part[p * width + column];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= width)
        return;
    for (int y = 1; y < SUM_ROWS; y++)
        sum += sums[y][threadIdx.x];
    dweight[column] = accumulate ? dweight[column] + sum : sum;
}

template <int N_THREADS, class T>
static bool backward_kept(const dt_rmsnorm_residual_backward_args *a, dt_stream *stream)
{
    if (a->dy.cols > N_THREADS * WIDE)
        return false;
    DT_LAUNCH((backward_kept_kernel<N_THREADS, T>), (unsigned)parts_of(a->dy.rows, MAX_PARTS),
              N_THREADS, 0, stream, *a, rows_of_part(a->dy.rows, MAX_PARTS));
    return true;
}

template <class T>
static void backward_typed(const dt_rmsnorm_residual_backward_args *a, dt_stream *stream)
{
    int64_t each = rows_of_part(a->dy.rows, MAX_PARTS);
    unsigned parts = (unsigned)parts_of(a->dy.rows, MAX_PARTS);
    bool in_shared = a->dy.cols <= SHARED_WIDTH;
    int64_t shared = in_shared ? a->dy.cols * (int64_t)sizeof(float) : 0;
    if (a->dy.cols % WIDE != 0 || !dt_aligned<WIDE>(a->residual, a->dy, a->dresidual, a->dx,
                                                    a->weight, (const float *)a->workspace))
        DT_LAUNCH((backward_kernel<1, T>), parts, THREADS, shared, stream, *a, each, in_shared);
    else if (!backward_kept<96, T>(a, stream) && !backward_kept<128, T>(a, stream) &&
             !backward_kept<256, T>(a, stream) && !backward_kept<384, T>(a, stream))
        DT_LAUNCH((backward_kernel<WIDE, T>), parts, THREADS, shared, stream, *a, each, in_shared);
}

DT_OP_CUDA(rmsnorm_residual_backward)
{
    DT_STORAGE_SWITCH(args->dy.dtype, T, backward_typed<T>(args, stream));
    DT_LAUNCH((dweight_kernel), dt_blocks(args->dy.cols, SUM_COLUMNS), dim3(SUM_COLUMNS, SUM_ROWS),
              0, stream, args->dy.cols, parts_of(args->dy.rows, MAX_PARTS),
              (const float *)args->workspace, args->accumulate, args->dweight);
    return DT_LAUNCHED("rmsnorm_residual_backward");
}

DT_OP_CUDA_WORKSPACE(rmsnorm_residual_backward)
{
    return parts_of(args->dy.rows, MAX_PARTS) * args->dy.cols * (int64_t)sizeof(float);
}
