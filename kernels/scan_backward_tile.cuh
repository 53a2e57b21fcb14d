// A tile of the scan backward: its shared memory per warp and block, how it is loaded, and what
// carriers compute before the sweep. Private to scan_backward.cu.
#pragma once

#include "kernels/scan_backward_plain.cuh"

enum { TILE = 8 }; // tokens whose states a lane keeps in registers

// Whether arrays [B, L, D], [B, L, N] and states may be accessed by 16 bytes, and outputs and slots
// by a lane's number of channels.
struct backward_wide {
    bool channels, columns, states, all, slots; // all: the first three
};

template <class F, class T> struct alignas(16) backward_fetched { // of a warp, unconverted
    T u[F::TILE][F::WIDTH], delta[F::TILE][F::WIDTH], z[F::TILE][F::WIDTH], dy[F::TILE][F::WIDTH];
    float s[F::TILE][F::WIDTH];
    float states[SCAN_PARTS][F::S * F::WIDTH + 8]; // by part; parts start in different banks
    T columns[F::TILE / SCAN_WARPS][2][F::NP];     // B and C for a quarter of the block's tokens
};

// B and C of a block.
template <class F> struct alignas(16) backward_columns {
    float of[F::TILE][2][F::NP];
};

// What scanners read of a token. The row length lets neighbouring tokens start in different banks.
template <class F> struct backward_row {
    float steps[2][F::CARRIERS][2 * F::CC]; // even groups, odd ones: Δ of their channels, then Δ u
    float ds[F::WIDTH];
};

template <class F, class T> struct backward_tile { // of a warp
    T u[DT_WARP][F::V];                            // a carrier's
    backward_row<F> rows[F::TILE];
    float slope[F::TILE][F::WIDTH];
    float dd_skip[DT_WARP][F::V], ddt_bias[DT_WARP][F::V]; // over a carrier's tokens
    float bias[F::WIDTH], skip[F::WIDTH];
};

// A tile's sums over n, in different banks: dh_b = Σ dh B, dh_a = Σ dh exp(Δ A) h A.
template <class F> struct backward_sums {
    static const int A = F::TILE * F::WIDTH + 16; // distance between the two
    float of[A + F::TILE * F::WIDTH];
};

// A lane's part of an array of a tile; a row belongs to the carriers of a token.
template <class F, class X>
DT_DEVICE X *find_carried(X (&array)[F::TILE][F::WIDTH], const scan_place &place)
{
    static_assert(F::CARRIERS * F::V == F::WIDTH, "one row after another");
    return &array[0][0] + place.lane * F::V;
}

// ---- loading a tile in pieces of 16 bytes. Lane p % 32 loads piece p of the warp's u, delta, z
// and dy, and of its states; of B and C a warp loads its quarter of the tokens. The sources of a
// row's pieces are kept in shared memory, because registers are for states.

struct alignas(16) piece_source {
    uint64_t at;   // address of row 0: a token of the sequence, or n of one of its states
    uint64_t step; // bytes from row to row
};

template <class F, class T> struct backward_sources {                 // of a warp
    static const int EACH = 16 / (int)sizeof(T);                      // values per piece
    static const int ROW = F::WIDTH / EACH, ARRAY = F::TILE * ROW;    // pieces per token; of u
    static const int CHANNELS = 4 * ARRAY / DT_WARP;                  // pieces per lane
    static const int COLUMN_ROW = F::NP / EACH;                       // pieces of B per token
    static const int COLUMNS = F::TILE / SCAN_WARPS * 2 * COLUMN_ROW; // of a warp
    static const int STATE_ROW = F::WIDTH / 4, STATES = F::NP * STATE_ROW;
    piece_source u[4 * ROW], b[2 * COLUMN_ROW]; // u, delta, z, dy; b, c
    piece_source s[STATE_ROW], states[STATE_ROW];
    piece_source dz[F::CARRIERS], ddelta[F::CARRIERS], du[F::CARRIERS]; // destinations of V values
};

