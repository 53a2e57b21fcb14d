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
        put_columns<F, T>(next_columns[0], place, columns);
        const unsigned resets = find_resets(starts[place.warp], first);
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

// What a thread adds of a phase: every SHARES-th part of a quad of a token.
struct column_duty {
    unsigned token, quad, part, share;
};

template <class F, class T> DT_DEVICE column_duty find_duty(void)
{
    using parts = column_parts<F, T>;
    const unsigned at = (unsigned)scan_opaque((int)threadIdx.x);
    column_duty duty;
    duty.share = at % parts::SHARES;
    duty.part = at / parts::SHARES % SCAN_PARTS;
    duty.quad = at / (parts::SHARES * SCAN_PARTS) % parts::QUADS;
    duty.token = at / (parts::SHARES * SCAN_PARTS * parts::QUADS);
    return duty;
}

// To the partials of token t of the sequence, where the sum that the thread is left with goes.
template <class F, class T, bool FAST>
DT_DEVICE void store_column(const dt_scan_backward_args &args, const scan_cut &cut,
                            const scan_place &place, const column_duty &duty, int t, float sum,
                            float *columns)
{
    constexpr unsigned SHARES = column_parts<F, T>::SHARES;
    const unsigned N = FAST ? F::NP : (unsigned)args.in.b.cols;
    const unsigned k = duty.quad * 4 + duty.share * 4 / SHARES; // dB, then dC
    const unsigned n = duty.part * F::S + k % F::S;
    const unsigned at = (unsigned)place.block * 2 * N + k / F::S * N + n;
    const unsigned row = (unsigned)(place.b * cut.length) + (unsigned)t + duty.token;
    const unsigned width = (unsigned)cut.channel_blocks * 2 * N * (unsigned)sizeof(float);
    const bool there = FAST || (n < N && t + (int)duty.token < place.end);
    if (there && duty.share * 4 % SHARES == 0)
        *scan_row(scan_row(columns, row, width), at, sizeof(float)) = sum;
}

// The block's sums over its channels of the phase from token `first` on: of each column a thread
// adds every SHARES-th part, and SHARES threads then swap sums.
template <class F, class T>
DT_DEVICE float add_columns(const column_parts<F, T> &parts, const column_duty &duty)
{
    constexpr unsigned SHARES = column_parts<F, T>::SHARES;
    float sum[4];
#pragma unroll
    for (unsigned r = 0; r < SCAN_THREADS / SCAN_PARTS / SHARES; r++) {
        // odd and even parts in turns: they lie in the same banks
        const unsigned group = (duty.share + r * SHARES % SCAN_GROUPS) ^ duty.part % 2 * 4;
        const unsigned warp = r * SHARES / SCAN_GROUPS;
        float part[4];
        dt_load(parts.of[duty.token][duty.quad][warp * DT_WARP + duty.part * SCAN_GROUPS + group],
                part);
#pragma unroll
        for (int e = 0; e < 4; e++)
            sum[e] = r == 0 ? part[e] : sum[e] + part[e];
    }
    scan_scatter_sum<SHARES, 1, 4>(sum);
    return sum[0];
}

// Token i's sums over the lane's states; from the last token of a tile to the first.
template <class F>
DT_DEVICE void put_sums(const float (&dh_b)[F::CC], const float (&dh_a)[F::CC], int i,
                        const scan_place &place, float (&pending)[SCAN_PARTS],
                        backward_room<F, false> *room)
{
    constexpr int HALF = SCAN_PARTS / 2, TURN = HALF / F::CC;
#pragma unroll
    for (int m = 0; m < F::CC; m++) {
        pending[i % TURN * F::CC + m] = dh_b[m];
        pending[HALF + i % TURN * F::CC + m] = dh_a[m];
    }
    if (i % TURN != 0)
        return;
    scan_scatter_sum<SCAN_PARTS, SCAN_GROUPS, SCAN_PARTS>(pending);
    const int at = place.part % HALF;
    room->sums[place.part / HALF][i + at / F::CC][place.group * F::CC + at % F::CC] = pending[0];
}

