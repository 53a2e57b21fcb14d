// The fast scan backward: its kernels. Private to scan_backward.cu.
#pragma once

#include "kernels/scan_backward_tile.cuh"

// Blocks a multiprocessor holds at least, and so registers: 12 warps on an H200. Elsewhere the
// compiler would spill.
template <class F, class T> constexpr int resident(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return F::NP * F::CC > 16 ? 2 : 3;
#else
    return F::NP > 16 ? 2 : SCAN_BACKWARD_RESIDENT;
#endif
}

// ---- first launch: what segment k >= 1 hands back

template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_backward_ends(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                       scan_passing passing)
{
    using fetched = backward_fetched<F, T>;
    using fetched_columns = backward_columns<F, T>;
    using columns_f32 = backward_columns<F, float>;
    using tile_t = backward_tile<F, T>;
    DT_SHARED(tile_t, tiles, [SCAN_WARPS]);
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    using sources_t = backward_sources<F, T>;
    DT_SHARED(sources_t, sources_of, [SCAN_WARPS]);
    DT_SHARED(fetched_columns, next_columns, [1]);
    DT_SHARED(columns_f32, columns, [1]);
    const scan_place place = scan_find_place<F>(cut, (int)cut.segments - 1, 1);
    backward_tile<F, T> &tile = tiles[place.warp];
    fetched &next = nexts[place.warp];
    float a[F::CC][F::S], carry[F::CC][F::S], sum[F::V] = {0.0f};
    bool passes = true;
    backward_sources<F, T> &sources = sources_of[place.warp];
    int first = place.begin + (place.end - 1 - place.begin) / F::TILE * F::TILE;
    find_sources<F, T>(args, NULL, cut, place, &sources);
    fetch(args, cut, place, sources, first, wide, true, next_columns, &next);
    int reset = fetch_reset(args, place, first);
    open_tile<F, T>(args, cut, place, &tile);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, a);
    scan_clear(carry);
    for (; first >= place.begin; first -= F::TILE) {
        float delta[F::V];
        dt_copy_wait<0>();
        __syncwarp();
        put_channels<F, T>(next, place, first, &tile, delta);
        put_columns<F, T>(next_columns[0], place, columns);
        const unsigned resets = __ballot_sync(DT_WHOLE_WARP, reset);
        if (resets != 0)
            passes = false;
        __syncthreads(); // the tile is there, what was fetched was read
        if (first > place.begin)
            fetch(args, cut, place, sources, first - F::TILE, wide, true, next_columns, &next);
#pragma unroll
        for (int v = 0; v < F::V; v++)
            sum[v] += delta[v];
#pragma unroll 4
        for (int i = F::TILE - 1; i >= 0; i--) {
            float c[F::S], step[2 * F::CC], ds[F::CC];
            dt_load(&columns->of[i][1][place.n], c);
            dt_load(&tile.steps[i][2 * F::CC * place.group], step);
            dt_load(&tile.ds[i][place.group * F::CC], ds);
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    carry[m][n] = dt_exp2(step[2 * m] * a[m][n]) * (ds[m] * c[n] + carry[m][n]);
            if (resets >> i & 1)
                scan_clear(carry);
        }
        reset = fetch_reset(args, place, first - F::TILE);
        __syncthreads(); // the tile was read
    }
    scan_pass_on<F>(passing, args.in.b.cols, cut, place, wide.slots, -1, passes, sum, carry);
}

// ---- second launch, or the only one

// What a lane keeps in registers from tile to tile.
template <class F> struct scanner {
    float a[F::CC][F::S], carry[F::CC][F::S], da[F::CC][F::S];
};

// What lanes have of dB and dC in a phase, four values at a time: dB, then dC of a lane's states.
template <class F, class T> struct column_parts {
    static const int QUADS = F::S / 2, PHASE = 16 / F::S / (sizeof(T) > 2 ? F::CC : 1);
    static const int SHARES = DT_WARP / PHASE / QUADS; // threads that add up one quad of a token
    float of[PHASE][QUADS][SCAN_THREADS][4];
};

// Where a thread's sums over the block's channels go.
struct column_place {
    char *at;      // of its token of the phase at token 0; NULL: the column is padding
    unsigned step; // bytes from token to token
};

// The token of a phase whose columns a thread adds.
template <class F, class T> DT_DEVICE int column_token(void)
{
    using parts = column_parts<F, T>;
    return (int)(threadIdx.x / (4 * parts::SHARES * parts::QUADS));
}

