// Shared by forward and backward of Mamba-2's scan on CUDA: how sequences are cut, the layout of
// the workspace, the decays of a chunk, and the operands of the matrix products. Private to
// ssd_*.cu.
//
// The unit is a run: one chunk of Q tokens of one sequence. Its products are batches of gemm
// (cuBLASLt, on tensor cores with bf16 storage); everything between them is here. Operands are
// copied into the workspace with Q, P and N rounded up to 8 and filled with zeros. So rows of every
// product are aligned to 16 bytes whatever the caller's strides, the short chunk at a sequence's
// end needs no separate product, and one batch covers all runs and heads. The products over tokens
// and over the state before the chunk are one product with k = Q + N:
//   y = [decay ∘ C Bᵀ | keep ∘ C] · [X; h_before]
// with the left operand [Q, Q + N], the right one [Q + N, P], for each run and head.
//
// The workspace holds a slab: K consecutive chunks of some sequences. Slabs are processed in the
// order of time (backward: reversed), and a carry passes the states from one to the next. So the
// workspace is bounded by SLAB_BYTES, or by one run if that needs more, whatever the length and the
// batch. Bytes per token and head in bf16: left 4 (Q + N) written and read, C Bᵀ read in fp32 from
// the L2 cache, 4 Q; states 14 N P / Q; X, the weighted X and y 20 P. At N = 128, P = 64, chunks of
// 128 balance the first against the second.
#pragma once

#include "kernels/device.cuh"
#include "kernels/ssd.h"

enum {
    SSD_EIGHT = 8, // rows of operands are multiples of this many elements
    SSD_WARPS = 4,
    SSD_THREADS = SSD_WARPS * DT_WARP,
};

// For a 130M model (24 heads of 64, N 128) this is 55 runs backward: six chunks of eight sequences,
// whose products fill a large GPU several times over, so that the 17 launches of a slab do not
// count.
#ifdef __CUDACC__
static const int64_t SSD_SLAB_BYTES = (int64_t)512 << 20;
#else
static const int64_t SSD_SLAB_BYTES = 1 << 16; // gives small cases several slabs
#endif

struct ssd_slab {
    dt_ssd_inputs in;
    unsigned heads, groups, per_group;
    unsigned chunks, first_chunk; // K; first chunk
    unsigned sequences;
    int64_t first_sequence, n_chunks; // n_chunks: per sequence
    unsigned head, state;             // P, N
    unsigned tokens;                  // Q
    unsigned rows, width, states;     // Q, P, N rounded up
    unsigned parts;                   // blocks per state in backward's pass over time
    // The workspace. R: runs of the slab, sequences · K; T: storage.
    float *delta, *log;    // [R, H, Q]: Δ_t; l_t, the sum of Δ A from the chunk's start
    int *from;             // [R, Q]: the last reset up to t, or -1: the first visible s
    void *b, *c;           // T [R, G, Q, N]
    float *cb;             // [R, G, Q, Q]: C Bᵀ
    void *left;            // T [R, H, Q, Q + N]
    void *right;           // T [R, H, Q + N, P]
    void *weighted;        // T [R, G, Q, H/G · P]: decay[Q-1, s] X_s
    float *carry;          // [sequences, H, N, P]
    float *sums;           // forward: [R, G, N, H/G · P], what a run adds to the state
    float *y;              // forward: [R, H, Q, P]
    void *dy;              // backward: T [R, H, Q, P]
    float *dright, *dleft; // gradients of right, left: dX, dh_before; dM, keep⁻¹ ∘ dC
    void *dstate;          // T [R, G, N, H/G · P]: dh_end
    float *dweighted;      // [R, G, Q, H/G · P]: B dh_endᵀ
    void *dcb;             // T [R, G, Q, Q]: Σ_heads dM ∘ decay
    float *db, *dc;        // [R, G, Q, N]
    float *e;              // [R, H, Q]: keep_t dY_tᵀ h_before C_t
    float *dots;           // [R, H, parts]: Σ dh_end ∘ h_before
    float *partials;       // [B · n_chunks, 3, H], of the whole call
};

static inline int64_t ssd_runs(const ssd_slab &s)
{
    return (int64_t)s.sequences * s.chunks;
}

