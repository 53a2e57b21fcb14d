// Attention forward on CUDA: see attention.cuh. A block owns TILE queries of a head and walks the
// keys that they see, tile by tile, with running maximum, sum and output in registers (online
// softmax). Shared memory holds the queries, a tile of keys, later of values, and the
// probabilities. The keys of a sequence are read once per tile of queries, from the L2 cache.
// Floor: 4 E operations per pair of a query and a visible key. attention_mma.cuh has the form for
// tensor cores.
#include "kernels/attention_mma.cuh"

// The maximum of a row before its first key; finite, so that differences are not NaN.
static const float NOTHING = -3.0e38f;

// A thread's running softmax of its R rows; the 16 threads of a row hold equal values.
template <int E, int R> struct running {
    float most[R], sum[R], out[R][E / ATTENTION_SIDE];
};

// Turns scores into probabilities relative to the maximum so far; [low, high) of each row is
// visible.
template <int E, int R>
DT_DEVICE void soften(float (&score)[R][R], const int64_t (&low)[R], const int64_t (&high)[R],
                      running<E, R> &row)
{
    const int tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll
    for (int r = 0; r < R; r++) {
        float most = row.most[r], sum = 0.0f;
#pragma unroll
        for (int c = 0; c < R; c++) {
            const int j = tx + ATTENTION_SIDE * c;
            if (j >= low[r] && j < high[r])
                most = fmaxf(most, score[r][c]);
        }
#pragma unroll
        for (int lane = ATTENTION_SIDE / 2; lane > 0; lane /= 2)
            most = fmaxf(most, __shfl_xor_sync(DT_WHOLE_WARP, most, lane));
#pragma unroll
        for (int c = 0; c < R; c++) {
            const int j = tx + ATTENTION_SIDE * c;
            const bool seen = j >= low[r] && j < high[r];
            score[r][c] = seen ? dt_exp2(DT_LOG2_E * (score[r][c] - most)) : 0.0f;
            sum += score[r][c];
        }
#pragma unroll
        for (int lane = ATTENTION_SIDE / 2; lane > 0; lane /= 2)
            sum += __shfl_xor_sync(DT_WHOLE_WARP, sum, lane);
        const float shrink = dt_exp2(DT_LOG2_E * (row.most[r] - most));
        row.sum[r] = row.sum[r] * shrink + sum;
        row.most[r] = most;
#pragma unroll
        for (int i = 0; i < E / ATTENTION_SIDE; i++)
            row.out[r][i] *= shrink;
    }
}

template <class T, int E, int TILE>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    forward_kernel(dt_attention_forward_args a, attention_shared shared)
{
    constexpr int R = TILE / ATTENTION_SIDE, PITCH = E + 4;
    DT_SHARED_DYN(float, memory);
    float *q = memory, *keys = q + TILE * PITCH, *pairs = keys + TILE * PITCH;
    const dt_attention_inputs &in = a.in;
    const attention_tile mine = attention_own<TILE>(in, in.n_head);
    const auto [b, h, t0, n] = mine;
    const int64_t g = h / (in.n_head / in.n_kv_head);
    const int32_t *starts = shared.starts + b * in.length, *stops = shared.stops + b * in.length;
    const int64_t stop = stops[t0 + n - 1];
    const int ty = (int)threadIdx.x / ATTENTION_SIDE;
    running<E, R> row = {};
#pragma unroll
    for (int r = 0; r < R; r++)
        row.most[r] = NOTHING;
    attention_load<T, E, TILE>(in, shared, in.q, nullptr, mine, true, shared.scale, q);
    for (int64_t j = starts[t0]; j < stop; j += TILE) {
        const attention_tile tile = {b, g, j, dt_least(TILE, stop - j)};
        float score[R][R] = {};
        int64_t low[R], high[R];
#pragma unroll
        for (int r = 0; r < R; r++) {
            const int64_t t = t0 + ty * R + r;
            low[r] = t < t0 + n ? starts[t] - j : 0;
            high[r] = t < t0 + n ? stops[t] - j : 0;
        }
        __syncthreads(); // the previous values were read, and q has arrived
        attention_load<T, E, TILE>(in, shared, in.k, in.k0, tile, true, 1.0f, keys);
        __syncthreads();
        attention_scores<E, R>(q, keys, score);
        soften<E, R>(score, low, high, row);
        attention_put_pairs<R>(score, pairs);
        __syncthreads(); // the keys were read
        attention_load<T, E, TILE>(in, shared, in.v, in.v0, tile, false, 1.0f, keys);
        __syncthreads();
        attention_weigh<E, R, false>(pairs, keys, row.out);
    }
    __syncthreads();
#pragma unroll
    for (int r = 0; r < R; r++) {
        const int64_t t = t0 + ty * R + r;
        const float factor = 1.0f / row.sum[r];
#pragma unroll
        for (int i = 0; i < E / ATTENTION_SIDE; i++)
            row.out[r][i] *= factor;
        if (a.lse && t < t0 + n && threadIdx.x % ATTENTION_SIDE == 0)
            a.lse[(b * in.length + t) * in.n_head + h] = row.most[r] + logf(row.sum[r]);
    }
    attention_put<E, R>(row.out, keys);
    __syncthreads();
    attention_store<T, E, TILE>(in, shared, a.y, mine, false, 1.0f, keys);
}