template <class F> DT_DEVICE int first_channel(const scan_place &place) // of the warp
{
    return place.d - place.group * F::CC;
}

template <class T>
DT_DEVICE piece_source find_source(const void *x, int64_t stride, int64_t row, int64_t at)
{
    piece_source source;
    source.at = (uint64_t)(uintptr_t)(static_cast<const T *>(x) + row * stride + at);
    source.step = (unsigned)stride * (unsigned)sizeof(T);
    return source;
}

template <class F, class T>
DT_DEVICE void find_sources(const dt_scan_backward_args &args, const float *starts,
                            const scan_cut &cut, const scan_place &place,
                            backward_sources<F, T> *sources)
{
    using to = backward_sources<F, T>;
    const int64_t row = place.b * cut.length, state = place.b * dt_div_up(cut.length, F::TILE);
    const int lane = place.lane, first = first_channel<F>(place);
    const int channel = first + lane % to::ROW * to::EACH, n = lane % to::COLUMN_ROW * to::EACH;
    const dt_view *const channels[4] = {&args.in.u, &args.in.delta, &args.in.z, &args.dy};
    const dt_view *const columns[2] = {&args.in.b, &args.in.c};
#pragma unroll
    for (int k = 0; k < 4; k++)
        if (lane < to::ROW)
            sources->u[k * to::ROW + lane] =
                find_source<T>(channels[k]->data, channels[k]->stride, row, channel);
#pragma unroll
    for (int k = 0; k < 2; k++)
        if (lane < to::COLUMN_ROW)
            sources->b[k * to::COLUMN_ROW + lane] =
                find_source<T>(columns[k]->data, columns[k]->stride, row, n);
    if (lane < to::STATE_ROW) {
        sources->s[lane] = find_source<float>(args.s, cut.channels, row, first + lane * 4);
        sources->states[lane] =
            find_source<float>(starts, cut.channels, state * args.in.b.cols, first + lane * 4);
    }
    if (lane < F::CARRIERS) {
        const int at = place.carry;
        sources->dz[lane] = find_source<T>(args.dz.data, args.dz.stride, row, at);
        sources->ddelta[lane] = find_source<T>(args.ddelta.data, args.ddelta.stride, row, at);
        sources->du[lane] = find_source<T>(args.du.data, args.du.stride, row, at);
    }
    __syncwarp();
}

template <class T> DT_DEVICE T *find_piece(const piece_source &source, int row)
{
    const uint4 words = *reinterpret_cast<const uint4 *>(&source); // one load
    const uint64_t at = (uint64_t)words.y << 32 | words.x;
    return scan_row(reinterpret_cast<T *>((uintptr_t)at), (unsigned)row, words.z);
}

// Copies a piece. WHOLE: complete. Otherwise zeros unless `there`, and beyond `count` values.
template <class T, bool WHOLE>
DT_DEVICE void copy_piece(char *to, const char *from, bool there, bool wide, int count)
{
    if (WHOLE || (wide && there))
        dt_copy_async<16>(to, from);
    else
#pragma unroll
        for (int v = 0; v < 16 / (int)sizeof(T); v++)
            reinterpret_cast<T *>(to)[v] =
                there && v < count ? reinterpret_cast<const T *>(from)[v] : T(0);
}