template <class F>
DT_DEVICE void put_sums(const float (&dh_b)[F::CC], const float (&dh_a)[F::CC], int i,
                        const scan_place &place, float (&)[SCAN_PARTS],
                        backward_room<F, true> *room)
{
    float both[2 * F::CC];
#pragma unroll
    for (int m = 0; m < F::CC; m++)
        both[m] = dh_b[m], both[F::CC + m] = dh_a[m];
    dt_store(&room->sums[i][place.lane * 2 * F::CC], both);
}

// The sums over n of the channels that a lane carries.
template <class F>
DT_DEVICE void read_sums(const backward_room<F, false> &room, const scan_place &place,
                         float (&dh_b)[F::V], float (&dh_a)[F::V])
{
    dt_load(&room.sums[0][place.row][place.column], dh_b);
    dt_load(&room.sums[1][place.row][place.column], dh_a);
}

template <class F>
DT_DEVICE void read_sums(const backward_room<F, true> &room, const scan_place &place,
                         float (&dh_b)[F::V], float (&dh_a)[F::V])
{
    float of[SCAN_PARTS][2 * F::V];
#pragma unroll
    for (int part = 0; part < SCAN_PARTS; part++)
        dt_load(&room.sums[place.row][2 * (part * F::WIDTH + place.column)], of[part]);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        const int b = v / F::CC * 2 * F::CC + v % F::CC, a = b + F::CC;
        dh_b[v] = (of[0][b] + of[2][b]) + (of[1][b] + of[3][b]);
        dh_a[v] = (of[0][a] + of[2][a]) + (of[1][a] + of[3][a]);
    }
}

// exp(Δ A) of a lane at a token, the k-th of those that are kept in shared memory.
template <class F>
DT_DEVICE void keep_decays(const float (&decay)[F::CC][F::S], int k, const scan_place &place,
                           backward_room<F, true> *room)
{
#pragma unroll
    for (int q = 0; q < F::CC * F::S; q += 4) {
        const float *of = &decay[0][0] + q, quad[4] = {of[0], of[1], of[2], of[3]};
        dt_store(room->decays[(k * F::CC * F::S / 4 + q / 4) * DT_WARP + place.lane], quad);
    }
}

template <class F>
DT_DEVICE void read_decays(const backward_room<F, true> &room, int k, const scan_place &place,
                           float (&decay)[F::CC][F::S])
{
#pragma unroll
    for (int q = 0; q < F::CC * F::S; q += 4) {
        float quad[4];
        dt_load(room.decays[(k * F::CC * F::S / 4 + q / 4) * DT_WARP + place.lane], quad);
#pragma unroll
        for (int e = 0; e < 4; e++)
            (&decay[0][0])[q + e] = quad[e];
    }
}

// The tile forward, then backwards; bit i of `resets`: a document starts at token i. FAST: there
// is none, and the tile is whole. Where registers or shared memory allow, exp(Δ A) is kept on the
// way forward, else made again. h[i] is the state before token i.
template <class F, class T, bool ROOMY, bool FAST>
DT_DEVICE void sweep_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                          const scan_place &place, int first, unsigned resets, float *sums,
                          const backward_columns<F, float> &columns,
                          const backward_tile<F, T> &tile, float (&h)[F::TILE + 1][F::CC][F::S],
                          scanner<F> *own, column_parts<F, T> *parts, backward_room<F, ROOMY> *room)
{
    constexpr bool keeps = F::CC * F::S <= 4;
    constexpr int PHASE = column_parts<F, T>::PHASE, KEPT = backward_room<F, ROOMY>::KEPT;
    float decays[keeps ? F::TILE : 1][F::CC][F::S];
#pragma unroll
    for (int i = 0; i < F::TILE; i++) {
        float b[F::S], step[2 * F::CC], decay[F::CC][F::S];
        dt_load(&columns.of[i][0][place.n], b);
        dt_load(&tile.steps[i][2 * F::CC * place.group], step);
#pragma unroll
        for (int m = 0; m < F::CC; m++)
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                decay[m][n] = dt_exp2(step[m] * own->a[m][n]);
                h[i + 1][m][n] = decay[m][n] * h[i][m][n] + step[F::CC + m] * b[n];
                decays[keeps ? i : 0][m][n] = decay[m][n];
            }
        if constexpr (KEPT > 0)
            if (i < KEPT)
                keep_decays<F>(decay, i, place, room);
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
            __syncwarp(); // lets the compiler keep nothing else of the way forward
        else if (i % PHASE == PHASE - 1)
            __syncthreads(); // the parts of the phase before were added
        dt_load(&columns.of[i][0][place.n], b);
        dt_load(&columns.of[i][1][place.n], c);
        dt_load(&tile.steps[i][2 * F::CC * place.group], step);
        dt_load(&tile.ds[i][place.group * F::CC], ds);
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
        float decay[F::CC][F::S];
#pragma unroll
        for (int m = 0; m < F::CC; m++)
#pragma unroll
            for (int n = 0; n < F::S; n++)
                if (i >= KEPT)
                    decay[m][n] =
                        keeps ? decays[keeps ? i : 0][m][n] : dt_exp2(step[m] * own->a[m][n]);
        if constexpr (KEPT > 0)
            if (i < KEPT)
                read_decays<F>(*room, i, place, decay);
#pragma unroll
        for (int m = 0; m < F::CC; m++)
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                if (!FAST && resets >> i & 1) {
                    own->carry[m][n] = 0.0f;
                    continue;
                }
                const float back = own->carry[m][n] * decay[m][n], q = back * h[i][m][n];
                dh_a[m] += q * own->a[m][n];
                own->da[m][n] += q * step[m];
                own->carry[m][n] = back;
            }
        put_sums<F>(dh_b, dh_a, i, place, pending, room);
        if (i % PHASE == 0) {
            __syncthreads();
            const column_duty duty = find_duty<F, T>();
            const float sum = add_columns<F, T>(*parts, duty);
            store_column<F, T, FAST>(args, cut, place, duty, first + i, sum, sums);
        }
    }
}

