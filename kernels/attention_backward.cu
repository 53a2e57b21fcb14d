// Attention backward on CUDA: see attention.cuh. There are two passes, so that every gradient has
// one owner and no atomics are needed: a block of the first owns TILE queries of a head and walks
// the keys that they see (dq); a block of the second owns TILE keys of a group and walks the
// queries of its heads that see them (dk, dv). Both recompute the scores from lse. Shared memory
// holds queries, keys, values, dy and one array of pairs. Floor: 6 E and 8 E operations per pair of
// a query and a visible key.
#include "kernels/attention_mma.cuh"

// Computes delta = dy · y, and lse in base 2: one warp per head of a token.
template <class T>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    delta_kernel(dt_attention_backward_args a, float2 *slopes)
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
        slopes[index] = make_float2(a.lse[index] * DT_LOG2_E, sum);
}

// Turns scores into probabilities and dp into ds; zero for masked pairs. j: the first key.
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
        const float lse = a.lse[at], delta = shared.slopes[at].y;
        const int64_t start = shared.starts[row], stop = shared.stops[row];
#pragma unroll
        for (int c = 0; c < R; c++) {
            const int64_t key = j + tx + ATTENTION_SIDE * c;
            const bool seen = i < tile.n && key >= start && key < stop && key < end;
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
    const int64_t stop = shared.stops[b * in.length + t0 + n - 1];
    for (int64_t j = shared.starts[b * in.length + t0]; j < stop; j += TILE) {
        const attention_tile tile = {b, g, j, dt_least(TILE, stop - j)};
        float p[R][R] = {}, ds[R][R] = {};
        __syncthreads(); // the previous keys and pairs were read
        attention_load<T, E, TILE>(in, shared, in.k, in.k0, tile, true, 1.0f, keys);
        attention_load<T, E, TILE>(in, shared, in.v, in.v0, tile, false, 1.0f, values);
        __syncthreads();
        attention_scores<E, R>(q, keys, p);
        attention_scores<E, R>(dy, values, ds);
        slope<R>(a, shared, mine, j, stop, p, ds);
        attention_put_pairs<R>(ds, pairs);
        __syncthreads();
        attention_weigh<E, R, false>(pairs, keys, sums);
    }
    __syncthreads();
    attention_put<E, R>(sums, q);
    __syncthreads();
    attention_store<T, E, TILE>(in, shared, a.dq, mine, true, shared.scale, q);
}

// The inputs of positions before 0, shifted to begin at 0.
DT_DEVICE dt_attention_inputs before_of(const dt_attention_inputs &in,
                                        const attention_shared &shared)
{
    dt_attention_inputs before = in;
    before.length = shared.before;
    return before;
}