template <class F, class T, bool WHOLE>
DT_DEVICE void copy_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                         const scan_place &place, const backward_sources<F, T> &sources, int first,
                         backward_wide wide, bool ends, backward_fetched<F, T> *fetched)
{
    using from = backward_sources<F, T>;
    const int left = place.end - first, lane = place.lane, N = (int)args.in.b.cols;
    const int channels = (int)cut.channels - first_channel<F>(place);
    const int channel = lane % from::ROW * from::EACH, token = lane % from::ARRAY / from::ROW;
    const int column_token = (place.warp * from::COLUMNS + lane) / (2 * from::COLUMN_ROW);
    const int source = lane / from::ARRAY * from::ROW + lane % from::ROW;
    const int s_token = lane / from::STATE_ROW, quad = lane % from::STATE_ROW;
    const bool brings_columns = lane < from::COLUMNS;
    const bool brings_s = !ends && s_token < F::TILE;
    constexpr int STATES = (from::STATES + DT_WARP - 1) / DT_WARP;
    // Compute all addresses first: between copies the compiler would put three instructions that
    // wait for shared memory.
    const char *u[from::CHANNELS], *b = NULL, *s = NULL, *states[STATES] = {NULL};
#pragma unroll
    for (int k = 0; k < from::CHANNELS; k++) {
        const int arrays = k * DT_WARP / from::ARRAY; // before the lane's
        u[k] = find_piece<const char>(sources.u[arrays * from::ROW + source], first + token);
    }
    if (brings_columns)
        b = find_piece<const char>(sources.b[lane % (2 * from::COLUMN_ROW)], first + column_token);
    if (brings_s)
        s = find_piece<const char>(sources.s[quad], first + s_token);
#pragma unroll
    for (int k = 0; k < STATES; k++)
        if (!ends)
            states[k] = find_piece<const char>(sources.states[quad],
                                               (int)((unsigned)first / F::TILE) * N +
                                                   k * (DT_WARP / from::STATE_ROW) + s_token);
#pragma unroll
    for (int k = 0; k < from::CHANNELS; k++)
        copy_piece<T, WHOLE>(reinterpret_cast<char *>(fetched) + (k * DT_WARP + lane) * 16, u[k],
                             token < left && channel < channels, wide.channels, channels - channel);
    if (brings_columns)
        copy_piece<T, WHOLE>(reinterpret_cast<char *>(fetched->columns) + lane * 16, b,
                             column_token < left, wide.columns,
                             N - lane % from::COLUMN_ROW * from::EACH);
    if (brings_s)
        copy_piece<float, WHOLE>(reinterpret_cast<char *>(fetched->s) + lane * 16, s,
                                 s_token < left && quad * 4 < channels, wide.channels,
                                 channels - quad * 4);
    if (ends)
        return;
#pragma unroll
    for (int k = 0; k < STATES; k++) {
        const int n = k * (DT_WARP / from::STATE_ROW) + s_token;
        if (n < F::NP)
            copy_piece<float, WHOLE>(reinterpret_cast<char *>(fetched->states[n / F::S]) +
                                         (n % F::S * from::STATE_ROW + quad) * 16,
                                     states[k], quad * 4 < channels && n < N, wide.states,
                                     channels - quad * 4);
    }
}

// The last tile completely within the run and the channels, if accesses of 16 bytes are allowed,
// else -1. Such tiles, the majority, need no tests of single pieces or tokens.
template <class F>
DT_DEVICE int find_last_whole(const scan_cut &cut, const scan_place &place, backward_wide wide)
{
    const bool whole = wide.all && (int)cut.channels >= (place.block + 1) * SCAN_WARPS * F::WIDTH;
    return whole ? place.end - F::TILE : -1;
}

// Fetches the tile from token `first` on, without its state for the ends of segments.
template <class F, class T>
DT_DEVICE void fetch(const dt_scan_backward_args &args, const scan_cut &cut,
                     const scan_place &place, const backward_sources<F, T> &sources, int first,
                     backward_wide wide, bool whole, bool ends, backward_fetched<F, T> *fetched)
{
    if (whole)
        copy_tile<F, T, true>(args, cut, place, sources, first, wide, ends, fetched);
    else
        copy_tile<F, T, false>(args, cut, place, sources, first, wide, ends, fetched);
    dt_copy_commit();
}

// Fetches one bit per token, whether a document starts there, for the 32 tokens (four tiles) around
// token `first`. Lanes may read it after a __syncwarp.
DT_DEVICE void fetch_resets(const dt_scan_backward_args &args, const scan_place &place, int first,
                            unsigned *resets)
{
    const int t = (int)((unsigned)first / DT_WARP * DT_WARP) + place.lane;
    bool starts = false;
    if (args.in.reset && t >= 0 && t < args.in.length)
        starts = args.in.reset[place.b * args.in.length + t] != 0;
    const unsigned all = __ballot_sync(DT_WHOLE_WARP, starts);
    if (place.lane == 0)
        *resets = all;
}