// Lays out the arrays.
static inline void ssd_layout(ssd_slab *s, dt_carver *carver, bool backward)
{
    const int64_t F = sizeof(float), T = dt_dtype_size(s->in.x.dtype), R = ssd_runs(*s);
    const int64_t RG = R * s->groups, RH = R * s->heads, Q = s->rows, N = s->states, P = s->width;
    dt_carve(carver, s->delta, RH * Q * F);
    dt_carve(carver, s->log, RH * Q * F);
    dt_carve(carver, s->from, R * Q * (int64_t)sizeof(int));
    dt_carve(carver, s->b, RG * Q * N * T);
    dt_carve(carver, s->c, RG * Q * N * T);
    dt_carve(carver, s->cb, RG * Q * Q * F);
    dt_carve(carver, s->left, RH * Q * (Q + N) * T);
    dt_carve(carver, s->right, RH * (Q + N) * P * T);
    dt_carve(carver, s->weighted, RH * Q * P * T);
    dt_carve(carver, s->carry, (int64_t)s->sequences * s->heads * N * P * F);
    if (!backward) {
        dt_carve(carver, s->sums, RH * N * P * F);
        dt_carve(carver, s->y, RH * Q * P * F);
        return;
    }
    dt_carve(carver, s->dy, RH * Q * P * T);
    dt_carve(carver, s->dright, RH * (Q + N) * P * F);
    dt_carve(carver, s->dleft, RH * Q * (Q + N) * F);
    dt_carve(carver, s->dstate, RH * N * P * T);
    dt_carve(carver, s->dweighted, RH * Q * P * F);
    dt_carve(carver, s->dcb, RG * Q * Q * T);
    dt_carve(carver, s->db, RG * Q * N * F);
    dt_carve(carver, s->dc, RG * Q * N * F);
    dt_carve(carver, s->e, RH * Q * F);
    dt_carve(carver, s->dots, RH * s->parts * F);
    dt_carve(carver, s->partials, s->in.batch * s->n_chunks * 3 * s->heads * F);
}

static inline unsigned ssd_eight(int64_t n)
{
    return (unsigned)(dt_div_up(n, SSD_EIGHT) * SSD_EIGHT);
}

// Cuts n into pieces of at most `most`, all but the last of equal size.
static inline unsigned ssd_even(int64_t n, int64_t most)
{
    return (unsigned)dt_div_up(n, dt_div_up(n, most < n ? most : n));
}

enum { SSD_PART = 4 * SSD_THREADS }; // elements of a state per block in the passes

// The cut, and so the bits, depend only on shapes. Every slab has the same shape; beyond the last
// chunk or sequence its runs have no tokens.
static inline ssd_slab ssd_plan(const dt_ssd_inputs &in, bool backward)
{
    ssd_slab s = {};
    s.in = in;
    s.heads = (unsigned)in.heads, s.groups = (unsigned)in.groups, s.per_group = s.heads / s.groups;
    s.head = (unsigned)in.x.cols / s.heads, s.state = (unsigned)in.b.cols / s.groups;
    s.tokens = (unsigned)dt_least(in.chunk, in.length);
    s.n_chunks = dt_div_up(in.length, in.chunk);
    s.rows = ssd_eight(s.tokens), s.width = ssd_eight(s.head), s.states = ssd_eight(s.state);
    s.parts = (unsigned)dt_div_up((int64_t)s.states * s.width, SSD_PART);
    s.sequences = s.chunks = 1;
    dt_carver carver = {}; // measures one run
    ssd_layout(&s, &carver, backward);
    int64_t runs = dt_least(SSD_SLAB_BYTES / carver.used, 65535 / s.heads);
    runs = runs < 1 ? 1 : runs;
    s.sequences = ssd_even(in.batch, runs);
    s.chunks = ssd_even(s.n_chunks, runs / s.sequences);
    return s;
}

// ---- a run

struct ssd_run {
    int64_t row; // its first row in views
    int64_t sequence, chunk;
    unsigned valid; // tokens; 0: beyond the last chunk or sequence
};

DT_DEVICE ssd_run ssd_find_run(const ssd_slab &s, unsigned run)
{
    ssd_run r;
    r.sequence = s.first_sequence + run / s.chunks;
    r.chunk = (int64_t)s.first_chunk + run % s.chunks;
    const int64_t first = r.chunk * s.in.chunk;
    const bool there = r.sequence < s.in.batch && r.chunk < s.n_chunks;
    r.row = r.sequence * s.in.length + first;
    r.valid = there ? (unsigned)dt_least(s.tokens, s.in.length - first) : 0;
    return r;
}

// Item i of pair `pair`; blocks of SSD_THREADS items are ordered by pair.
struct ssd_item {
    unsigned pair, i;
};

