// The selective scan forward on CUDA. The plain kernel is the recurrence as scan.h has it, one
// thread a channel, any N. The fast one (N up to 16) holds the states in registers: 128 channels a
// block, B and C of 8 tokens at a time in shared memory (two tiles in turn, the next one fetched
// while this one is used), and a thread fetches u, delta and z of the token 8 later as soon as it
// has used them. scan.cuh tells how a sequence is cut into segments.
//
// Per channel and token, with S bytes of storage: reads u, delta, z, writes y: 4 S, and 4 N / chunk
// of states; B and C cost 2 N S / 128. N exponentials, 4 more special functions for softplus and
// gate, 4 N multiplications and additions. With segments the first launch adds N + 2 of them and
// 2 S bytes to all but the last segment. Floor of a token in a layer of the 130M model (D = 1536,
// N = 16, bf16, chunk 32) on an H200: 24,576 exponentials at 16 a clock and SM, 132 SMs, 1.8 GHz:
// 6.5 ns; 15.4 KB at 4.3 TB/s: 3.6 ns.
#include "kernels/scan.cuh"

enum {
    CHANNELS = 128, // of a block
    BLOCKS = 256,   // there should be: about two for each SM of a large device
};

// ---- plain: a thread walks its channel's sequence

template <class T>
static __global__ void __launch_bounds__(CHANNELS)
    scan_forward_plain(const dt_scan_forward_args args)
{
    const int64_t index = dt_thread_index();
    const int64_t L = args.length, D = args.channels, N = args.state;
    if (index >= args.batch * D)
        return;
    const int64_t b = index / D, d = index % D, chunks = (L - 1) / args.chunk + 1;
    const float *a_log = args.a_log + d * N;
    float h[SCAN_STATES_MAX];
    for (int64_t n = 0; n < N; n++)
        h[n] = args.h0 ? args.h0[index * N + n] : 0.0f;
    for (int64_t t = 0; t < L; t++) {
        const int64_t row = b * L + t;
        const T *B = static_cast<const T *>(args.b) + row * args.b_stride;
        const T *C = static_cast<const T *>(args.c) + row * args.c_stride;
        const float u = dt_to_f32(static_cast<const T *>(args.u)[row * args.u_stride + d]);
        const float z = dt_to_f32(static_cast<const T *>(args.z)[row * args.z_stride + d]);
        const float raw =
            dt_to_f32(static_cast<const T *>(args.delta)[row * args.delta_stride + d]);
        const float delta = scan_softplus(raw + args.dt_bias[d]);
        const bool keep = args.states && t % args.chunk == 0, cut = args.reset && args.reset[row];
        float s = args.d_skip[d] * u;
        for (int64_t n = 0; n < N; n++) {
            if (keep)
                args.states[((b * chunks + t / args.chunk) * N + n) * D + d] = h[n];
            float before = cut ? 0.0f : h[n];
            h[n] = exp2f(delta * scan_scaled_a(a_log[n])) * before + delta * u * dt_to_f32(B[n]);
            s += dt_to_f32(C[n]) * h[n];
        }
        static_cast<T *>(args.y)[row * args.y_stride + d] = dt_from_f32<T>(s * z * scan_sigmoid(z));
    }
    for (int64_t n = 0; n < N && args.h_last; n++)
        args.h_last[index * N + n] = h[n];
}

// ---- fast

