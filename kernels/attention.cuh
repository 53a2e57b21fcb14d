// What both passes of attention on CUDA share: what is made before them (angles, ranges of visible
// positions), and tiles in shared memory. A block of 16 x 16 threads works on a tile of TILE
// queries by TILE keys; thread (ty, tx) owns rows ty·R + r and columns tx + 16·c of an array of
// scores, R = TILE / 16 of each, and of an array of heads' rows the same rows and E / 16 columns.
// Rows in shared memory are fp32 and padded by 4, so that the 16-byte reads of neighbouring rows
// meet no bank twice.
#pragma once

#include "kernels/device.cuh"

enum {
    ATTENTION_SIDE = 16,
    ATTENTION_THREADS = ATTENTION_SIDE * ATTENTION_SIDE,
    ATTENTION_ROWS = 16, // positions whose angles a thread makes
};

// The arrays of the workspace, and what follows from the sizes.
struct attention_shared {
    float *angles;   // [before + L, E]: cosines, then sines, of position j in row before + j
    int32_t *starts; // [B, L]: what t sees, [start, stop)
    int32_t *stops;
    int32_t *firsts; // [B]: the first position that the sequence's last one may see
    float2 *slopes;  // [B·L, H], backward: lse · log2 e and delta
    dt_bf16 *q, *k;  // [B·L, H·E] and [B·L, G·E], rotated, for tensor cores
    dt_bf16 *k0;     // [B·(W - 1), G·E], likewise
    int64_t before;  // positions before 0 that k0 has rows for
    float scale;     // 1 / sqrt(E)
};

// Carves a workspace into the arrays (NULL: measures them); the bytes of all.
static inline int64_t attention_share(const dt_attention_inputs *in, bool backward, void *workspace,
                                      attention_shared *shared)
{
    const int64_t tokens = in->batch * in->length, F = sizeof(float), kept = dt_attention_kept(in);
    const bool turns = dt_attention_on_mma(in->q.dtype, in->width) && in->rope_base > 0;
    const int64_t turned = turns ? in->width * (int64_t)sizeof(dt_bf16) : 0; // bytes of a head
    dt_carver carver = dt_carve_from(workspace);
    shared->before = in->k0 ? in->window - 1 : 0;
    shared->scale = (float)(1 / sqrt((double)in->width));
    // with room for a state where this call has none: memory is measured without
    dt_carve(&carver, shared->angles, (kept + in->length) * in->width * F);
    dt_carve(&carver, shared->starts, tokens * F);
    dt_carve(&carver, shared->stops, tokens * F);
    dt_carve(&carver, shared->firsts, in->batch * F);
    dt_carve(&carver, shared->slopes, backward ? tokens * in->n_head * 2 * F : 0);
    dt_carve(&carver, shared->q, tokens * in->n_head * turned);
    dt_carve(&carver, shared->k, tokens * in->n_kv_head * turned);
    dt_carve(&carver, shared->k0, in->batch * kept * in->n_kv_head * turned);
    return carver.used;
}

// A thread owns one frequency, and makes the angles of ATTENTION_ROWS positions: in double up to
// the turn, so that far positions are as exact as near ones.
__global__ static void attention_angles_kernel(attention_shared shared, int64_t rows, int64_t half,
                                               int64_t first, double rope_base)
{
    const double turn = 6.283185307179586;
    int64_t i = threadIdx.x, row = (int64_t)blockIdx.x * ATTENTION_ROWS;
    if (i >= half)
        return;
    double frequency = rope_base > 0 ? pow(rope_base, -(double)i / (double)half) : 0;
    for (int64_t end = dt_least(row + ATTENTION_ROWS, rows); row < end; row++) {
        double angle = (double)(first + row) * frequency;
        float x = (float)(angle - rint(angle / turn) * turn);
        shared.angles[row * 2 * half + i] = cosf(x);
        shared.angles[row * 2 * half + half + i] = sinf(x);
    }
}