// V neighbours of the token that the lane carries, as storage.
template <class F, class T, bool FAST>
DT_DEVICE void store_channels(const dt_view &x, const scan_cut &cut, const scan_place &place,
                              int first, const float (&values)[F::V])
{
    const unsigned row = (unsigned)(place.b * cut.length) + (unsigned)(first + place.row);
    T *const to = scan_row(static_cast<T *>(x.data), row, (unsigned)(x.stride * sizeof(T)));
    if (FAST)
        dt_store(scan_row(to, (unsigned)scan_opaque(place.carry), sizeof(T)), values);
    else
        scan_store_channels<F, T>(x.data, x.stride, cut, place, first, false, values);
}

// dz of the token that the lane carries.
template <class F, class T, bool FAST>
DT_DEVICE void store_dz(const dt_scan_backward_args &args, const scan_cut &cut,
                        const scan_place &place, int first, const backward_fetched<F, T> &fetched,
                        const float (&gate)[F::V])
{
    float dz[F::V];
    dt_load(&fetched.s[place.row][place.column], dz);
#pragma unroll
    for (int v = 0; v < F::V; v++)
        dz[v] *= gate[v];
    store_channels<F, T, FAST>(args.dz, cut, place, first, dz);
}

// du and ddelta of the token that the lane carries, and its share of the channels' sums.
template <class F, class T, bool ROOMY, bool FAST>
DT_DEVICE void store_tokens(const dt_scan_backward_args &args, const scan_cut &cut,
                            const scan_place &place, int first, const backward_room<F, ROOMY> &room,
                            backward_tile<F, T> *tile)
{
    float u[F::V], steps[2 * F::V], ds[F::V], dh_b[F::V], dh_a[F::V];
    float skip[F::V], slope[F::V], dd_skip[F::V], ddt_bias[F::V];
    const int row = place.row, column = place.column;
    dt_load(tile->u[place.lane], u);
    dt_load(&tile->skip[column], skip);
    dt_load(&tile->slope[row][column], slope);
    dt_load(tile->dd_skip[place.lane], dd_skip);
    dt_load(tile->ddt_bias[place.lane], ddt_bias);
    dt_load(&tile->steps[row][2 * column], steps);
    dt_load(&tile->ds[row][column], ds);
    read_sums<F>(room, place, dh_b, dh_a);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        dh_a[v] = (dh_a[v] * DT_LN_2 + u[v] * dh_b[v]) * slope[v];  // ddelta
        dh_b[v] = ds[v] * skip[v] + steps[at_step<F>(v)] * dh_b[v]; // du
        dd_skip[v] += ds[v] * u[v];
        ddt_bias[v] += dh_a[v];
    }
    dt_store(tile->dd_skip[place.lane], dd_skip);
    dt_store(tile->ddt_bias[place.lane], ddt_bias);
    store_channels<F, T, FAST>(args.ddelta, cut, place, first, dh_a);
    store_channels<F, T, FAST>(args.du, cut, place, first, dh_b);
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

