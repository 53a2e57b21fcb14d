// Shared by the CUDA kernels of the scan: the roles of lanes in a warp, how a sequence is cut,
// tiles of tokens in shared memory, and how states pass from one segment to the next. Private to
// scan_*.cu.
//
// A warp owns 8 CC channels and a tile of TILE tokens at a time, and its lanes have two roles. As a
// carrier, a lane loads V neighbouring channels of one token (16 bytes of bf16 forward), computes
// what needs no state (softplus, gate), and writes it to shared memory; nothing of this is done
// twice. As a scanner, the lane of part j and group g keeps the states [j S, j S + S) of channels g
// CC … g CC + CC - 1 in registers (S = NP / 4; N is padded to NP by zero columns of B and C). So
// one read of B or C serves CC channels, sums over n take 3 shuffles for 4 values (forward: each
// lane stores its part, and the carrier adds them), and a small batch fills a device. Lanes t and t
// ^ 1 have the same part, t and t ^ 2 the same group: where all lanes are equal in one of these
// ways a read of 8 or 16 bytes a lane of shared memory takes half the time
// (https://forums.developer.nvidia.com/t/unexpected-shared-memory-bank-conflict/77228). Warps need
// each other for the sums over channels only. Tokens beyond the segment's end have Δ = 0 and change
// nothing.
//
// If whole sequences do not fill a device evenly, some are cut into segments that run side by side
// (scan_cut.h), in two launches:
//   1. each segment from a zero state: its end state and its Σ Δ
//   2. each segment again, from its start, which it makes itself of what the segments before it
//      have left: start_{k+1} = end_k + exp(A · Σ Δ_k) · start_k
// The cut depends on shapes only, so the bits do not depend on the device's size.
#pragma once

#include "kernels/device.cuh"
#include "kernels/scan.h"
#include "kernels/scan_cut.h"

enum {
    SCAN_PARTS = 4,     // lanes that share a channel's states
    SCAN_PART_STEP = 2, // distance between these lanes
    SCAN_GROUPS = 8,    // groups of channels per warp
    SCAN_WARPS = 4,     // warps per block
    SCAN_THREADS = SCAN_WARPS * DT_WARP,
    SCAN_PAIRED_STATES_MOST = 16, // up to this N a lane has registers for two channels
};

// Replaces a segment's Σ Δ, which is never negative, if a reset in the segment lets nothing pass
// through it.
static const float SCAN_NOTHING_PASSES = -1.0f;

template <int NP_, int CC_, int TILE_> struct scan_form {
    static const int NP = NP_, CC = CC_, TILE = TILE_;
    static const int S = NP / SCAN_PARTS;           // states per lane and channel
    static const int WIDTH = SCAN_GROUPS * CC;      // channels per warp
    static const int V = TILE * WIDTH / DT_WARP;    // channels of one token that a lane carries
    static const int CARRIERS = DT_WARP / TILE;     // per token
    static const int COLUMNS = TILE * NP / DT_WARP; // values of B, and of C, that it carries
};

// The device for which sequences are cut.
#ifdef __CUDACC__
static const scan_device SCAN_DEVICE = SCAN_LARGE_DEVICE;
#else
static const scan_device SCAN_DEVICE = SCAN_SMALL_DEVICE;
#endif

static inline scan_cut scan_cut_for(int64_t batch, int64_t length, int64_t channels, int64_t state,
                                    int64_t chunk, int64_t unit, const scan_costs &costs)
{
    const int64_t width = SCAN_WARPS * SCAN_GROUPS;
    const int64_t widths[2] = {width, state <= SCAN_PAIRED_STATES_MOST ? 2 * width : 0};
    return scan_choose_cut(batch, length, channels, widths, chunk, unit, &costs, &SCAN_DEVICE);
}

// Whether a lane has two channels.
static inline bool scan_pairs(const scan_cut &cut)
{
    return cut.width > SCAN_WARPS * SCAN_GROUPS;
}

