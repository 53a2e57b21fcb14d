// The selective scan backward on CUDA, for N up to 32 (more: scan_backward_plain.cuh); scan.cuh
// tells who does what in a warp. A warp walks its segment from the last chunk to the first: from
// the state that forward kept, the chunk is run once to have a state each TILE tokens; then, from
// its last tile to its first, the tile is run again with every h_t kept in registers, and swept
// backwards. dB and dC are sums over channels: over a lane's channels as they arise, over the
// warp's groups by halves that lanes swap (7 shuffles for 8 values), over the block's warps in
// shared memory, over blocks by a second launch. With segments a first launch makes what each one
// hands back to the one before it, as if nothing came from the ones after it. Sums over time are a
// partial for each run, added by a last launch.
//
// Per channel and token, with S bytes of storage: reads u, delta, z, dy, writes du, ddelta, dz: 7
// S, and 2 S again for the chunk's first run; 4 N / chunk of states, 2 * 4 N / chunk of own ones
// (in L2: the workspace is small); partials of dB and dC written and read, 2 * 4 * 2 N / 64 (two
// channels a lane) or / 32 (one). Exponentials: 2 N with two channels a lane, N with one, and N
// (1 - TILE / chunk) for the run; five more special functions. Floor of a token in a layer of the
// 130M model (D = 1536, N = 16, bf16, chunk 16) on an H200 with two channels a lane: 61,440
// exponentials at 16 a clock and SM, 132 SMs, 1.755 GHz: 16.6 ns; 40 KB at 4.3 TB/s: 9.3 ns. The
// bound is instructions, 4 a clock and SM, for a token and 16 channels (tests/sass):
// scan_backward_registers<16,2,8,bf16>: 330 slots, 34.2 ns, 168 registers and 3 blocks. At B = 16
// there are 384 blocks, at B = 8, with one channel a lane, as many.
#include "kernels/partials.cuh"
#include "kernels/scan_backward_plain.cuh"

enum {
    FAST_STATES = 32, // larger N: the plain kernel
    TILE = 8,         // tokens whose states a lane keeps in registers
    SUM_THREADS = 128,
};

// ---- fast

template <class F> struct backward_tile { // of a warp
    float b[F::TILE][F::NP], c[F::TILE][F::NP];
    scan_steps<F> steps;
    float ds[F::TILE][F::WIDTH], gate[F::TILE][F::WIDTH], slope[F::TILE][F::WIDTH];
    float s[F::TILE][F::WIDTH], dh_b[F::TILE][F::WIDTH], dh_a[F::TILE][F::WIDTH]; // sums over n
    float dd_skip[F::TILE][F::WIDTH], ddt_bias[F::TILE][F::WIDTH]; // over a carrier's tokens
    float bias[F::WIDTH], skip[F::WIDTH];
    int reset[F::TILE];
};

template <class F, class T> struct alignas(16) backward_fetched { // of a warp, a place a lane
    scan_raw<T, F::V> u[DT_WARP], delta[DT_WARP], z[DT_WARP], dy[DT_WARP];
    scan_raw<T, F::COLUMNS> b[DT_WARP], c[DT_WARP];
};

// What a launch may do by wide accesses: those of [B, L, D], of [B, L, N], of states.
struct backward_wide {
    bool channels, columns, states;
};

// What makes Δ, Δ u and B: enough to run a tile. Returns whether a document starts at the lane's
// token.
template <class F, class T>
DT_DEVICE int fetch_run(const dt_scan_backward_args &args, const scan_cut &cut,
                        const scan_place &place, int64_t first, backward_wide wide,
                        backward_fetched<F, T> *to)
{
    scan_fetch_channels<F>(args.u, args.u_stride, cut, place, first, wide.channels, to->u);
    scan_fetch_channels<F>(args.delta, args.delta_stride, cut, place, first, wide.channels,
                           to->delta);
    scan_fetch_columns<F>(args.b, args.b_stride, args.state, cut, place, first, wide.columns,
                          to->b);
    dt_copy_commit();
    return scan_fetch_reset(args, place, first);
}

