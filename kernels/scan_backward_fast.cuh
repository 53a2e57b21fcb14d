// The kernels of the fast scan backward. Private to scan_backward.cu.
#pragma once

#include "kernels/scan_backward_tile.cuh"

// The minimum of blocks per SM, which limits registers: 12 warps on an H200. On other devices the
// compiler would spill.
template <class F> constexpr int resident(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return F::NP * F::CC > 16 ? 2 : 3;
#else
    return F::NP > 16 ? 2 : SCAN_BACKWARD_RESIDENT;
#endif
}

// ---- first launch: the gradient that segment k >= 1 passes back

template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F>()))
    scan_backward_ends(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                       scan_passing passing)
{
    using fetched = backward_fetched<F, T>;
    using columns_f32 = backward_columns<F>;
    using tile_t = backward_tile<F, T>;
    DT_SHARED(tile_t, tiles, [SCAN_WARPS]);
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    using sources_t = backward_sources<F, T>;
    DT_SHARED(sources_t, sources_of, [SCAN_WARPS]);
    DT_SHARED(columns_f32, columns, [1]);
    const scan_place place = scan_find_place<F>(cut, (int)cut.segments - 1, 1);
    backward_tile<F, T> &tile = tiles[place.warp];
    fetched &next = nexts[place.warp];
    float a[F::CC][F::S], carry[F::CC][F::S], sum[F::V] = {0.0f};
    bool passes = true;
    backward_sources<F, T> &sources = sources_of[place.warp];
    int first = place.begin + (place.end - 1 - place.begin) / F::TILE * F::TILE;
    find_sources<F, T>(args, NULL, cut, place, &sources);
    const int last_whole = find_last_whole<F>(cut, place, wide);
    fetch(args, cut, place, sources, first, wide, first <= last_whole, true, &next);
    DT_SHARED(unsigned, starts, [SCAN_WARPS]);
    fetch_resets(args, place, first, &starts[place.warp]);
    open_tile<F, T>(args, cut, place, &tile);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, a);
    scan_clear(carry);
    for (; first >= place.begin; first -= F::TILE) {
        float delta[F::V], gate[F::V];
        dt_copy_wait<0>();
        __syncwarp();
        put_channels<F, T, false>(next, place, first, &tile, delta, gate);
        put_columns<F, T>(next, place, columns);
        const unsigned resets = find_resets(starts[place.warp], first);
        if (resets != 0)
            passes = false;
        __syncthreads(); // the tile has arrived; the previous one was read
        if (first > place.begin)
            fetch(args, cut, place, sources, first - F::TILE, wide, first - F::TILE <= last_whole,
                  true, &next);
#pragma unroll
        for (int v = 0; v < F::V; v++)
            sum[v] += delta[v];
#pragma unroll 4
        for (int i = F::TILE - 1; i >= 0; i--) {
            float c[F::S], step[2 * F::CC], ds[F::CC];
            dt_load(&columns->of[i][1][place.n], c);
            dt_load(tile.rows[i].steps[place.group % 2][place.group / 2], step);
            dt_load(&tile.rows[i].ds[place.group * F::CC], ds);
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    carry[m][n] = dt_exp2(step[m] * a[m][n]) * (ds[m] * c[n] + carry[m][n]);
            if (resets >> i & 1)
                scan_clear(carry);
        }
        if (first % DT_WARP == 0)
            fetch_resets(args, place, first - F::TILE, &starts[place.warp]);
        __syncthreads(); // the tile was read
    }
    scan_pass_on<F>(passing, args.in.b.cols, cut, place, wide.slots, -1, passes, sum, carry);
}

// ---- second or only launch

// A lane's registers from tile to tile.
template <class F> struct scanner {
    float a[F::CC][F::S], carry[F::CC][F::S], da[F::CC][F::S];
};

// The lanes' parts of dB and dC in a phase, four values at a time: dB, then dC of a lane's states.
template <class F, class T> struct column_parts {
    static const int QUADS = F::S / 2, PHASE = 16 / F::S / (sizeof(T) > 2 ? F::CC : 1);
    static const int SHARES = DT_WARP / PHASE / QUADS; // threads that add up one quad of a token
    float of[PHASE][QUADS][SCAN_THREADS][4];
};

