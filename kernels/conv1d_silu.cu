// The causal depthwise convolution with SiLU on CUDA. A thread handles a tile of tokens of V
// neighbouring channels: with aligned arrays 16 bytes of storage in forward with K = 4, fewer
// otherwise, because taps and their gradients need registers; one channel if unaligned. Taps and
// the last K - 1 inputs stay in registers. The next 4 rows, unconverted, and their resets are
// loaded before the current 4 are used, so that loads are always in flight. A tile first reads the
// K - 1 rows before it, so tiles are independent. Neighbouring threads have neighbouring channels.
//
// Bytes per element with S bytes of storage: forward reads x and writes y, 2 S, and reads (K - 1) /
// 32 of x again, with one exponential and one reciprocal. Backward reads x and dy and writes dx, 3
// S, reads (K - 1) / 64 of x and dy again after the tile, and has 2 * 4 (K + 1) / 64 of partial
// dweight and dbias. In 15 of a tile's 17 runs no reset is near, which halves the instructions of
// backward (tests/sass/table.md). Both are bound by bytes: a token in a layer of the 130M model (D
// = 1536, K = 4, bf16) takes 6.3 KB or 1.5 ns forward and 10.5 KB or 2.4 ns backward on an H200 at
// 4.3 TB/s. Rows in flight per SM, also while a warp computes: forward 32 KB by 16 warps, backward
// 24 KB by 12.
#include "kernels/conv1d_silu.h"

#include "kernels/partials.cuh"

enum {
    THREADS = 128,
    FORWARD_TILE = 32,
    BACKWARD_TILE = 64,
    AHEAD = 4, // rows fetched together
    TAPS_MAX = DT_CONV1D_TAPS_MAX,
};

// The inputs of both directions.
template <class T> struct conv_input {
    int64_t length, channels, groups, tiles, taps; // groups of V channels; tiles per sequence
    int64_t count;                                 // threads with work: B · tiles · groups
    dt_view x;
    const float *weight, *bias;
    const T *x0;
    const uint8_t *reset;
    bool reset_words; // resets of AHEAD tokens may be read by one access
};

struct conv_place {
    int64_t b, tile, d, begin, end;
};

// Loops over taps have KM iterations: exactly 4, or 8, where taps from K on are zero.
template <int KM, class T> DT_DEVICE int conv_taps(const conv_input<T> &in)
{
    return KM == TAPS_MAX ? (int)in.taps : KM;
}

template <int V, class T>
DT_DEVICE conv_place find_place(const conv_input<T> &in, int64_t index, int64_t tile_length)
{
    conv_place place;
    place.d = index % in.groups * V;
    place.tile = index / in.groups % in.tiles;
    place.b = index / in.groups / in.tiles;
    place.begin = place.tile * tile_length;
    place.end = dt_least(place.begin + tile_length, in.length);
    return place;
}

// w[m] weighs x_{t-m}.
template <int V, int KM, class T>
DT_DEVICE void load_weights(const conv_input<T> &in, int64_t d, float (&w)[KM][V], float (&bias)[V])
{
    const int K = conv_taps<KM>(in);
#pragma unroll
    for (int v = 0; v < V; v++) {
        bias[v] = in.bias[d + v];
#pragma unroll
        for (int m = 0; m < KM; m++)
            w[m][v] = m < K ? in.weight[(d + v) * in.taps + K - 1 - m] : 0.0f;
    }
}

// Loads row t of the inputs: from x, for t < 0 from x0, or zeros.
template <int V, class T>
DT_DEVICE void load_input(const conv_input<T> &in, const conv_place &place, int64_t t,
                          float (&row)[V])
{
    if (t >= 0 && t < in.length) {
        dt_load<V>(dt_at<T>(in.x, place.b * in.length + t, place.d), row);
    } else if (t < 0 && in.x0) {
        dt_load<V>(in.x0 + ((place.b + 1) * (in.taps - 1) + t) * in.channels + place.d, row);
    } else {
#pragma unroll
        for (int v = 0; v < V; v++)
            row[v] = 0.0f;
    }
}