// BEFORE: for the keys and values before position 0; dk and dv are then fp32.
template <class T, int E, int TILE, bool BEFORE>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    dkv_kernel(dt_attention_backward_args a, attention_shared shared)
{
    constexpr int R = TILE / ATTENTION_SIDE, PITCH = E + 4;
    DT_SHARED_DYN(float, memory);
    float *q = memory, *dy = q + TILE * PITCH, *keys = dy + TILE * PITCH,
          *values = keys + TILE * PITCH, *pairs = values + TILE * PITCH;
    const dt_attention_inputs &in = a.in;
    const int64_t heads = in.n_head / in.n_kv_head;
    attention_tile mine = attention_own<TILE>(BEFORE ? before_of(in, shared) : in, in.n_kv_head);
    if (BEFORE)
        mine.at -= shared.before;
    const auto [b, g, j, n] = mine;
    const int32_t *starts = shared.starts + b * in.length;
    float dk[R][E / ATTENTION_SIDE] = {}, dv[R][E / ATTENTION_SIDE] = {};
    attention_load<T, E, TILE>(in, shared, in.k, BEFORE ? in.k0 : nullptr, mine, true, 1.0f, keys);
    attention_load<T, E, TILE>(in, shared, in.v, BEFORE ? in.v0 : nullptr, mine, false, 1.0f,
                               values);
    for (int64_t t0 = BEFORE ? 0 : attention_first(in, starts, j);
         t0 < in.length && starts[t0] < j + n; t0 += TILE)
        for (int64_t h = g * heads; h < (g + 1) * heads; h++) {
            const attention_tile tile = {b, h, t0, dt_least(TILE, in.length - t0)};
            float p[R][R] = {}, ds[R][R] = {};
            __syncthreads(); // the previous queries and pairs were read
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
    if constexpr (BEFORE) {
        attention_shared from_0 = shared;
        from_0.before = 0;
        mine.at += shared.before;
        const dt_attention_inputs rows = before_of(in, shared);
        attention_store<float, E, TILE>(rows, from_0, a.dk, mine, true, 1.0f, keys);
        attention_store<float, E, TILE>(rows, from_0, a.dv, mine, false, 1.0f, values);
    } else {
        attention_store<T, E, TILE>(in, shared, a.dk, mine, true, 1.0f, keys);
        attention_store<T, E, TILE>(in, shared, a.dv, mine, false, 1.0f, values);
    }
}

// Adds dk_last and dv_last to the gradients of their rows, and writes zeros to dk0 and dv0 if
// nothing was before. One thread per element of [B, W - 1, G·E].
template <class T>
__global__ static void __launch_bounds__(ATTENTION_THREADS)
    border_kernel(dt_attention_backward_args a, attention_shared shared)
{
    const int64_t index = dt_thread_index(), width = a.in.k.cols, kept = a.in.window - 1;
    const int64_t b = index / width / kept, col = index % width;
    const int64_t j = index / width % kept + a.in.length - kept;
    if (b >= a.in.batch)
        return;
    if (a.dk0 && !a.in.k0)
        a.dk0[index] = a.dv0[index] = 0.0f;
    if (!a.dk_last || j < shared.firsts[b])
        return;
    if (j >= 0) {
        const int64_t row = b * a.in.length + j;
        dt_put<T>(a.dk, row, col, dt_get<T>(a.dk, row, col) + a.dk_last[index]);
        dt_put<T>(a.dv, row, col, dt_get<T>(a.dv, row, col) + a.dv_last[index]);
    } else if (a.dk0) {
        const int64_t at = ((b + 1) * kept + j) * width + col;
        a.dk0[at] += a.dk_last[index];
        a.dv0[at] += a.dv_last[index];
    }
}

// The two kernels on tensor cores.
template <int E>
__global__ static void __launch_bounds__(MMA_THREADS)
    dq_mma_kernel(dt_attention_backward_args a, attention_shared shared)
{
    constexpr int ROWS = MMA_ROWS<E>, PAIRS = ROWS / 8, TILE = ROWS * MMA_PITCH<E>;
    DT_SHARED_DYN(dt_bf16, q);
    dt_bf16 *const dy = q + MMA_OWN * MMA_PITCH<E>;
    dt_bf16 *const stages = dy + MMA_OWN * MMA_PITCH<E>; // stages of keys and values
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
    float sums[E / 8][4] = {};
    float2 slope[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int64_t t = dt_least(t0 + row + lane / 4 + r * 8, end - 1);
        slope[r] = shared.slopes[(b * in.length + t) * in.n_head + h];
    }
    mma_copy<E, MMA_OWN>(mma_from(in, in.q, nullptr, b, h), t0, t0, end, q);
    mma_copy<E, MMA_OWN>(mma_from(in, a.dy, nullptr, b, h), t0, t0, end, dy);
    mma_walk<E>(keys, values, low, stops[end - 1], stages, [&](int j, const dt_bf16 *tile) {
        float p[PAIRS][4] = {}, ds[PAIRS][4] = {};
        mma_scores<E>(q, tile, p);
        mma_scores<E>(dy, tile + TILE, ds);
        if (j + ROWS > stops[t0] || j < last)
            mma_hide<false>(starts, stops, end, t0 + row, j, p);
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; i++) {
            const float2 of = slope[i % 4 / 2];
            ds[i / 4][i % 4] = dt_exp2(p[i / 4][i % 4] * factor - of.x) * (ds[i / 4][i % 4] - of.y);
        }
        mma_weigh<E>(ds, tile, sums);
    });
    const float scale[2] = {shared.scale, shared.scale};
    mma_store<E>(in, shared, a.dq, mine, true, scale, sums);
}