// A lane's work: tokens [begin, end) of sequence b, run number `run`; as a carrier channels carry +
// [0, V) of token `row` of a tile, as a scanner channels d + [0, CC) and states n + [0, S).
struct scan_place {
    int begin, end;
    int b, run, segment, block, carry, d;
    int warp, lane, row, column, group, part, n; // column: carry, counted from the warp's first
};

// The lane of a part and a group: the part's bits xor the group's bits.
DT_DEVICE unsigned scan_lane_of(unsigned part, unsigned group)
{
    return group % SCAN_PART_STEP + (part ^ group / SCAN_PART_STEP) * SCAN_PART_STEP +
           group / SCAN_PART_STEP * 8;
}

// The block's place, with the lane's part.
template <class F>
DT_DEVICE scan_place scan_lane_place(const scan_place &block, unsigned thread = threadIdx.x)
{
    scan_place place = block;
    place.warp = (int)(thread / DT_WARP); // unsigned: no code for negative values
    place.lane = (int)(thread % DT_WARP);
    place.row = place.lane / F::CARRIERS;
    place.column = place.lane % F::CARRIERS * F::V;
    place.group = place.lane % SCAN_PART_STEP + place.lane / 8 * SCAN_PART_STEP;
    place.part = (place.lane / SCAN_PART_STEP ^ place.lane / 8) % SCAN_PARTS;
    place.n = place.part * F::S;
    const int first = (place.block * SCAN_WARPS + place.warp) * F::WIDTH;
    place.carry = first + place.column;
    place.d = first + place.group * F::CC;
    return place;
}

// firsts: the launch covers only this many segments, from segment `from` on, of each sequence that
// is cut. 0: all runs.
template <class F>
DT_DEVICE scan_place scan_find_place(const scan_cut &cut, int firsts = 0, int from = 0)
{
    scan_place place;
    const unsigned blocks = (unsigned)cut.channel_blocks, whole = (unsigned)cut.whole;
    const unsigned of = firsts > 0 ? (unsigned)firsts : (unsigned)cut.segments;
    unsigned run = blockIdx.x / blocks + (firsts > 0 ? whole : 0);
    place.block = (int)(blockIdx.x % blocks);
    place.b = (int)(run < whole ? run : whole + (run - whole) / of);
    place.segment = run < whole ? 0 : (int)((run - whole) % of) + from;
    place.run = run < whole
                    ? (int)run
                    : (int)whole + (place.b - (int)whole) * (int)cut.segments + place.segment;
    place.begin = place.segment * (int)cut.steps;
    place.end = (int)(run < whole ? cut.length : dt_least(place.begin + cut.steps, cut.length));
    return scan_lane_place<F>(place);
}

// p + row · bytes in global memory, by one instruction; if the compiler sees that a factor is
// uniform in a warp, it adds a zero to the upper half of the product.
template <class T> DT_DEVICE T *scan_row(T *p, unsigned row, unsigned bytes)
{
#ifdef __CUDACC__
    asm("" : "+r"(row));
    asm("" : "+r"(bytes));
#endif
    uint64_t at = (uint64_t)(uintptr_t)p + (uint64_t)row * bytes;
#ifdef __CUDACC__
    // no instruction, but tells the compiler that the address is global
    asm("cvta.to.global.u64 %0, %0;" : "+l"(at));
    return static_cast<T *>(__cvta_global_to_generic(at));
#else
    return reinterpret_cast<T *>((uintptr_t)at);
#endif
}

// Hides the value of x from the compiler, so that values derived from it are computed in place and
// do not occupy a register through a loop.
DT_DEVICE int scan_opaque(int x)
{
#ifdef __CUDACC__
    asm volatile("" : "+r"(x));
#endif
    return x;
}