// A thread's sums of a phase: every SHARES-th part of a quad of a token.
template <class F, class T> struct column_duty {
    unsigned share, part, quad, token;
};

template <class F, class T> DT_DEVICE column_duty<F, T> find_duty(void)
{
    using parts = column_parts<F, T>;
    const unsigned at = (unsigned)scan_opaque((int)threadIdx.x);
    return {at % parts::SHARES, at / parts::SHARES % SCAN_PARTS,
            at / (parts::SHARES * SCAN_PARTS) % parts::QUADS,
            at / (parts::SHARES * SCAN_PARTS * parts::QUADS)};
}

// The address of the thread's final sum for the phase at the sequence's token 0; NULL: none.
template <class F, class T>
DT_DEVICE float *find_column(const dt_scan_backward_args &args, const scan_cut &cut,
                             const scan_place &place, float *columns)
{
    constexpr unsigned SHARES = column_parts<F, T>::SHARES;
    const column_duty<F, T> duty = find_duty<F, T>();
    const unsigned N = (unsigned)args.in.b.cols, k = duty.quad * 4 + duty.share * 4 / SHARES;
    const unsigned n = duty.part * F::S + k % F::S;
    if (n >= N || duty.share * 4 % SHARES != 0)
        return NULL;
    return columns +
           ((place.b * cut.length + duty.token) * cut.channel_blocks + place.block) * 2 * N +
           k / F::S * N + n; // dB, then dC
}

// The block's sums over its channels for the phase from token t on: a thread adds every SHARES-th
// part of a column, then SHARES threads exchange sums. to: see find_column.
template <class F, class T, bool FAST>
DT_DEVICE void add_columns(const dt_scan_backward_args &args, const scan_cut &cut,
                           const scan_place &place, const column_parts<F, T> &parts, float *to,
                           int t)
{
    constexpr unsigned SHARES = column_parts<F, T>::SHARES;
    const column_duty<F, T> duty = find_duty<F, T>();
    // alternate odd and even parts, which are in the same banks
    const unsigned first = scan_lane_of(duty.part, duty.share ^ duty.part % 2 * 4);
    float sum[4];
#pragma unroll
    for (unsigned r = 0; r < SCAN_THREADS / SCAN_PARTS / SHARES; r++) {
        const unsigned lane = first ^ scan_lane_of(0, r * SHARES % SCAN_GROUPS);
        const unsigned warp = r * SHARES / SCAN_GROUPS;
        float part[4];
        dt_load(parts.of[duty.token][duty.quad][warp * DT_WARP + lane], part);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] = r == 0 ? part[e] : sum[e] + part[e];
    }
    scan_scatter_sum<SHARES, 1, 4>(sum);
    const unsigned N = FAST ? F::NP : (unsigned)args.in.b.cols;
    if ((FAST && SHARES <= 4) || (to && t + (int)duty.token < place.end))
        *scan_row(to, (unsigned)t, (unsigned)cut.channel_blocks * 2 * N * (unsigned)sizeof(float)) =
            sum[0];
}

// Token i's sums over the lane's states, from the last token of a tile to the first. Four lanes
// exchange parts, and each ends with one value of `pending`.
template <class F>
DT_DEVICE void put_sums(const float (&dh_b)[F::CC], const float (&dh_a)[F::CC], int i,
                        const scan_place &place, float (&pending)[SCAN_PARTS],
                        backward_sums<F> *sums)
{
    constexpr int HALF = SCAN_PARTS / 2, TURN = HALF / F::CC;
#pragma unroll
    for (int m = 0; m < F::CC; m++) {
        pending[i % TURN * F::CC + m] = dh_b[m];
        pending[HALF + i % TURN * F::CC + m] = dh_a[m];
    }
    if (i % TURN != 0)
        return;
    scan_scatter_sum<SCAN_PARTS, SCAN_PART_STEP, SCAN_PARTS>(pending);
    const int left = place.lane / SCAN_PART_STEP % SCAN_PARTS, at = left % HALF;
    sums->of[left / HALF * backward_sums<F>::A + (i + at / F::CC) * F::WIDTH + place.group * F::CC +
             at % F::CC] = pending[0];
}

