// Attention backward on CUDA: see attention.cuh. Two passes, so that every gradient has one owner
// and nothing is added atomically: a block of the first owns TILE queries of a head and walks the
// keys that they see (dq); a block of the second owns TILE keys of a group and walks the queries
// of its heads that see them (dk, dv). Both make the scores again from lse. Shared memory holds
// queries, keys, values, dy and one array of pairs. Floor: 6 E and 8 E operations for every pair of
// a query and a key that it sees.
#include "kernels/attention_mma.cuh"

// Makes delta = dy · y: each warp takes a head of a token.
template <class T>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    delta_kernel(dt_attention_backward_args a, float *delta)
{
    const int64_t index = dt_thread_index() / DT_WARP, tokens = a.y.rows;
    const int64_t row = index / a.in.n_head, col = index % a.in.n_head * a.in.width;
    if (row >= tokens)
        return; // the whole warp
    const T *y = dt_at<T>(a.y, row, col);
    const T *dy = dt_at<T>(a.dy, row, col);
    float sum = 0.0f;
    for (int64_t i = threadIdx.x % DT_WARP; i < a.in.width; i += DT_WARP)
        sum += dt_to_f32(dy[i]) * dt_to_f32(y[i]);
    sum = dt_warp_sum(sum);
    if (threadIdx.x % DT_WARP == 0)
        delta[index] = sum;
}

