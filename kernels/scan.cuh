// What the CUDA forms of the scan share: how a sequence is cut, the tile of B and C that a block of
// channels reads, and the launch that passes states on from one part to the next. Private to
// scan_*.cu.
//
// A thread owns a channel and holds its NP states in registers (N padded to NP by columns of B
// and C that are zero). Where batch and channels alone give the device too few blocks, a sequence
// is cut into segments that run side by side, in three launches:
//   1. each segment from a zero state: its end state and its Σ Δ
//   2. one thread a state, segment after segment: start_{k+1} = end_k + exp(A · Σ Δ) · start_k
//   3. each segment again, from its start
// The cut depends on shapes only, so the bits do not depend on the device's size.
#pragma once

#include "kernels/device.cuh"
#include "kernels/scan.h"

enum {
    SCAN_TILE = 8,           // tokens whose B and C lie in shared memory together
    SCAN_SEGMENT_LEAST = 32, // a shorter segment is not worth its share of the second launch
    SCAN_FAST_STATES = 16,   // larger N: the plain kernels
    SCAN_STATES_MAX = 256,
};

static const float SCAN_LOG2_E = 1.44269504f, SCAN_LN_2 = 0.69314718f;
// In place of a segment's Σ Δ, which is never negative: a reset lies in it and nothing passes.
static const float SCAN_NOTHING_PASSES = -1.0f;

struct scan_cut {
    int64_t length, channels, channel_blocks, segments, steps; // steps: tokens of a segment
};

// blocks: how many there should be at least. Fewer than half of that are made up for by segments
// (which cost a second run of the recurrence), of a multiple of `unit` tokens.
static inline scan_cut scan_make_cut(int64_t batch, int64_t length, int64_t channels, int64_t width,
                                     int64_t blocks, int64_t unit)
{
    scan_cut cut;
    cut.length = length;
    cut.channels = channels;
    cut.channel_blocks = dt_div_up(channels, width);
    int64_t whole = batch * cut.channel_blocks;
    int64_t wanted = whole * 2 > blocks ? 1 : dt_div_up(blocks, whole);
    int64_t steps = dt_div_up(length, wanted);
    if (steps < SCAN_SEGMENT_LEAST)
        steps = SCAN_SEGMENT_LEAST;
    cut.steps = dt_div_up(dt_least(steps, length), unit) * unit;
    cut.segments = dt_div_up(length, cut.steps);
    return cut;
}

// What a thread works on: tokens [begin, end) of channel d of sequence b.
struct scan_place {
    int64_t b, block, segment, d, begin, end;
    bool active; // false: d is beyond the channels, the thread helps with loads and barriers only
};

template <int THREADS> DT_DEVICE scan_place scan_find_place(const scan_cut &cut, int64_t segments)
{
    scan_place place;
    int64_t index = blockIdx.x;
    place.block = index % cut.channel_blocks;
    place.segment = index / cut.channel_blocks % segments;
    place.b = index / cut.channel_blocks / segments;
    place.d = place.block * THREADS + threadIdx.x;
    place.active = place.d < cut.channels;
    return place;
}

DT_DEVICE void scan_set_segment(const scan_cut &cut, int64_t segment, scan_place *place)
{
    place->segment = segment;
    place->begin = segment * cut.steps;
    place->end = dt_least(place->begin + cut.steps, cut.length);
}

DT_DEVICE float scan_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

DT_DEVICE float scan_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

// A · log2(e): exp(Δ A) = 2^(Δ a).
DT_DEVICE float scan_scaled_a(float a_log)
{
    return -expf(a_log) * SCAN_LOG2_E;
}

// a[n] of channel d; padding and channels beyond the last get 0.
template <int NP>
DT_DEVICE void scan_load_a(const float *a_log, int64_t state, const scan_place &place,
                           float (&a)[NP])
{
#pragma unroll
    for (int n = 0; n < NP; n++)
        a[n] = place.active && n < state ? scan_scaled_a(a_log[place.d * state + n]) : 0.0f;
}

// A thread's channel of a [B, L, D] argument, from the segment's first token on.
template <class T>
DT_DEVICE T *scan_column(T *x, int64_t stride, int64_t L, const scan_place &place)
{
    return x + (place.b * L + place.begin) * stride + place.d;
}

// Such a column in the order of time, a tile of tokens held ahead.
template <class T> struct scan_stream {
    const T *next;
    int64_t stride;
    T held[SCAN_TILE];
};

// The value of token i of a tile; that of the token a tile later is fetched in its place, if it is
// there, else 0.
template <class T> DT_DEVICE float scan_step(scan_stream<T> *stream, int i, bool there)
{
    const float value = dt_to_f32(stream->held[i]);
    stream->held[i] = there ? *stream->next : T(0);
    stream->next += stream->stride;
    return value;
}