// The last of a sequence's positions that counts, and 1: the warp walks its mask.
DT_DEVICE int64_t attention_counted(const dt_attention_inputs &in, int64_t b)
{
    int64_t end = in.mask ? 0 : in.length;
    for (int64_t t0 = 0; in.mask && t0 < in.length; t0 += DT_WARP) {
        const int64_t t = t0 + (int)threadIdx.x;
        const unsigned counts =
            __ballot_sync(DT_WHOLE_WARP, t < in.length && in.mask[b * in.length + t]);
        end = counts ? t0 + DT_WARP - __clz((int)counts) : end;
    }
    return end;
}

// A warp walks a sequence, 32 positions at a time; both ways also from its end. There padding is
// documents of one position.
__global__ static void __launch_bounds__(DT_WARP)
    attention_ranges_kernel(dt_attention_inputs in, attention_shared shared)
{
    const int64_t b = blockIdx.x;
    const int lane = threadIdx.x;
    const int64_t counted = in.both ? attention_counted(in, b) : in.length;
    const auto starts_document = [&](int64_t t) {
        return t < in.length && (t >= counted || (in.reset && in.reset[b * in.length + t]));
    };
    int first = in.k0 ? -in.count0[b] : 0;
    for (int64_t t0 = 0; t0 < in.length; t0 += DT_WARP) {
        const int64_t t = t0 + lane;
        int mine = starts_document(t) ? (int)t : first;
#pragma unroll
        for (int step = 1; step < DT_WARP; step *= 2) {
            int other = __shfl_up_sync(DT_WHOLE_WARP, mine, (unsigned)step);
            mine = lane >= step && other > mine ? other : mine;
        }
        if (t < in.length) {
            int64_t window = t - in.window + 1;
            shared.starts[b * in.length + t] = (int32_t)(mine > window ? mine : window);
            shared.stops[b * in.length + t] = (int32_t)t + 1;
        }
        first = __shfl_sync(DT_WHOLE_WARP, mine, DT_WARP - 1);
    }
    int64_t end = in.length; // of the document of the last position
    for (int64_t t0 = (in.length - 1) / DT_WARP * DT_WARP; in.both && t0 >= 0; t0 -= DT_WARP) {
        const int64_t t = t0 + lane;
        const unsigned starts = __ballot_sync(DT_WHOLE_WARP, starts_document(t)),
                       later = lane < DT_WARP - 1 ? starts >> (lane + 1) : 0;
        const int64_t stop = later ? t + __ffs((int)later) : end;
        if (t < in.length)
            shared.stops[b * in.length + t] = (int32_t)dt_least(stop, t + in.window);
        end = starts ? t0 + __ffs((int)starts) - 1 : end;
    }
    if (lane == 0)
        shared.firsts[b] = first;
}

static inline void attention_prepare(const dt_attention_inputs *in, const attention_shared &shared,
                                     dt_stream *stream)
{
    const int64_t rows = shared.before + in->length;
    DT_LAUNCH((attention_angles_kernel), dt_blocks(rows, ATTENTION_ROWS),
              (unsigned)(dt_div_up(in->width / 2, DT_WARP) * DT_WARP), 0, stream, shared, rows,
              in->width / 2, in->at - shared.before, in->rope_base);
    DT_LAUNCH((attention_ranges_kernel), dt_blocks(in->batch, 1), DT_WARP, 0, stream, *in, shared);
}

// The first position that sees j >= 0 or one after it; starts: of the sequence.
DT_DEVICE int64_t attention_first(const dt_attention_inputs &in, const int32_t *starts, int64_t j)
{
    return in.both ? starts[j] : j;
}

// Returns the row of position j of sequence b and group g, in k and k0 or in v and v0.
template <class T>
DT_DEVICE const T *attention_row(const dt_attention_inputs &in, const dt_view &now,
                                 const void *before, int64_t b, int64_t g, int64_t j)
{
    if (j >= 0)
        return dt_at<T>(now, b * in.length + j, g * in.width);
    return (const T *)before + (((b + 1) * (in.window - 1) + j) * in.n_kv_head + g) * in.width;
}

