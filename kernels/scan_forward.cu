// The selective scan forward on CUDA. The plain kernel is the recurrence of scan.h with one thread
// per channel, any N, and states in the workspace. (An array in the thread would be local memory,
// which CUDA reserves for every thread that the device can hold: 0.3 GB for 256 states.) The fast
// one (N up to 64) is described in scan.cuh: eight or sixteen channels per warp, states in
// registers, tiles of up to 16 tokens fetched one tile ahead; warps are independent.
//
// Per channel and token, with S bytes of storage: reads u, delta, z, writes y: 4 S, 4 of s and 4 N
// / chunk of states; B and C come from the caches. N exponentials of states, three more special
// functions for softplus and gate. With segments the first launch adds N + 1 of them and 2 S bytes
// to all but the last segment of the sequences that are cut. Floor of a token in a layer of the
// 130M model (D = 1536, N = 16, bf16, chunk 8) on an H200: 24,576 exponentials at 16 a clock and
// SM, 132 SMs, 1.755 GHz: 6.6 ns, 7.9 with the three others; 30.7 KB at 4.3 TB/s: 7.1 ns. What it
// takes of an SM's pipes is in tests/sass/table.md; two thirds of the issue slots are the
// recurrence itself.
#include "kernels/scan.cuh"

enum {
    FAST_STATES = 64, // larger N: the plain kernel
    LONGEST_TILE = 16,
};

// ---- plain: a thread walks its channel's sequence

template <class T>
static __global__ void __launch_bounds__(SCAN_THREADS)
    scan_forward_plain(const dt_scan_forward_args args)
{
    const int64_t index = dt_thread_index();
    const dt_scan_inputs in = args.in; // a copy: by reference it would take more registers
    const int64_t L = in.length, D = in.u.cols, N = in.b.cols;
    if (index >= in.batch * D)
        return;
    const int64_t b = index / D, d = index % D, chunks = (L - 1) / in.chunk + 1;
    const float *a_log = in.a_log + d * N;
    float *h = static_cast<float *>(args.workspace) + b * N * D + d; // [B, N, D]
    for (int64_t n = 0; n < N; n++)
        h[n * D] = in.h0 ? in.h0[index * N + n] : 0.0f;
    for (int64_t t = 0; t < L; t++) {
        const int64_t row = b * L + t;
        const T *B = dt_at<T>(in.b, row);
        const T *C = dt_at<T>(in.c, row);
        const float u = dt_get<T>(in.u, row, d);
        const float z = dt_get<T>(in.z, row, d);
        const float raw = dt_get<T>(in.delta, row, d);
        const float delta = scan_softplus(raw + in.dt_bias[d]);
        const bool keep = args.states && t % in.chunk == 0, cut = in.reset && in.reset[row];
        float s = in.d_skip[d] * u;
        for (int64_t n = 0; n < N; n++) {
            const float last = h[n * D], before = cut ? 0.0f : last;
            const float now =
                dt_exp2(delta * scan_scaled_a(a_log[n])) * before + delta * u * dt_to_f32(B[n]);
            if (keep)
                args.states[((b * chunks + t / in.chunk) * N + n) * D + d] = last;
            h[n * D] = now;
            s += dt_to_f32(C[n]) * now;
        }
        if (args.s)
            args.s[row * D + d] = s;
        dt_put<T>(args.y, row, d, s * z * dt_sigmoid(z));
    }
    for (int64_t n = 0; n < N && args.h_last; n++)
        args.h_last[index * N + n] = h[n * D];
}

// ---- fast

// Some rows are padded by 16 bytes, so that carriers of several rows access different banks.
template <class F> struct forward_tile { // of a warp
    float b[F::TILE][F::NP], c[F::TILE][F::NP];
    float steps[F::TILE][2 * F::WIDTH + 4];      // Δ and Δ u of a token's channels, interleaved
    float s[F::TILE][SCAN_PARTS * F::WIDTH + 8]; // C · h, a part from each lane, see find_part
    float bias[F::WIDTH], skip[F::WIDTH];
};

template <class F, class T> struct alignas(16) forward_fetched { // of a warp, a place a lane
    scan_raw<T, F::V> u[DT_WARP], delta[DT_WARP], z[DT_WARP];
    scan_raw<T, F::COLUMNS> b[DT_WARP], c[DT_WARP];
};

// Which wide accesses a launch may use: for [B, L, D], [B, L, N], states.
struct forward_wide {
    bool channels, columns, states;
};