// What makes ds and dz besides.
template <class F, class T>
DT_DEVICE void fetch_sweep(const dt_scan_backward_args &args, const scan_cut &cut,
                           const scan_place &place, int64_t first, backward_wide wide,
                           backward_fetched<F, T> *to)
{
    scan_fetch_channels<F>(args.z, args.z_stride, cut, place, first, wide.channels, to->z);
    scan_fetch_channels<F>(args.dy, args.dy_stride, cut, place, first, wide.channels, to->dy);
    scan_fetch_columns<F>(args.c, args.c_stride, args.state, cut, place, first, wide.columns,
                          to->c);
    dt_copy_commit();
}

template <class F, class T>
DT_DEVICE void put_run(const backward_fetched<F, T> &fetched, int reset, const scan_place &place,
                       const float (&delta)[F::V], backward_tile<F> *tile)
{
    float u[F::V];
    scan_unpack(fetched.u[place.lane], u);
    scan_put_steps<F>(place, delta, u, &tile->steps);
    scan_put_columns<F>(fetched.b, place, tile->b);
    if (place.lane < F::TILE)
        tile->reset[place.lane] = reset;
}

// gate = dz / s.
template <class F, class T>
DT_DEVICE void put_sweep(const backward_fetched<F, T> &fetched, const scan_place &place,
                         backward_tile<F> *tile)
{
    float z[F::V], dy[F::V], ds[F::V], gate[F::V];
    scan_unpack(fetched.z[place.lane], z);
    scan_unpack(fetched.dy[place.lane], dy);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        const float open = dt_sigmoid(z[v]);
        ds[v] = dy[v] * z[v] * open;
        gate[v] = dy[v] * open * (1.0f + z[v] * (1.0f - open));
    }
    dt_store(&tile->ds[place.row][place.column], ds);
    dt_store(&tile->gate[place.row][place.column], gate);
    scan_put_columns<F>(fetched.c, place, tile->c);
}

// Blocks a multiprocessor holds at least, and so registers: 12 warps on an H200, whose 132 the 130M
// model at B = 16 gives as many blocks as that. Elsewhere the compiler would spill.
template <class F, class T> constexpr int resident(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return F::NP * F::CC > 16 ? 2 : 3;
#else
    return F::NP > 16 ? 2 : SCAN_BACKWARD_RESIDENT;
#endif
}

// The parameters of a warp's channels, and their gradients so far: none.
template <class F>
DT_DEVICE void open_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                         const scan_place &place, backward_tile<F> *tile)
{
    float values[F::V], zeros[F::V] = {0.0f};
    dt_store(&tile->dd_skip[place.row][place.column], zeros);
    dt_store(&tile->ddt_bias[place.row][place.column], zeros);
    scan_load_channels<F>(args.dt_bias, cut, place, values);
    if (place.row == 0)
        dt_store(&tile->bias[place.column], values);
    scan_load_channels<F>(args.d_skip, cut, place, values);
    if (place.row == 0)
        dt_store(&tile->skip[place.column], values);
    __syncwarp();
}

// Δ, and into the tile its slope, dΔ / ddelta = σ(delta + bias): one exponential for both.
template <class F, class T>
DT_DEVICE void make_delta(const scan_raw<T, F::V> &raw, const scan_place &place, int64_t first,
                          backward_tile<F> *tile, float (&delta)[F::V])
{
    float bias[F::V], slope[F::V];
    scan_unpack(raw, delta);
    dt_load(&tile->bias[place.column], bias);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        const float x = delta[v] + bias[v], e = dt_exp2(-DT_LOG2_E * fabsf(x));
        slope[v] = (x < 0.0f ? e : 1.0f) * dt_reciprocal(1.0f + e);
        delta[v] = fmaxf(x, 0.0f) + scan_log1p(e);
    }
    scan_blank_beyond<F>(place, first, delta);
    dt_store(&tile->slope[place.row][place.column], slope);
}