template <class T>
DT_DEVICE bool starts(const conv_input<T> &in, const conv_place &place, int64_t t)
{
    return in.reset && t >= 0 && t < in.length && in.reset[place.b * in.length + t];
}

// Loads the rows of AHEAD tokens from `p` on, of which `left` exist; the last one is repeated.
template <int V, class T>
DT_DEVICE void fetch_rows(const T *p, int64_t stride, int64_t left, dt_packed<T, V> (&rows)[AHEAD])
{
    if (left >= AHEAD) {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            rows[i] = dt_fetch<V>(p + i * stride);
    } else {
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            rows[i] = dt_fetch<V>(p + dt_least(i, left - 1) * stride);
    }
}

// Byte i is not 0 where a document starts at t + i.
template <class T>
DT_DEVICE unsigned fetch_resets(const conv_input<T> &in, const conv_place &place, int64_t t)
{
    static_assert(AHEAD == sizeof(unsigned), "a byte a token");
    unsigned resets = 0;
    if (!in.reset)
        return 0;
    if (in.reset_words && t < in.length)
        return *reinterpret_cast<const unsigned *>(in.reset + place.b * in.length + t);
#pragma unroll
    for (int i = 0; i < AHEAD; i++)
        resets |= (unsigned)starts(in, place, t + i) << 8 * i;
    return resets;
}

DT_DEVICE bool reset_at(unsigned resets, int i)
{
    return resets >> 8 * i & 0xff;
}

// Advances the window to x_t: lag[m] = x_{t-m}, or zero if a reset at t cuts it or m >= K.
template <int V, int KM>
DT_DEVICE void push(float (&lag)[KM][V], const float (&x)[V], int K, bool reset)
{
#pragma unroll
    for (int v = 0; v < V; v++) {
#pragma unroll
        for (int m = KM - 1; m > 0; m--)
            lag[m][v] = reset || m >= K ? 0.0f : lag[m - 1][v];
        lag[0][v] = x[v];
    }
}

// Fills the zeroed window for the tile's first token.
template <int V, int KM, class T>
DT_DEVICE void fill_window(const conv_input<T> &in, const conv_place &place, float (&lag)[KM][V])
{
    const int K = conv_taps<KM>(in);
#pragma unroll
    for (int m = KM - 1; m > 0; m--) {
        float row[V];
        const int64_t t = place.begin - m;
        if (m >= K)
            continue;
        load_input(in, place, t, row);
        push(lag, row, K, starts(in, place, t));
    }
}

template <int V, int KM>
DT_DEVICE float convolve(const float (&lag)[KM][V], const float (&w)[KM][V], const float (&bias)[V],
                         int v)
{
    float s = bias[v];
#pragma unroll
    for (int m = 0; m < KM; m++)
        s += w[m][v] * lag[m][v];
    return s;
}

// The minimum of blocks per SM, which limits registers. From sm_100 on the compiler would spill
// with four.
template <int KM> constexpr int forward_resident(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
    return 3;
#else
    return KM < TAPS_MAX ? 4 : 3;
#endif
}

// Computes the first `count` of AHEAD tokens. PLAIN: all of them, and no document starts among
// them.
template <bool PLAIN, class T, int V, int KM>
DT_DEVICE void forward_rows(const dt_packed<T, V> (&rows)[AHEAD], unsigned resets, int64_t count,
                            const float (&w)[KM][V], const float (&bias)[V], int K,
                            float (&lag)[KM][V], T *y, int64_t y_stride)
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        float x[V], out[V];
        if (!PLAIN && i >= count)
            break;
        dt_unpack(rows[i], x);
        push(lag, x, K, !PLAIN && reset_at(resets, i));
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float s = convolve(lag, w, bias, v);
            out[v] = s * dt_sigmoid(s);
        }
        dt_store<V>(y + i * y_stride, out);
    }
}