// A lane's sources in token 0's tile.
template <class T> struct forward_source {
    const T *u, *delta, *z, *b, *c;
};

template <class F, class T>
DT_DEVICE forward_source<T> find_source(const dt_scan_forward_args &args, const scan_cut &cut,
                                        const scan_place &place)
{
    const int at = place.lane * F::COLUMNS;
    const int64_t row = place.b * cut.length, t = row + place.row, column = row + at / F::NP;
    forward_source<T> from;
    from.u = dt_at<T>(args.in.u, t, place.carry);
    from.delta = dt_at<T>(args.in.delta, t, place.carry);
    from.z = dt_at<T>(args.in.z, t, place.carry);
    from.b = dt_at<T>(args.in.b, column, at % F::NP);
    from.c = dt_at<T>(args.in.c, column, at % F::NP);
    return from;
}

// The parameters of a warp's channels, for which a lane lacks registers.
template <class F>
DT_DEVICE void open_tile(const dt_scan_forward_args &args, const scan_cut &cut,
                         const scan_place &place, forward_tile<F> *tile)
{
    float bias[F::V], skip[F::V];
    scan_load_channels<F>(args.in.dt_bias, cut, place, bias);
    scan_load_channels<F>(args.in.d_skip, cut, place, skip);
    if (place.row == 0) {
        dt_store(&tile->bias[place.column], bias);
        dt_store(&tile->skip[place.column], skip);
    }
    __syncwarp();
}

// Whether all lanes carry valid tokens and channels in the tile from `first` on.
template <class F> DT_DEVICE bool is_full(const scan_cut &cut, const scan_place &place, int first)
{
    return first + F::TILE <= place.end && place.carry - place.column + F::WIDTH <= cut.channels;
}

// FULL: the tile is full and all accesses may be wide, so nothing is tested.
template <class F, class T, bool FULL>
DT_DEVICE void fetch_tile(const dt_scan_forward_args &args, const scan_cut &cut,
                          const scan_place &place, const forward_source<T> &from, int first,
                          forward_wide wide, bool ends, forward_fetched<F, T> *to)
{
    const int at = place.lane * F::COLUMNS, lane = place.lane;
    const int64_t most = INT32_MAX;
    const int64_t channels = FULL                            ? most
                             : first + place.row < place.end ? cut.channels - place.carry
                                                             : 0;
    const int64_t columns = FULL                             ? most
                            : first + at / F::NP < place.end ? args.in.b.cols - at % F::NP
                                                             : 0;
    const bool of_d = FULL || wide.channels, of_n = FULL || wide.columns;
    scan_fetch(scan_token(from.u, first, args.in.u.stride), channels, of_d, &to->u[lane]);
    scan_fetch(scan_token(from.delta, first, args.in.delta.stride), channels, of_d,
               &to->delta[lane]);
    scan_fetch(scan_token(from.b, first, args.in.b.stride), columns, of_n, &to->b[lane]);
    if (ends)
        return;
    scan_fetch(scan_token(from.z, first, args.in.z.stride), channels, of_d, &to->z[lane]);
    scan_fetch(scan_token(from.c, first, args.in.c.stride), columns, of_n, &to->c[lane]);
}

// ends: y is not needed. Returns whether a document starts at the lane's token.
template <class F, class T>
DT_DEVICE int fetch(const dt_scan_forward_args &args, const scan_cut &cut, const scan_place &place,
                    const forward_source<T> &from, int first, forward_wide wide, bool ends,
                    forward_fetched<F, T> *to)
{
    if (wide.channels && wide.columns && is_full<F>(cut, place, first))
        fetch_tile<F, T, true>(args, cut, place, from, first, wide, ends, to);
    else
        fetch_tile<F, T, false>(args, cut, place, from, first, wide, ends, to);
    dt_copy_commit();
    return scan_fetch_reset(args, place, first);
}

// The Δ of a lane's tokens; 0 after the run's end.
template <class F, class T>
DT_DEVICE void make_delta(const scan_raw<T, F::V> &raw, const forward_tile<F> &tile,
                          const scan_place &place, int first, float (&delta)[F::V])
{
    float bias[F::V];
    scan_unpack(raw, delta);
    dt_load(&tile.bias[place.column], bias);
#pragma unroll
    for (int v = 0; v < F::V; v++)
        delta[v] = scan_softplus(delta[v] + bias[v]);
    if (first + F::TILE > place.end)
        scan_blank_beyond<F>(place, first, delta);
}