// First launch: what segment k >= 1 hands back.
template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_backward_ends(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                       scan_passing passing)
{
    DT_SHARED(backward_tile<F>, tiles, [SCAN_WARPS]);
    using fetched = backward_fetched<F, T>;
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    const scan_place place = scan_find_place<F>(cut, (int)cut.segments - 1, 1);
    backward_tile<F> &tile = tiles[place.warp];
    fetched &next = nexts[place.warp];
    float a[F::CC][F::S], carry[F::CC][F::S], sum[F::V] = {0.0f};
    bool passes = true;
    open_tile(args, cut, place, &tile);
    scan_load_a<F>(args.a_log, args.state, cut, place, a);
    scan_clear(carry);
    const int64_t tiles_here = dt_div_up(place.end - place.begin, F::TILE);
    int reset = fetch_run(args, cut, place, place.begin + (tiles_here - 1) * F::TILE, wide, &next);
    fetch_sweep(args, cut, place, place.begin + (tiles_here - 1) * F::TILE, wide, &next);
    for (int64_t k = tiles_here - 1; k >= 0; k--) {
        const int64_t first = place.begin + k * F::TILE;
        float delta[F::V];
        dt_copy_wait<0>();
        make_delta<F>(next.delta[place.lane], place, first, &tile, delta);
        put_run(next, reset, place, delta, &tile);
        put_sweep(next, place, &tile);
        if (__ballot_sync(DT_WHOLE_WARP, place.lane < F::TILE && reset) != 0)
            passes = false;
        if (k > 0) {
            reset = fetch_run(args, cut, place, first - F::TILE, wide, &next);
            fetch_sweep(args, cut, place, first - F::TILE, wide, &next);
        }
#pragma unroll
        for (int v = 0; v < F::V; v++)
            sum[v] += delta[v];
        __syncwarp();
#pragma unroll 4
        for (int i = F::TILE - 1; i >= 0; i--) {
            float c[F::S], step[2 * F::CC], ds[F::CC];
            dt_load(&tile.c[i][place.n], c);
            scan_read_steps<F>(tile.steps, i, place, step);
            dt_load(&tile.ds[i][place.group * F::CC], ds);
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    carry[m][n] = dt_exp2(step[2 * m] * a[m][n]) * (ds[m] * c[n] + carry[m][n]);
            if (tile.reset[i])
                scan_clear(carry);
        }
        __syncwarp(); // the tile was read
    }
    scan_pass_on<F>(passing, args.state, cut, place, wide.states, -1, passes, sum, carry);
}

// What a lane keeps in registers from tile to tile.
template <class F> struct scanner {
    float a[F::CC][F::S], h[F::CC][F::S], carry[F::CC][F::S], da[F::CC][F::S];
};

// h over one whole tile: nothing but h is kept.
template <class F>
DT_DEVICE void run_tile(const backward_tile<F> &tile, const scan_place &place, scanner<F> *own)
{
#pragma unroll 4
    for (int i = 0; i < F::TILE; i++) {
        float b[F::S], step[2 * F::CC];
        dt_load(&tile.b[i][place.n], b);
        scan_read_steps<F>(tile.steps, i, place, step);
        if (tile.reset[i])
            scan_clear(own->h);
        scan_advance<F>(step, b, own->a, own->h);
    }
}

// The block's sums over channels: of each warp, dB then dC. Two, written in turn.
template <class F> struct column_sums {
    float of[SCAN_WARPS][F::TILE][2 * F::NP];
};

// Sums dB (v[0 … S - 1]) and dC of a token over the warp's channels.
template <class F>
DT_DEVICE void put_columns(float (&v)[2 * F::S], int i, const scan_place &place,
                           column_sums<F> *sums)
{
    const int each = 2 * F::S / SCAN_GROUPS; // of a group, or none: two groups have the same one
    scan_scatter_sum<SCAN_GROUPS, SCAN_PARTS, 2 * F::S>(v);
    if (each == 0 && place.group * 2 * F::S % SCAN_GROUPS != 0)
        return; // the group before it writes
#pragma unroll
    for (int k = 0; k < (each > 0 ? each : 1); k++) {
        const int at = each > 0 ? place.group * each + k : place.group * 2 * F::S / SCAN_GROUPS;
        sums->of[place.warp][i][at / F::S * F::NP + place.n + at % F::S] = v[k];
    }
}