template <class T, int V, int KM>
static __global__ void __launch_bounds__(THREADS, (forward_resident<KM>()))
    conv_forward(const conv_input<T> in, const dt_view y_rows)
{
    const int64_t index = dt_thread_index();
    if (index >= in.count)
        return;
    const conv_place place = find_place<V>(in, index, FORWARD_TILE);
    const int K = conv_taps<KM>(in);
    const int64_t row = place.b * in.length + place.begin;
    const T *x = dt_at<T>(in.x, row, place.d);
    T *y = dt_at<T>(y_rows, row, place.d);
    float w[KM][V], bias[V], lag[KM][V] = {{0.0f}};
    dt_packed<T, V> next[AHEAD];
    fetch_rows(x, in.x.stride, in.length - place.begin, next);
    unsigned next_resets = fetch_resets(in, place, place.begin);
    load_weights(in, place.d, w, bias);
    fill_window(in, place, lag);
    for (int64_t t = place.begin; t < place.end; t += AHEAD) {
        dt_packed<T, V> rows[AHEAD];
        const unsigned resets = next_resets;
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
            rows[i] = next[i];
        x += AHEAD * in.x.stride;
        if (t + AHEAD < place.end) {
            fetch_rows(x, in.x.stride, in.length - t - AHEAD, next);
            next_resets = fetch_resets(in, place, t + AHEAD);
        }
        if (KM < TAPS_MAX && resets == 0 && t + AHEAD <= place.end)
            forward_rows<true>(rows, 0, AHEAD, w, bias, K, lag, y, y_rows.stride);
        else
            forward_rows<false>(rows, resets, place.end - t, w, bias, K, lag, y, y_rows.stride);
        y += AHEAD * y_rows.stride;
    }
}

// Writes x_last [B, K - 1, D], one thread per element. An input is zero if a document starts after
// it.
template <class T>
static __global__ void __launch_bounds__(THREADS) conv_keep(const conv_input<T> in, T *x_last)
{
    const int64_t index = dt_thread_index(), keep = in.taps - 1;
    if (index >= in.count)
        return;
    conv_place place;
    place.d = index % in.channels;
    place.b = index / in.channels / keep;
    const int64_t t = in.length - keep + index / in.channels % keep;
    float value[1] = {0.0f};
    bool cut = false;
    for (int64_t behind = t + 1; behind < in.length; behind++)
        cut = cut || starts(in, place, behind);
    if (!cut)
        load_input(in, place, t, value);
    x_last[index] = dt_from_f32<T>(value[0]);
}

struct conv_gradient {
    dt_view dy, dx;
    float *partials; // [B · tiles, K + 1, D]: dweight by tap, dbias
};

// The fast path of AHEAD tokens: no reset is near, and they are neither the tile's first tokens nor
// after its end, so ds reaches all taps. Takes half the instructions of the general path.
template <class T, int V, int KM>
DT_DEVICE void back_plainly(const dt_packed<T, V> (&rows)[AHEAD],
                            const dt_packed<T, V> (&dy_rows)[AHEAD], const float (&w)[KM][V],
                            const float (&bias)[V], int64_t dx_stride, T *dx, float (&lag)[KM][V],
                            float (&open)[KM][V], float (&dw)[KM][V], float (&dbias)[V])
{
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        float x[V], dy[V], out[V];
        dt_unpack(rows[i], x);
        dt_unpack(dy_rows[i], dy);
        push(lag, x, KM, false);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float s = convolve(lag, w, bias, v), gate = dt_sigmoid(s);
            const float ds = dy[v] * (gate * (1.0f + s * (1.0f - gate)));
            dbias[v] += ds;
#pragma unroll
            for (int m = KM - 1; m >= 0; m--) {
                dw[m][v] += ds * lag[m][v];
                open[m][v] = (m > 0 ? open[m > 0 ? m - 1 : 0][v] : 0.0f) + w[m][v] * ds;
            }
            out[v] = open[KM - 1][v];
        }
        dt_store<V>(dx + i * dx_stride, out);
    }
}