// Which head, or group, and which rows a tile is of.
struct attention_tile {
    int64_t b, head; // of queries; of keys: the group
    int64_t at, n;   // first position, positions: the other rows are zero
};

// The tile that the block owns, of `heads` heads or groups.
template <int TILE>
DT_DEVICE attention_tile attention_own(const dt_attention_inputs &in, int64_t heads)
{
    const int64_t tiles = dt_div_up(in.length, TILE), block = blockIdx.x;
    const int64_t b = block / tiles / heads, head = block / tiles % heads,
                  at = block % tiles * TILE, n = dt_least(TILE, in.length - at);
    return {b, head, at, n};
}

// Rows of a view, and of the state before position 0, into shared memory; `rotated` by their
// positions, times scale. E is the padded width.
template <class T, int E, int TILE>
DT_DEVICE void attention_load(const dt_attention_inputs &in, const attention_shared &shared,
                              const dt_view &now, const void *before, const attention_tile &tile,
                              bool rotated, float scale, float *to)
{
    constexpr int PITCH = E + 4, HALF = E / 2;
    const int half = (int)in.width / 2;
    for (int index = (int)threadIdx.x; index < TILE * HALF; index += ATTENTION_THREADS) {
        const int row = index / HALF, i = index % HALF;
        if (row >= tile.n || i >= half) { // columns beyond the width are the last of the row
            to[row * PITCH + (i < half ? i : i + half)] = 0.0f;
            to[row * PITCH + (i < half ? i + half : i + HALF)] = 0.0f;
            continue;
        }
        const int64_t j = tile.at + row;
        const T *from = attention_row<T>(in, now, before, tile.b, tile.head, j);
        float x = dt_to_f32(from[i]), y = dt_to_f32(from[half + i]), c = scale, s = 0.0f;
        if (rotated) {
            const float *angles = shared.angles + (shared.before + j) * in.width;
            c = angles[i] * scale, s = angles[half + i] * scale;
        }
        to[row * PITCH + i] = x * c - y * s;
        to[row * PITCH + half + i] = y * c + x * s;
    }
}

// The other way: a thread's part of gradients through shared memory, turned back where rotated,
// times scale, to a view.
template <class T, int E, int TILE>
DT_DEVICE void attention_store(const dt_attention_inputs &in, const attention_shared &shared,
                               const dt_view &to, const attention_tile &tile, bool rotated,
                               float scale, const float *from)
{
    constexpr int PITCH = E + 4, HALF = E / 2;
    const int half = (int)in.width / 2;
    for (int index = (int)threadIdx.x; index < TILE * HALF; index += ATTENTION_THREADS) {
        const int row = index / HALF, i = index % HALF;
        if (row >= tile.n || i >= half)
            continue;
        const int64_t j = tile.at + row;
        float x = from[row * PITCH + i], y = from[row * PITCH + half + i], c = scale, s = 0.0f;
        if (rotated) {
            const float *angles = shared.angles + (shared.before + j) * in.width;
            c = angles[i] * scale, s = angles[half + i] * scale;
        }
        T *out = dt_at<T>(to, tile.b * in.length + j, tile.head * in.width);
        out[i] = dt_from_f32<T>(x * c + y * s);
        out[half + i] = dt_from_f32<T>(y * c - x * s);
    }
}