// Converts the fetched tile into shared memory. Returns where documents start: bit i for token i.
template <class F, class T>
DT_DEVICE unsigned put(const forward_fetched<F, T> &fetched, int reset, const scan_place &place,
                       const float (&delta)[F::V], bool ends, forward_tile<F> *tile)
{
    float u[F::V], steps[2 * F::V];
    scan_unpack(fetched.u[place.lane], u);
#pragma unroll
    for (int v = 0; v < F::V; v++)
        steps[2 * v] = delta[v], steps[2 * v + 1] = delta[v] * u[v];
    dt_store(&tile->steps[place.row][2 * place.column], steps);
    scan_put_columns<F>(fetched.b, place, tile->b);
    if (!ends)
        scan_put_columns<F>(fetched.c, place, tile->c);
    return __ballot_sync(DT_WHOLE_WARP, place.lane < F::TILE && reset);
}

// The minimum of blocks per SM, which limits registers; with 4 blocks the compiler would spill for
// other devices than an H200.
template <class F, class T> constexpr int resident(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return F::NP > 32 ? 2 : 3;
#else
    return F::NP > 32 ? 2 : sizeof(T) == 2 ? SCAN_FORWARD_RESIDENT : 3;
#endif
}

// The offset of a part in a row of s. With two channels per lane, half of a warp stores 32 bytes of
// each part, in different banks.
template <class F> DT_DEVICE int find_part(int part)
{
    return part * F::WIDTH + (F::CC > 1 ? part / 2 * (F::WIDTH / 2) : 0);
}

// Advances the state by a token and, with `y`, computes its sums over n.
template <class F>
DT_DEVICE void run_token(const scan_place &place, int i, bool y, const float (&a)[F::CC][F::S],
                         forward_tile<F> *tile, float (&h)[F::CC][F::S])
{
    float b[F::S], c[F::S], step[2 * F::CC], s[F::CC];
    dt_load(&tile->b[i][place.n], b);
    dt_load(&tile->steps[i][2 * F::CC * place.group], step);
    scan_advance<F>(step, b, a, h);
    if (!y)
        return;
    dt_load(&tile->c[i][place.n], c);
#pragma unroll
    for (int m = 0; m < F::CC; m++) {
        s[m] = c[0] * h[m][0];
#pragma unroll
        for (int n = 1; n < F::S; n++)
            s[m] += c[n] * h[m][n];
    }
    dt_store(&tile->s[i][find_part<F>(place.part) + place.group * F::CC], s);
}

template <class F>
DT_DEVICE void end_with_resets(const scan_place &place, unsigned resets,
                               const float (&a)[F::CC][F::S], forward_tile<F> *tile,
                               float (&h)[F::CC][F::S])
{
#pragma unroll 1
    for (int i = 0; i < F::TILE; i++) {
        if (resets >> i & 1)
            scan_clear(h);
        run_token<F>(place, i, false, a, tile, h);
    }
}

// The first launch computes what segment k makes of a zero state.
template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_forward_ends(const dt_scan_forward_args args, scan_cut cut, forward_wide wide,
                      scan_passing passing)
{
    DT_SHARED(forward_tile<F>, tiles, [SCAN_WARPS]);
    using fetched = forward_fetched<F, T>;
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    const scan_place place = scan_find_place<F>(cut, (int)cut.segments - 1);
    const forward_source<T> from = find_source<F, T>(args, cut, place);
    forward_tile<F> &tile = tiles[place.warp];
    fetched &next = nexts[place.warp];
    float a[F::CC][F::S], h[F::CC][F::S], sum[F::V] = {0.0f};
    bool passes = true;
    int reset = fetch(args, cut, place, from, place.begin, wide, true, &next);
    open_tile<F>(args, cut, place, &tile);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, a);
    scan_clear(h);
    for (int t = place.begin; t < place.end; t += F::TILE) {
        float delta[F::V];
        dt_copy_wait<0>();
        make_delta<F>(next.delta[place.lane], tile, place, t, delta);
        const unsigned resets = put(next, reset, place, delta, true, &tile);
        reset = fetch(args, cut, place, from, t + F::TILE, wide, true, &next);
#pragma unroll
        for (int v = 0; v < F::V; v++)
            sum[v] += delta[v];
        __syncwarp();
        if (resets == 0) {
#pragma unroll
            for (int i = 0; i < F::TILE; i++)
                run_token<F>(place, i, false, a, &tile, h);
        } else {
            passes = false;
            end_with_resets<F>(place, resets, a, &tile, h);
        }
        __syncwarp(); // the tile was read
    }
    scan_pass_on<F>(passing, args.in.b.cols, cut, place, wide.states, 1, passes, sum, h);
    // later launches may have overwritten h0 by h_last
    if (args.in.h0 && place.segment == 0) {
        scan_read_given<F>(args.in.h0, args.in.b.cols, cut, place, h);
        scan_write_states<F>(passing.slots, scan_passing_row(cut, place), args.in.b.cols, cut,
                             place, wide.states, h);
    }
}