// The tile forward, then backwards; bit i of `resets`: a document starts at token i. Where
// registers allow, exp(Δ A) is kept on the way forward, else made again. A reset is a branch, the
// same for the whole warp: selects would cost as much as a tenth of the rest.
template <class F>
DT_DEVICE void sweep_tile(const scan_place &place, unsigned resets, backward_tile<F> *tile,
                          scanner<F> *own, column_sums<F> *sums)
{
    constexpr bool keeps = F::CC * F::S <= 4;
    float h[F::TILE + 1][F::CC][F::S]; // h[i + 1] is that after token i
    float decays[keeps ? F::TILE : 1][F::CC][F::S];
#pragma unroll
    for (int m = 0; m < F::CC; m++)
#pragma unroll
        for (int n = 0; n < F::S; n++)
            h[0][m][n] = own->h[m][n];
#pragma unroll
    for (int k = 0; k < F::TILE; k += F::TOGETHER) {
        float s[SCAN_PARTS] = {0.0f};
#pragma unroll
        for (int i = k; i < k + F::TOGETHER; i++) {
            float b[F::S], c[F::S], step[2 * F::CC];
            dt_load(&tile->b[i][place.n], b);
            dt_load(&tile->c[i][place.n], c);
            scan_read_steps<F>(tile->steps, i, place, step);
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++) {
                    const float decay = dt_exp2(step[2 * m] * own->a[m][n]);
                    h[i + 1][m][n] = decay * h[i][m][n] + step[2 * m + 1] * b[n];
                    decays[keeps ? i : 0][m][n] = decay;
                }
            if (resets >> i & 1)
#pragma unroll
                for (int m = 0; m < F::CC; m++)
#pragma unroll
                    for (int n = 0; n < F::S; n++)
                        h[i + 1][m][n] = step[2 * m + 1] * b[n];
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++)
                    s[(i - k) * F::CC + m] += c[n] * h[i + 1][m][n];
        }
        scan_put_sums<F>(s, k, place, tile->s);
    }
    __syncwarp(); // lets the compiler keep nothing else of the way forward
#pragma unroll
    for (int k = F::TILE - F::TOGETHER; k >= 0; k -= F::TOGETHER) {
        float dh_b[SCAN_PARTS], dh_a[SCAN_PARTS];
#pragma unroll
        for (int i = k + F::TOGETHER - 1; i >= k; i--) {
            float b[F::S], c[F::S], step[2 * F::CC], ds[F::CC], v[2 * F::S] = {0.0f};
            dt_load(&tile->b[i][place.n], b);
            dt_load(&tile->c[i][place.n], c);
            scan_read_steps<F>(tile->steps, i, place, step);
            dt_load(&tile->ds[i][place.group * F::CC], ds);
#pragma unroll
            for (int m = 0; m < F::CC; m++) {
                const int at = (i - k) * F::CC + m;
                dh_b[at] = dh_a[at] = 0.0f;
#pragma unroll
                for (int n = 0; n < F::S; n++) {
                    const float dh = ds[m] * c[n] + own->carry[m][n];
                    v[n] += dh * step[2 * m + 1];
                    v[F::S + n] += ds[m] * h[i + 1][m][n];
                    dh_b[at] += dh * b[n];
                    own->carry[m][n] = dh;
                }
            }
            put_columns<F>(v, i, place, sums);
            if (resets >> i & 1) {
                scan_clear(own->carry);
                continue;
            }
#pragma unroll
            for (int m = 0; m < F::CC; m++)
#pragma unroll
                for (int n = 0; n < F::S; n++) {
                    const float decay =
                        keeps ? decays[keeps ? i : 0][m][n] : dt_exp2(step[2 * m] * own->a[m][n]);
                    const float back = own->carry[m][n] * decay, q = back * h[i][m][n];
                    dh_a[(i - k) * F::CC + m] += q * own->a[m][n];
                    own->da[m][n] += q * step[2 * m];
                    own->carry[m][n] = back;
                }
        }
        scan_put_sums<F>(dh_b, k, place, tile->dh_b);
        scan_put_sums<F>(dh_a, k, place, tile->dh_a);
    }
}

