// The selective scan backward on CUDA, for N up to 16 (more: scan_backward_plain.cuh). A thread has
// a channel, 64 a block share B and C; it walks its segment from the last chunk to the first: from
// the state that forward kept, the chunk is run once to have a state each 8 tokens; then, from its
// last 8 tokens to its first, these are run again with every h_{t-1} kept in shared memory (32 KB),
// and swept backwards. dB and dC are sums over channels: the 2 N products of a token are halved
// between lanes that swap halves, so 31 shuffles sum 32 values over a warp; warps are added in
// shared memory, blocks by a second launch. With segments (scan.cuh) a first launch makes what each
// one hands back to the one before it, as if nothing came from behind it. Sums over time are a
// partial for each segment, added by a last launch.
//
// Per channel and token, with S bytes of storage: reads u, delta, z, dy, writes du, ddelta, dz:
// 7 S, and 2 S again for the chunk's first run; 4 N / chunk of states, 2 * 4 N / 8 of own states
// (in L2: the workspace is small), 2 * 4 * 2 N / 64 of partials. 3 N exponentials (2 N with chunks
// of 8; N more with segments). Floor of a token in a layer of the 130M model (D = 1536, N = 16,
// bf16, chunk 32) on an H200: 73,728 exponentials at 16 a clock and SM, 132 SMs, 1.8 GHz: 19.4 ns;
// 36.9 KB at 4.3 TB/s: 8.6 ns.
#include "kernels/partials.cuh"
#include "kernels/scan_backward_plain.cuh"

enum {
    CHANNELS = 64, // of a block of the fast kernel: h_{t-1} of a tile then fits into 48 KB
    WARPS = CHANNELS / DT_WARP,
    BLOCKS = 512, // there should be
    SUM_THREADS = 128,
};

// ---- fast

// First launch: what segment k >= 1 hands back goes into slot k - 1.
template <class T, int NP>
static __global__ void __launch_bounds__(CHANNELS)
    scan_backward_ends(const dt_scan_backward_args args, scan_cut cut, float *slots, float *sums)
{
    DT_SHARED(scan_tile<NP>, tile, [1]);
    scan_place place = scan_find_place<CHANNELS>(cut, cut.segments - 1);
    scan_set_segment(cut, place.segment + 1, &place);
    float a[NP], carry[NP] = {0.0f}, sum = 0.0f;
    bool passes = true;
    scan_load_a(args.a_log, args.state, place, a);
    const int64_t tiles = dt_div_up(place.end - place.begin, SCAN_TILE);
    scan_fetched<T, NP, CHANNELS> next;
    scan_fetch(args, place, place.begin + (tiles - 1) * SCAN_TILE, &next);
    for (int64_t k = tiles - 1; k >= 0; k--) {
        const int64_t begin = place.begin + k * SCAN_TILE;
        __syncthreads(); // the tile before was read
        scan_put(next, tile);
        __syncthreads();
        if (k > 0)
            scan_fetch(args, place, begin - SCAN_TILE, &next);
        const int steps = (int)dt_least(SCAN_TILE, place.end - begin);
        for (int i = steps - 1; i >= 0 && place.active; i--) {
            const token now = read_token<T>(args, place.b * cut.length + begin + i, place.d);
            float c[NP];
            scan_read_row(tile->c[i], c);
            sum += now.delta;
#pragma unroll
            for (int n = 0; n < NP; n++)
                carry[n] = exp2f(now.delta * a[n]) * (now.ds * c[n] + carry[n]);
            if (tile->reset[i]) {
                passes = false;
                scan_clear(carry);
            }
        }
    }
    if (!place.active)
        return;
    const int64_t row = place.b * cut.segments + place.segment;
    sums[row * cut.channels + place.d] = passes ? sum : SCAN_NOTHING_PASSES;
#pragma unroll
    for (int n = 0; n < NP; n++)
        if (n < args.state)
            slots[scan_state_at(row - 1, n, args.state, cut, place)] = carry[n];
}

// A block's shared memory.
template <int NP> struct backward_tile {
    float before[SCAN_TILE][NP][CHANNELS]; // h_{t-1}
    float u[SCAN_TILE][CHANNELS], delta[SCAN_TILE][CHANNELS];
    float ds[SCAN_TILE][CHANNELS], gate[SCAN_TILE][CHANNELS];
    float sums[WARPS][SCAN_TILE][2 * NP]; // dB, dC of a warp's channels
    scan_tile<NP> columns;
};

// What a thread keeps in registers from token to token.
template <int NP> struct channel {
    float a[NP], h[NP], carry[NP], da[NP];
    float bias, skip, dd_skip, ddt_bias;
};