// The sums of dk and dv of heads of 256 exceed a thread's registers: there each kernel computes one
// of the two.
template <int E, bool DK, bool DV>
__global__ static void __launch_bounds__(MMA_THREADS)
    dkv_mma_kernel(dt_attention_backward_args a, attention_shared shared)
{
    constexpr int ROWS = MMA_ROWS<E>, PAIRS = ROWS / 8, TILE = ROWS * MMA_PITCH<E>;
    DT_SHARED_DYN(dt_bf16, k);
    dt_bf16 *const v = k + MMA_OWN * MMA_PITCH<E>;
    // stages of queries, with their slopes in the padding of rows, and dy
    dt_bf16 *const stages = DK ? v + MMA_OWN * MMA_PITCH<E> : v;
    const dt_attention_inputs &in = a.in;
    const attention_tile mine = attention_own<MMA_OWN>(in, in.n_kv_head);
    const auto [b, g, at, n] = mine;
    const int heads = (int)(in.n_head / in.n_kv_head), L = (int)in.length;
    const int32_t *starts = shared.starts + b * in.length, *stops = shared.stops + b * in.length;
    const int j = (int)at, row = (int)threadIdx.x / DT_WARP * 16, lane = (int)threadIdx.x % DT_WARP;
    const float factor = shared.scale * DT_LOG2_E;
    float dk[DK ? E / 8 : 1][4] = {}, dv[DV ? E / 8 : 1][4] = {};
    const int first = (int)attention_first(in, starts, j);
    int end = j + 1; // end of the queries that see a key of the tile, since starts never decrease
    for (int beyond = L + 1; end + 1 < beyond;) {
        const int middle = end + (beyond - end) / 2;
        if (starts[middle - 1] < j + (int)n)
            end = middle;
        else
            beyond = middle;
    }
    const auto fetch = [&](int t0, int h, dt_bf16 *to) {
        const int64_t head = g * heads + h;
        mma_copy<E, ROWS>(mma_from(in, in.q, nullptr, b, head), t0, t0, L, to);
        mma_copy<E, ROWS>(mma_from(in, a.dy, nullptr, b, head), t0, t0, L, to + TILE);
        const int i = (int)threadIdx.x;
        dt_bf16 *const slope = to + i * MMA_PITCH<E> + E;
        if (i < ROWS && t0 + i < L)
            dt_copy_async<8>(slope, shared.slopes + (b * L + t0 + i) * in.n_head + head);
        else if (i < ROWS)
            *reinterpret_cast<uint2 *>(slope) = make_uint2(0, 0);
    };
    mma_copy<E, MMA_OWN>(mma_from(in, in.k, nullptr, b, g), j, j, j + (int)n, k);
    if (DK)
        mma_copy<E, MMA_OWN>(mma_from(in, in.v, nullptr, b, g), j, j, j + (int)n, v);
    dt_bf16 *tile = stages;
    fetch(first, 0, tile);
    dt_copy_commit();
    for (int t0 = first, h = 0; t0 < end;) {
        const int next_h = h + 1 < heads ? h + 1 : 0, next_t0 = next_h ? t0 : t0 + ROWS;
        const int last = starts[dt_least(t0 + ROWS, L) - 1];
        float p[PAIRS][4] = {}, ds[PAIRS][4] = {};
        dt_bf16 *const next = tile == stages ? stages + 2 * TILE : stages;
        dt_copy_wait<0>();
        __syncthreads(); // this tile has arrived, the previous one was read
        if (next_t0 < end)
            fetch(next_t0, next_h, next);
        dt_copy_commit();
        mma_scores<E>(k, tile, p);
        if (stops[t0] < j + MMA_OWN || j < last)
            mma_hide<true>(starts, stops, L, j + row, t0, p);
        if (DK)
            mma_scores<E>(v, tile + TILE, ds);
#pragma unroll
        for (int i = 0; i < 4 * PAIRS; i++) {
            const int query = i / 4 * 8 + lane % 4 * 2 + i % 2;
            float of[2];
            dt_load<2>(reinterpret_cast<const float *>(tile + query * MMA_PITCH<E> + E), of);
            p[i / 4][i % 4] = dt_exp2(p[i / 4][i % 4] * factor - of[0]);
            ds[i / 4][i % 4] = p[i / 4][i % 4] * (ds[i / 4][i % 4] - of[1]);
        }
        if constexpr (DV)
            mma_weigh<E>(p, tile + TILE, dv);
        if constexpr (DK)
            mma_weigh<E>(ds, tile, dk);
        tile = next;
        t0 = next_t0;
        h = next_h;
    }
    const float scale[2] = {shared.scale, shared.scale}, one[2] = {1.0f, 1.0f};
    if constexpr (DK)
        mma_store<E>(in, shared, a.dk, mine, true, scale, dk);
    if constexpr (DV)
        mma_store<E>(in, shared, a.dv, mine, false, one, dv);
}