template <class T>
DT_DEVICE void scan_open(const void *x, int64_t stride, const scan_cut &cut,
                         const scan_place &place, scan_stream<T> *stream)
{
    stream->next = scan_column(static_cast<const T *>(x), stride, cut.length, place);
    stream->stride = stride;
#pragma unroll
    for (int i = 0; i < SCAN_TILE; i++) {
        stream->held[i] = T(0);
        scan_step(stream, i, place.active && place.begin + i < place.end);
    }
}

// Value n of row k of [rows, N, D].
DT_DEVICE int64_t scan_state_at(int64_t row, int64_t n, int64_t state, const scan_cut &cut,
                                const scan_place &place)
{
    return (row * state + n) * cut.channels + place.d;
}

// The tile of tokens as it lies in shared memory, and a thread's share of it on the way there.
template <int NP> struct scan_tile {
    float b[SCAN_TILE][NP], c[SCAN_TILE][NP];
    int reset[SCAN_TILE];
};

template <class T, int NP, int THREADS> struct scan_fetched {
    static const int VALUES = SCAN_TILE * NP, EACH = (VALUES + THREADS - 1) / THREADS;
    T b[EACH], c[EACH];
    int reset;
};

template <class T, int NP, int THREADS, class Args>
DT_DEVICE void scan_fetch(const Args &args, const scan_place &place, int64_t first,
                          scan_fetched<T, NP, THREADS> *fetched)
{
    const int64_t row = place.b * args.length;
    const int thread = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < scan_fetched<T, NP, THREADS>::EACH; i++) {
        int at = i * THREADS + thread, n = at % NP;
        int64_t t = first + at / NP;
        bool there = at < SCAN_TILE * NP && t < place.end && n < args.state;
        fetched->b[i] =
            there ? static_cast<const T *>(args.b)[(row + t) * args.b_stride + n] : T(0);
        fetched->c[i] =
            there ? static_cast<const T *>(args.c)[(row + t) * args.c_stride + n] : T(0);
    }
    int64_t t = first + thread;
    fetched->reset = args.reset && thread < SCAN_TILE && t < place.end ? args.reset[row + t] : 0;
}

template <class T, int NP, int THREADS>
DT_DEVICE void scan_put(const scan_fetched<T, NP, THREADS> &fetched, scan_tile<NP> *tile)
{
    const int thread = (int)threadIdx.x;
#pragma unroll
    for (int i = 0; i < scan_fetched<T, NP, THREADS>::EACH; i++) {
        int at = i * THREADS + thread;
        if (at >= SCAN_TILE * NP)
            break;
        tile->b[at / NP][at % NP] = dt_to_f32(fetched.b[i]);
        tile->c[at / NP][at % NP] = dt_to_f32(fetched.c[i]);
    }
    if (thread < SCAN_TILE)
        tile->reset[thread] = fetched.reset;
}

template <int NP> DT_DEVICE void scan_clear(float (&h)[NP])
{
#pragma unroll
    for (int n = 0; n < NP; n++)
        h[n] = 0.0f;
}

// Four neighbours of a tile's row in one access; lanes read the same address.
template <int NP> DT_DEVICE void scan_read_row(const float *row, float (&out)[NP])
{
#pragma unroll
    for (int n = 0; n < NP; n += 4) {
        float4 v = *reinterpret_cast<const float4 *>(row + n);
        out[n] = v.x, out[n + 1] = v.y, out[n + 2] = v.z, out[n + 3] = v.w;
    }
}

// Second launch: slots [B, S, N, D] come with what each segment made of zero, and go with what each
// starts from. In time: slot k + 1 came from segment k, slot 0 is `first` or zero. Reversed: slot
// k - 1 came from segment k, the last is zero. sums [B, S, D]: Σ Δ of segment k.
static __global__ void scan_pass_on(const float *a_log, const float *sums, const float *first,
                                    float *slots, int64_t batch, int64_t state, scan_cut cut,
                                    bool reversed)
{
    const int64_t index = dt_thread_index(), D = cut.channels, S = cut.segments;
    if (index >= batch * state * D)
        return;
    const int64_t d = index % D, n = index / D % state, b = index / D / state;
    const float a = scan_scaled_a(a_log[d * state + n]);
    float carry = first ? first[(b * D + d) * state + n] : 0.0f;
    for (int64_t k = 0; k < S; k++) {
        int64_t segment = reversed ? S - 1 - k : k, before = reversed ? segment + 1 : segment - 1;
        float *slot = slots + ((b * S + segment) * state + n) * D + d;
        if (k > 0) {
            float sum = sums[(b * S + before) * D + d];
            carry = *slot + (sum == SCAN_NOTHING_PASSES ? 0.0f : exp2f(a * sum) * carry);
        }
        *slot = carry;
    }
}

// Takes arrays of floats from a workspace in order; without one it only counts.
struct scan_taker {
    float *base; // or NULL
    int64_t used;
};

static inline float *scan_take(scan_taker *taker, int64_t floats)
{
    float *taken = taker->base ? taker->base + taker->used : NULL;
    taker->used += floats;
    return taken;
}