// du, ddelta and dz of the token that the lane carries, and its share of the channels' sums.
template <class F, class T>
DT_DEVICE void store_tokens(const dt_scan_backward_args &args, const scan_cut &cut,
                            const scan_place &place, int64_t first, bool wide,
                            const scan_raw<T, F::V> &raw_u, backward_tile<F> *tile)
{
    float u[F::V], steps[2 * F::V], ds[F::V], s[F::V], dh_b[F::V], dh_a[F::V];
    float skip[F::V], gate[F::V], slope[F::V], dd_skip[F::V], ddt_bias[F::V];
    scan_unpack(raw_u, u);
    dt_load(&tile->skip[place.column], skip);
    dt_load(&tile->gate[place.row][place.column], gate);
    dt_load(&tile->slope[place.row][place.column], slope);
    dt_load(&tile->dd_skip[place.row][place.column], dd_skip);
    dt_load(&tile->ddt_bias[place.row][place.column], ddt_bias);
    dt_load(&tile->steps.of[place.row][2 * place.column], steps);
    dt_load(&tile->ds[place.row][place.column], ds);
    dt_load(&tile->s[place.row][place.column], s);
    dt_load(&tile->dh_b[place.row][place.column], dh_b);
    dt_load(&tile->dh_a[place.row][place.column], dh_a);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        s[v] = gate[v] * (s[v] + skip[v] * u[v]);                  // dz
        dh_a[v] = (dh_a[v] * DT_LN_2 + u[v] * dh_b[v]) * slope[v]; // ddelta
        dh_b[v] = ds[v] * skip[v] + steps[2 * v] * dh_b[v];        // du
        dd_skip[v] += ds[v] * u[v];
        ddt_bias[v] += first + place.row < place.end ? dh_a[v] : 0.0f;
    }
    dt_store(&tile->dd_skip[place.row][place.column], dd_skip);
    dt_store(&tile->ddt_bias[place.row][place.column], ddt_bias);
    scan_store_channels<F, T>(args.dz, args.dz_stride, cut, place, first, wide, s);
    scan_store_channels<F, T>(args.ddelta, args.ddelta_stride, cut, place, first, wide, dh_a);
    scan_store_channels<F, T>(args.du, args.du_stride, cut, place, first, wide, dh_b);
}

// The block's sums over its channels, after a barrier.
template <class F>
DT_DEVICE void store_columns(const dt_scan_backward_args &args, const scan_cut &cut,
                             const scan_place &place, int64_t first, const column_sums<F> &sums,
                             float *columns)
{
    const int N = (int)args.state;
#pragma unroll
    for (int from = 0; from < F::TILE * 2 * F::NP; from += SCAN_THREADS) {
        const int at = from + (int)threadIdx.x, i = at / (2 * F::NP), j = at % (2 * F::NP);
        const int n = j % F::NP;
        if (i >= F::TILE || first + i >= place.end || n >= N)
            continue;
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < SCAN_WARPS; warp++)
            sum += sums.of[warp][i][j];
        const int64_t row = place.b * cut.length + first + i;
        columns[(row * cut.channel_blocks + place.block) * 2 * N + (j < F::NP ? n : N + n)] = sum;
    }
}

