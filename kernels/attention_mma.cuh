// Attention of bf16 heads of 16, 32, 64, 128 or 256 channels on tensor cores: the algorithms of
// attention_forward.cu and attention_backward.cu, with other tiles. Queries and keys are rotated
// once, by a kernel before (attention_turn). A block has four warps and keeps 64 rows of a head
// (queries or keys) in shared memory, each warp 16 of them with their sums in registers. It walks
// tiles of the other kind of rows in two stages: while tensor cores work on one tile, asynchronous
// copies fill the next. The pairs that one product computes are rounded to bf16 as an operand of
// the next. Rotated queries and keys, probabilities and their gradients are rounded to bf16, sums
// never. Only tiles at a border (the diagonal, the start of a window or a document) test for masked
// pairs. Rows in shared memory are padded by 8, so that the eight rows of a matrix are in different
// banks.
#pragma once

#include "kernels/attention.cuh"

enum {
    MMA_OWN = 64, // rows per block
    MMA_WARPS = 4,
    MMA_THREADS = MMA_WARPS * DT_WARP,
};

// Rows per tile: fewer for wider heads, so that sums and pairs stay in registers and two blocks fit
// on an SM.
template <int E> constexpr int MMA_ROWS = E <= 64 ? 64 : 4096 / E;
template <int E> constexpr int MMA_PITCH = E + 8; // of rows in shared memory

// The score of a masked pair. A power of two, so that its product with a factor is exact and
// exponents of a row without visible keys are 0, not the rounding error of a large number.
static const float MMA_UNSEEN = -0x1p126f;

// Bytes of dynamic shared memory for `own` arrays of 64 rows and `tiles` arrays of two stages.
template <int E> constexpr int64_t mma_bytes(int own, int tiles)
{
    return (int64_t)sizeof(dt_bf16) * MMA_PITCH<E> * (own * MMA_OWN + 2 * tiles * MMA_ROWS<E>);
}

// Rows of a head in global memory: position j >= 0 is at now + j · stride, j < 0 at before + j ·
// before_stride.
struct mma_source {
    const dt_bf16 *now, *before;
    int64_t stride, before_stride;
};

DT_DEVICE mma_source mma_from(const dt_attention_inputs &in, const dt_view &now, const void *before,
                              int64_t b, int64_t head)
{
    const int64_t row = in.n_kv_head * in.width, end = (b + 1) * (in.window - 1) * row;
    return {attention_row<dt_bf16>(in, now, before, b, head, 0),
            before ? (const dt_bf16 *)before + end + head * in.width : nullptr, now.stride, row};
}

// Begins to copy ROWS rows from position j on, either all before 0 or none; rows outside [low,
// high) become zeros.
template <int E, int ROWS>
DT_DEVICE void mma_copy(const mma_source &source, int j, int low, int high, dt_bf16 *to)
{
    constexpr int EACH = MMA_THREADS / (E / 8); // rows at a time
    const int row = (int)threadIdx.x / (E / 8), i = (int)threadIdx.x % (E / 8) * 8;
    const int64_t stride = j < 0 ? source.before_stride : source.stride;
    const dt_bf16 *from = (j < 0 ? source.before : source.now) + (j + row) * stride + i;
    to += row * MMA_PITCH<E> + i;
    j += row;
#pragma unroll
    for (int r = 0; r < ROWS; r += EACH, j += EACH, from += EACH * stride) {
        if (j >= low && j < high)
            dt_copy_async<16>(to + r * MMA_PITCH<E>, from);
        else
            *reinterpret_cast<uint4 *>(to + r * MMA_PITCH<E>) = make_uint4(0, 0, 0, 0);
    }
}

// Walks the tiles of keys and values of positions [low, end) and calls use(first position, keys),
// with the values one tile after the keys in memory, while the next tile is copied. `stages` has
// two such pairs. Earlier copies have also arrived when `use` is first called.
template <int E, class Use>
DT_DEVICE void mma_walk(const mma_source &keys, const mma_source &values, int low, int end,
                        dt_bf16 *stages, const Use &use)
{
    constexpr int ROWS = MMA_ROWS<E>, TILE = ROWS * MMA_PITCH<E>;
    int j = low & -ROWS; // no tile crosses position 0
    dt_bf16 *tile = stages;
    mma_copy<E, ROWS>(keys, j, low, end, tile);
    mma_copy<E, ROWS>(values, j, low, end, tile + TILE);
    dt_copy_commit();
    for (; j < end; j += ROWS) {
        dt_bf16 *const next = tile == stages ? stages + 2 * TILE : stages;
        dt_copy_wait<0>();
        __syncthreads(); // this tile has arrived, the previous one was read
        if (j + ROWS < end) {
            mma_copy<E, ROWS>(keys, j + ROWS, low, end, next);
            mma_copy<E, ROWS>(values, j + ROWS, low, end, next + TILE);
        }
        dt_copy_commit();
        use(j, tile);
        tile = next;
    }
}