// Forward on tensor cores. In each product across a tile a thread has two elements of rows g and g
// + 8 of its warp's 16.
template <int E>
__global__ static void __launch_bounds__(MMA_THREADS)
    forward_mma_kernel(dt_attention_forward_args a, attention_shared shared)
{
    constexpr int ROWS = MMA_ROWS<E>, PAIRS = ROWS / 8, TILE = ROWS * MMA_PITCH<E>;
    DT_SHARED_DYN(dt_bf16, q);
    dt_bf16 *const stages = q + MMA_OWN * MMA_PITCH<E>; // stages of keys and values
    const dt_attention_inputs &in = a.in;
    const attention_tile mine = attention_own<MMA_OWN>(in, in.n_head);
    const auto [b, h, at, n] = mine;
    const int64_t g = h / (in.n_head / in.n_kv_head);
    const int32_t *starts = shared.starts + b * in.length, *stops = shared.stops + b * in.length;
    const int t0 = (int)at, end = (int)(at + n), low = starts[t0], last = starts[end - 1];
    const int lane = (int)threadIdx.x % DT_WARP, row = (int)threadIdx.x / DT_WARP * 16;
    const float factor = shared.scale * DT_LOG2_E;
    const mma_source keys = mma_from(in, in.k, in.k0, b, g),
                     values = mma_from(in, in.v, in.v0, b, g);
    float most[2] = {MMA_UNSEEN, MMA_UNSEEN}, sum[2] = {}, out[E / 8][4] = {};
    mma_copy<E, MMA_OWN>(mma_from(in, in.q, nullptr, b, h), t0, t0, end, q);
    mma_walk<E>(keys, values, low, stops[end - 1], stages, [&](int j, const dt_bf16 *tile) {
        float pairs[PAIRS][4] = {};
        mma_scores<E>(q, tile, pairs);
        if (j + ROWS > stops[t0] || j < last)
            mma_hide<false>(starts, stops, end, t0 + row, j, pairs);
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float largest = most[r], total = 0.0f;
#pragma unroll
            for (int i = 0; i < 2 * PAIRS; i++)
                largest = fmaxf(largest, pairs[i / 2][2 * r + i % 2]);
            largest = fmaxf(largest, __shfl_xor_sync(DT_WHOLE_WARP, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(DT_WHOLE_WARP, largest, 2));
#pragma unroll
            for (int i = 0; i < 2 * PAIRS; i++) {
                float &p = pairs[i / 2][2 * r + i % 2];
                p = dt_exp2(p * factor - largest * factor);
                total += p;
            }
            // 0 at a row's first visible key, which discards the sum so far
            const float shrink = dt_exp2(most[r] * factor - largest * factor);
            sum[r] = sum[r] * shrink + total; // over this thread's columns
            most[r] = largest;
#pragma unroll
            for (int i = 0; i < E / 8; i++)
                out[i][2 * r] *= shrink, out[i][2 * r + 1] *= shrink;
        }
        mma_weigh<E>(pairs, tile + TILE, out);
    });
    float part[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int t = t0 + row + lane / 4 + r * 8;
        sum[r] += __shfl_xor_sync(DT_WHOLE_WARP, sum[r], 1);
        sum[r] += __shfl_xor_sync(DT_WHOLE_WARP, sum[r], 2);
        part[r] = 1.0f / sum[r];
        if (a.lse && t < end && lane % 4 == 0)
            a.lse[(b * in.length + t) * in.n_head + h] = most[r] * shared.scale + logf(sum[r]);
    }
    mma_store<E>(in, shared, a.y, mine, false, part, out);
}