// The resets of the tile at token `first`; bit i is that of its token i.
DT_DEVICE unsigned find_resets(unsigned resets, int first)
{
    return resets >> (unsigned)first % DT_WARP & ((1u << TILE) - 1);
}

// Loads the parameters of a warp's channels, and zeroes their gradients.
template <class F, class T>
DT_DEVICE void open_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                         const scan_place &place, backward_tile<F, T> *tile)
{
    float values[F::V], zeros[F::V] = {0.0f};
    dt_store(tile->dd_skip[place.lane], zeros);
    dt_store(tile->ddt_bias[place.lane], zeros);
    scan_load_channels<F>(args.in.dt_bias, cut, place, values);
    if (place.row == 0)
        dt_store(&tile->bias[place.column], values);
    scan_load_channels<F>(args.in.d_skip, cut, place, values);
    if (place.row == 0)
        dt_store(&tile->skip[place.column], values);
    __syncwarp();
}

// Computes Δ, ds, gate = dz / s, and in the tile the slope dΔ / ddelta = σ(delta + bias), with one
// exponential for both. Beyond the run's end Δ and slope are 0 (FAST: does not occur).
template <class F, class T, bool FAST>
DT_DEVICE void put_channels(backward_fetched<F, T> &fetched, const scan_place &place, int first,
                            backward_tile<F, T> *tile, float (&delta)[F::V], float (&gate)[F::V])
{
    float u[F::V], z[F::V], dy[F::V], bias[F::V], slope[F::V], ds[F::V];
    backward_row<F> &row = tile->rows[place.row];
    dt_load(find_carried<F>(fetched.delta, place), delta);
    dt_load(&tile->bias[place.column], bias);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        const float x = delta[v] + bias[v], e = dt_exp2(-DT_LOG2_E * fabsf(x));
        slope[v] = (x < 0.0f ? e : 1.0f) * dt_reciprocal(1.0f + e);
        delta[v] = fmaxf(x, 0.0f) + scan_log1p(e);
    }
    if (!FAST) {
        scan_blank_beyond<F>(place, first, delta);
        scan_blank_beyond<F>(place, first, slope);
    }
    dt_store(find_carried<F>(tile->slope, place), slope);
    using raw = scan_raw<T, F::V>;
    dt_load(find_carried<F>(fetched.u, place), u);
    *reinterpret_cast<raw *>(tile->u[place.lane]) =
        *reinterpret_cast<const raw *>(find_carried<F>(fetched.u, place));
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float steps[2 * F::CC];
#pragma unroll
        for (int m = 0; m < F::CC; m++) {
            steps[m] = delta[k * F::CC + m];
            steps[F::CC + m] = delta[k * F::CC + m] * u[k * F::CC + m];
        }
        dt_store(row.steps[k][place.lane % F::CARRIERS], steps);
    }
    dt_load(find_carried<F>(fetched.z, place), z);
    dt_load(find_carried<F>(fetched.dy, place), dy);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        const float open = dt_sigmoid(z[v]), part = dy[v] * open;
        ds[v] = part * z[v];
        gate[v] = part + ds[v] * (1.0f - open);
    }
    dt_store(&row.ds[place.column], ds);
}

template <class F, class T>
DT_DEVICE void put_columns(const backward_fetched<F, T> &fetched, const scan_place &place,
                           backward_columns<F> *columns)
{
    const int EACH = F::NP / 8; // of 2 NP columns of a warp's two tokens
    float values[EACH];
    dt_load(&fetched.columns[0][0][0] + place.lane * EACH, values);
    dt_store(&columns->of[0][0][0] + threadIdx.x * EACH, values);
}