// The offset of a lane's row for dt_mma_load: of A, and of B by rows along k, or of B by columns.
template <int E> DT_DEVICE int mma_lane(bool columns)
{
    const int lane = (int)threadIdx.x % DT_WARP;
    return columns ? (lane % 8 + lane / 16 * 8) * MMA_PITCH<E> + lane / 8 % 2 * 8
                   : lane % 16 * MMA_PITCH<E> + lane / 16 * 8;
}

// pairs[n] += the warp's 16 own rows times rows 8 n … of a tile.
template <int E, int PAIRS>
DT_DEVICE void mma_scores(const dt_bf16 *own, const dt_bf16 *tile, float (&pairs)[PAIRS][4])
{
    own += (int)threadIdx.x / DT_WARP * 16 * MMA_PITCH<E> + mma_lane<E>(false);
    tile += mma_lane<E>(true);
#pragma unroll
    for (int k = 0; k < E; k += 16) {
        unsigned a[4], b[4];
        dt_mma_load<false>(a, own + k);
#pragma unroll
        for (int n = 0; n < PAIRS; n += 2) {
            dt_mma_load<false>(b, tile + n * 8 * MMA_PITCH<E> + k);
            dt_mma(pairs[n], a, b[0], b[1]);
            dt_mma(pairs[n + 1], a, b[2], b[3]);
        }
    }
}

// sums[n] += pairs, rounded to bf16, times columns 8 n … of a tile's rows.
template <int E, int PAIRS>
DT_DEVICE void mma_weigh(const float (&pairs)[PAIRS][4], const dt_bf16 *tile,
                         float (&sums)[E / 8][4])
{
    tile += mma_lane<E>(false);
#pragma unroll
    for (int k = 0; k < PAIRS; k += 2) {
        const float(&x)[4] = pairs[k], (&y)[4] = pairs[k + 1];
        const unsigned a[4] = {dt_bf16_pair(x[0], x[1]), dt_bf16_pair(x[2], x[3]),
                               dt_bf16_pair(y[0], y[1]), dt_bf16_pair(y[2], y[3])};
        unsigned b[4];
#pragma unroll
        for (int n = 0; n < E / 8; n += 2) {
            dt_mma_load<true>(b, tile + k * 8 * MMA_PITCH<E> + n * 8);
            dt_mma(sums[n], a, b[0], b[1]);
            dt_mma(sums[n + 1], a, b[2], b[3]);
        }
    }
}

// Masks the scores of invisible pairs. The warp's rows begin at position `row`, columns at
// `column`: queries and keys, or with `across` keys and queries. starts, stops: of the sequence.
template <bool across, int PAIRS>
DT_DEVICE void mma_hide(const int32_t *starts, const int32_t *stops, int length, int row,
                        int column, float (&pairs)[PAIRS][4])
{
    const int lane = (int)threadIdx.x % DT_WARP;
#pragma unroll
    for (int i = 0; i < 4 * PAIRS; i++) {
        const int x = row + lane / 4 + i % 4 / 2 * 8, y = column + i / 4 * 8 + lane % 4 * 2 + i % 2,
                  query = across ? y : x, key = across ? x : y;
        if (query >= length || key >= stops[query] || key < starts[query])
            pairs[i / 4][i % 4] = MMA_UNSEEN;
    }
}

