// The selective scan backward on CUDA. For N up to 32: scan_backward_fast.cuh; scan.cuh says who
// does what in a warp. For more: scan_backward_plain.cuh. Partial sums over blocks and over time
// are added by the last two launches, in a fixed order.
//
// A block walks its run of tokens from the last tile of 8 to the first. A tile starts from a state
// that forward kept, so nothing is computed twice: the tile is run forward with every h_t in
// registers, then swept backwards. If forward kept states at other tokens, a launch computes the
// missing ones. A tile's data are copied into shared memory in pieces of 16 bytes while the next
// tile is swept; whole tiles without a document's start take a path without tests of single tokens.
// s was kept by forward, so dz is stored before the sweep. dB and dC are sums over channels: a lane
// adds its own two, then stores them; after a phase of 4 tokens the block adds the parts of all its
// lanes, 8 per thread, by loads of 16 bytes. Sums over n are exchanged between four lanes by
// shuffles, which uses less of the shared memory's data path than storing all parts. With segments,
// a first launch computes the gradient that each segment passes back, as if nothing came from after
// it; dh_last goes through all of them.
//
// Per channel and token, with S bytes of storage: reads u, delta, z, dy, writes du, ddelta, dz: 7
// S; 4 of s, 4 N / 8 of states; partials of dB and dC written and read, 2 * 4 * 2 N / 64 (two
// channels a lane) or / 32 (one): 46 KB a token in a layer of the 130M model (D = 1536, N = 16,
// bf16), 10.7 ns on an H200 at 4.3 TB/s. Exponentials: 2 N with two channels a lane, N with one;
// four more special functions. The bound is the data path of shared memory, 128 bytes a cycle and
// SM; tests/sass/table.md has its cycles and those of the other pipes. Of the issue slots three
// quarters run, sweep and sum over channels, a tenth is softplus, slope and gate.
#include "kernels/partials.cuh"
#include "kernels/scan_backward_fast.cuh"

enum {
    FAST_STATES = 32, // larger N: the plain kernel
    SUM_THREADS = 128,
};

// Computes states at every tile's start if forward kept them at other tokens: one thread per state
// and chunk.
template <class T>
static __global__ void __launch_bounds__(SUM_THREADS)
    scan_backward_starts(const dt_scan_backward_args args, int64_t chunks, float *starts)
{
    const int64_t index = dt_thread_index(), L = args.in.length, D = args.in.u.cols,
                  N = args.in.b.cols;
    const int64_t d = index % D, n = index / D % N, chunk = index / D / N % chunks;
    const int64_t b = index / D / N / chunks, tiles = dt_div_up(L, TILE);
    if (b >= args.in.batch)
        return;
    const float a = scan_scaled_a(args.in.a_log[d * N + n]);
    float h = args.states[index];
    for (int64_t t = chunk * args.in.chunk; t < dt_least((chunk + 1) * args.in.chunk, L); t++) {
        const int64_t row = b * L + t;
        const float raw = dt_get<T>(args.in.delta, row, d);
        const float u = dt_get<T>(args.in.u, row, d);
        const float B = dt_get<T>(args.in.b, row, n);
        const float delta = scan_softplus(raw + args.in.dt_bias[d]);
        if (t % TILE == 0)
            starts[((b * tiles + t / TILE) * N + n) * D + d] = h;
        if (args.in.reset && args.in.reset[row])
            h = 0.0f;
        h = dt_exp2(delta * a) * h + delta * u * B;
    }
}

// ---- sums of partials, and launchers

// Sums over a row's blocks in order, one thread per value of dB or dC.
template <class T>
static __global__ void __launch_bounds__(SUM_THREADS)
    scan_sum_columns(const dt_scan_backward_args args, int64_t blocks, const float *columns)
{
    const int64_t index = dt_thread_index(), N = args.in.b.cols, row = index / (2 * N);
    const int64_t j = index % (2 * N);
    if (row >= args.in.batch * args.in.length)
        return;
    float sum = 0.0f;
#pragma unroll 8
    for (int64_t block = 0; block < blocks; block++)
        sum += columns[(row * blocks + block) * 2 * N + j];
    if (j < N)
        dt_put<T>(args.db, row, j, sum);
    else
        dt_put<T>(args.dc, row, j - N, sum);
}

static bool is_plain(const dt_scan_backward_args *args)
{
    return args->in.b.cols > FAST_STATES;
}

static scan_cut backward_cut(const dt_scan_backward_args *args)
{
    if (is_plain(args))
        return scan_uncut(args->in.batch, args->in.length, args->in.u.cols, PLAIN_CHANNELS,
                          args->in.chunk);
    return scan_cut_for(args->in.batch, args->in.length, args->in.u.cols, args->in.b.cols,
                        args->in.chunk, TILE, SCAN_BACKWARD_COSTS);
}

static backward_space take_space(dt_carver *carver, const dt_scan_backward_args *args,
                                 const scan_cut &cut)
{
    const int64_t B = args->in.batch, L = args->in.length, D = args->in.u.cols, N = args->in.b.cols;
    const int64_t chunk = dt_least(args->in.chunk, L), rows = scan_runs(&cut, B), F = sizeof(float);
    backward_space space;
    memset(&space, 0, sizeof space);
    dt_carve(carver, space.columns, B * L * cut.channel_blocks * 2 * N * F);
    dt_carve(carver, space.parameters, rows * (N + 2) * D * F);
    if (is_plain(args)) {
        dt_carve(carver, space.history, B * chunk * D * F);
        dt_carve(carver, space.dh_b, B * chunk * D * F);
        dt_carve(carver, space.dh_a, B * chunk * D * F);
        dt_carve(carver, space.carry, B * N * D * F);
        return space;
    }
    if (args->in.chunk != TILE)
        dt_carve(carver, space.starts, B * dt_div_up(L, TILE) * N * D * F);
    space.passing = scan_take_passing(carver, B, N, cut);
    return space;
}