DT_DEVICE ssd_item ssd_find_item(unsigned items)
{
    const unsigned blocks = (items + SSD_THREADS - 1) / SSD_THREADS;
    ssd_item item;
    item.pair = blockIdx.x / blocks;
    item.i = blockIdx.x % blocks * SSD_THREADS + threadIdx.x;
    return item;
}

static inline unsigned ssd_blocks(int64_t pairs, int64_t items)
{
    return (unsigned)(pairs * dt_div_up(items, SSD_THREADS));
}

// A thread's elements in the passes over states: p … p + 3 of state n of a head. In the states at a
// sequence's borders, [B, H, P, N], it accesses only existing ones.
enum { SSD_FOUR = 4 };

DT_DEVICE int64_t ssd_border_at(const ssd_slab &s, int64_t sequence, unsigned h, unsigned n,
                                unsigned p)
{
    return ((sequence * s.heads + h) * s.head + p) * s.state + n;
}

DT_DEVICE void ssd_read_border(const ssd_slab &s, const float *from, int64_t sequence, unsigned h,
                               unsigned n, unsigned p, float (&state)[SSD_FOUR])
{
#pragma unroll
    for (unsigned k = 0; k < SSD_FOUR; k++)
        if (n < s.state && p + k < s.head)
            state[k] = from[ssd_border_at(s, sequence, h, n, p + k)];
}

DT_DEVICE void ssd_write_border(const ssd_slab &s, float *to, int64_t sequence, unsigned h,
                                unsigned n, unsigned p, const float (&state)[SSD_FOUR])
{
#pragma unroll
    for (unsigned k = 0; k < SSD_FOUR; k++)
        if (n < s.state && p + k < s.head)
            to[ssd_border_at(s, sequence, h, n, p + k)] = state[k];
}

DT_DEVICE float ssd_exp(float x)
{
    return dt_exp2(DT_LOG2_E * x);
}

// softplus(dt + bias) before the clamp; NaN stays NaN.
DT_DEVICE float ssd_softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

// Δ, l and the last resets: a warp owns a run and head, its lanes 32 tokens at a time.
template <class T>
__global__ static void __launch_bounds__(SSD_THREADS) ssd_decays(const ssd_slab s)
{
    const unsigned pair = blockIdx.x * SSD_WARPS + threadIdx.x / DT_WARP;
    const unsigned lane = threadIdx.x % DT_WARP;
    if (pair >= s.sequences * s.chunks * s.heads)
        return; // the whole warp
    const unsigned h = pair % s.heads, run = pair / s.heads;
    const ssd_run r = ssd_find_run(s, run);
    const T *dt = dt_at<T>(s.in.dt, r.row, h);
    const float a = -expf(s.in.a_log[h]), bias = s.in.dt_bias[h];
    float *delta = s.delta + (int64_t)pair * s.rows, *log = s.log + (int64_t)pair * s.rows;
    float before = 0.0f;
    int last = -1;
    for (unsigned first = 0; first < s.rows; first += DT_WARP) {
        const unsigned t = first + lane;
        const bool there = t < r.valid;
        const float soft = there ? ssd_softplus(dt_to_f32(dt[t * s.in.dt.stride]) + bias) : 0.0f;
        const float d = !there               ? 0.0f
                        : soft < s.in.dt_min ? s.in.dt_min
                        : soft > s.in.dt_max ? s.in.dt_max
                                             : soft;
        float l = d * a;
        int reset = there && s.in.reset && s.in.reset[r.row + t] ? (int)t : -1;
#pragma unroll
        for (unsigned step = 1; step < DT_WARP; step *= 2) {
            const float below = __shfl_up_sync(DT_WHOLE_WARP, l, step);
            const int earlier = __shfl_up_sync(DT_WHOLE_WARP, reset, step);
            l += lane >= step ? below : 0.0f;
            reset = lane >= step && earlier > reset ? earlier : reset;
        }
        l += before, reset = reset > last ? reset : last;
        if (t < s.rows) {
            delta[t] = d, log[t] = l;
            if (h == 0)
                s.from[(int64_t)run * s.rows + t] = reset;
        }
        before = __shfl_sync(DT_WHOLE_WARP, l, DT_WARP - 1);
        last = __shfl_sync(DT_WHOLE_WARP, reset, DT_WARP - 1);
    }
}

// ---- operands