// The minimum of blocks per SM, which limits registers: three blocks have 24 KB of rows in flight,
// which an H200's memory needs. On other devices, and with 8 taps, the compiler would spill.
template <int KM> constexpr int resident(void)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ != 900
    return 2;
#else
    return KM < TAPS_MAX ? 3 : 2;
#endif
}

// The general path: one token after another, including the K - 1 after the tile. ds_t adds to dx of
// t and of its lags. open[m] is dx_{t-m} so far; a reset at t closes earlier ones.
template <class T, int V, int KM>
static __global__ void __launch_bounds__(THREADS, (resident<KM>()))
    conv_backward(const conv_input<T> in, const conv_gradient gradient)
{
    const int64_t index = dt_thread_index();
    if (index >= in.count)
        return;
    const conv_place place = find_place<V>(in, index, BACKWARD_TILE);
    const int K = conv_taps<KM>(in);
    float w[KM][V], bias[V], lag[KM][V] = {{0.0f}}, open[KM][V] = {{0.0f}};
    float dw[KM][V] = {{0.0f}}, dbias[V] = {0.0f};
    const int64_t row = place.b * in.length + place.begin;
    const T *x = dt_at<T>(in.x, row, place.d), *dy = dt_at<T>(gradient.dy, row, place.d);
    T *dx = dt_at<T>(gradient.dx, row, place.d);
    dt_packed<T, V> next[AHEAD], next_dy[AHEAD];
    fetch_rows(x, in.x.stride, in.length - place.begin, next);
    fetch_rows(dy, gradient.dy.stride, in.length - place.begin, next_dy);
    unsigned next_resets = fetch_resets(in, place, place.begin);
    load_weights(in, place.d, w, bias);
    fill_window(in, place, lag);
    int reach = -1; // the furthest lag that ds_t adds to; -1 before the tile
    for (int64_t t = place.begin; t < place.end + K - 1; t += AHEAD) {
        dt_packed<T, V> rows[AHEAD], dy_rows[AHEAD];
        const unsigned resets = next_resets;
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            rows[i] = next[i];
            dy_rows[i] = next_dy[i];
        }
        x += AHEAD * in.x.stride;
        dy += AHEAD * gradient.dy.stride;
        if (t + AHEAD < place.end + K - 1) {
            fetch_rows(x, in.x.stride, in.length - t - AHEAD, next);
            fetch_rows(dy, gradient.dy.stride, in.length - t - AHEAD, next_dy);
            next_resets = fetch_resets(in, place, t + AHEAD);
        }
        if (KM < TAPS_MAX && reach >= KM - 1 && t + AHEAD <= place.end && resets == 0) {
            back_plainly(rows, dy_rows, w, bias, gradient.dx.stride, dx, lag, open, dw, dbias);
            dx += AHEAD * gradient.dx.stride;
            continue;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            const bool reset = reset_at(resets, i);
            float x_row[V], dy_row[V], out[V] = {0.0f};
            if (t + i >= place.end + K - 1)
                break;
            dt_unpack(rows[i], x_row);
            dt_unpack(dy_rows[i], dy_row);
            push(lag, x_row, K, reset);
            reach = reset ? 0 : reach + 1;
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float s = convolve(lag, w, bias, v), gate = dt_sigmoid(s);
                const float slope = gate * (1.0f + s * (1.0f - gate));
                const float ds = t + i < in.length ? dy_row[v] * slope : 0.0f;
                const bool counts = t + i < place.end;
                dbias[v] += counts ? ds : 0.0f;
#pragma unroll
                for (int m = KM - 1; m >= 0; m--) {
                    dw[m][v] += counts ? ds * lag[m][v] : 0.0f;
                    open[m][v] = m > 0 ? open[m > 0 ? m - 1 : 0][v] : 0.0f;
                    open[m][v] += m <= reach ? w[m][v] * ds : 0.0f;
                    if (m == K - 1)
                        out[v] = open[m][v];
                }
            }
            if (t + i < place.begin + K - 1)
                continue;
            dt_store<V>(dx, out);
            dx += gradient.dx.stride;
        }
    }
    float *to =
        gradient.partials + (place.b * in.tiles + place.tile) * (K + 1) * in.channels + place.d;