// Stores a thread's rows g and g + 8 of the warp's 16 to a view, each times a factor, and rotated
// back if rotated. A pair (i, i + E/2) is in one thread, E/16 products apart.
template <int E>
DT_DEVICE void mma_store(const dt_attention_inputs &in, const attention_shared &shared,
                         const dt_view &to, const attention_tile &tile, bool rotated,
                         const float (&factor)[2], const float (&sums)[E / 8][4])
{
    constexpr int HALF = E / 2;
    const int warp = (int)threadIdx.x / DT_WARP, lane = (int)threadIdx.x % DT_WARP;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = warp * 16 + lane / 4 + r * 8;
        if (row >= tile.n)
            continue;
        const int64_t j = tile.at + row;
        const float *angles = shared.angles + (shared.before + j) * E;
        dt_bf16 *out = dt_at<dt_bf16>(to, tile.b * in.length + j, tile.head * E);
#pragma unroll
        for (int n = 0; n < E / 16; n++) {
            const int i = n * 8 + lane % 4 * 2;
            float x[2], y[2], c[2] = {1.0f, 1.0f}, s[2] = {0.0f, 0.0f};
            if (rotated) {
                dt_load<2>(angles + i, c);
                dt_load<2>(angles + HALF + i, s);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float a = sums[n][2 * r + k], b = sums[n + E / 16][2 * r + k];
                x[k] = (a * c[k] + b * s[k]) * factor[r];
                y[k] = (b * c[k] - a * s[k]) * factor[r];
            }
            dt_store<2>(out + i, x);
            dt_store<2>(out + HALF + i, y);
        }
    }
}

// Rotates rows of heads, one warp per row: row r of a view has position first + r % period.
__global__ static void __launch_bounds__(MMA_THREADS)
    attention_turn_kernel(attention_shared shared, dt_view from, dt_view to, int64_t width,
                          int64_t first, int64_t period)
{
    const int64_t row = dt_thread_index() / DT_WARP;
    const int half = (int)width / 2, pieces = (int)from.cols / 16;
    if (row >= from.rows)
        return; // the whole warp
    const float *angles = shared.angles + (shared.before + first + row % period) * width;
    for (int piece = (int)threadIdx.x % DT_WARP; piece < pieces; piece += DT_WARP) {
        const int i = piece % (half / 8) * 8, col = piece / (half / 8) * 2 * half + i;
        float x[8], y[8], c[8], s[8], low[8], high[8];
        dt_load<8>(dt_at<dt_bf16>(from, row, col), x);
        dt_load<8>(dt_at<dt_bf16>(from, row, col + half), y);
        dt_load<8>(angles + i, c);
        dt_load<8>(angles + half + i, s);
#pragma unroll
        for (int k = 0; k < 8; k++)
            low[k] = x[k] * c[k] - y[k] * s[k], high[k] = y[k] * c[k] + x[k] * s[k];
        dt_store<8>(dt_at<dt_bf16>(to, row, col), low);
        dt_store<8>(dt_at<dt_bf16>(to, row, col + half), high);
    }
}

// The inputs with queries and keys rotated.
static inline dt_attention_inputs attention_turn(const dt_attention_inputs *in,
                                                 const attention_shared &shared, dt_stream *stream)
{
    dt_attention_inputs turned = *in;
    if (in->rope_base == 0)
        return turned;
    const auto turn = [&](const dt_view &from, dt_bf16 *to, int64_t first, int64_t period) {
        const dt_view out = dt_view_of(to, from.rows, from.cols, DT_BF16);
        DT_LAUNCH((attention_turn_kernel), dt_blocks(from.rows, MMA_WARPS), MMA_THREADS, 0, stream,
                  shared, from, out, in->width, first, period);
        return out;
    };
    const int64_t keep = in->window - 1;
    turned.q = turn(in->q, shared.q, 0, in->length);
    turned.k = turn(in->k, shared.k, 0, in->length);
    if (in->k0)
        turned.k0 =
            turn(dt_view_of(in->k0, in->batch * keep, in->k.cols, DT_BF16), shared.k0, -keep, keep)
                .data;
    return turned;
}

// Tells a launcher whether these kernels support the inputs; other arrays need pairs of elements.
static inline bool mma_fits(const dt_attention_inputs *in)
{
    return dt_attention_on_mma(in->q.dtype, in->width) &&
           dt_aligned<8>(in->q, in->k, in->v, (const dt_bf16 *)in->k0, (const dt_bf16 *)in->v0);
}

// Launchers call this. It calls run(E) with the width of the heads as a constant.
template <int E = 16, class F> static inline bool mma_switch(int64_t width, const F &run)
{
    if (width == E)
        return run(std::integral_constant<int, E>());
    if constexpr (E < DT_ATTENTION_HEAD_MAX)
        return mma_switch<2 * E>(width, run);
    return false;
}