template <class F, class T>
static backward_wide find_wide(const dt_scan_backward_args *args, const backward_space &space)
{
    const int EACH = 16 / (int)sizeof(T);
    const float *starts = space.starts ? space.starts : args->states;
    backward_wide wide;
    wide.channels = args->in.u.cols % EACH == 0 &&
                    dt_aligned<EACH>(args->in.u, args->in.delta, args->in.z, args->dy, args->du,
                                     args->ddelta, args->dz) &&
                    dt_aligned_rows<4>(args->s, args->in.u.cols);
    wide.columns = args->in.b.cols == F::NP && dt_aligned<EACH>(args->in.b, args->in.c);
    wide.states = args->in.b.cols == F::NP && dt_aligned_rows<4>(starts, args->in.u.cols);
    wide.all = wide.channels && wide.columns && wide.states;
    wide.slots = scan_states_wide<F>(space.passing.slots, args->in.b.cols, args->in.u.cols);
    return wide;
}

template <class F, class T>
static void launch_fast(const dt_scan_backward_args *args, const scan_cut &cut,
                        const backward_space &space, dt_stream *stream)
{
    const int64_t shared_bytes = sizeof(backward_block<F, T>);
    static_assert(shared_bytes <= 49 * 1024, "two blocks where a multiprocessor has 100 KB");
    const int64_t firsts = (args->in.batch - cut.whole) * (cut.segments - 1);
    const unsigned blocks = dt_blocks(scan_runs(&cut, args->in.batch) * cut.channel_blocks, 1);
    const backward_wide wide = find_wide<F, T>(args, space);
    if (space.starts)
        DT_LAUNCH(
            (scan_backward_starts<T>),
            dt_blocks(args->in.batch * cut.chunks * args->in.b.cols * args->in.u.cols, SUM_THREADS),
            SUM_THREADS, 0, stream, *args, cut.chunks, space.starts);
    if (firsts > 0)
        DT_LAUNCH((scan_backward_ends<F, T>), dt_blocks(firsts * cut.channel_blocks, 1),
                  SCAN_THREADS, 0, stream, *args, cut, wide, space.passing);
    dt_allow_shared(scan_backward_registers<F, T>, shared_bytes);
    scan_prefer_shared(scan_backward_registers<F, T>);
    DT_LAUNCH((scan_backward_registers<F, T>), blocks, SCAN_THREADS, shared_bytes, stream, *args,
              cut, wide, space);
}

template <class T>
static void launch_registers(const dt_scan_backward_args *args, const scan_cut &cut,
                             const backward_space &space, dt_stream *stream)
{
    const bool pairs = scan_pairs(cut);
    if (args->in.b.cols > 16)
        launch_fast<scan_form<32, 1, TILE>, T>(args, cut, space, stream);
    else if (args->in.b.cols > 8 && pairs)
        launch_fast<scan_form<16, 2, TILE>, T>(args, cut, space, stream);
    else if (args->in.b.cols > 8)
        launch_fast<scan_form<16, 1, TILE>, T>(args, cut, space, stream);
    else if (pairs)
        launch_fast<scan_form<8, 2, TILE>, T>(args, cut, space, stream);
    else
        launch_fast<scan_form<8, 1, TILE>, T>(args, cut, space, stream);
}

template <class T>
static void launch(const dt_scan_backward_args *args, const scan_cut &cut,
                   const backward_space &space, dt_stream *stream)
{
    const int64_t columns = args->in.batch * args->in.length * 2 * args->in.b.cols;
    if (is_plain(args))
        DT_LAUNCH((scan_backward_plain<T>), dt_blocks(args->in.batch * cut.channel_blocks, 1),
                  PLAIN_CHANNELS, 0, stream, *args, cut.channel_blocks, space);
    else
        launch_registers<T>(args, cut, space, stream);
    DT_LAUNCH((scan_sum_columns<T>), dt_blocks(columns, SUM_THREADS), SUM_THREADS, 0, stream, *args,
              cut.channel_blocks, space.columns);
    partials_launch({space.parameters, scan_runs(&cut, args->in.batch), args->in.u.cols,
                     args->in.b.cols, args->da_log, args->dd_skip, args->ddt_bias,
                     args->accumulate},
                    stream);
}

int dt_cuda_scan_backward_held(int64_t *shared_bytes)
{
    using F = scan_form<16, 2, TILE>;
    *shared_bytes = sizeof(backward_block<F, dt_bf16>);
    return dt_allow_shared(scan_backward_registers<F, dt_bf16>, *shared_bytes)
               ? scan_blocks_held(scan_backward_registers<F, dt_bf16>, SCAN_THREADS, *shared_bytes)
               : 0;
}

DT_OP_CUDA_WORKSPACE(scan_backward)
{
    dt_carver carver = dt_carve_from(NULL);
    take_space(&carver, args, backward_cut(args));
    return carver.used;
}

DT_OP_CUDA(scan_backward)
{
    const scan_cut cut = backward_cut(args);
    dt_carver carver = dt_carve_from(args->workspace);
    const backward_space space = take_space(&carver, args, cut);
    DT_STORAGE_SWITCH(args->in.u.dtype, T, launch<T>(args, cut, space, stream));
    return DT_LAUNCHED("scan_backward");
}