template <class F, class T>
DT_DEVICE column_place find_column(const dt_scan_backward_args &args, const scan_cut &cut,
                                   const scan_place &place, float *columns)
{
    const int N = (int)args.in.b.cols, SHARES = column_parts<F, T>::SHARES;
    const int set = (int)(threadIdx.x / (4 * SHARES)), share = place.lane / 4 % SHARES;
    const int k = set % column_parts<F, T>::QUADS * 4 + share * 4 / SHARES; // dB, then dC
    const int n = place.part * F::S + k % F::S;
    const bool there = n < N && share * 4 % SHARES == 0;
    const int64_t row = place.b * cut.length + column_token<F, T>();
    const int64_t width = cut.channel_blocks * 2 * N;
    column_place column;
    column.step = (unsigned)width * (unsigned)sizeof(float);
    column.at = there ? reinterpret_cast<char *>(columns + row * width + place.block * 2 * N +
                                                 k / F::S * N + n)
                      : NULL;
    return column;
}

// The block's sums over its channels of the phase from token `first` on: of each column a thread
// adds every SHARES-th part, and SHARES threads then swap sums.
template <class F, class T>
DT_DEVICE void add_columns(const column_parts<F, T> &parts, const scan_place &place, int first,
                           const column_place &column)
{
    const int SHARES = column_parts<F, T>::SHARES;
    const unsigned set = threadIdx.x / (4 * SHARES), at = threadIdx.x % (4 * SHARES);
    float sum[4];
#pragma unroll
    for (int r = 0; r < SCAN_THREADS; r += 4 * SHARES) {
        float part[4];
        dt_load(parts.of[set / column_parts<F, T>::QUADS][set % column_parts<F, T>::QUADS][r + at],
                part);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] = r == 0 ? part[e] : sum[e] + part[e];
    }
    scan_scatter_sum<SHARES, SCAN_PARTS, 4>(sum);
    if (column.at && first + column_token<F, T>() < place.end)
        *reinterpret_cast<float *>(column.at + (uint64_t)(unsigned)first * column.step) = sum[0];
}

// The tile forward, then backwards; bit i of `resets`: a document starts at token i. RESETS: there
// is one. Where registers allow, exp(Δ A) is kept on the way forward, else made again. h[i] is the
// state before token i.
template <class F, class T, bool RESETS>
DT_DEVICE void sweep_tile(const scan_place &place, int first, unsigned resets,
                          const column_place &column, const backward_columns<F, float> &columns,
                          float (&h)[F::TILE + 1][F::CC][F::S], backward_tile<F, T> *tile,
                          scanner<F> *own, column_parts<F, T> *parts)
{
    constexpr bool keeps = F::CC * F::S <= 4;
    constexpr int PHASE = column_parts<F, T>::PHASE;
    float decays[keeps ? F::TILE : 1][F::CC][F::S];
#pragma unroll
    for (int i = 0; i < F::TILE; i++) {
        float b[F::S], step[2 * F::CC];
        dt_load(&columns.of[i][0][place.n], b);
        dt_load(&tile->steps[i][2 * F::CC * place.group], step);
#pragma unroll
        for (int m = 0; m < F::CC; m++)
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                const float decay = dt_exp2(step[2 * m] * own->a[m][n]);
                h[i + 1][m][n] = decay * h[i][m][n] + step[2 * m + 1] * b[n];
                decays[keeps ? i : 0][m][n] = decay;
            }
        if (RESETS && resets >> i & 1)
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    h[i + 1][m][n] = step[2 * m + 1] * b[n];
    }
    float sums[SCAN_PARTS], dh_a[SCAN_PARTS]; // over n: s, dh_b of BOTH tokens
    constexpr int BOTH = F::TOGETHER / 2;
#pragma unroll
    for (int i = F::TILE - 1; i >= 0; i--) {
        float b[F::S], c[F::S], step[2 * F::CC], ds[F::CC], v[2 * F::S] = {0.0f};
        if (i == F::TILE - 1)
            __syncwarp(); // lets the compiler keep nothing else of the way forward
        else if (i % PHASE == PHASE - 1)
            __syncthreads(); // the parts of the phase before were added
        dt_load(&columns.of[i][0][place.n], b);
        dt_load(&columns.of[i][1][place.n], c);
        dt_load(&tile->steps[i][2 * F::CC * place.group], step);
        dt_load(&tile->ds[i][place.group * F::CC], ds);
#pragma unroll
        for (int m = 0; m < F::CC; m++) {
            float s = 0.0f, dh_b = 0.0f;
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                const float dh = ds[m] * c[n] + own->carry[m][n];
                s += c[n] * h[i + 1][m][n];
                v[n] += dh * step[2 * m + 1];
                v[F::S + n] += ds[m] * h[i + 1][m][n];
                dh_b += dh * b[n];
                own->carry[m][n] = dh;
            }
            sums[i % BOTH * F::CC + m] = s;
            sums[SCAN_PARTS / 2 + i % BOTH * F::CC + m] = dh_b;
        }