template <int NP>
DT_DEVICE void read_states(const float *from, const dt_scan_backward_args &args, int64_t row,
                           const scan_cut &cut, const scan_place &place, float (&h)[NP])
{
#pragma unroll
    for (int n = 0; n < NP; n++)
        h[n] = place.active && n < args.state ? from[scan_state_at(row, n, args.state, cut, place)]
                                              : 0.0f;
}

template <int NP>
DT_DEVICE void write_states(float *to, const dt_scan_backward_args &args, int64_t row,
                            const scan_cut &cut, const scan_place &place, const float (&h)[NP])
{
#pragma unroll
    for (int n = 0; n < NP; n++)
        if (place.active && n < args.state)
            to[scan_state_at(row, n, args.state, cut, place)] = h[n];
}

// B, C and resets of a tile for the whole block. Barriers on both sides: others may still read.
template <class T, int NP>
DT_DEVICE void load_columns(const dt_scan_backward_args &args, const scan_place &place,
                            int64_t first, scan_tile<NP> *columns)
{
    scan_fetched<T, NP, CHANNELS> fetched;
    scan_fetch(args, place, first, &fetched);
    __syncthreads();
    scan_put(fetched, columns);
    __syncthreads();
}

// h over one whole tile: nothing but h is kept.
template <class T, int NP>
DT_DEVICE void run_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                        const scan_place &place, int64_t first, const scan_tile<NP> &columns,
                        channel<NP> *own)
{
    const int64_t row = place.b * cut.length + first;
    const T *u = static_cast<const T *>(args.u) + row * args.u_stride + place.d;
    const T *raw = static_cast<const T *>(args.delta) + row * args.delta_stride + place.d;
    float x[SCAN_TILE], delta[SCAN_TILE];
#pragma unroll
    for (int i = 0; i < SCAN_TILE; i++) {
        x[i] = place.active ? dt_to_f32(u[i * args.u_stride]) : 0.0f;
        delta[i] = place.active ? dt_to_f32(raw[i * args.delta_stride]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < SCAN_TILE; i++) {
        float b[NP], step = scan_softplus(delta[i] + own->bias), du = step * x[i];
        if (columns.reset[i])
            scan_clear(own->h);
        scan_read_row(columns.b[i], b);
#pragma unroll
        for (int n = 0; n < NP; n++)
            own->h[n] = exp2f(step * own->a[n]) * own->h[n] + du * b[n];
    }
}

// The thread's columns of the shared tile, all loads of a tile at once. Only it reads them.
template <class T, int NP>
DT_DEVICE void load_tokens(const dt_scan_backward_args &args, const scan_cut &cut,
                           const scan_place &place, int64_t first, int steps,
                           backward_tile<NP> *tile)
{
    const int thread = (int)threadIdx.x;
    const int64_t row = place.b * cut.length + first;
    const token none = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
    for (int i = 0; i < SCAN_TILE; i++) {
        token k = none;
        if (place.active && i < steps)
            k = read_token<T>(args, row + i, place.d);
        tile->u[i][thread] = k.u;
        tile->delta[i][thread] = k.delta;
        tile->ds[i][thread] = k.ds;
        tile->gate[i][thread] = k.gate;
    }
}

// The tile forward: keeps every h_{t-1} and writes dz.
template <class T, int NP>
DT_DEVICE void replay_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                           const scan_place &place, int64_t first, int steps,
                           backward_tile<NP> *tile, channel<NP> *own)
{
    const int thread = (int)threadIdx.x;
    const int64_t row = place.b * cut.length + first;
    for (int i = 0; i < steps; i++) {
        const float u = tile->u[i][thread], delta = tile->delta[i][thread], du = delta * u;
        float b[NP], c[NP], s = own->skip * u;
        if (tile->columns.reset[i])
            scan_clear(own->h);
        scan_read_row(tile->columns.b[i], b);
        scan_read_row(tile->columns.c[i], c);
#pragma unroll
        for (int n = 0; n < NP; n++) {
            tile->before[i][n][thread] = own->h[n];
            own->h[n] = exp2f(delta * own->a[n]) * own->h[n] + du * b[n];
            s += c[n] * own->h[n];
        }
        if (place.active)
            static_cast<T *>(args.dz)[(row + i) * args.dz_stride + place.d] =
                dt_from_f32<T>(tile->gate[i][thread] * s);
    }
}

// Sums W values, a power of two up to 32, over the warp's lanes: lane l gets the sum of value
// l mod W. Lanes that differ in one bit swap halves of what they have left.
template <int W, int LEFT = W> DT_DEVICE float scatter_sum(float (&v)[W])
{
    if constexpr (LEFT > 1) {
        constexpr int half = LEFT / 2;
        const bool upper = ((int)threadIdx.x & half) != 0;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
            v[i] = keep + __shfl_xor_sync(DT_WHOLE_WARP, give, half);
        }
        return scatter_sum<W, half>(v);
    } else {
#pragma unroll
        for (int bit = W; bit < DT_WARP; bit *= 2)
            v[0] += __shfl_xor_sync(DT_WHOLE_WARP, v[0], bit);
        return v[0];
    }
}