// Stores states of the run's chunks for backward.
template <class F> struct forward_keeping {
    // tokens of a tile between tests; chunks that start elsewhere take the slower path
    static const int PIECE = F::TILE < 8 ? F::TILE : 8;
    int64_t at;           // the lane's offset in the next chunk's row
    int64_t row;          // floats from row to row
    int next, chunk, end; // next: start of the next chunk; past the end: none
    bool pieces;          // chunks start where pieces of a tile do
};

template <class F>
DT_DEVICE forward_keeping<F> find_keeping(const dt_scan_forward_args &args, const scan_cut &cut,
                                          const scan_place &place)
{
    forward_keeping<F> keeping = {0, 0, place.end, 0, place.end, true};
    if (!args.states)
        return keeping;
    keeping.chunk = (int)dt_least(args.in.chunk, cut.length);
    const int index = (place.begin + keeping.chunk - 1) / keeping.chunk;
    keeping.at = scan_state_at(place.b * cut.chunks + index, place.n, args.in.b.cols, cut, place.d);
    keeping.row = args.in.b.cols * cut.channels;
    keeping.next = index * keeping.chunk;
    keeping.pieces = keeping.chunk % forward_keeping<F>::PIECE == 0;
    return keeping;
}

template <class F>
DT_DEVICE void keep_state(const dt_scan_forward_args &args, int t, const scan_cut &cut,
                          const scan_place &place, bool wide, const float (&h)[F::CC][F::S],
                          forward_keeping<F> *keeping)
{
    if (t != keeping->next || t >= keeping->end)
        return;
    scan_write_states_at<F>(args.states + keeping->at, args.in.b.cols, cut, place, wide, h);
    keeping->at += keeping->row;
    keeping->next += keeping->chunk;
}

// Token by token, if documents start here, or chunks inside of pieces.
template <class F>
DT_DEVICE void run_singly(const dt_scan_forward_args &args, const scan_cut &cut,
                          const scan_place &place, int first, bool wide, unsigned resets,
                          const float (&a)[F::CC][F::S], forward_keeping<F> *keeping,
                          forward_tile<F> *tile, float (&h)[F::CC][F::S])
{
#pragma unroll 1
    for (int i = 0; i < F::TILE; i++) {
        keep_state<F>(args, first + i, cut, place, wide, h, keeping);
        if (resets >> i & 1)
            scan_clear(h);
        run_token<F>(place, i, true, a, tile, h);
    }
}

// Scans the tile's tokens from `first` on.
template <class F>
DT_DEVICE void run_tile(const dt_scan_forward_args &args, const scan_cut &cut,
                        const scan_place &place, int first, bool wide, unsigned resets,
                        const float (&a)[F::CC][F::S], forward_keeping<F> *keeping,
                        forward_tile<F> *tile, float (&h)[F::CC][F::S])
{
    constexpr int PIECE = forward_keeping<F>::PIECE;
    if (resets != 0 || !keeping->pieces) {
        run_singly<F>(args, cut, place, first, wide, resets, a, keeping, tile, h);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < F::TILE; i += PIECE) {
        keep_state<F>(args, first + i, cut, place, wide, h, keeping);
#pragma unroll
        for (int k = 0; k < PIECE; k++)
            run_token<F>(place, i + k, true, a, tile, h);
    }
}