// log(1 + e) for e in [0, 1] by a polynomial; relative error below 2e-7 with its roundings, also
// where e is so small that 1 + e would round it away.
DT_DEVICE float scan_log1p(float e)
{
    float p = 0.00523269409f;
    p = p * e - 0.0295052398f;
    p = p * e + 0.0782259554f;
    p = p * e - 0.136632457f;
    p = p * e + 0.191060066f;
    p = p * e - 0.24842982f;
    p = p * e + 0.333190978f;
    p = p * e - 0.499994934f;
    p = p * e + 0.99999994f;
    return p * e;
}

// softplus(x) = max(x, 0) + log(1 + exp(-|x|)): above 20 it is x in fp32, as scan.h has it.
DT_DEVICE float scan_softplus(float x)
{
    return fmaxf(x, 0.0f) + scan_log1p(dt_exp2(-DT_LOG2_E * fabsf(x)));
}

// A · log2(e): exp(Δ A) = 2^(Δ a).
DT_DEVICE float scan_scaled_a(float a_log)
{
    return -expf(a_log) * DT_LOG2_E;
}

// Loads a for the lane's channels and states; 0 for padding and channels beyond the last.
template <class F>
DT_DEVICE void scan_load_a(const float *a_log, int64_t state, const scan_cut &cut,
                           const scan_place &place, float (&a)[F::CC][F::S])
{
#pragma unroll
    for (int c = 0; c < F::CC; c++)
#pragma unroll
        for (int n = 0; n < F::S; n++)
            a[c][n] = place.d + c < cut.channels && place.n + n < state
                          ? scan_scaled_a(a_log[(int64_t)(place.d + c) * state + place.n + n])
                          : 0.0f;
}

// Loads a parameter [D] for the channels that a lane carries.
template <class F>
DT_DEVICE void scan_load_channels(const float *from, const scan_cut &cut, const scan_place &place,
                                  float (&out)[F::V])
{
#pragma unroll
    for (int v = 0; v < F::V; v++)
        out[v] = place.carry + v < cut.channels ? from[place.carry + v] : 0.0f;
}

// ---- tiles in flight: copied one tile ahead, unconverted, into shared memory that only the lane
// itself writes and reads

// V unconverted neighbours.
template <class T, int V> struct scan_raw {
    static const int BYTES = V * (int)sizeof(T), PIECE = BYTES < 16 ? BYTES : 16;
    static const int PIECES = BYTES / PIECE;
    using word = dt_word<PIECE>;
    word words[PIECES];
};

// Copies the first `count` of V values from p on, and zeros for the others. wide: p is aligned to
// V, and count is at least V or 0; the copies are then asynchronous (dt_copy_wait).
template <class T, int V>
DT_DEVICE void scan_fetch(const T *p, int64_t count, bool wide, scan_raw<T, V> *raw)
{
    if constexpr (scan_raw<T, V>::PIECE >= 4) {
        if (wide && count > 0) {
#pragma unroll
            for (int i = 0; i < scan_raw<T, V>::PIECES; i++)
                dt_copy_async<scan_raw<T, V>::PIECE>(
                    &raw->words[i], reinterpret_cast<const typename scan_raw<T, V>::word *>(p) + i);
            return;
        }
    }
    T *to = reinterpret_cast<T *>(raw);
#pragma unroll 1 // only for odd shapes: unrolling would need registers for many addresses
    for (int v = 0; v < V; v++)
        to[v] = v < count ? p[v] : T(0);
}

template <class T, int V> DT_DEVICE void scan_unpack(const scan_raw<T, V> &raw, float (&out)[V])
{
    dt_load(reinterpret_cast<const T *>(&raw), out);
}

// Advances p from a sequence's token 0 to token t by one multiplication of 32-bit factors.
template <class T> DT_DEVICE const T *scan_token(const T *p, int t, int64_t stride)
{
    const uint64_t bytes = (uint64_t)((unsigned)t * (unsigned)sizeof(T)) * (unsigned)stride;
    return reinterpret_cast<const T *>(reinterpret_cast<const char *>(p) + bytes);
}