// All of a block's shared memory.
template <class F, class T, bool ROOMY> struct backward_block {
    struct warp {
        backward_tile<F, T> tile;
        backward_fetched<F, T> next;
        backward_sources<F, T> sources;
        backward_room<F, ROOMY> room;
        unsigned starts; // see fetch_resets
    } warps[SCAN_WARPS];
    backward_columns<F, T> next_columns;
    backward_columns<F, float> columns;
    column_parts<F, T> parts;
};

// What was fetched of the tile from `first` on; meanwhile the one before it is fetched. FAST: the
// tile is whole, and no document starts in it.
template <class F, class T, bool ROOMY, bool FAST>
DT_DEVICE void run_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                        const scan_place &place, backward_wide wide, int first, unsigned resets,
                        float *columns, backward_block<F, T, ROOMY> *block, scanner<F> *own)
{
    auto &warp = block->warps[place.warp];
    float delta[F::V], gate[F::V], h[F::TILE + 1][F::CC][F::S];
    put_channels<F, T, FAST>(warp.next, place, first, &warp.tile, delta, gate);
    store_dz<F, T, FAST>(args, cut, place, first, warp.next, gate);
    put_columns<F, T>(block->next_columns, place, &block->columns);
#pragma unroll
    for (int n = 0; n < F::S; n++) {
        float neighbours[F::CC];
        dt_load(&warp.next.states[place.n + n][place.group * F::CC], neighbours);
#pragma unroll
        for (int m = 0; m < F::CC; m++)
            h[0][m][n] = neighbours[m];
    }
    __syncthreads(); // the tile is there, what was fetched was read, the parts were added
    if (first > place.begin)
        fetch(args, cut, place, warp.sources, first - F::TILE, wide, false, &block->next_columns,
              &warp.next);
    sweep_tile<F, T, ROOMY, FAST>(args, cut, place, first, resets, columns, block->columns,
                                  warp.tile, h, own, &block->parts, &warp.room);
    store_tokens<F, T, ROOMY, FAST>(args, cut, place, first, warp.room, &warp.tile);
}

template <class F, class T, bool ROOMY>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_backward_registers(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                            backward_space space)
{
    using block_t = backward_block<F, T, ROOMY>;
    DT_SHARED_DYN(block_t, block);
    const scan_place place = scan_find_place<F>(cut);
    auto &warp = block->warps[place.warp];
    scanner<F> own;
    int first = place.begin + (place.end - 1 - place.begin) / F::TILE * F::TILE;
    find_sources<F, T>(args, space.starts ? space.starts : args.states, cut, place, &warp.sources);
    fetch(args, cut, place, warp.sources, first, wide, false, &block->next_columns, &warp.next);
    fetch_resets(args, place, first, &warp.starts);
    open_tile<F, T>(args, cut, place, &warp.tile);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, own.a);
    scan_clear(own.da);
    scan_clear(own.carry);
    if (place.b >= cut.whole) {
        const int after = (int)cut.segments - 1 - place.segment;
        scan_pass_through<F>(space.passing, args.in.b.cols, cut, place, wide.slots,
                             scan_passing_row(cut, place) + after, -1, after, own.a, own.carry);
    }
    for (; first >= place.begin; first -= F::TILE) {
        dt_copy_wait<0>();
        __syncwarp();
        const unsigned resets = find_resets(warp.starts, first);
        // fp32 with two channels a lane has no registers for a second way
        constexpr bool fast = sizeof(T) == 2 || F::CC == 1;
        if (fast && resets == 0 && is_whole<F>(cut, place, first, wide))
            run_tile<F, T, ROOMY, fast>(args, cut, place, wide, first, 0, space.columns, block,
                                        &own);
        else
            run_tile<F, T, ROOMY, false>(args, cut, place, wide, first, resets, space.columns,
                                         block, &own);
        if (first % DT_WARP == 0)
            fetch_resets(args, place, first - F::TILE, &warp.starts);
    }
    store_sums<F, T>(args, cut, place, own, warp.tile, space);
}