#pragma unroll
    for (int m = 0; m < KM; m++)
        if (m < K)
            for (int v = 0; v < V; v++)
                to[(K - 1 - m) * in.channels + v] = dw[m][v];
    for (int v = 0; v < V; v++)
        to[K * in.channels + v] = dbias[v];
}

// dx of one channel and input t >= 1 - K without dx_last; recomputes every ds.
template <class T>
DT_DEVICE float find_dx(const conv_input<T> &in, const conv_place &place, const dt_view &dy,
                        int64_t t)
{
    const int K = (int)in.taps;
    const float *w = in.weight + place.d * K + K - 1; // w[-m] weighs x_{t-m}
    float dx = 0.0f;
    for (int64_t at = t < 0 ? 0 : t; at < dt_least(t + K, in.length); at++) {
        float s = in.bias[place.d];
        bool cut = false;
        if (at > t && starts(in, place, at))
            break;
        for (int m = 0; m < K; m++) {
            float x[1];
            load_input(in, place, at - m, x);
            s += cut ? 0.0f : w[-m] * x[0];
            cut = cut || starts(in, place, at - m);
        }
        const float gate = dt_sigmoid(s);
        dx += w[t - at] * dt_get<T>(dy, place.b * in.length + at, place.d) *
              (gate * (1.0f + s * (1.0f - gate)));
    }
    return dx;
}

// The borders of a sequence, one thread per element of [B, K - 1, D]: dx0, or dx of the last K - 1
// inputs with dx_last, which replaces conv_backward's result.
template <class T>
static __global__ void __launch_bounds__(THREADS)
    conv_border(const conv_input<T> in, const dt_view dy, const dt_view dx, const float *dx_last,
                float *dx0)
{
    const int64_t index = dt_thread_index(), keep = in.taps - 1;
    if (index >= in.count)
        return;
    conv_place place;
    place.d = index % in.channels;
    place.b = index / in.channels / keep;
    const int64_t t = index / in.channels % keep - keep + (dx0 ? 0 : in.length);
    if (!dx0 && t < 0)
        return;
    float sum = find_dx(in, place, dy, t);
    const int64_t row = t + keep - in.length; // row of x_last
    bool cut = !dx_last || row < 0;
    for (int64_t after = t + 1; after < in.length && !cut; after++)
        cut = starts(in, place, after);
    if (!cut)
        sum += dx_last[(place.b * keep + row) * in.channels + place.d];
    if (dx0)
        dx0[index] = sum;
    else
        dt_put<T>(dx, place.b * in.length + t, place.d, sum);
}

// ---- launchers

template <class T>
static conv_input<T> make_input(const dt_conv1d_silu_inputs &from, int64_t tile_length,
                                int64_t vector)
{
    conv_input<T> in;
    in.length = from.length, in.channels = from.x.cols, in.taps = from.taps;
    in.groups = from.x.cols / vector;
    in.tiles = dt_div_up(from.length, tile_length);
    in.count = from.batch * in.tiles * in.groups;
    in.x = from.x;
    in.weight = from.weight, in.bias = from.bias;
    in.x0 = static_cast<const T *>(from.x0), in.reset = from.reset;
    in.reset_words = from.length % AHEAD == 0 && (uintptr_t)from.reset % AHEAD == 0;
    return in;
}