template <class F, class T>
DT_DEVICE void scan_put_columns(const scan_raw<T, F::COLUMNS> *raw, const scan_place &place,
                                float (&columns)[F::TILE][F::NP])
{
    float values[F::COLUMNS];
    const int at = place.lane * F::COLUMNS;
    scan_unpack(raw[place.lane], values);
    dt_store(&columns[at / F::NP][at % F::NP], values);
}

template <class Args>
DT_DEVICE int scan_fetch_reset(const Args &args, const scan_place &place, int64_t first)
{
    const int64_t t = first + place.lane;
    return args.in.reset && t < place.end ? args.in.reset[place.b * args.in.length + t] : 0;
}

// Replaces what a lane carries beyond the segment's end by zeros. The values are computed before:
// in one expression with their computation this would become a branch per value.
template <class F>
DT_DEVICE void scan_blank_beyond(const scan_place &place, int first, float (&values)[F::V])
{
    const bool here = first + place.row < place.end;
#pragma unroll
    for (int v = 0; v < F::V; v++)
        values[v] = here ? values[v] : 0.0f;
}

template <int A, int B> DT_DEVICE void scan_clear(float (&h)[A][B])
{
#pragma unroll
    for (int i = 0; i < A; i++)
#pragma unroll
        for (int n = 0; n < B; n++)
            h[i][n] = 0.0f;
}

// One token: h = exp(Δ A) h + Δ u B.
template <class F>
DT_DEVICE void scan_advance(const float (&step)[2 * F::CC], const float (&b)[F::S],
                            const float (&a)[F::CC][F::S], float (&h)[F::CC][F::S])
{
#pragma unroll
    for (int c = 0; c < F::CC; c++)
#pragma unroll
        for (int n = 0; n < F::S; n++)
            h[c][n] = dt_exp2(step[2 * c] * a[c][n]) * h[c][n] + step[2 * c + 1] * b[n];
}

// Whether a lane may access its states in [rows, N, D] CC channels at a time.
template <class F>
static inline bool scan_states_wide(const float *states, int64_t state, int64_t channels)
{
    return state == F::NP && channels % F::CC == 0 && dt_aligned_rows<F::CC>(states, channels);
}

// Index of value n of row k of [rows, N, D].
DT_DEVICE int64_t scan_state_at(int64_t row, int64_t n, int64_t state, const scan_cut &cut,
                                int64_t d)
{
    return (row * state + n) * cut.channels + d;
}

// Stores the lane's states from the address of its first one in a row of [rows, N, D]. wide: see
// scan_states_wide.
template <class F>
DT_DEVICE void scan_write_states_at(float *to, int64_t state, const scan_cut &cut,
                                    const scan_place &place, bool wide,
                                    const float (&h)[F::CC][F::S])
{
    if (F::CC > 1 && wide) {
        if (place.d < cut.channels)
#pragma unroll
            for (int n = 0; n < F::S; n++) {
                float neighbours[F::CC];
#pragma unroll
                for (int c = 0; c < F::CC; c++)
                    neighbours[c] = h[c][n];
                dt_store(scan_row(to, (unsigned)n, (unsigned)cut.channels * 4), neighbours);
            }
        return;
    }
#pragma unroll
    for (int n = 0; n < F::S; n++)
#pragma unroll
        for (int c = 0; c < F::CC; c++)
            if (place.n + n < state && place.d + c < cut.channels)
                to[n * cut.channels + c] = h[c][n];
}

// Write and read row `row`.
template <class F>
DT_DEVICE void scan_write_states(float *to, int64_t row, int64_t state, const scan_cut &cut,
                                 const scan_place &place, bool wide, const float (&h)[F::CC][F::S])
{
    scan_write_states_at<F>(to + scan_state_at(row, place.n, state, cut, place.d), state, cut,
                            place, wide, h);
}