// Stores y and s of the token that the lane carries.
template <class F, class T>
DT_DEVICE void store_y(const dt_scan_forward_args &args, const scan_cut &cut,
                       const scan_place &place, int first, bool wide, const forward_tile<F> &tile,
                       const scan_raw<T, F::V> &raw_u, const scan_raw<T, F::V> &raw_z)
{
    float of[SCAN_PARTS][F::V], s[F::V], u[F::V], z[F::V], skip[F::V];
#pragma unroll
    for (int part = 0; part < SCAN_PARTS; part++)
        dt_load(&tile.s[place.row][find_part<F>(part) + place.column], of[part]);
    scan_unpack(raw_u, u);
    scan_unpack(raw_z, z);
    dt_load(&tile.skip[place.column], skip);
#pragma unroll
    for (int v = 0; v < F::V; v++) {
        s[v] = (of[0][v] + of[1][v]) + (of[2][v] + of[3][v]);
        s[v] += skip[v] * u[v];
    }
    const bool full = wide && is_full<F>(cut, place, first), here = first + place.row < place.end;
    const int left = (int)cut.channels - place.carry;
    const unsigned row = (unsigned)(place.b * cut.length) + (unsigned)(first + place.row);
    if (args.s) {
        float *to = scan_row(args.s, row, (unsigned)cut.channels * (unsigned)sizeof(float));
        to = scan_row(to, (unsigned)place.carry, sizeof(float));
        if (full)
            dt_store(to, s);
        else if (here)
            scan_store_token<F>(to, wide, left, s);
    }
#pragma unroll
    for (int v = 0; v < F::V; v++)
        s[v] *= z[v] * dt_sigmoid(z[v]);
    T *to = scan_row(static_cast<T *>(args.y.data), row, (unsigned)(args.y.stride * sizeof(T)));
    to = scan_row(to, (unsigned)place.carry, sizeof(T));
    if (full)
        dt_store(to, s);
    else if (here)
        scan_store_token<F>(to, wide, left, s);
}

// The state before the lane's run.
template <class F>
DT_DEVICE void start(const dt_scan_forward_args &args, const scan_cut &cut, const scan_place &place,
                     bool wide, const scan_passing &passing, const float (&a)[F::CC][F::S],
                     float (&h)[F::CC][F::S])
{
    scan_clear(h);
    if (place.b < cut.whole) {
        if (args.in.h0)
            scan_read_given<F>(args.in.h0, args.in.b.cols, cut, place, h);
        return;
    }
    const int64_t from = scan_passing_row(cut, place) - place.segment;
    if (args.in.h0)
        scan_read_states<F>(passing.slots, from, args.in.b.cols, cut, place, wide, h);
    scan_pass_through<F>(passing, args.in.b.cols, cut, place, wide, from, 1, place.segment, a, h);
}

// The second or only launch.
template <class F, class T>
static __global__ void __launch_bounds__(SCAN_THREADS, (resident<F, T>()))
    scan_forward_registers(const dt_scan_forward_args args, scan_cut cut, forward_wide wide,
                           scan_passing passing)
{
    DT_SHARED(forward_tile<F>, tiles, [SCAN_WARPS]);
    using fetched = forward_fetched<F, T>;
    DT_SHARED(fetched, nexts, [SCAN_WARPS]);
    const scan_place place = scan_find_place<F>(cut);
    forward_tile<F> &tile = tiles[place.warp];
    fetched &next = nexts[place.warp];
    float a[F::CC][F::S], h[F::CC][F::S];
    const forward_source<T> from = find_source<F, T>(args, cut, place);
    forward_keeping<F> keeping = find_keeping<F>(args, cut, place);
    int reset = fetch(args, cut, place, from, place.begin, wide, false, &next);
    open_tile<F>(args, cut, place, &tile);
    scan_load_a<F>(args.in.a_log, args.in.b.cols, cut, place, a);
    start<F>(args, cut, place, wide.states, passing, a, h);
    for (int t = place.begin; t < place.end; t += F::TILE) {
        dt_copy_wait<0>();
        const scan_raw<T, F::V> u = next.u[place.lane], z = next.z[place.lane];
        float delta[F::V];
        make_delta<F>(next.delta[place.lane], tile, place, t, delta);
        const unsigned resets = put(next, reset, place, delta, false, &tile);
        reset = fetch(args, cut, place, from, t + F::TILE, wide, false, &next);
        __syncwarp();
        run_tile<F>(args, cut, place, t, wide.states, resets, a, &keeping, &tile, h);
        __syncwarp();
        store_y<F, T>(args, cut, place, t, wide.channels, tile, u, z);
    }
    if (args.h_last && place.end == cut.length)
        scan_write_given<F>(args.h_last, args.in.b.cols, cut, place, h);
}

// ---- launchers

static bool is_plain(const dt_scan_forward_args *args)
{
    return args->in.b.cols > FAST_STATES;
}