// First launch: ends [B, S, N, D] of segment k, from a zero state, go into slot k + 1.
template <class T, int NP>
static __global__ void __launch_bounds__(CHANNELS)
    scan_forward_ends(const dt_scan_forward_args args, scan_cut cut, float *slots, float *sums)
{
    DT_SHARED(scan_tile<NP>, tiles, [2]);
    scan_place place = scan_find_place<CHANNELS>(cut, cut.segments - 1);
    scan_set_segment(cut, place.segment, &place);
    const float bias = place.active ? args.dt_bias[place.d] : 0.0f;
    float a[NP], h[NP] = {0.0f}, sum = 0.0f;
    bool passes = true;
    scan_stream<T> u, raw;
    scan_open(args.u, args.u_stride, cut, place, &u);
    scan_open(args.delta, args.delta_stride, cut, place, &raw);
    scan_load_a(args.a_log, args.state, place, a);
    scan_fetched<T, NP, CHANNELS> next;
    scan_fetch(args, place, place.begin, &next);
    int turn = 0;
    for (int64_t t = place.begin; t < place.end; t += SCAN_TILE, turn ^= 1) {
        scan_tile<NP> &tile = tiles[turn];
        scan_put(next, &tile);
        __syncthreads();
        scan_fetch(args, place, t + SCAN_TILE, &next);
#pragma unroll
        for (int i = 0; i < SCAN_TILE; i++) {
            if (t + i >= place.end)
                break;
            const bool there = place.active && t + SCAN_TILE + i < place.end;
            const float delta = scan_softplus(scan_step(&raw, i, there) + bias);
            const float du = delta * scan_step(&u, i, there);
            float b[NP];
            scan_read_row(tile.b[i], b);
            sum += delta;
            if (tile.reset[i]) {
                passes = false;
                scan_clear(h);
            }
#pragma unroll
            for (int n = 0; n < NP; n++)
                h[n] = exp2f(delta * a[n]) * h[n] + du * b[n];
        }
    }
    if (!place.active)
        return;
    const int64_t row = place.b * cut.segments + place.segment;
    sums[row * cut.channels + place.d] = passes ? sum : SCAN_NOTHING_PASSES;
#pragma unroll
    for (int n = 0; n < NP; n++)
        if (n < args.state)
            slots[scan_state_at(row + 1, n, args.state, cut, place)] = h[n];
}

// The state that the thread's segment starts from: of `slots`, or, without segments, h0.
template <int NP>
DT_DEVICE void load_start(const dt_scan_forward_args &args, const scan_cut &cut,
                          const scan_place &place, const float *slots, float (&h)[NP])
{
    const int64_t row = place.b * cut.segments + place.segment;
#pragma unroll
    for (int n = 0; n < NP; n++) {
        h[n] = 0.0f;
        if (!place.active || n >= args.state)
            continue;
        if (slots)
            h[n] = slots[scan_state_at(row, n, args.state, cut, place)];
        else if (args.h0)
            h[n] = args.h0[(place.b * cut.channels + place.d) * args.state + n];
    }
}

template <int NP>
DT_DEVICE void store_last(const dt_scan_forward_args &args, const scan_cut &cut,
                          const scan_place &place, const float (&h)[NP])
{
#pragma unroll
    for (int n = 0; n < NP; n++)
        if (n < args.state)
            args.h_last[(place.b * cut.channels + place.d) * args.state + n] = h[n];
}

template <int NP>
DT_DEVICE void keep_states(const dt_scan_forward_args &args, const scan_cut &cut,
                           const scan_place &place, int64_t chunk, const float (&h)[NP])
{
    const int64_t chunks = (cut.length - 1) / args.chunk + 1;
#pragma unroll
    for (int n = 0; n < NP; n++)
        if (place.active && n < args.state)
            args.states[scan_state_at(place.b * chunks + chunk, n, args.state, cut, place)] = h[n];
}

// Third launch, or the only one.
template <class T, int NP>
static __global__ void __launch_bounds__(CHANNELS, 3)
    scan_forward_registers(const dt_scan_forward_args args, scan_cut cut, const float *slots)
{
    DT_SHARED(scan_tile<NP>, tiles, [2]);
    scan_place place = scan_find_place<CHANNELS>(cut, cut.segments);
    scan_set_segment(cut, place.segment, &place);
    T *y = scan_column(static_cast<T *>(args.y), args.y_stride, cut.length, place);
    const float bias = place.active ? args.dt_bias[place.d] : 0.0f;
    const float skip = place.active ? args.d_skip[place.d] : 0.0f;
    int64_t keep_at = dt_div_up(place.begin, args.chunk) * args.chunk;
    float a[NP], h[NP];
    scan_stream<T> u, raw, z;
    scan_open(args.u, args.u_stride, cut, place, &u);
    scan_open(args.delta, args.delta_stride, cut, place, &raw);
    scan_open(args.z, args.z_stride, cut, place, &z);
    scan_load_a(args.a_log, args.state, place, a);
    load_start(args, cut, place, slots, h);
    scan_fetched<T, NP, CHANNELS> next;
    scan_fetch(args, place, place.begin, &next);
    int turn = 0;
    for (int64_t t = place.begin; t < place.end; t += SCAN_TILE, turn ^= 1) {
        scan_tile<NP> &tile = tiles[turn];
        scan_put(next, &tile);
        __syncthreads();
        scan_fetch(args, place, t + SCAN_TILE, &next);
#pragma unroll
        for (int i = 0; i < SCAN_TILE; i++) {
            if (t + i >= place.end)
                break;
            if (args.states && t + i == keep_at) {
                keep_states(args, cut, place, keep_at / args.chunk, h);
                keep_at += args.chunk;
            }
            const bool there = place.active && t + SCAN_TILE + i < place.end;
            const float x = scan_step(&u, i, there), gate = scan_step(&z, i, there);
            const float delta = scan_softplus(scan_step(&raw, i, there) + bias), du = delta * x;
            float b[NP], c[NP], s = skip * x;
            if (tile.reset[i])
                scan_clear(h);
            scan_read_row(tile.b[i], b);
            scan_read_row(tile.c[i], c);
#pragma unroll
            for (int n = 0; n < NP; n++) {
                h[n] = exp2f(delta * a[n]) * h[n] + du * b[n];
                s += c[n] * h[n];
            }
            if (place.active)
                *y = dt_from_f32<T>(s * gate * scan_sigmoid(gate));
            y += args.y_stride;
        }
    }
    if (place.active && args.h_last && place.end == cut.length)
        store_last(args, cut, place, h);
}