#pragma unroll
        for (int q = 0; q < column_parts<F, T>::QUADS; q++) {
            const float quad[4] = {v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]};
            dt_store(parts->of[i % PHASE][q][threadIdx.x], quad);
        }
        if (i % BOTH == 0) {
            scan_scatter_sum<SCAN_PARTS, 1, SCAN_PARTS>(sums);
            const int at = place.part % (SCAN_PARTS / 2);
            tile->sums[place.part / (SCAN_PARTS / 2)][i + at / F::CC]
                      [place.group * F::CC + at % F::CC] = sums[0];
        }
#pragma unroll
        for (int m = 0; m < F::CC; m++) {
            const int at = i % F::TOGETHER * F::CC + m;
            dh_a[at] = 0.0f;
            if (!RESETS || !(resets >> i & 1))
#pragma unroll
                for (int n = 0; n < F::S; n++) {
                    const float decay =
                        keeps ? decays[keeps ? i : 0][m][n] : dt_exp2(step[2 * m] * own->a[m][n]);
                    const float back = own->carry[m][n] * decay, q = back * h[i][m][n];
                    dh_a[at] += q * own->a[m][n];
                    own->da[m][n] += q * step[2 * m];
                    own->carry[m][n] = back;
                }
            else
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    own->carry[m][n] = 0.0f;
        }
        if (i % F::TOGETHER == 0)
            scan_put_sums<F>(dh_a, i, place, tile->dh_a);
        if (i % PHASE == 0) {
            __syncthreads();
            add_columns<F, T>(*parts, place, first + i, column);
        }
    }
}

// V neighbours of the token that the lane carries, as storage. whole: see is_whole.
template <class F, class T>
DT_DEVICE void store_channels(void *x, int64_t stride, const scan_cut &cut, const scan_place &place,
                              int first, bool whole, const float (&values)[F::V])
{
    const uint64_t row = (uint64_t)(unsigned)(place.row + first) * (unsigned)stride;
    if (whole)
        dt_store(static_cast<T *>(x) + place.b * cut.length * stride + row + (unsigned)place.carry,
                 values);
    else
        scan_store_channels<F, T>(x, stride, cut, place, first, false, values);
}

// du, ddelta and dz of the token that the lane carries, and its share of the channels' sums.
template <class F, class T>
DT_DEVICE void store_tokens(const dt_scan_backward_args &args, const scan_cut &cut,
                            const scan_place &place, int first, bool whole,
                            backward_tile<F, T> *tile)
{
    float u[F::V], steps[2 * F::V], ds[F::V], s[F::V], dh_b[F::V], dh_a[F::V];
    float skip[F::V], gate[F::V], slope[F::V], dd_skip[F::V], ddt_bias[F::V];
    const int row = place.row, column = place.column;
    dt_load(tile->u[place.lane], u);
    dt_load(&tile->skip[column], skip);
    dt_load(&tile->gate[row][column], gate);
    dt_load(&tile->slope[row][column], slope);
    dt_load(tile->dd_skip[place.lane], dd_skip);
    dt_load(tile->ddt_bias[place.lane], ddt_bias);
    dt_load(&tile->steps[row][2 * column], steps);
    dt_load(&tile->ds[row][column], ds);
    dt_load(&tile->sums[0][row][column], s);
    dt_load(&tile->sums[1][row][column], dh_b);
    dt_load(&tile->dh_a[row][column], dh_a);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        s[v] = gate[v] * (s[v] + skip[v] * u[v]);                  // dz
        dh_a[v] = (dh_a[v] * DT_LN_2 + u[v] * dh_b[v]) * slope[v]; // ddelta
        dh_b[v] = ds[v] * skip[v] + steps[2 * v] * dh_b[v];        // du
        dd_skip[v] += ds[v] * u[v];
        ddt_bias[v] += whole || first + row < place.end ? dh_a[v] : 0.0f;
    }
    dt_store(tile->dd_skip[place.lane], dd_skip);
    dt_store(tile->ddt_bias[place.lane], ddt_bias);
    store_channels<F, T>(args.dz.data, args.dz.stride, cut, place, first, whole, s);
    store_channels<F, T>(args.ddelta.data, args.ddelta.stride, cut, place, first, whole, dh_a);
    store_channels<F, T>(args.du.data, args.du.stride, cut, place, first, whole, dh_b);
}