static scan_cut forward_cut(const dt_scan_forward_args *args)
{
    scan_costs costs = SCAN_FORWARD_COSTS;
    if (is_plain(args))
        return scan_uncut(args->in.batch, args->in.length, args->in.u.cols, SCAN_THREADS,
                          args->in.chunk);
    if (args->in.u.dtype == DT_F32)
        costs.resident = resident<scan_form<16, 2, 8>, float>();
    return scan_cut_for(args->in.batch, args->in.length, args->in.u.cols, args->in.b.cols,
                        args->in.chunk, LONGEST_TILE, costs);
}

template <class F, class T>
static forward_wide find_wide(const dt_scan_forward_args *args, const scan_passing &passing)
{
    const int V = F::V, COLUMNS = F::COLUMNS;
    forward_wide wide;
    wide.channels = args->in.u.cols % V == 0 &&
                    dt_aligned<V>(args->in.u, args->in.delta, args->in.z, args->y) &&
                    dt_aligned_rows<4>(args->s, args->in.u.cols);
    wide.columns = args->in.b.cols == F::NP && dt_aligned<COLUMNS>(args->in.b, args->in.c);
    wide.states = scan_states_wide<F>(args->states, args->in.b.cols, args->in.u.cols) &&
                  scan_states_wide<F>(passing.slots, args->in.b.cols, args->in.u.cols);
    return wide;
}

template <class F, class T>
static void launch_fast(const dt_scan_forward_args *args, const scan_cut &cut,
                        const scan_passing &passing, dt_stream *stream)
{
    const int64_t firsts = (args->in.batch - cut.whole) * (cut.segments - 1);
    const forward_wide wide = find_wide<F, T>(args, passing);
    if (firsts > 0)
        DT_LAUNCH((scan_forward_ends<F, T>), dt_blocks(firsts * cut.channel_blocks, 1),
                  SCAN_THREADS, 0, stream, *args, cut, wide, passing);
    scan_prefer_shared(scan_forward_registers<F, T>);
    DT_LAUNCH((scan_forward_registers<F, T>),
              dt_blocks(scan_runs(&cut, args->in.batch) * cut.channel_blocks, 1), SCAN_THREADS, 0,
              stream, *args, cut, wide, passing);
}

// The longest tile whose B and C a warp loads by 8 values per lane, for fp32 half of that.
template <class T> constexpr int tile(void)
{
    return 32 / (int)sizeof(T);
}

template <class T>
static void launch(const dt_scan_forward_args *args, const scan_cut &cut,
                   const scan_passing &passing, dt_stream *stream)
{
    const int TILE = tile<T>();
    const bool pairs = scan_pairs(cut);
    if (is_plain(args))
        DT_LAUNCH((scan_forward_plain<T>),
                  dt_blocks(args->in.batch * args->in.u.cols, SCAN_THREADS), SCAN_THREADS, 0,
                  stream, *args);
    else if (args->in.b.cols > 32)
        launch_fast<scan_form<64, 1, 4>, T>(args, cut, passing, stream);
    else if (args->in.b.cols > 16)
        launch_fast<scan_form<32, 1, 8>, T>(args, cut, passing, stream);
    else if (args->in.b.cols > 8 && pairs)
        launch_fast<scan_form<16, 2, TILE>, T>(args, cut, passing, stream);
    else if (args->in.b.cols > 8)
        launch_fast<scan_form<16, 1, TILE>, T>(args, cut, passing, stream);
    else if (pairs)
        launch_fast<scan_form<8, 2, TILE>, T>(args, cut, passing, stream);
    else
        launch_fast<scan_form<8, 1, TILE>, T>(args, cut, passing, stream);
}

int dt_cuda_scan_forward_held(void)
{
    using T = dt_bf16;
    return scan_blocks_held(scan_forward_registers<scan_form<16, 2, tile<T>()>, T>, SCAN_THREADS,
                            0);
}

DT_OP_CUDA_WORKSPACE(scan_forward)
{
    dt_carver carver = dt_carve_from(NULL);
    if (is_plain(args))
        return args->in.batch * args->in.b.cols * args->in.u.cols * (int64_t)sizeof(float);
    scan_take_passing(&carver, args->in.batch, args->in.b.cols, forward_cut(args));
    return carver.used;
}

DT_OP_CUDA(scan_forward)
{
    const scan_cut cut = forward_cut(args);
    dt_carver carver = dt_carve_from(args->workspace);
    const scan_passing passing = scan_take_passing(&carver, args->in.batch, args->in.b.cols, cut);
    DT_STORAGE_SWITCH(args->in.u.dtype, T, launch<T>(args, cut, passing, stream));
    return DT_LAUNCHED("scan_forward");
}