// out[r][c] += Σ_e a[ty·R + r][e] · b[tx + 16·c][e]: scores, and gradients of probabilities. With
// more turns at once sm_90 and sm_100 would spill.
template <int E, int R>
DT_DEVICE void attention_scores(const float *a, const float *b, float (&out)[R][R])
{
    constexpr int PITCH = E + 4;
    const int ty = (int)threadIdx.x / ATTENTION_SIDE, tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll 4 / R
    for (int e = 0; e < E; e += 4) {
        float x[R][4], y[R][4];
#pragma unroll
        for (int r = 0; r < R; r++) {
            dt_load<4>(a + (ty * R + r) * PITCH + e, x[r]);
            dt_load<4>(b + (tx + ATTENTION_SIDE * r) * PITCH + e, y[r]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < R; c++)
                    out[r][c] += x[r][i] * y[c][i];
    }
}

// A thread's columns of a padded row of E: VECTOR neighbours, COUNT times, 16·VECTOR apart.
template <int E> struct attention_columns {
    static constexpr int EACH = E / ATTENTION_SIDE, VECTOR = EACH < 4 ? EACH : 4,
                         COUNT = EACH / VECTOR;
};

// out[r][·] += Σ_j p(ty·R + r, j) · rows[j][columns], where p(i, j) is pairs[i][j] or, `across`,
// pairs[j][i]; pairs has TILE + 4 floats a row.
template <int E, int R, bool across>
DT_DEVICE void attention_weigh(const float *pairs, const float *rows,
                               float (&out)[R][E / ATTENTION_SIDE])
{
    constexpr int PITCH = E + 4, TILE = R * ATTENTION_SIDE, PAIRS = TILE + 4;
    using columns = attention_columns<E>;
    const int ty = (int)threadIdx.x / ATTENTION_SIDE, tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll 4
    for (int j = 0; j < TILE; j++) {
        float p[R];
#pragma unroll
        for (int r = 0; r < R; r++)
            p[r] = across ? pairs[j * PAIRS + ty * R + r] : pairs[(ty * R + r) * PAIRS + j];
#pragma unroll
        for (int c = 0; c < columns::COUNT; c++) {
            float x[columns::VECTOR];
            dt_load<columns::VECTOR>(rows + j * PITCH + (c * ATTENTION_SIDE + tx) * columns::VECTOR,
                                     x);
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int i = 0; i < columns::VECTOR; i++)
                    out[r][c * columns::VECTOR + i] += p[r] * x[i];
        }
    }
}

// Puts a thread's sums into shared rows; the barriers are the caller's.
template <int E, int R>
DT_DEVICE void attention_put(const float (&sums)[R][E / ATTENTION_SIDE], float *rows)
{
    using columns = attention_columns<E>;
    const int ty = (int)threadIdx.x / ATTENTION_SIDE, tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < columns::COUNT; c++)
#pragma unroll
            for (int i = 0; i < columns::VECTOR; i++)
                rows[(ty * R + r) * (E + 4) + (c * ATTENTION_SIDE + tx) * columns::VECTOR + i] =
                    sums[r][c * columns::VECTOR + i];
}

template <int R> DT_DEVICE void attention_put_pairs(const float (&pairs)[R][R], float *to)
{
    constexpr int PAIRS = R * ATTENTION_SIDE + 4;
    const int ty = (int)threadIdx.x / ATTENTION_SIDE, tx = (int)threadIdx.x % ATTENTION_SIDE;
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
        for (int c = 0; c < R; c++)
            to[(ty * R + r) * PAIRS + tx + ATTENTION_SIDE * c] = pairs[r][c];
}

// Launchers call this: the floats that `rows` tiles of rows and one of pairs take in shared memory.
template <int E, int TILE> constexpr int64_t attention_floats(int rows)
{
    return (int64_t)rows * TILE * (E + 4) + TILE * (TILE + 4);
}

// Launchers call this. It runs the statement with T, the padded width E and TILE, which fit 99 KB
// of shared memory with four tiles of rows.
#define ATTENTION_SWITCH(in, T, E, TILE, ...)                                                      \
    DT_STORAGE_SWITCH((in)->q.dtype, T, ATTENTION_WIDTH_SWITCH(in, E, TILE, __VA_ARGS__))
#define ATTENTION_WIDTH_SWITCH(in, E, TILE, ...)                                                   \
    do {                                                                                           \
        if ((in)->width <= 32) {                                                                   \
            constexpr int E = 32, TILE = 64;                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((in)->width <= 64) {                                                            \
            constexpr int E = 64, TILE = 64;                                                       \
            __VA_ARGS__;                                                                           \
        } else if ((in)->width <= 128) {                                                           \
            constexpr int E = 128, TILE = 32;                                                      \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            constexpr int E = 256, TILE = 16;                                                      \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)