// A segment's sums over time.
template <class F>
DT_DEVICE void store_sums(const dt_scan_backward_args &args, const scan_cut &cut,
                          const scan_place &place, int64_t row, const scanner<F> &own,
                          const backward_tile<F> &tile, const backward_space &space)
{
    float dd_skip[F::V], ddt_bias[F::V];
#pragma unroll
    for (int m = 0; m < F::CC; m++)
#pragma unroll
        for (int n = 0; n < F::S; n++)
            if (place.n + n < args.state && place.d + m < cut.channels)
                space.parameters[(row * (args.state + 2) + place.n + n) * cut.channels + place.d +
                                 m] = own.da[m][n] * own.a[m][n] * DT_LN_2;
    dt_load(&tile.dd_skip[place.row][place.column], dd_skip);
    dt_load(&tile.ddt_bias[place.row][place.column], ddt_bias);
    scan_sum_rows<F>(dd_skip);
    scan_sum_rows<F>(ddt_bias);
#pragma unroll
    for (int v = 0; v < F::V; v++)
        if (place.row == 0 && place.carry + v < cut.channels)
            store_parameters(space, args, row, place.carry + v, dd_skip[v], ddt_bias[v]);
}

template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_backward_registers(const dt_scan_backward_args args, scan_cut cut, backward_wide wide,
                            backward_space space)
{
    DT_SHARED(backward_tile<F>, tiles_of, [SCAN_WARPS]);
    DT_SHARED(column_sums<F>, sums, [2]);
    using fetched = backward_fetched<F, T>;
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    const scan_place place = scan_find_place<F>(cut);
    backward_tile<F> &tile = tiles_of[place.warp];
    fetched &next = nexts[place.warp];
    const int row = place.run;
    scanner<F> own;
    int turn = 0;
    open_tile(args, cut, place, &tile);
    scan_load_a<F>(args.a_log, args.state, cut, place, own.a);
    scan_clear(own.da);
    scan_clear(own.carry);
    if (place.b >= cut.whole) {
        const int after = (int)cut.segments - 1 - place.segment;
        scan_pass_through<F>(space.passing, args.state, cut, place, wide.states,
                             scan_passing_row(cut, place) + after, -1, after, own.a, own.carry);
    }
    // segments are whole chunks
    const int steps = (int)args.chunk, first_chunk = place.begin / steps;
    for (int chunk = (place.end - 1) / steps; chunk >= first_chunk; chunk--) {
        const int begin = chunk * steps;
        scan_place here = place; // its tiles end where the chunk does
        here.end = (int)dt_least(begin + steps, cut.length);
        const int tiles = (int)dt_div_up(here.end - begin, F::TILE);
        float delta[F::V];
        int reset = fetch_run(args, cut, here, begin, wide, &next);
        scan_read_states<F>(args.states, place.b * cut.chunks + chunk, args.state, cut, place,
                            wide.states, own.h);
        for (int k = 0; k + 1 < tiles; k++) {
            const int first = begin + k * F::TILE;
            dt_copy_wait<0>();
            make_delta<F>(next.delta[place.lane], here, first, &tile, delta);
            put_run(next, reset, place, delta, &tile);
            reset = fetch_run(args, cut, here, first + F::TILE, wide, &next);
            __syncwarp();
            run_tile(tile, place, &own);
            scan_write_states<F>(space.starts, row * space.kept + k, args.state, cut, place,
                                 wide.states, own.h);
            __syncwarp(); // the tile was read
        }
        fetch_sweep(args, cut, here, begin + (tiles - 1) * F::TILE, wide, &next);
        for (int k = tiles - 1; k >= 0; k--, turn ^= 1) {
            const int first = begin + k * F::TILE;
            dt_copy_wait<0>();
            const scan_raw<T, F::V> u = next.u[place.lane];
            if (k < tiles - 1 && k == 0)
                scan_read_states<F>(args.states, place.b * cut.chunks + chunk, args.state, cut,
                                    place, wide.states, own.h);
            else if (k < tiles - 1)
                scan_read_states<F>(space.starts, row * space.kept + k - 1, args.state, cut, place,
                                    wide.states, own.h);
            make_delta<F>(next.delta[place.lane], here, first, &tile, delta);
            put_run(next, reset, place, delta, &tile);
            put_sweep(next, place, &tile);
            const unsigned resets = __ballot_sync(DT_WHOLE_WARP, place.lane < F::TILE && reset);
            if (k > 0) {
                reset = fetch_run(args, cut, here, first - F::TILE, wide, &next);
                fetch_sweep(args, cut, here, first - F::TILE, wide, &next);
            }
            __syncwarp();
            sweep_tile<F>(place, resets, &tile, &own, &sums[turn]);
            __syncthreads();
            store_tokens<F, T>(args, cut, here, first, wide.channels, u, &tile);
            store_columns<F>(args, cut, here, first, sums[turn], space.columns);
            __syncwarp(); // the tile was read
        }
    }
    store_sums<F>(args, cut, place, row, own, tile, space);
}