// A run's sums over time.
template <class F, class T>
DT_DEVICE void store_sums(const dt_scan_backward_args &args, const scan_cut &cut,
                          const scan_place &place, const scanner<F> &own,
                          const backward_tile<F, T> &tile, const backward_space &space)
{
    const int64_t row = place.run, D = cut.channels;
    const int states = (int)args.in.b.cols - place.n, channels = (int)cut.channels - place.d;
    float dd_skip[F::V], ddt_bias[F::V];
    float *to = space.parameters + (row * (args.in.b.cols + 2) + place.n) * D + place.d;
#pragma unroll
    for (int n = 0; n < F::S; n++, to += D)
#pragma unroll
        for (int m = 0; m < F::CC; m++)
            if (n < states && m < channels)
                to[m] = own.da[m][n] * own.a[m][n] * DT_LN_2;
    dt_load(tile.dd_skip[place.lane], dd_skip);
    dt_load(tile.ddt_bias[place.lane], ddt_bias);
    scan_sum_rows<F>(dd_skip);
    scan_sum_rows<F>(ddt_bias);
    const int carried = (int)cut.channels - place.carry;
    to = space.parameters + (row * (args.in.b.cols + 2) + args.in.b.cols) * D + place.carry;
#pragma unroll
    for (int v = 0; v < F::V; v++)
        if (place.row == 0 && v < carried)
            to[v] = dd_skip[v], to[D + v] = ddt_bias[v];
}

template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_backward_registers(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                            backward_space space)
{
    using fetched = backward_fetched<F, T>;
    using fetched_columns = backward_columns<F, T>;
    using columns_f32 = backward_columns<F, float>;
    using column_sums = column_parts<F, T>;
    using tile_t = backward_tile<F, T>;
    DT_SHARED(tile_t, tiles, [SCAN_WARPS]);
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    using sources_t = backward_sources<F, T>;
    DT_SHARED(sources_t, sources_of, [SCAN_WARPS]);
    DT_SHARED(fetched_columns, next_columns, [1]);
    DT_SHARED(columns_f32, columns, [1]);
    DT_SHARED(column_sums, parts, [1]);
    const scan_place place = scan_find_place<F>(cut);
    const column_place column = find_column<F, T>(args, cut, place, space.columns);
    backward_tile<F, T> &tile = tiles[place.warp];
    fetched &next = nexts[place.warp];
    scanner<F> own;
    backward_sources<F, T> &sources = sources_of[place.warp];
    int first = place.begin + (place.end - 1 - place.begin) / F::TILE * F::TILE;
    find_sources<F, T>(args, space.starts ? space.starts : args.states, cut, place, &sources);
    fetch(args, cut, place, sources, first, wide, false, next_columns, &next);
    int reset = fetch_reset(args, place, first);
    open_tile<F, T>(args, cut, place, &tile);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, own.a);
    scan_clear(own.da);
    scan_clear(own.carry);
    if (place.b >= cut.whole) {
        const int after = (int)cut.segments - 1 - place.segment;
        scan_pass_through<F>(space.passing, args.in.b.cols, cut, place, wide.slots,
                             scan_passing_row(cut, place) + after, -1, after, own.a, own.carry);
    }
    for (; first >= place.begin; first -= F::TILE) {
        float delta[F::V], h[F::TILE + 1][F::CC][F::S];
        dt_copy_wait<0>();
        __syncwarp();
        put_channels<F, T>(next, place, first, &tile, delta);
        put_columns<F, T>(next_columns[0], place, columns);
#pragma unroll
        for (int n = 0; n < F::S; n++) {
            float neighbours[F::CC];
            dt_load(&next.states[place.n + n][place.group * F::CC], neighbours);
#pragma unroll
            for (int m = 0; m < F::CC; m++)
                h[0][m][n] = neighbours[m];
        }
        const unsigned resets = __ballot_sync(DT_WHOLE_WARP, reset);
        __syncthreads(); // the tile is there, what was fetched was read, the parts were added
        if (first > place.begin)
            fetch(args, cut, place, sources, first - F::TILE, wide, false, next_columns, &next);
        if (resets != 0)
            sweep_tile<F, T, true>(place, first, resets, column, columns[0], h, &tile, &own, parts);
        else
            sweep_tile<F, T, false>(place, first, resets, column, columns[0], h, &tile, &own,
                                    parts);
        reset = fetch_reset(args, place, first - F::TILE); // here, where registers are free
        store_tokens<F, T>(args, cut, place, first, is_whole<F>(cut, place, first, wide), &tile);
    }
    store_sums<F, T>(args, cut, place, own, tile, space);
}