// Runs the tile forward, then backwards; bit i of `resets`: a document starts at token i. FAST: no
// resets, and the tile is whole. exp(Δ A) is kept if registers allow, otherwise recomputed. h[i] is
// the state before token i.
template <class F, class T, bool FAST>
DT_DEVICE void sweep_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                          const scan_place &place, int first, unsigned resets, float *const *column,
                          const backward_columns<F> &columns, const backward_tile<F, T> &tile,
                          float (&h)[F::TILE + 1][F::CC][F::S], scanner<F> *own,
                          column_parts<F, T> *parts, backward_sums<F> *of_states)
{
    constexpr bool keeps = F::CC * F::S <= 4;
    constexpr int PHASE = column_parts<F, T>::PHASE;
    float decays[keeps ? F::TILE : 1][F::CC][F::S];
#pragma unroll
    for (int i = 0; i < F::TILE; i++) {
        float b[F::S], step[2 * F::CC];
        dt_load(&columns.of[i][0][place.n], b);
        dt_load(tile.rows[i].steps[place.group % 2][place.group / 2], step);
#pragma unroll
        for (int m = 0; m < F::CC; m++)
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                const float decay = dt_exp2(step[m] * own->a[m][n]);
                h[i + 1][m][n] = decay * h[i][m][n] + step[F::CC + m] * b[n];
                decays[keeps ? i : 0][m][n] = decay;
            }
        if (!FAST && resets >> i & 1)
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    h[i + 1][m][n] = step[F::CC + m] * b[n];
    }
    float pending[SCAN_PARTS];
#pragma unroll
    for (int i = F::TILE - 1; i >= 0; i--) {
        float b[F::S], c[F::S], step[2 * F::CC], ds[F::CC], v[2 * F::S] = {0.0f};
        float dh_b[F::CC] = {0.0f}, dh_a[F::CC] = {0.0f};
        if (i == F::TILE - 1)
            __syncwarp(); // keeps the compiler from reusing other values of the forward run
        else if (i % PHASE == PHASE - 1)
            __syncthreads(); // the parts of the previous phase were added
        dt_load(&columns.of[i][0][place.n], b);
        dt_load(&columns.of[i][1][place.n], c);
        dt_load(tile.rows[i].steps[place.group % 2][place.group / 2], step);
        dt_load(&tile.rows[i].ds[place.group * F::CC], ds);
#pragma unroll
        for (int m = 0; m < F::CC; m++) {
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                const float dh = ds[m] * c[n] + own->carry[m][n];
                v[n] += dh * step[F::CC + m];
                v[F::S + n] += ds[m] * h[i + 1][m][n];
                dh_b[m] += dh * b[n];
                own->carry[m][n] = dh;
            }
        }
#pragma unroll
        for (int q = 0; q < column_parts<F, T>::QUADS; q++) {
            const float quad[4] = {v[4 * q], v[4 * q + 1], v[4 * q + 2], v[4 * q + 3]};
            dt_store(parts->of[i % PHASE][q][threadIdx.x], quad);
        }
#pragma unroll
        for (int m = 0; m < F::CC; m++)
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                if (!FAST && resets >> i & 1) {
                    own->carry[m][n] = 0.0f;
                    continue;
                }
                const float decay =
                    keeps ? decays[keeps ? i : 0][m][n] : dt_exp2(step[m] * own->a[m][n]);
                const float back = own->carry[m][n] * decay, q = back * h[i][m][n];
                dh_a[m] += q * own->a[m][n];
                own->da[m][n] += q * step[m];
                own->carry[m][n] = back;
            }
        put_sums<F>(dh_b, dh_a, i, place, pending, of_states);
        if (i % PHASE == 0) {
            __syncthreads();
            add_columns<F, T, FAST>(args, cut, place, *parts, *column, first + i);
        }
    }
}