template <class T, int E, int TILE>
static void launch(const dt_attention_backward_args *a, const attention_shared &shared,
                   dt_stream *stream)
{
    const dt_attention_inputs *in = &a->in;
    const int64_t bytes = attention_floats<E, TILE>(4) * (int64_t)sizeof(float),
                  pieces = in->batch * dt_div_up(in->length, TILE);
    dt_allow_shared(dq_kernel<T, E, TILE>, bytes);
    dt_allow_shared(dkv_kernel<T, E, TILE, false>, bytes);
    DT_LAUNCH((dq_kernel<T, E, TILE>), dt_blocks(pieces * in->n_head, 1), ATTENTION_THREADS, bytes,
              stream, *a, shared);
    DT_LAUNCH((dkv_kernel<T, E, TILE, false>), dt_blocks(pieces * in->n_kv_head, 1),
              ATTENTION_THREADS, bytes, stream, *a, shared);
}

template <class T, int E, int TILE>
static void launch_before(const dt_attention_backward_args *a, const attention_shared &shared,
                          dt_stream *stream)
{
    const int64_t bytes = attention_floats<E, TILE>(4) * (int64_t)sizeof(float),
                  pieces = a->in.batch * dt_div_up(shared.before, TILE) * a->in.n_kv_head,
                  rows = a->in.batch * shared.before;
    dt_attention_backward_args before = *a;
    before.dk = dt_view_of(a->dk0, rows, a->in.k.cols, DT_F32);
    before.dv = dt_view_of(a->dv0, rows, a->in.k.cols, DT_F32);
    dt_allow_shared(dkv_kernel<T, E, TILE, true>, bytes);
    DT_LAUNCH((dkv_kernel<T, E, TILE, true>), dt_blocks(pieces, 1), ATTENTION_THREADS, bytes,
              stream, before, shared);
}

// Returns false if the device has too little shared memory.
template <int E>
static bool launch_mma(const dt_attention_backward_args *args, const attention_shared &shared,
                       dt_stream *stream)
{
    constexpr bool APART = E == 256;
    const auto dq = dq_mma_kernel<E>;
    const auto dkv = dkv_mma_kernel<E, true, !APART>;
    const int64_t pieces = args->in.batch * dt_div_up(args->in.length, MMA_OWN);
    const int64_t bytes = mma_bytes<E>(2, 2), fewer = mma_bytes<E>(1, 2);
    const unsigned blocks = dt_blocks(pieces * args->in.n_kv_head, 1);
    if (!dt_allow_shared(dq, bytes) || !dt_allow_shared(dkv, bytes))
        return false;
    dt_attention_backward_args turned = *args;
    turned.in = attention_turn(&args->in, shared, stream);
    DT_LAUNCH((dq), dt_blocks(pieces * args->in.n_head, 1), MMA_THREADS, bytes, stream, turned,
              shared);
    DT_LAUNCH((dkv), blocks, MMA_THREADS, bytes, stream, turned, shared);
    if constexpr (APART) {
        dt_allow_shared(dkv_mma_kernel<E, false, true>, fewer); // the dk kernel was allowed more
        DT_LAUNCH((dkv_mma_kernel<E, false, true>), blocks, MMA_THREADS, fewer, stream, turned,
                  shared);
    }
    return true;
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
                                ATTENTION_THREADS, 0, stream, *args, shared.slopes));
    const bool mma = mma_fits(in) && dt_aligned<8>(args->dy) &&
                     dt_aligned<2>(args->dq, args->dk, args->dv) &&
                     mma_switch(in->width, [&](auto width) {
                         return launch_mma<decltype(width)::value>(args, shared, stream);
                     });
    if (!mma)
        ATTENTION_SWITCH(in, T, E, TILE, (launch<T, E, TILE>(args, shared, stream)));
    if (args->dk0 && in->k0)
        ATTENTION_SWITCH(in, T, E, TILE, (launch_before<T, E, TILE>(args, shared, stream)));
    if (args->dk_last || (args->dk0 && !in->k0))
        DT_STORAGE_SWITCH(
            in->q.dtype, T,
            DT_LAUNCH((border_kernel<T>),
                      dt_blocks(in->batch * (in->window - 1) * in->k.cols, ATTENTION_THREADS),
                      ATTENTION_THREADS, 0, stream, *args, shared));
    return DT_LAUNCHED("attention_backward");
}

DT_OP_CUDA_WORKSPACE(attention_backward)
{
    attention_shared shared = {};
    return attention_share(&args->in, true, nullptr, &shared);
}