// ---- sums of partials, and launchers

// Σ over a row's blocks, in order: one thread a value of dB or dC.
template <class T>
static __global__ void __launch_bounds__(SUM_THREADS)
    scan_sum_columns(const dt_scan_backward_args args, int64_t blocks, const float *columns)
{
    const int64_t index = dt_thread_index(), N = args.state, row = index / (2 * N);
    const int64_t j = index % (2 * N);
    if (row >= args.batch * args.length)
        return;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t block = 0; block < blocks; block++)
        sum += columns[(row * blocks + block) * 2 * N + j];
    if (j < N)
        static_cast<T *>(args.db)[row * args.db_stride + j] = dt_from_f32<T>(sum);
    else
        static_cast<T *>(args.dc)[row * args.dc_stride + j - N] = dt_from_f32<T>(sum);
}

static bool is_plain(const dt_scan_backward_args *args)
{
    return args->state > FAST_STATES;
}

static scan_cut backward_cut(const dt_scan_backward_args *args)
{
    if (is_plain(args))
        return scan_uncut(args->batch, args->length, args->channels, PLAIN_CHANNELS, args->chunk);
    return scan_cut_for(args->batch, args->length, args->channels, args->state, args->chunk,
                        args->chunk, SCAN_BACKWARD_COSTS);
}

static backward_space take_space(scan_taker *taker, const dt_scan_backward_args *args,
                                 const scan_cut &cut)
{
    const int64_t B = args->batch, L = args->length, D = args->channels, N = args->state;
    const int64_t chunk = dt_least(args->chunk, L), rows = scan_runs(&cut, B);
    backward_space space;
    memset(&space, 0, sizeof space);
    space.columns = scan_take(taker, B * L * cut.channel_blocks * 2 * N);
    space.parameters = scan_take(taker, rows * (N + 2) * D);
    if (is_plain(args)) {
        space.history = scan_take(taker, B * chunk * D);
        space.s = scan_take(taker, B * chunk * D);
        space.dh_b = scan_take(taker, B * chunk * D);
        space.dh_a = scan_take(taker, B * chunk * D);
        return space;
    }
    space.kept = dt_div_up(chunk, TILE) - 1;
    if (space.kept > 0)
        space.starts = scan_take(taker, rows * space.kept * N * D);
    space.passing = scan_take_passing(taker, B, N, cut);
    return space;
}

template <class T>
static void launch_plain(const dt_scan_backward_args *args, const scan_cut &cut,
                         const backward_space &space, struct dt_stream *stream)
{
    DT_LAUNCH((scan_backward_plain<T>), dt_blocks(args->batch * cut.channel_blocks, 1),
              PLAIN_CHANNELS, 0, stream, *args, cut.channel_blocks, space);
}

template <class F, class T> static backward_wide find_wide(const dt_scan_backward_args *args)
{
    const int V = F::V, COLUMNS = F::COLUMNS;
    backward_wide wide;
    wide.channels = args->channels % V == 0 &&
                    dt_aligned<V>(static_cast<const T *>(args->u), args->u_stride) &&
                    dt_aligned<V>(static_cast<const T *>(args->delta), args->delta_stride) &&
                    dt_aligned<V>(static_cast<const T *>(args->z), args->z_stride) &&
                    dt_aligned<V>(static_cast<const T *>(args->dy), args->dy_stride) &&
                    dt_aligned<V>(static_cast<T *>(args->du), args->du_stride) &&
                    dt_aligned<V>(static_cast<T *>(args->ddelta), args->ddelta_stride) &&
                    dt_aligned<V>(static_cast<T *>(args->dz), args->dz_stride);
    wide.columns = args->state == F::NP &&
                   dt_aligned<COLUMNS>(static_cast<const T *>(args->b), args->b_stride) &&
                   dt_aligned<COLUMNS>(static_cast<const T *>(args->c), args->c_stride);
    wide.states = scan_states_wide<F>(args->states, args->state, args->channels) &&
                  scan_states_wide<F>(static_cast<const float *>(args->workspace), args->state,
                                      args->channels);
    return wide;
}

