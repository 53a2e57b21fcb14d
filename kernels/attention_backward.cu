// Attention backward on CUDA: see attention.cuh. Two passes, so that every gradient has one owner
// and nothing is added atomically: a block of the first owns TILE queries of a head and walks the
// keys that they see (dq); a block of the second owns TILE keys of a group and walks the queries
// of its heads that see them (dk, dv). Both make the scores again from lse. Shared memory holds
// queries, keys, values, dy and one array of pairs. Floor: 6 E and 8 E operations for every pair of
// a query and a key that it sees.
#include "kernels/attention.cuh"

// delta = dy · y: a warp a head of a token.
template <class T>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    delta_kernel(dt_attention_backward_args a, float *delta)
{
    const int64_t index = dt_thread_index() / DT_WARP, tokens = a.y.rows;
    const int64_t row = index / a.in.n_head, col = index % a.in.n_head * a.in.width;
    if (row >= tokens)
        return; // the whole warp
    const T *y = (const T *)a.y.data + row * a.y.stride + col;
    const T *dy = (const T *)a.dy.data + row * a.dy.stride + col;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x % DT_WARP; i < a.in.width; i += DT_WARP)
        sum += dt_to_f32(dy[i]) * dt_to_f32(y[i]);
    sum = dt_warp_sum(sum);
    if (threadIdx.x % DT_WARP == 0)
        delta[index] = sum;
}

// A tile of queries: where its rows' numbers are.
struct queries {
    int64_t b, h, t0, n;
};

// Scores to probabilities and dp to ds, zero for pairs that are not seen. j: the first key.
template <int R>
DT_DEVICE void slope(const dt_attention_backward_args &a, const attention_shared &shared,
                     const queries &tile, int64_t j, int64_t end, float (&p)[R][R],
                     float (&ds)[R][R])
{
    const int ty = (int)threadIdx.x / ATTENTION_SIDE, tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int64_t i = ty * R + r, t = tile.t0 + i,
                      row = tile.b * a.in.length + (i < tile.n ? t : tile.t0),
                      at = row * a.in.n_head + tile.h;
        const float lse = a.lse[at], delta = shared.delta[at];
        const int64_t start = shared.starts[row];
#pragma unroll
        for (int c = 0; c < R; c++) {
            const int64_t key = j + tx + ATTENTION_SIDE * c;
            const bool seen = i < tile.n && key >= start && key <= t && key < end;
            p[r][c] = seen ? dt_exp2(DT_LOG2_E * (p[r][c] - lse)) : 0.0f;
            ds[r][c] = p[r][c] * (ds[r][c] - delta);
        }
    }
}

template <class T, int E, int TILE>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    dq_kernel(dt_attention_backward_args a, attention_shared shared)
{
    constexpr int R = TILE / ATTENTION_SIDE, PITCH = E + 4;
    DT_SHARED_DYN(float, memory);
    float *q = memory, *dy = q + TILE * PITCH, *keys = dy + TILE * PITCH,
          *values = keys + TILE * PITCH, *pairs = values + TILE * PITCH;
    const dt_attention_inputs &in = a.in;
    const int64_t tiles = dt_div_up(in.length, TILE), block = blockIdx.x;
    const int64_t b = block / tiles / in.n_head, h = block / tiles % in.n_head,
                  g = h / (in.n_head / in.n_kv_head), t0 = block % tiles * TILE,
                  n = dt_least(TILE, in.length - t0);
    float sums[R][E / ATTENTION_SIDE] = {};
    const attention_tile mine = {b, h, t0, n};
    attention_load<T, E, TILE>(in, shared, in.q, nullptr, mine, true, shared.scale, q);
    attention_load<T, E, TILE>(in, shared, a.dy, nullptr, mine, false, 1.0f, dy);
    for (int64_t j = shared.starts[b * in.length + t0]; j < t0 + n; j += TILE) {
        const attention_tile tile = {b, g, j, dt_least(TILE, t0 + n - j)};
        float p[R][R], ds[R][R];
        __syncthreads(); // keys and pairs before are used
        attention_load<T, E, TILE>(in, shared, in.k, in.k0, tile, true, 1.0f, keys);
        attention_load<T, E, TILE>(in, shared, in.v, in.v0, tile, false, 1.0f, values);
        __syncthreads();
        attention_scores<E, R>(q, keys, p);
        attention_scores<E, R>(dy, values, ds);
        slope<R>(a, shared, {b, h, t0, n}, j, t0 + n, p, ds);
        attention_put_pairs<R>(ds, pairs);
        __syncthreads();
        attention_weigh<E, R, false>(pairs, keys, sums);
    }
    __syncthreads();
    attention_put<E, R>(sums, q);
    __syncthreads();
    attention_store<T, E, TILE>(in, shared, a.dq, mine, true, shared.scale, q);
}