// Stores V neighbours of the token that the lane carries. to: see backward_sources.
template <class F, class T, bool FAST>
DT_DEVICE void store_channels(const dt_view &x, const piece_source *to, const scan_cut &cut,
                              const scan_place &place, int first, const float (&values)[F::V])
{
    if (FAST)
        dt_store(find_piece<T>(to[place.lane % F::CARRIERS], first + place.row), values);
    else if (first + place.row < place.end)
        scan_store_token<F>(dt_at<T>(x, place.b * cut.length + first + place.row, place.carry),
                            false, (int)cut.channels - place.carry, values);
}

// Computes du and ddelta of the token that the lane carries, and its share of the channels' sums.
template <class F, class T, bool FAST>
DT_DEVICE void store_tokens(const dt_scan_backward_args &args, const scan_cut &cut,
                            const scan_place &place, const backward_sources<F, T> &sources,
                            int first, const backward_sums<F> &sums, backward_tile<F, T> *tile)
{
    float u[F::V], delta[F::V], ds[F::V], dh_b[F::V], dh_a[F::V];
    const backward_row<F> &row = tile->rows[place.row];
    float skip[F::V], slope[F::V], dd_skip[F::V], ddt_bias[F::V];
    dt_load(tile->u[place.lane], u);
    dt_load(&tile->skip[place.column], skip);
    dt_load(find_carried<F>(tile->slope, place), slope);
    dt_load(tile->dd_skip[place.lane], dd_skip);
    dt_load(tile->ddt_bias[place.lane], ddt_bias);
    dt_load(&row.ds[place.column], ds);
    dt_load(&sums.of[place.lane * F::V], dh_b);
    dt_load(&sums.of[backward_sums<F>::A + place.lane * F::V], dh_a);
#pragma unroll
    for (int k = 0; k < 2; k++)
#pragma unroll
        for (int m = 0; m < F::CC; m++)
            delta[k * F::CC + m] = row.steps[k][place.lane % F::CARRIERS][m];
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        dh_a[v] = (dh_a[v] * DT_LN_2 + u[v] * dh_b[v]) * slope[v]; // ddelta
        dh_b[v] = ds[v] * skip[v] + delta[v] * dh_b[v];            // du
        dd_skip[v] += ds[v] * u[v];
        ddt_bias[v] += dh_a[v];
    }
    dt_store(tile->dd_skip[place.lane], dd_skip);
    dt_store(tile->ddt_bias[place.lane], ddt_bias);
    store_channels<F, T, FAST>(args.ddelta, sources.ddelta, cut, place, first, dh_a);
    store_channels<F, T, FAST>(args.du, sources.du, cut, place, first, dh_b);
}

// Stores a run's sums over time.
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

// Values that a warp needs once per tile; in registers they would stay through the whole loop.
struct alignas(16) backward_run {
    unsigned starts; // see fetch_resets
    int last_whole, begin;
};

// The place, for code that runs rarely. WHOLE: the complete place, otherwise only the lane's part.
template <class F, bool WHOLE, class Block>
DT_DEVICE scan_place find_place_again(const Block &block)
{
    const unsigned thread = (unsigned)scan_opaque((int)threadIdx.x); // else read for each use
    return scan_lane_place<F>(WHOLE ? block.place : scan_place{}, thread);
}

// A block's shared memory.
template <class F, class T> struct backward_block {
    struct warp {
        backward_tile<F, T> tile;
        backward_fetched<F, T> next;
        backward_sources<F, T> sources;
        backward_sums<F> sums;
        backward_run run;
    } warps[SCAN_WARPS];
    backward_columns<F> columns;
    column_parts<F, T> parts;
    scan_place place;
    float *columns_of[SCAN_THREADS]; // see find_column
};