// One thread per element of k_last and v_last.
template <class T>
__global__ static void state_kernel(dt_attention_forward_args a, attention_shared shared)
{
    const dt_attention_inputs &in = a.in;
    const int64_t keep = in.window - 1, cols = in.k.cols, index = dt_thread_index();
    if (index >= in.batch * keep * cols)
        return;
    const int64_t b = index / cols / keep, i = index / cols % keep, col = index % cols,
                  j = in.length - keep + i, first = shared.firsts[b];
    T k = 0, v = 0;
    if (j >= first) {
        k = attention_row<T>(in, in.k, in.k0, b, 0, j)[col];
        v = attention_row<T>(in, in.v, in.v0, b, 0, j)[col];
    }
    ((T *)a.k_last)[index] = k;
    ((T *)a.v_last)[index] = v;
    if (i == 0 && col == 0)
        a.count_last[b] = (int32_t)dt_least(keep, in.length - first);
}

DT_OP_CUDA(attention_forward)
{
    const dt_attention_inputs *in = &args->in;
    attention_shared shared = {};
    attention_share(in, false, args->workspace, &shared);
    attention_prepare(in, shared, stream);
    const int64_t heads = in->batch * in->n_head, L = in->length;
    const bool mma =
        mma_fits(in) && dt_aligned<2>(args->y) && mma_switch(in->width, [&](auto width) {
            constexpr int E = decltype(width)::value;
            const int64_t bytes = mma_bytes<E>(1, 2);
            if (!dt_allow_shared(forward_mma_kernel<E>, bytes))
                return false;
            dt_attention_forward_args turned = *args;
            turned.in = attention_turn(in, shared, stream);
            DT_LAUNCH((forward_mma_kernel<E>), dt_blocks(heads * dt_div_up(L, MMA_OWN), 1),
                      MMA_THREADS, bytes, stream, turned, shared);
            return true;
        });
    if (!mma)
        ATTENTION_SWITCH(
            in, T, E, TILE,
            const int64_t bytes = attention_floats<E, TILE>(2) * (int64_t)sizeof(float);
            dt_allow_shared(forward_kernel<T, E, TILE>, bytes);
            DT_LAUNCH((forward_kernel<T, E, TILE>), dt_blocks(heads * dt_div_up(L, TILE), 1),
                      ATTENTION_THREADS, bytes, stream, *args, shared));
    if (args->k_last)
        DT_STORAGE_SWITCH(in->q.dtype, T,
                          DT_LAUNCH((state_kernel<T>),
                                    dt_blocks(in->batch * (in->window - 1) * in->k.cols, 256), 256,
                                    0, stream, *args, shared));
    return DT_LAUNCHED("attention_forward");
}

DT_OP_CUDA_WORKSPACE(attention_forward)
{
    attention_shared shared = {};
    return attention_share(&args->in, false, nullptr, &shared);
}