template <class T, int E, int TILE>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    dkv_kernel(dt_attention_backward_args a, attention_shared shared)
{
    constexpr int R = TILE / ATTENTION_SIDE, PITCH = E + 4;
    DT_SHARED_DYN(float, memory);
    float *q = memory, *dy = q + TILE * PITCH, *keys = dy + TILE * PITCH,
          *values = keys + TILE * PITCH, *pairs = values + TILE * PITCH;
    const dt_attention_inputs &in = a.in;
    const int64_t tiles = dt_div_up(in.length, TILE), block = blockIdx.x,
                  heads = in.n_head / in.n_kv_head;
    const int64_t b = block / tiles / in.n_kv_head, g = block / tiles % in.n_kv_head,
                  j = block % tiles * TILE, n = dt_least(TILE, in.length - j);
    const int32_t *starts = shared.starts + b * in.length;
    float dk[R][E / ATTENTION_SIDE] = {}, dv[R][E / ATTENTION_SIDE] = {};
    const attention_tile mine = {b, g, j, n};
    attention_load<T, E, TILE>(in, shared, in.k, nullptr, mine, true, 1.0f, keys);
    attention_load<T, E, TILE>(in, shared, in.v, nullptr, mine, false, 1.0f, values);
    for (int64_t t0 = j; t0 < in.length && starts[t0] < j + n; t0 += TILE)
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            const attention_tile tile = {b, h, t0, dt_least(TILE, in.length - t0)};
            float p[R][R], ds[R][R];
            __syncthreads(); // the queries and pairs before are used
            attention_load<T, E, TILE>(in, shared, in.q, nullptr, tile, true, shared.scale, q);
            attention_load<T, E, TILE>(in, shared, a.dy, nullptr, tile, false, 1.0f, dy);
            __syncthreads();
            attention_scores<E, R>(q, keys, p);
            attention_scores<E, R>(dy, values, ds);
            slope<R>(a, shared, {b, h, t0, tile.n}, j, j + n, p, ds);
            attention_put_pairs<R>(p, pairs);
            __syncthreads();
            attention_weigh<E, R, true>(pairs, dy, dv);
            __syncthreads();
            attention_put_pairs<R>(ds, pairs);
            __syncthreads();
            attention_weigh<E, R, true>(pairs, q, dk);
        }
    __syncthreads();
    attention_put<E, R>(dk, keys);
    attention_put<E, R>(dv, values);
    __syncthreads();
    attention_store<T, E, TILE>(in, shared, a.dk, mine, true, 1.0f, keys);
    attention_store<T, E, TILE>(in, shared, a.dv, mine, false, 1.0f, values);
}

template <class T, int E, int TILE>
static void launch(const dt_attention_backward_args *a, const attention_shared &shared,
                   dt_stream *stream)
{
    const dt_attention_inputs *in = &a->in;
    const int64_t bytes = attention_floats<E, TILE>(4) * (int64_t)sizeof(float),
                  pieces = in->batch * dt_div_up(in->length, TILE);
    dt_allow_shared(dq_kernel<T, E, TILE>, bytes);
    dt_allow_shared(dkv_kernel<T, E, TILE>, bytes);
    DT_LAUNCH((delta_kernel<T>), dt_blocks(a->y.rows * in->n_head, ATTENTION_THREADS / DT_WARP),
              ATTENTION_THREADS, 0, stream, *a, shared.delta);
    DT_LAUNCH((dq_kernel<T, E, TILE>), dt_blocks(pieces * in->n_head, 1), ATTENTION_THREADS, bytes,
              stream, *a, shared);
    DT_LAUNCH((dkv_kernel<T, E, TILE>), dt_blocks(pieces * in->n_kv_head, 1), ATTENTION_THREADS,
              bytes, stream, *a, shared);
}

dt_status attention_backward_cuda(struct dt_device *device,
                                  const struct dt_attention_backward_args *args,
                                  struct dt_stream *stream)
{
    attention_shared shared;
    (void)device;
    attention_share(&args->in, true, args->workspace, &shared);
    attention_prepare(&args->in, shared, stream);
    ATTENTION_SWITCH(&args->in, T, E, TILE, (launch<T, E, TILE>(args, shared, stream)));
    return DT_LAUNCHED("attention_backward");
}

int64_t attention_backward_cuda_workspace(struct dt_device *device,
                                          const struct dt_attention_backward_args *args)
{
    attention_shared shared;
    (void)device;
    return attention_share(&args->in, true, nullptr, &shared);
}