// Loads N elements of a row from column i on; zeros unless `there` and within `width`. N > 1: the
// width is a multiple of N.
template <int N, class T>
DT_DEVICE void ssd_load(const T *row, unsigned i, unsigned width, bool there, float (&out)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++)
        out[k] = 0.0f;
    if (there && i < width)
        dt_load<N>(row + i, out);
}

// Copies B and C of a run and group.
template <class T, int V>
__global__ static void __launch_bounds__(SSD_THREADS) ssd_copy_bc(const ssd_slab s)
{
    const unsigned vectors = s.states / V, items = s.rows * vectors;
    const ssd_item item = ssd_find_item(items);
    if (item.i >= items)
        return;
    const unsigned g = item.pair % s.groups, t = item.i / vectors, n = item.i % vectors * V;
    const ssd_run r = ssd_find_run(s, item.pair / s.groups);
    const int64_t to = ((int64_t)item.pair * s.rows + t) * s.states + n;
    const dt_view *const from[2] = {&s.in.b, &s.in.c};
    T *const out[2] = {(T *)s.b, (T *)s.c};
#pragma unroll
    for (int k = 0; k < 2; k++) {
        float v[V];
        const T *row = dt_at<T>(*from[k], r.row + t, g * s.state);
        ssd_load<V>(row, n, s.state, t < r.valid, v);
        dt_store<V>(out[k] + to, v);
    }
}

// decay[t, s] from the logarithms of a run and head.
DT_DEVICE float ssd_decay(const float *log, unsigned t, unsigned s, int from)
{
    return s <= t && (int)s >= from ? ssd_exp(log[t] - log[s]) : 0.0f;
}

// Writes X to the right operand, decay[Q-1, s] X to the weighted one, and the copy of dy, if any.
template <class T, int V>
__global__ static void __launch_bounds__(SSD_THREADS) ssd_copy_x(const ssd_slab s, const dt_view dy)
{
    const unsigned vectors = s.width / V, items = s.rows * vectors;
    const ssd_item item = ssd_find_item(items);
    if (item.i >= items)
        return;
    const unsigned h = item.pair % s.heads, run = item.pair / s.heads;
    const unsigned t = item.i / vectors, p = item.i % vectors * V;
    const ssd_run r = ssd_find_run(s, run);
    const float *log = s.log + (int64_t)item.pair * s.rows;
    const int from = s.from[(int64_t)run * s.rows + s.rows - 1];
    const float delta = s.delta[(int64_t)item.pair * s.rows + t];
    const float decay = ssd_decay(log, s.rows - 1, t, from);
    float x[V], w[V];
    ssd_load<V>(dt_at<T>(s.in.x, r.row + t, h * s.head), p, s.head, t < r.valid, x);
#pragma unroll
    for (int k = 0; k < V; k++)
        x[k] *= delta, w[k] = x[k] * decay;
    const int64_t right = ((int64_t)item.pair * (s.rows + s.states) + t) * s.width + p;
    const int64_t weighted =
        (((int64_t)run * s.groups + h / s.per_group) * s.rows + t) * s.per_group * s.width +
        h % s.per_group * s.width + p;
    dt_store<V>((T *)s.right + right, x);
    dt_store<V>((T *)s.weighted + weighted, w);
    if (!dy.data)
        return;
    ssd_load<V>(dt_at<T>(dy, r.row + t, h * s.head), p, s.head, t < r.valid, x);
    dt_store<V>((T *)s.dy + ((int64_t)item.pair * s.rows + t) * s.width + p, x);
}

// Writes [decay ∘ C Bᵀ | keep ∘ C] of a run and head, eight columns per thread.
template <class T>
__global__ static void __launch_bounds__(SSD_THREADS) ssd_make_left(const ssd_slab s)
{
    const unsigned columns = s.rows + s.states, vectors = columns / SSD_EIGHT;
    const unsigned items = s.rows * vectors;
    const ssd_item item = ssd_find_item(items);
    if (item.i >= items)
        return;
    const unsigned h = item.pair % s.heads, run = item.pair / s.heads;
    const unsigned t = item.i / vectors, column = item.i % vectors * SSD_EIGHT;
    const int64_t row = ((int64_t)run * s.groups + h / s.per_group) * s.rows + t;
    const float *log = s.log + (int64_t)item.pair * s.rows;
    const int from = s.from[(int64_t)run * s.rows + t];
    float v[SSD_EIGHT] = {};
    if (column >= s.rows) {
        const float keep = from < 0 ? ssd_exp(log[t]) : 0.0f;
        if (from < 0) // otherwise 0, whatever C is
            dt_load<SSD_EIGHT>((const T *)s.c + row * s.states + (column - s.rows), v);
#pragma unroll
        for (int k = 0; k < SSD_EIGHT; k++)
            v[k] *= keep;
    } else if (column <= t) {
        float cb[SSD_EIGHT], l[SSD_EIGHT];
        const float at = log[t];
        dt_load<SSD_EIGHT>(s.cb + row * s.rows + column, cb);
        dt_load<SSD_EIGHT>(log + column, l);
#pragma unroll
        for (int k = 0; k < SSD_EIGHT; k++)
            if (column + k <= t && (int)(column + k) >= from)
                v[k] = ssd_exp(at - l[k]) * cb[k];
    }
    dt_store<SSD_EIGHT>((T *)s.left + ((int64_t)item.pair * s.rows + t) * columns + column, v);
}