// ---- launchers

static scan_cut forward_cut(const dt_scan_forward_args *args)
{
    return scan_make_cut(args->batch, args->length, args->channels, CHANNELS, BLOCKS, SCAN_TILE);
}

struct forward_space {
    float *slots, *sums; // [B, S, N, D], [B, S, D]; NULL: the sequence is whole
};

static forward_space take_space(scan_taker *taker, const dt_scan_forward_args *args,
                                const scan_cut &cut)
{
    forward_space space = {NULL, NULL};
    if (cut.segments == 1 || args->state > SCAN_FAST_STATES)
        return space;
    space.slots = scan_take(taker, args->batch * cut.segments * args->state * args->channels);
    space.sums = scan_take(taker, args->batch * cut.segments * args->channels);
    return space;
}

template <class T, int NP>
static void launch_fast(const dt_scan_forward_args *args, const scan_cut &cut,
                        const forward_space &space, struct dt_stream *stream)
{
    const int64_t blocks = args->batch * cut.channel_blocks;
    const int64_t states = args->batch * args->state * args->channels;
    if (space.slots) {
        DT_LAUNCH((scan_forward_ends<T, NP>), dt_blocks(blocks * (cut.segments - 1), 1), CHANNELS,
                  0, stream, *args, cut, space.slots, space.sums);
        DT_LAUNCH((scan_pass_on), dt_blocks(states, CHANNELS), CHANNELS, 0, stream, args->a_log,
                  space.sums, args->h0, space.slots, args->batch, args->state, cut, false);
    }
    DT_LAUNCH((scan_forward_registers<T, NP>), dt_blocks(blocks * cut.segments, 1), CHANNELS, 0,
              stream, *args, cut, space.slots);
}

int64_t scan_forward_cuda_workspace(struct dt_device *device,
                                    const struct dt_scan_forward_args *args)
{
    scan_taker taker = {NULL, 0};
    (void)device;
    take_space(&taker, args, forward_cut(args));
    return taker.used * (int64_t)sizeof(float);
}

dt_status scan_forward_cuda(struct dt_device *device, const struct dt_scan_forward_args *args,
                            struct dt_stream *stream)
{
    const scan_cut cut = forward_cut(args);
    scan_taker taker = {static_cast<float *>(args->workspace), 0};
    const forward_space space = take_space(&taker, args, cut);
    (void)device;
    if (args->state > SCAN_FAST_STATES)
        DT_STORAGE_SWITCH(args->dtype, T,
                          DT_LAUNCH((scan_forward_plain<T>),
                                    dt_blocks(args->batch * args->channels, CHANNELS), CHANNELS, 0,
                                    stream, *args));
    else if (args->state > SCAN_FAST_STATES / 2)
        DT_STORAGE_SWITCH(args->dtype, T, launch_fast<T, 16>(args, cut, space, stream));
    else
        DT_STORAGE_SWITCH(args->dtype, T, launch_fast<T, 8>(args, cut, space, stream));
    return DT_LAUNCHED("scan_forward");
}