// Scores to probabilities and dp to ds, zero for pairs that are not seen. j: the first key.
template <int R>
DT_DEVICE void slope(const dt_attention_backward_args &a, const attention_shared &shared,
                     const attention_tile &tile, int64_t j, int64_t end, float (&p)[R][R],
                     float (&ds)[R][R])
{
    const int ty = (int)threadIdx.x / ATTENTION_SIDE, tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int64_t i = ty * R + r, t = tile.at + i,
                      row = tile.b * a.in.length + (i < tile.n ? t : tile.at),
                      at = row * a.in.n_head + tile.head;
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
    const attention_tile mine = attention_own<TILE>(in, in.n_head);
    const auto [b, h, t0, n] = mine;
    const int64_t g = h / (in.n_head / in.n_kv_head);
    float sums[R][E / ATTENTION_SIDE] = {};
    attention_load<T, E, TILE>(in, shared, in.q, nullptr, mine, true, shared.scale, q);
    attention_load<T, E, TILE>(in, shared, a.dy, nullptr, mine, false, 1.0f, dy);
    for (int64_t j = shared.starts[b * in.length + t0]; j < t0 + n; j += TILE) {
        const attention_tile tile = {b, g, j, dt_least(TILE, t0 + n - j)};
        float p[R][R] = {}, ds[R][R] = {};
        __syncthreads(); // keys and pairs before are used
        attention_load<T, E, TILE>(in, shared, in.k, in.k0, tile, true, 1.0f, keys);
        attention_load<T, E, TILE>(in, shared, in.v, in.v0, tile, false, 1.0f, values);
        __syncthreads();
        attention_scores<E, R>(q, keys, p);
        attention_scores<E, R>(dy, values, ds);
        slope<R>(a, shared, mine, j, t0 + n, p, ds);
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
    const int64_t heads = in.n_head / in.n_kv_head;
    const attention_tile mine = attention_own<TILE>(in, in.n_kv_head);
    const auto [b, g, j, n] = mine;
    const int32_t *starts = shared.starts + b * in.length;
    float dk[R][E / ATTENTION_SIDE] = {}, dv[R][E / ATTENTION_SIDE] = {};
    attention_load<T, E, TILE>(in, shared, in.k, nullptr, mine, true, 1.0f, keys);
    attention_load<T, E, TILE>(in, shared, in.v, nullptr, mine, false, 1.0f, values);
    for (int64_t t0 = j; t0 < in.length && starts[t0] < j + n; t0 += TILE)
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            const attention_tile tile = {b, h, t0, dt_least(TILE, in.length - t0)};
            float p[R][R] = {}, ds[R][R] = {};
            __syncthreads(); // the queries and pairs before are used
            attention_load<T, E, TILE>(in, shared, in.q, nullptr, tile, true, shared.scale, q);
            attention_load<T, E, TILE>(in, shared, a.dy, nullptr, tile, false, 1.0f, dy);
            __syncthreads();
            attention_scores<E, R>(q, keys, p);
            attention_scores<E, R>(dy, values, ds);
            slope<R>(a, shared, tile, j, j + n, p, ds);
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

// The same two kernels on tensor cores.
template <int E>
__global__ static void __launch_bounds__(MMA_THREADS)
    dq_mma_kernel(dt_attention_backward_args a, attention_shared shared)
{
    DT_SHARED(mma_rows<E>, rows, [2]); // queries and dy, then keys and values
    const dt_attention_inputs &in = a.in;
    const attention_tile mine = attention_own<MMA_TILE>(in, in.n_head);
    const auto [b, h, t0, n] = mine;
    const int64_t g = h / (in.n_head / in.n_kv_head);
    const int warp = (int)threadIdx.x / DT_WARP, lane = (int)threadIdx.x % DT_WARP;
    unsigned q[E / 16][4], dy[E / 16][4];
    float sums[E / 8][4] = {}, lse[2], delta[2];
    int64_t start[2], at[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t i = warp * 16 + lane / 4 + r * 8, row = b * in.length + t0 + (i < n ? i : 0);
        at[r] = t0 + i;
        start[r] = i < n ? shared.starts[row] : INT64_MAX;
        lse[r] = a.lse[row * in.n_head + h];
        delta[r] = shared.delta[row * in.n_head + h];
    }
    mma_load<E>(in, shared, in.q, nullptr, mine, true, shared.scale, rows[0]);
    mma_load<E>(in, shared, a.dy, nullptr, mine, false, 1.0f, rows[1]);
    __syncthreads();
    mma_take<E>(rows[0], q);
    mma_take<E>(rows[1], dy);
    for (int64_t j = shared.starts[b * in.length + t0]; j < t0 + n; j += MMA_TILE) {
        const attention_tile tile = {b, g, j, dt_least(MMA_TILE, t0 + n - j)};
        float p[MMA_PAIRS][4] = {}, ds[MMA_PAIRS][4] = {};
        __syncthreads(); // the rows before are used
        mma_load<E>(in, shared, in.k, in.k0, tile, true, 1.0f, rows[0]);
        mma_load<E>(in, shared, in.v, in.v0, tile, false, 1.0f, rows[1]);
        __syncthreads();
        mma_scores<E>(q, rows[0], p);
        mma_scores<E>(dy, rows[1], ds);
#pragma unroll
        for (int i = 0; i < 4 * MMA_PAIRS; i++) {
            const int r = i % 4 / 2;
            const int64_t key = j + i / 4 * 8 + lane % 4 * 2 + i % 2;
            const bool seen = key >= start[r] && key <= at[r];
            const float weight = seen ? dt_exp2(DT_LOG2_E * (p[i / 4][i % 4] - lse[r])) : 0.0f;
            ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - delta[r]);
        }
        mma_weigh<E>(ds, rows[0], sums);
    }
    const float factor[2] = {shared.scale, shared.scale};
    mma_store<E>(in, shared, a.dq, mine, true, factor, sums);
}

// The numbers of a tile's queries, which are columns here.
struct mma_columns {
    float lse[MMA_TILE], delta[MMA_TILE];
    int32_t start[MMA_TILE];
};

template <int E>
__global__ static void __launch_bounds__(MMA_THREADS)
    dkv_mma_kernel(dt_attention_backward_args a, attention_shared shared)
{
    DT_SHARED(mma_rows<E>, rows, [2]); // keys and values, then queries and dy
    DT_SHARED(mma_columns, column, [1]);
    const dt_attention_inputs &in = a.in;
    const int64_t heads = in.n_head / in.n_kv_head;
    const attention_tile mine = attention_own<MMA_TILE>(in, in.n_kv_head);
    const auto [b, g, j, n] = mine;
    const int32_t *starts = shared.starts + b * in.length;
    const int warp = (int)threadIdx.x / DT_WARP, lane = (int)threadIdx.x % DT_WARP;
    unsigned k[E / 16][4], v[E / 16][4];
    float dk[E / 8][4] = {}, dv[E / 8][4] = {};
    mma_load<E>(in, shared, in.k, nullptr, mine, true, 1.0f, rows[0]);
    mma_load<E>(in, shared, in.v, nullptr, mine, false, 1.0f, rows[1]);
    __syncthreads();
    mma_take<E>(rows[0], k);
    mma_take<E>(rows[1], v);
    for (int64_t t0 = j; t0 < in.length && starts[t0] < j + n; t0 += MMA_TILE)
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            const attention_tile tile = {b, h, t0, dt_least(MMA_TILE, in.length - t0)};
            float p[MMA_PAIRS][4] = {}, ds[MMA_PAIRS][4] = {};
            __syncthreads(); // the rows before are used
            mma_load<E>(in, shared, in.q, nullptr, tile, true, shared.scale, rows[0]);
            mma_load<E>(in, shared, a.dy, nullptr, tile, false, 1.0f, rows[1]);
            if (threadIdx.x < MMA_TILE) {
                const int i = (int)threadIdx.x;
                const int64_t row = b * in.length + t0 + (i < tile.n ? i : 0);
                column->lse[i] = a.lse[row * in.n_head + h];
                column->delta[i] = shared.delta[row * in.n_head + h];
                column->start[i] = i < tile.n ? shared.starts[row] : INT32_MAX;
            }
            __syncthreads();
            mma_scores<E>(k, rows[0], p);
            mma_scores<E>(v, rows[1], ds);
#pragma unroll
            for (int i = 0; i < 4 * MMA_PAIRS; i++) {
                const int query = i / 4 * 8 + lane % 4 * 2 + i % 2;
                const int64_t key = j + warp * 16 + lane / 4 + i % 4 / 2 * 8;
                const bool seen = key >= column->start[query] && key <= t0 + query;
                float &weight = p[i / 4][i % 4];
                weight = seen ? dt_exp2(DT_LOG2_E * (weight - column->lse[query])) : 0.0f;
                ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - column->delta[query]);
            }
            mma_weigh<E>(p, rows[1], dv);
            mma_weigh<E>(ds, rows[0], dk);
        }
    const float factor[2] = {1.0f, 1.0f};
    mma_store<E>(in, shared, a.dk, mine, true, factor, dk);
    mma_store<E>(in, shared, a.dv, mine, false, factor, dv);
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
    DT_LAUNCH((dq_kernel<T, E, TILE>), dt_blocks(pieces * in->n_head, 1), ATTENTION_THREADS, bytes,
              stream, *a, shared);
    DT_LAUNCH((dkv_kernel<T, E, TILE>), dt_blocks(pieces * in->n_kv_head, 1), ATTENTION_THREADS,
              bytes, stream, *a, shared);
}