// ---- products

// C[m, n] (+)= op(A) op(B), `batch` times with contiguous operands.
static inline dt_gemm_args ssd_product(dt_view a, bool trans_a, dt_view b, bool trans_b, dt_view c,
                                       int64_t batch, bool accumulate = false)
{
    dt_gemm_args args = {};
    args.a = a, args.b = b, args.c = c;
    args.trans_a = trans_a, args.trans_b = trans_b, args.accumulate = accumulate;
    args.batch = batch;
    args.a_step = a.rows * a.cols, args.b_step = b.rows * b.cols, args.c_step = c.rows * c.cols;
    return args;
}

// C Bᵀ of each run and group.
static inline dt_gemm_args ssd_cb_product(const ssd_slab &s)
{
    const dt_dtype type = s.in.x.dtype;
    return ssd_product(dt_view_of(s.c, s.rows, s.states, type), false,
                       dt_view_of(s.b, s.rows, s.states, type), true,
                       dt_view_of(s.cb, s.rows, s.rows, DT_F32), ssd_runs(s) * s.groups);
}

// Bytes that the products need; querying also registers their shapes before a graph is captured.
static inline int64_t ssd_gemm_bytes(dt_device *device, const dt_gemm_args *products, int n)
{
    int64_t most = 0;
    for (int i = 0; i < n; i++) {
        const int64_t bytes = gemm_cuda_workspace(device, &products[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

struct ssd_call {
    dt_device *device;
    dt_stream *stream;
    void *workspace; // gemm's
    int64_t workspace_bytes;
};

static inline dt_status ssd_multiply(const ssd_call &call, dt_gemm_args product)
{
    product.workspace = call.workspace;
    product.workspace_bytes = call.workspace_bytes;
    return gemm_cuda(call.device, &product, call.stream);
}

// Whether two views with columns of `width` elements may be accessed eight elements at a time.
static inline bool ssd_wide(unsigned width, const dt_view &x, const dt_view &y)
{
    return width % SSD_EIGHT == 0 && dt_aligned<SSD_EIGHT>(x, y);
}

// Computes decays, operands and C Bᵀ of a slab, without the right operand's lower rows, the states.
template <class T>
static inline dt_status ssd_prepare(const ssd_slab &s, const dt_view &dy, const ssd_call &call)
{
    const int64_t runs = ssd_runs(s), pairs = runs * s.heads;
    DT_LAUNCH((ssd_decays<T>), dt_blocks(pairs, SSD_WARPS), SSD_THREADS, 0, call.stream, s);
    DT_WIDE_SWITCH(ssd_wide(s.state, s.in.b, s.in.c), V, SSD_EIGHT,
                   DT_LAUNCH((ssd_copy_bc<T, V>),
                             ssd_blocks(runs * s.groups, s.rows * (s.states / V)), SSD_THREADS, 0,
                             call.stream, s));
    DT_WIDE_SWITCH(ssd_wide(s.head, s.in.x, dy), V, SSD_EIGHT,
                   DT_LAUNCH((ssd_copy_x<T, V>), ssd_blocks(pairs, s.rows * (s.width / V)),
                             SSD_THREADS, 0, call.stream, s, dy));
    DT_TRY(ssd_multiply(call, ssd_cb_product(s)));
    DT_LAUNCH((ssd_make_left<T>), ssd_blocks(pairs, s.rows * ((s.rows + s.states) / SSD_EIGHT)),
              SSD_THREADS, 0, call.stream, s);
    return DT_LAUNCHED("ssd");
}