// The tile backwards.
template <class T, int NP>
DT_DEVICE void sweep_tile(const dt_scan_backward_args &args, const scan_cut &cut,
                          const scan_place &place, int64_t first, int steps,
                          backward_tile<NP> *tile, channel<NP> *own)
{
    const int thread = (int)threadIdx.x, lane = thread % DT_WARP, warp = thread / DT_WARP;
    for (int i = steps - 1; i >= 0; i--) {
        const float u = tile->u[i][thread], delta = tile->delta[i][thread];
        const float ds = tile->ds[i][thread], du = delta * u;
        float b[NP], c[NP], v[2 * NP], dh_b = 0.0f, dh_a = 0.0f;
        scan_read_row(tile->columns.b[i], b);
        scan_read_row(tile->columns.c[i], c);
#pragma unroll
        for (int n = 0; n < NP; n++) {
            const float before = tile->before[i][n][thread];
            const float decay = exp2f(delta * own->a[n]), dh = ds * c[n] + own->carry[n];
            const float back = dh * decay, q = back * before;
            v[n] = dh * du;
            v[NP + n] = ds * (decay * before + du * b[n]);
            dh_b += dh * b[n];
            dh_a += q * own->a[n];
            own->da[n] += q * delta;
            own->carry[n] = back;
        }
        if (tile->columns.reset[i])
            scan_clear(own->carry);
        const float sum = scatter_sum(v);
        if (lane < 2 * NP)
            tile->sums[warp][i][lane] = sum;
        const float ddelta = (dh_a * SCAN_LN_2 + u * dh_b) * scan_slope(delta);
        own->dd_skip += ds * u;
        own->ddt_bias += ddelta;
        if (!place.active)
            continue;
        const int64_t row = place.b * cut.length + first + i;
        static_cast<T *>(args.du)[row * args.du_stride + place.d] =
            dt_from_f32<T>(ds * own->skip + delta * dh_b);
        static_cast<T *>(args.ddelta)[row * args.ddelta_stride + place.d] = dt_from_f32<T>(ddelta);
    }
}

// The block's sums over its channels, after a barrier.
template <int NP>
DT_DEVICE void store_columns(const dt_scan_backward_args &args, const scan_cut &cut,
                             const scan_place &place, int64_t first, int steps,
                             const backward_tile<NP> &tile, float *columns)
{
    const int N = (int)args.state;
    for (int at = (int)threadIdx.x; at < steps * 2 * NP; at += CHANNELS) {
        const int i = at / (2 * NP), j = at % (2 * NP), n = j % NP;
        if (n >= N)
            continue;
        const int64_t row = place.b * cut.length + first + i;
        float sum = 0.0f;
        for (int warp = 0; warp < WARPS; warp++)
            sum += tile.sums[warp][i][j];
        columns[(row * cut.channel_blocks + place.block) * 2 * N + (j < NP ? n : N + n)] = sum;
    }
}