template <class F, class T>
static void launch_fast(const dt_scan_backward_args *args, const scan_cut &cut,
                        const backward_space &space, struct dt_stream *stream)
{
    const int64_t firsts = (args->batch - cut.whole) * (cut.segments - 1);
    const backward_wide wide = find_wide<F, T>(args);
    if (firsts > 0)
        DT_LAUNCH((scan_backward_ends<F, T>), dt_blocks(firsts * cut.channel_blocks, 1),
                  SCAN_THREADS, 0, stream, *args, cut, wide, space.passing);
    DT_LAUNCH((scan_backward_registers<F, T>),
              dt_blocks(scan_runs(&cut, args->batch) * cut.channel_blocks, 1), SCAN_THREADS, 0,
              stream, *args, cut, wide, space);
}

template <class T>
static void launch_registers(const dt_scan_backward_args *args, const scan_cut &cut,
                             const backward_space &space, struct dt_stream *stream)
{
    const bool pairs = scan_pairs(cut);
    if (args->state > 16)
        launch_fast<scan_form<32, 1, TILE>, T>(args, cut, space, stream);
    else if (args->state > 8 && pairs)
        launch_fast<scan_form<16, 2, TILE>, T>(args, cut, space, stream);
    else if (args->state > 8)
        launch_fast<scan_form<16, 1, TILE>, T>(args, cut, space, stream);
    else if (pairs)
        launch_fast<scan_form<8, 2, TILE>, T>(args, cut, space, stream);
    else
        launch_fast<scan_form<8, 1, TILE>, T>(args, cut, space, stream);
}

static void sum_parameters(const dt_scan_backward_args *args, const scan_cut &cut,
                           const backward_space &space, struct dt_stream *stream)
{
    partial_sums sums;
    sums.partials = space.parameters;
    sums.rows = scan_runs(&cut, args->batch);
    sums.channels = args->channels;
    sums.width = args->state;
    sums.matrix = args->da_log;
    sums.first = args->dd_skip;
    sums.second = args->ddt_bias;
    sums.accumulate = args->accumulate;
    partials_launch(sums, stream);
}

template <class T>
static void launch(const dt_scan_backward_args *args, const scan_cut &cut,
                   const backward_space &space, struct dt_stream *stream)
{
    const int64_t columns = args->batch * args->length * 2 * args->state;
    if (is_plain(args))
        launch_plain<T>(args, cut, space, stream);
    else
        launch_registers<T>(args, cut, space, stream);
    DT_LAUNCH((scan_sum_columns<T>), dt_blocks(columns, SUM_THREADS), SUM_THREADS, 0, stream, *args,
              cut.channel_blocks, space.columns);
    sum_parameters(args, cut, space, stream);
}

int64_t scan_backward_cuda_workspace(struct dt_device *device,
                                     const struct dt_scan_backward_args *args)
{
    scan_taker taker = {NULL, 0};
    (void)device;
    take_space(&taker, args, backward_cut(args));
    return taker.used * (int64_t)sizeof(float);
}

dt_status scan_backward_cuda(struct dt_device *device, const struct dt_scan_backward_args *args,
                             struct dt_stream *stream)
{
    const scan_cut cut = backward_cut(args);
    scan_taker taker = {static_cast<float *>(args->workspace), 0};
    const backward_space space = take_space(&taker, args, cut);
    (void)device;
    DT_STORAGE_SWITCH(args->dtype, T, launch<T>(args, cut, space, stream));
    return DT_LAUNCHED("scan_backward");
}