template <int E>
static void launch_mma(const dt_attention_backward_args *a, const attention_shared &shared,
                       dt_stream *stream)
{
    const int64_t pieces = a->in.batch * dt_div_up(a->in.length, MMA_TILE);
    DT_LAUNCH((dq_mma_kernel<E>), dt_blocks(pieces * a->in.n_head, 1), MMA_THREADS, 0, stream, *a,
              shared);
    DT_LAUNCH((dkv_mma_kernel<E>), dt_blocks(pieces * a->in.n_kv_head, 1), MMA_THREADS, 0, stream,
              *a, shared);
}

DT_OP_CUDA(attention_backward)
{
    const dt_attention_inputs *in = &args->in;
    attention_shared shared = {};
    attention_share(in, true, args->workspace, &shared);
    attention_prepare(in, shared, stream);
    DT_STORAGE_SWITCH(in->q.dtype, T,
                      DT_LAUNCH((delta_kernel<T>),
                                dt_blocks(args->y.rows * in->n_head, ATTENTION_THREADS / DT_WARP),
                                ATTENTION_THREADS, 0, stream, *args, shared.delta));
    const bool mma = mma_fits(in) && dt_aligned<2>(args->dy, args->dq, args->dk, args->dv);
    if (mma && in->width == 64)
        launch_mma<64>(args, shared, stream);
    else if (mma)
        launch_mma<32>(args, shared, stream);
    else
        ATTENTION_SWITCH(in, T, E, TILE, (launch<T, E, TILE>(args, shared, stream)));
    return DT_LAUNCHED("attention_backward");
}

DT_OP_CUDA_WORKSPACE(attention_backward)
{
    attention_shared shared = {};
    return attention_share(&args->in, true, nullptr, &shared);
}