template <class F>
DT_DEVICE void scan_read_states(const float *from, int64_t row, int64_t state, const scan_cut &cut,
                                const scan_place &place, bool wide, float (&h)[F::CC][F::S])
{
    scan_clear(h);
    if (wide) {
        from += scan_state_at(row, place.n, state, cut, place.d);
        if (place.d < cut.channels)
#pragma unroll
            for (int n = 0; n < F::S; n++, from += cut.channels) {
                float neighbours[F::CC];
                dt_load(from, neighbours);
#pragma unroll
                for (int c = 0; c < F::CC; c++)
                    h[c][n] = neighbours[c];
            }
        return;
    }
#pragma unroll
    for (int n = 0; n < F::S; n++)
#pragma unroll
        for (int c = 0; c < F::CC; c++)
            if (place.n + n < state && place.d + c < cut.channels)
                h[c][n] = from[scan_state_at(row, place.n + n, state, cut, place.d + c)];
}

// The index of the lane's state n of channel c in an array [B, D, N]: h0, h_last and their
// gradients.
DT_DEVICE int64_t scan_given_at(int64_t state, const scan_cut &cut, const scan_place &place, int c,
                                int n)
{
    return (place.b * cut.channels + place.d + c) * state + place.n + n;
}

// h is unchanged for missing states and channels.
template <class F>
DT_DEVICE void scan_read_given(const float *from, int64_t state, const scan_cut &cut,
                               const scan_place &place, float (&h)[F::CC][F::S])
{
#pragma unroll
    for (int c = 0; c < F::CC; c++)
#pragma unroll
        for (int n = 0; n < F::S; n++)
            if (place.n + n < state && place.d + c < cut.channels)
                h[c][n] = from[scan_given_at(state, cut, place, c, n)];
}

template <class F>
DT_DEVICE void scan_write_given(float *to, int64_t state, const scan_cut &cut,
                                const scan_place &place, const float (&h)[F::CC][F::S])
{
#pragma unroll
    for (int c = 0; c < F::CC; c++)
#pragma unroll
        for (int n = 0; n < F::S; n++)
            if (place.n + n < state && place.d + c < cut.channels)
                to[scan_given_at(state, cut, place, c, n)] = h[c][n];
}

// Sums W values over LANES lanes, STEP apart: lanes that differ in one bit swap halves of their
// remaining values. The i-th lane ends with values i W / LANES …, from v[0] on; with fewer values
// than lanes several lanes have the same value.
template <int LANES, int STEP, int LEFT, int W> DT_DEVICE void scan_scatter_sum(float (&v)[W])
{
    if constexpr (LANES > 1) {
        constexpr int bit = LANES / 2 * STEP, half = LEFT / 2;
        const bool upper = ((int)threadIdx.x & bit) != 0;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float keep = upper ? v[i + half] : v[i], give = upper ? v[i] : v[i + half];
            v[i] = keep + __shfl_xor_sync(DT_WHOLE_WARP, give, bit);
        }
        if constexpr (half == 0)
            v[0] += __shfl_xor_sync(DT_WHOLE_WARP, v[0], bit);
        scan_scatter_sum<LANES / 2, STEP, half == 0 ? 1 : half>(v);
    }
}

// Sums over the carriers of one column; all of them get the sum.
template <class F> DT_DEVICE void scan_sum_rows(float (&v)[F::V])
{
#pragma unroll
    for (int i = 0; i < F::V; i++)
#pragma unroll
        for (int bit = F::CARRIERS; bit < DT_WARP; bit *= 2)
            v[i] += __shfl_xor_sync(DT_WHOLE_WARP, v[i], bit);
}

// Stores the carried values of a token, `left` of which are in the array.
template <class F, class T>
DT_DEVICE void scan_store_token(T *to, bool wide, int left, const float (&values)[F::V])
{
    if (wide && left > 0) {
        dt_store(to, values);
        return;
    }
#pragma unroll
    for (int v = 0; v < F::V; v++)
        if (v < left)
            to[v] = dt_from_f32<T>(values[v]);
}