// Whether rows of x and x0 may be read V elements at a time.
template <int V> static bool inputs_aligned(const dt_conv1d_silu_inputs &in)
{
    return in.x.cols % V == 0 && dt_aligned<V>(in.x) &&
           dt_aligned_rows<V>(in.x0, in.x.cols, dt_dtype_size(in.x.dtype));
}

template <class T, int MOST, int KM>
static void launch_forward(const dt_conv1d_silu_forward_args *args, dt_stream *stream)
{
    DT_WIDE_SWITCH(inputs_aligned<MOST>(args->in) && dt_aligned<MOST>(args->y), V, MOST,
                   const conv_input<T> in = make_input<T>(args->in, FORWARD_TILE, V);
                   DT_LAUNCH((conv_forward<T, V, KM>), dt_blocks(in.count, THREADS), THREADS, 0,
                             stream, in, args->y));
}

template <class T> static void forward(const dt_conv1d_silu_forward_args *args, dt_stream *stream)
{
    if (args->in.taps == 4)
        launch_forward<T, 16 / (int)sizeof(T), 4>(args, stream);
    else
        launch_forward<T, 4, TAPS_MAX>(args, stream);
    if (!args->x_last)
        return;
    conv_input<T> in = make_input<T>(args->in, FORWARD_TILE, 1);
    in.count = args->in.batch * (args->in.taps - 1) * args->in.x.cols;
    DT_LAUNCH((conv_keep<T>), dt_blocks(in.count, THREADS), THREADS, 0, stream, in,
              static_cast<T *>(args->x_last));
}

template <class T, int MOST, int KM>
static void launch_backward(const dt_conv1d_silu_backward_args *args, dt_stream *stream)
{
    const conv_gradient gradient = {args->dy, args->dx, static_cast<float *>(args->workspace)};
    DT_WIDE_SWITCH(inputs_aligned<MOST>(args->in) && dt_aligned<MOST>(args->dy, args->dx), V, MOST,
                   const conv_input<T> in = make_input<T>(args->in, BACKWARD_TILE, V);
                   DT_LAUNCH((conv_backward<T, V, KM>), dt_blocks(in.count, THREADS), THREADS, 0,
                             stream, in, gradient));
    conv_input<T> in = make_input<T>(args->in, BACKWARD_TILE, 1);
    in.count = args->in.batch * (args->in.taps - 1) * args->in.x.cols;
    if (args->dx_last)
        DT_LAUNCH((conv_border<T>), dt_blocks(in.count, THREADS), THREADS, 0, stream, in, args->dy,
                  args->dx, args->dx_last, (float *)NULL);
    if (args->dx0)
        DT_LAUNCH((conv_border<T>), dt_blocks(in.count, THREADS), THREADS, 0, stream, in, args->dy,
                  args->dx, args->dx_last, args->dx0);
}

static int64_t partial_rows(const dt_conv1d_silu_backward_args *args)
{
    return args->in.batch * dt_div_up(args->in.length, BACKWARD_TILE);
}

DT_OP_CUDA(conv1d_silu_forward)
{
    DT_STORAGE_SWITCH(args->in.x.dtype, T, forward<T>(args, stream));
    return DT_LAUNCHED("conv1d_silu_forward");
}

DT_OP_CUDA_WORKSPACE(conv1d_silu_backward)
{
    return partial_rows(args) * (args->in.taps + 1) * args->in.x.cols * (int64_t)sizeof(float);
}

DT_OP_CUDA(conv1d_silu_backward)
{
    DT_STORAGE_SWITCH(args->in.x.dtype, T,
                      if (args->in.taps == 4) launch_backward<T, 4, 4>(args, stream);
                      else launch_backward<T, 2, TAPS_MAX>(args, stream));
    partials_launch({static_cast<const float *>(args->workspace), partial_rows(args),
                     args->in.x.cols, args->in.taps, args->dweight, args->dbias, NULL,
                     args->accumulate},
                    stream);
    return DT_LAUNCHED("conv1d_silu_backward");
}
