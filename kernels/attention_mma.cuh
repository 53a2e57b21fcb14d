// Attention of bf16 heads of 32 or 64 channels on tensor cores: the algorithms of
// attention_forward.cu and attention_backward.cu, with other tiles. A block is four warps; each
// owns 16 of the block's 64 rows (queries, or keys) and holds them, its sums and a tile of 16 x 64
// pairs in registers: the pairs that one product leaves are, rounded to bf16, an operand of the
// next. Rotated queries and keys, probabilities and their gradients are rounded to bf16, sums
// never. Rows in shared memory are padded by 8, so that neither kind of read meets a bank twice.
#pragma once

#include "kernels/attention.cuh"

enum {
    MMA_TILE = 64, // queries, and keys
    MMA_WARPS = 4,
    MMA_THREADS = MMA_WARPS * DT_WARP,
    MMA_PAIRS = MMA_TILE / 8, // products across a tile
};

template <int E> struct mma_rows {
    static constexpr int PITCH = E + 8, STEPS = E / 16; // along a head
    dt_bf16 at[MMA_TILE * PITCH];
};

// As attention_load, two neighbours at a time.
template <int E>
DT_DEVICE void mma_load(const dt_attention_inputs &in, const attention_shared &shared,
                        const dt_view &now, const void *before, const attention_tile &tile,
                        bool rotated, float scale, mma_rows<E> &to)
{
    constexpr int HALF = E / 2, PITCH = mma_rows<E>::PITCH;
    for (int index = (int)threadIdx.x; index < MMA_TILE * HALF / 2; index += MMA_THREADS) {
        const int row = index / (HALF / 2), i = index % (HALF / 2) * 2;
        unsigned low = 0, high = 0;
        if (row < tile.n) {
            const int64_t j = tile.at + row;
            const dt_bf16 *from = attention_row<dt_bf16>(in, now, before, tile.b, tile.head, j);
            low = *reinterpret_cast<const unsigned *>(from + i);
            high = *reinterpret_cast<const unsigned *>(from + HALF + i);
            if (rotated) {
                float x[2], y[2], c[2], s[2];
                const float *angles = shared.angles + (shared.before + j) * E;
                dt_load<2>(angles + i, c);
                dt_load<2>(angles + HALF + i, s);
                dt_unpair(low, x), dt_unpair(high, y);
                low = dt_bf16_pair((x[0] * c[0] - y[0] * s[0]) * scale,
                                   (x[1] * c[1] - y[1] * s[1]) * scale);
                high = dt_bf16_pair((y[0] * c[0] + x[0] * s[0]) * scale,
                                    (y[1] * c[1] + x[1] * s[1]) * scale);
            }
        }
        *reinterpret_cast<unsigned *>(to.at + row * PITCH + i) = low;
        *reinterpret_cast<unsigned *>(to.at + row * PITCH + HALF + i) = high;
    }
}

// The warp's 16 rows of a tile as operands.
template <int E>
DT_DEVICE void mma_take(const mma_rows<E> &rows, unsigned (&a)[mma_rows<E>::STEPS][4])
{
    constexpr int PITCH = mma_rows<E>::PITCH;
    const int warp = (int)threadIdx.x / DT_WARP;
#pragma unroll
    for (int k = 0; k < mma_rows<E>::STEPS; k++)
        dt_mma_load_a(a[k], rows.at + warp * 16 * PITCH + k * 16, PITCH);
}

// pairs[n] += the warp's 16 rows by rows 8 n … of a tile.
template <int E>
DT_DEVICE void mma_scores(const unsigned (&a)[mma_rows<E>::STEPS][4], const mma_rows<E> &rows,
                          float (&pairs)[MMA_PAIRS][4])
{
    constexpr int PITCH = mma_rows<E>::PITCH;
#pragma unroll
    for (int n = 0; n < MMA_PAIRS; n++) {
#pragma unroll
        for (int k = 0; k < mma_rows<E>::STEPS; k++) {
            unsigned b[2];
            dt_mma_load_b(b, rows.at + n * 8 * PITCH + k * 16, PITCH);
            dt_mma(pairs[n], a[k], b);
        }
    }
}

// sums[n] += pairs, rounded to bf16, by columns 8 n … of a tile's rows.
template <int E>
DT_DEVICE void mma_weigh(const float (&pairs)[MMA_PAIRS][4], const mma_rows<E> &rows,
                         float (&sums)[E / 8][4])
{
    constexpr int PITCH = mma_rows<E>::PITCH;
#pragma unroll
    for (int k = 0; k < MMA_PAIRS / 2; k++) {
        const float(&x)[4] = pairs[2 * k], (&y)[4] = pairs[2 * k + 1];
        const unsigned a[4] = {dt_bf16_pair(x[0], x[1]), dt_bf16_pair(x[2], x[3]),
                               dt_bf16_pair(y[0], y[1]), dt_bf16_pair(y[2], y[3])};
#pragma unroll
        for (int n = 0; n < E / 8; n++) {
            unsigned b[2];
            dt_mma_load_b_rows(b, rows.at + k * 16 * PITCH + n * 8, PITCH);
            dt_mma(sums[n], a, b);
        }
    }
}

// A thread's rows g and g + 8 of the warp's 16, times a factor each, turned back where rotated, to
// a view. A pair (i, i + E/2) is in one thread, E/16 products apart.
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
            float x[2], y[2], c[2] = {factor[r], factor[r]}, s[2] = {0.0f, 0.0f};
            if (rotated) {
                dt_load<2>(angles + i, c);
                dt_load<2>(angles + HALF + i, s);
            }
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float a = sums[n][2 * r + k], b = sums[n + E / 16][2 * r + k];
                if (rotated)
                    c[k] *= factor[r], s[k] *= factor[r];
                x[k] = a * c[k] + b * s[k];
                y[k] = b * c[k] - a * s[k];
            }
            dt_store<2>(out + i, x);
            dt_store<2>(out + HALF + i, y);
        }
    }
}

// Tells a launcher whether these kernels take such heads.
static inline bool mma_fits(const dt_attention_inputs *in)
{
    return in->q.dtype == DT_BF16 && (in->width == 32 || in->width == 64) &&
           dt_aligned<2>(in->q, in->k, in->v, (const dt_bf16 *)in->k0, (const dt_bf16 *)in->v0);
}