// The states that segments pass on, one row per segment of the sequences that are cut. Forward in
// time: row k + 1 of a sequence is what segment k made of a zero state, and row 0 is h0, if any.
// Reversed: row k - 1 is what segment k made, and the last row is unused.
struct scan_passing {
    float *slots; // [rows, N, D]; NULL: no sequence is cut
    float *sums;  // [rows, D]: Σ Δ of segment k in row k, or SCAN_NOTHING_PASSES
};

// The row of the lane's segment, in a sequence that is cut.
DT_DEVICE int64_t scan_passing_row(const scan_cut &cut, const scan_place &place)
{
    return place.run - cut.whole;
}

// Stores the result of the lane's segment, with its Σ Δ over the carriers' tokens, for the segment
// that is `step` (1, reversed -1) further.
template <class F>
DT_DEVICE void scan_pass_on(const scan_passing &to, int64_t state, const scan_cut &cut,
                            const scan_place &place, bool wide, int step, bool passes,
                            float (&sum)[F::V], const float (&h)[F::CC][F::S])
{
    const int64_t row = scan_passing_row(cut, place);
    scan_sum_rows<F>(sum);
#pragma unroll
    for (int v = 0; v < F::V; v++)
        if (place.row == 0 && place.carry + v < cut.channels)
            to.sums[row * cut.channels + place.carry + v] = passes ? sum[v] : SCAN_NOTHING_PASSES;
    scan_write_states<F>(to.slots, row + step, state, cut, place, wide, h);
}

// Advances h over `count` segments from row `from` on, in steps of `step`.
template <class F>
DT_DEVICE void scan_pass_through(const scan_passing &passing, int64_t state, const scan_cut &cut,
                                 const scan_place &place, bool wide, int64_t from, int step,
                                 int count, const float (&a)[F::CC][F::S], float (&h)[F::CC][F::S])
{
#pragma unroll 1
    for (int64_t row = from; count > 0; count--, row += step) {
        float made[F::CC][F::S];
        scan_read_states<F>(passing.slots, row + step, state, cut, place, wide, made);
#pragma unroll
        for (int c = 0; c < F::CC; c++) {
            const float sum = place.d + c < cut.channels
                                  ? passing.sums[row * cut.channels + place.d + c]
                                  : SCAN_NOTHING_PASSES;
#pragma unroll
            for (int n = 0; n < F::S; n++)
                h[c][n] = made[c][n] +
                          (sum == SCAN_NOTHING_PASSES ? 0.0f : dt_exp2(sum * a[c][n]) * h[c][n]);
        }
    }
}

#ifdef __CUDACC__
// A launcher that relies on several blocks of `kernel` per SM calls this. It requests as much of
// the L1 cache as possible as shared memory. The driver does so by itself, but may choose less so
// that the kernel can start beside one that still runs (CUDA C++ Programming Guide, compute
// capability 7.x, shared memory). This is a hint and an attribute of the kernel, so it may be set
// during a capture.
template <class... P> static inline void scan_prefer_shared(void (*kernel)(P...))
{
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                             cudaSharedmemCarveoutMaxShared) != cudaSuccess)
        (void)cudaGetLastError(); // then the driver chooses
}

// Tells a launcher how many blocks of `kernel` an SM holds; 0 if CUDA cannot tell.
template <class... P>
static inline int scan_blocks_held(void (*kernel)(P...), int threads, int64_t shared_bytes)
{
    int held = 0;
    if (cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, kernel, threads,
                                                      (size_t)shared_bytes) == cudaSuccess)
        return held;
    (void)cudaGetLastError();
    return 0;
}
#endif

static inline scan_passing scan_take_passing(dt_carver *carver, int64_t batch, int64_t state,
                                             const scan_cut &cut)
{
    const int64_t rows = (batch - cut.whole) * cut.segments;
    scan_passing passing = {NULL, NULL};
    if (rows == 0)
        return passing;
    dt_carve(carver, passing.slots, rows * state * cut.channels * (int64_t)sizeof(float));
    dt_carve(carver, passing.sums, rows * cut.channels * (int64_t)sizeof(float));
    return passing;
}