template <class T, int NP>
static __global__ void __launch_bounds__(CHANNELS, 4)
    scan_backward_registers(const dt_scan_backward_args args, scan_cut cut, backward_space space)
{
    DT_SHARED(backward_tile<NP>, tile, [1]);
    scan_place place = scan_find_place<CHANNELS>(cut, cut.segments);
    scan_set_segment(cut, place.segment, &place);
    const int64_t row = place.b * cut.segments + place.segment;
    const int64_t chunks = (cut.length - 1) / args.chunk + 1;
    const int64_t kept = dt_div_up(dt_least(args.chunk, cut.length), SCAN_TILE) - 1;
    channel<NP> own;
    own.dd_skip = own.ddt_bias = 0.0f;
    own.bias = place.active ? args.dt_bias[place.d] : 0.0f;
    own.skip = place.active ? args.d_skip[place.d] : 0.0f;
    scan_load_a(args.a_log, args.state, place, own.a);
    scan_clear(own.da);
    scan_clear(own.carry);
    if (space.slots)
        read_states(space.slots, args, row, cut, place, own.carry);
    for (int64_t chunk = (place.end - 1) / args.chunk; chunk * args.chunk >= place.begin; chunk--) {
        const int64_t begin = chunk * args.chunk;
        const int64_t tiles = dt_div_up(dt_least(args.chunk, cut.length - begin), SCAN_TILE);
        const int64_t end = dt_least(begin + args.chunk, cut.length);
        read_states(args.states, args, place.b * chunks + chunk, cut, place, own.h);
        for (int64_t k = 0; k + 1 < tiles; k++) {
            load_columns<T>(args, place, begin + k * SCAN_TILE, &tile->columns);
            run_tile<T>(args, cut, place, begin + k * SCAN_TILE, tile->columns, &own);
            write_states(space.starts, args, row * kept + k, cut, place, own.h);
        }
        for (int64_t k = tiles - 1; k >= 0; k--) {
            const int64_t first = begin + k * SCAN_TILE;
            const int steps = (int)dt_least(SCAN_TILE, end - first);
            if (k == 0)
                read_states(args.states, args, place.b * chunks + chunk, cut, place, own.h);
            else
                read_states(space.starts, args, row * kept + k - 1, cut, place, own.h);
            load_tokens<T>(args, cut, place, first, steps, tile);
            load_columns<T>(args, place, first, &tile->columns);
            replay_tile<T>(args, cut, place, first, steps, tile, &own);
            sweep_tile<T>(args, cut, place, first, steps, tile, &own);
            __syncthreads();
            store_columns(args, cut, place, first, steps, *tile, space.columns);
        }
    }
    if (!place.active)
        return;
#pragma unroll
    for (int n = 0; n < NP; n++)
        if (n < args.state)
            space.parameters[(row * (args.state + 2) + n) * cut.channels + place.d] =
                own.da[n] * own.a[n] * SCAN_LN_2;
    store_parameters(space, args, row, place.d, own.dd_skip, own.ddt_bias);
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
    for (int64_t block = 0; block < blocks; block++)
        sum += columns[(row * blocks + block) * 2 * N + j];
    if (j < N)
        static_cast<T *>(args.db)[row * args.db_stride + j] = dt_from_f32<T>(sum);
    else
        static_cast<T *>(args.dc)[row * args.dc_stride + j - N] = dt_from_f32<T>(sum);
}

static bool is_plain(const dt_scan_backward_args *args)
{
    return args->state > SCAN_FAST_STATES;
}

static scan_cut backward_cut(const dt_scan_backward_args *args)
{
    if (is_plain(args))
        return scan_make_cut(args->batch, args->length, args->channels, PLAIN_CHANNELS, 1,
                             args->length);
    return scan_make_cut(args->batch, args->length, args->channels, CHANNELS, BLOCKS, args->chunk);
}

static backward_space take_space(scan_taker *taker, const dt_scan_backward_args *args,
                                 const scan_cut &cut)
{
    const int64_t B = args->batch, L = args->length, D = args->channels, N = args->state;
    const int64_t chunk = dt_least(args->chunk, L), rows = B * cut.segments;
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
    space.starts = scan_take(taker, rows * (dt_div_up(chunk, SCAN_TILE) - 1) * N * D);
    if (cut.segments > 1) {
        space.slots = scan_take(taker, rows * N * D);
        space.sums = scan_take(taker, rows * D);
    }
    return space;
}

template <class T>
static void launch_plain(const dt_scan_backward_args *args, const scan_cut &cut,
                         const backward_space &space, struct dt_stream *stream)
{
    DT_LAUNCH((scan_backward_plain<T>), dt_blocks(args->batch * cut.channel_blocks, 1),
              PLAIN_CHANNELS, 0, stream, *args, cut.channel_blocks, space);
}

template <class T, int NP>
static void launch_fast(const dt_scan_backward_args *args, const scan_cut &cut,
                        const backward_space &space, struct dt_stream *stream)
{
    const int64_t blocks = args->batch * cut.channel_blocks;
    const int64_t states = args->batch * args->state * args->channels;
    if (space.slots) {
        const float *none = NULL;
        DT_LAUNCH((scan_backward_ends<T, NP>), dt_blocks(blocks * (cut.segments - 1), 1), CHANNELS,
                  0, stream, *args, cut, space.slots, space.sums);
        DT_LAUNCH((scan_pass_on), dt_blocks(states, SUM_THREADS), SUM_THREADS, 0, stream,
                  args->a_log, space.sums, none, space.slots, args->batch, args->state, cut, true);
    }
    DT_LAUNCH((scan_backward_registers<T, NP>), dt_blocks(blocks * cut.segments, 1), CHANNELS, 0,
              stream, *args, cut, space);
}

static void sum_parameters(const dt_scan_backward_args *args, const scan_cut &cut,
                           const backward_space &space, struct dt_stream *stream)
{
    partial_sums sums;
    sums.partials = space.parameters;
    sums.rows = args->batch * cut.segments;
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
    else if (args->state > SCAN_FAST_STATES / 2)
        launch_fast<T, 16>(args, cut, space, stream);
    else
        launch_fast<T, 8>(args, cut, space, stream);
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