// Processes the fetched tile from `first` on, and meanwhile fetches the previous one. FAST: the
// tile is whole, and no document starts in it.
template <class F, class T, bool FAST>
DT_DEVICE void run_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                        const scan_place &place, backward_wide wide, int last_whole, bool more,
                        int first, unsigned resets, backward_block<F, T> *block, scanner<F> *own)
{
    auto &warp = block->warps[place.warp];
    float delta[F::V], gate[F::V], h[F::TILE + 1][F::CC][F::S];
    put_channels<F, T, FAST>(warp.next, place, first, &warp.tile, delta, gate);
    float dz[F::V];
    dt_load(find_carried<F>(warp.next.s, place), dz);
#pragma unroll
    for (int v = 0; v < F::V; v++)
        dz[v] *= gate[v];
    store_channels<F, T, FAST>(args.dz, warp.sources.dz, cut, place, first, dz);
    put_columns<F, T>(warp.next, place, &block->columns);
#pragma unroll
    for (int n = 0; n < F::S; n++) {
        float neighbours[F::CC];
        dt_load(&warp.next.states[place.part][n * F::WIDTH + place.group * F::CC], neighbours);
#pragma unroll
        for (int m = 0; m < F::CC; m++)
            h[0][m][n] = neighbours[m];
    }
    __syncthreads(); // the tile has arrived, the previous one was read, the parts were added
    if (more)
        fetch(args, cut, place, warp.sources, first - F::TILE, wide,
              FAST || first - F::TILE <= last_whole, false, &warp.next);
    sweep_tile<F, T, FAST>(args, cut, place, first, resets, &block->columns_of[threadIdx.x],
                           block->columns, warp.tile, h, own, &block->parts, &warp.sums);
    store_tokens<F, T, FAST>(args, cut, place, warp.sources, first, warp.sums, &warp.tile);
}

template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F>()))
    scan_backward_registers(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                            backward_space space)
{
    using block_t = backward_block<F, T>;
    DT_SHARED_DYN(block_t, block);
    scan_place place = scan_find_place<F>(cut);
    if (threadIdx.x == 0)
        block->place = place;
    __syncthreads();
    auto &warp = block->warps[place.warp];
    scanner<F> own;
    int first = place.begin + (place.end - 1 - place.begin) / F::TILE * F::TILE;
    find_sources<F, T>(args, space.starts ? space.starts : args.states, cut, place, &warp.sources);
    const int last_whole = find_last_whole<F>(cut, place, wide);
    fetch(args, cut, place, warp.sources, first, wide, first <= last_whole, false, &warp.next);
    fetch_resets(args, place, first, &warp.run.starts);
    if (place.lane == 0)
        warp.run.last_whole = last_whole, warp.run.begin = place.begin;
    open_tile<F, T>(args, cut, place, &warp.tile);
    block->columns_of[threadIdx.x] = find_column<F, T>(args, cut, place, space.columns);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, own.a);
    scan_clear(own.da);
    scan_clear(own.carry);
    if (args.dh_last)
        scan_read_given<F>(args.dh_last, args.in.b.cols, cut, place, own.carry);
    if (place.b >= cut.whole) {
        const int after = (int)cut.segments - 1 - place.segment;
        scan_pass_through<F>(space.passing, args.in.b.cols, cut, place, wide.slots,
                             scan_passing_row(cut, place) + after, -1, after, own.a, own.carry);
    }
    for (bool more = true; more; first -= F::TILE) {
        dt_copy_wait<0>();
        __syncwarp();
        const backward_run run = warp.run;
        more = first > run.begin;
        const unsigned resets = find_resets(run.starts, first);
        // fp32 with two channels per lane lacks registers for a second path
        constexpr bool fast = sizeof(T) == 2 || F::CC == 1;
        if (fast && resets == 0 && first <= run.last_whole)
            run_tile<F, T, fast>(args, cut, find_place_again<F, false>(*block), wide,
                                 run.last_whole, more, first, 0, block, &own);
        else
            run_tile<F, T, false>(args, cut, find_place_again<F, true>(*block), wide,
                                  run.last_whole, more, first, resets, block, &own);
        if (first % DT_WARP == 0)
            fetch_resets(args, find_place_again<F, true>(*block), first - F::TILE,
                         &warp.run.starts);
    }
    place = find_place_again<F, true>(*block);
    store_sums<F, T>(args, cut, place, own, warp.tile, space);
    if (args.dh0 && place.begin == 0)
        scan_write_given<F>(args.dh0, args.in.b.cols, cut, place, own.carry);
}
