// GRU and LSTM on CUDA: one launch per position, which a graph captures. A block owns TILE
// sequences by TILE hidden units, a thread one of each. A thread sums its gates' products with
// h_{t-1} (backward: its unit's with dp_{t+1}), with TILE_K of both operands at a time in shared
// memory, and then runs the cell, so the product never leaves registers. Values for the next
// position (`previous` and dp of all units, h and c of the thread's unit in fp32) go through global
// memory between launches. Bytes of a position: W_hh from L2, once per TILE sequences. At H = 256
// that and the launches are the floor; much wider layers would need tensor cores. The biases'
// gradients are summed over all positions at the end.
#include "kernels/partials.cuh"

enum { TILE = 16, THREADS = TILE * TILE, TILE_K = 64, PITCH = TILE_K + 4, SUM_THREADS = 128 };

// Parts of the positions that are summed separately, then added (partials.cuh).
enum { MAX_PARTS = 128 };

static __device__ __forceinline__ bool starts(const dt_rnn_inputs &in, int64_t position)
{
    return in.reset && in.reset[position];
}

// A thread's sequence b and unit j, and the first of its block; inside: both exist.
struct place {
    int64_t b, j, b0, j0;
    bool inside;
};

DT_DEVICE place place_of(int64_t batch, int64_t H)
{
    const int64_t across = dt_div_up(H, TILE);
    place p;
    p.b0 = blockIdx.x / across * TILE, p.j0 = blockIdx.x % across * TILE;
    p.b = p.b0 + threadIdx.x / TILE, p.j = p.j0 + threadIdx.x % TILE;
    p.inside = p.b < batch && p.j < H;
    return p;
}

// Σ_k a[k] · b[k] of two rows in shared memory.
DT_DEVICE void dot(const float *a, const float *b, float &sum)
{
    float x[4], y[4];
    dt_load<4>(a, x);
    dt_load<4>(b, y);
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum += x[i] * y[i];
}

// ---- forward

// Initialises the state from h_{-1} and c_{-1}, and the first operand.
template <class T>
__global__ static void __launch_bounds__(THREADS)
    start_kernel(dt_rnn_forward_args a, float *h, float *c)
{
    const int64_t H = a.in.w_hh.cols, i = dt_thread_index(), b = i / H;
    if (b >= a.in.batch)
        return;
    const int64_t position = b * a.in.length;
    const float first = a.in.h0 && !starts(a.in, position) ? a.in.h0[i] : 0.0f;
    h[i] = first;
    c[i] = a.in.c0 && !starts(a.in, position) ? a.in.c0[i] : 0.0f;
    dt_put<T>(a.previous, position, i % H, first);
}

// The gates' products with h_{t-1}, without bias. Not unrolled, because some architectures would
// spill.
template <int G, class T>
DT_DEVICE void recurrent(const dt_rnn_forward_args &a, const place &p, int64_t t, float (&sum)[G])
{
    DT_SHARED(float, left, [TILE][PITCH]);
    DT_SHARED(float, right, [G * TILE][PITCH]);
    const int64_t H = a.in.w_hh.cols, L = a.in.length;
    const int s = (int)threadIdx.x / TILE, u = (int)threadIdx.x % TILE;
    for (int64_t k0 = 0; k0 < H; k0 += TILE_K) {
        for (int i = (int)threadIdx.x; i < TILE * TILE_K; i += THREADS) {
            const int64_t b = p.b0 + i / TILE_K, k = k0 + i % TILE_K;
            left[i / TILE_K][i % TILE_K] =
                b < a.in.batch && k < H ? dt_get<T>(a.previous, b * L + t, k) : 0.0f;
        }
        for (int i = (int)threadIdx.x; i < G * TILE * TILE_K; i += THREADS) {
            const int row = i / TILE_K; // gate · TILE + unit
            const int64_t j = p.j0 + row % TILE, k = k0 + i % TILE_K;
            right[row][i % TILE_K] =
                j < H && k < H ? dt_get<T>(a.in.w_hh, row / TILE * H + j, k) : 0.0f;
        }
        __syncthreads();
#pragma unroll 1
        for (int k = 0; k < TILE_K; k += 4)
#pragma unroll
            for (int g = 0; g < G; g++)
                dot(&left[s][k], &right[g * TILE + u][k], sum[g]);
        __syncthreads();
    }
}

// Position t. `state` [B, H]: h (GRU, G = 3) or c (LSTM, G = 4) in fp32.
template <int G, class T>
__global__ static void __launch_bounds__(THREADS)
    cell_kernel(dt_rnn_forward_args a, int64_t t, float *state)
{
    const int64_t H = a.in.w_hh.cols;
    const place p = place_of(a.in.batch, H);
    float sum[G] = {}, gates[4], h, next;
    recurrent<G, T>(a, p, t, sum);
    if (!p.inside)
        return;
    const int64_t row = p.b * a.in.length + t, j = p.j;
    const float before = starts(a.in, row) ? 0.0f : state[p.b * H + j];
    float x[G];
#pragma unroll
    for (int g = 0; g < G; g++) {
        x[g] = dt_get<T>(a.x, row, g * H + j) + a.b_ih[g * H + j];
        sum[g] += a.b_hh[g * H + j];
    }
    gates[0] = dt_sigmoid(x[0] + sum[0]), gates[1] = dt_sigmoid(x[1] + sum[1]);
    if constexpr (G == 3) { // r, z, n, p_n
        gates[2] = tanhf(x[2] + gates[0] * sum[2]), gates[3] = sum[2];
        h = next = gates[2] + gates[1] * (before - gates[2]);
    } else { // i, f, g, o
        gates[2] = tanhf(x[2] + sum[2]), gates[3] = dt_sigmoid(x[3] + sum[3]);
        next = gates[1] * before + gates[0] * gates[2], h = gates[3] * tanhf(next);
    }
    dt_put<T>(a.y, row, j, h);
    state[p.b * H + j] = next;
    if (t + 1 < a.in.length) {
        dt_put<T>(a.previous, row + 1, j, starts(a.in, row + 1) ? 0.0f : h);
    } else if (a.h_last) {
        a.h_last[p.b * H + j] = h;
        if (G == 4)
            a.c_last[p.b * H + j] = next;
    }
    if (a.gates.data) {
#pragma unroll
        for (int g = 0; g < 4; g++)
            dt_put<T>(a.gates, row, g * H + j, gates[g]);
        if (G == 4)
            dt_put<T>(a.cells, row, j, next);
    }
}

static unsigned blocks_of(const dt_rnn_inputs &in)
{
    return (unsigned)(dt_div_up(in.batch, TILE) * dt_div_up(in.w_hh.cols, TILE));
}

template <class T> static void forward_typed(const dt_rnn_forward_args *a, dt_stream *stream)
{
    const int64_t states = a->in.batch * a->in.w_hh.cols;
    float *h = (float *)a->workspace, *c = h + states;
    DT_LAUNCH((start_kernel<T>), dt_blocks(states, THREADS), THREADS, 0, stream, *a, h, c);
    for (int64_t t = 0; t < a->in.length; t++)
        if (a->in.cell == DT_RNN_GRU)
            DT_LAUNCH((cell_kernel<3, T>), blocks_of(a->in), THREADS, 0, stream, *a, t, h);
        else
            DT_LAUNCH((cell_kernel<4, T>), blocks_of(a->in), THREADS, 0, stream, *a, t, c);
}

DT_OP_CUDA(rnn_forward)
{
    DT_STORAGE_SWITCH(args->in.w_hh.dtype, T, forward_typed<T>(args, stream));
    return DT_LAUNCHED("rnn_forward");
}

DT_OP_CUDA_WORKSPACE(rnn_forward)
{
    return 2 * args->in.batch * args->in.w_hh.cols * (int64_t)sizeof(float);
}

// ---- backward

// Σ over gates and units of dp_{t+1} · W_hh, for the thread's unit.
template <class T>
DT_DEVICE float from_next(const dt_rnn_inputs &in, const dt_view &dp, const place &p, int64_t t)
{
    DT_SHARED(float, left, [TILE][PITCH]);
    DT_SHARED(float, right, [TILE][PITCH]);
    const int64_t K = in.w_hh.rows, H = in.w_hh.cols;
    const int s = (int)threadIdx.x / TILE, u = (int)threadIdx.x % TILE;
    float sum = 0.0f;
    for (int64_t k0 = 0; k0 < K; k0 += TILE_K) {
        for (int i = (int)threadIdx.x; i < TILE * TILE_K; i += THREADS) {
            const int64_t b = p.b0 + i / TILE_K, k = k0 + i % TILE_K;
            left[i / TILE_K][i % TILE_K] =
                b < in.batch && k < K ? dt_get<T>(dp, b * in.length + t + 1, k) : 0.0f;
        }
        for (int i = (int)threadIdx.x; i < TILE_K * TILE; i += THREADS) {
            const int64_t k = k0 + i / TILE, j = p.j0 + i % TILE;
            right[i % TILE][i / TILE] = k < K && j < H ? dt_get<T>(in.w_hh, k, j) : 0.0f;
        }
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < TILE_K; k += 4)
            dot(&left[s][k], &right[u][k], sum);
        __syncthreads();
    }
    return sum;
}

template <class T>
DT_DEVICE void gru_slopes(const dt_rnn_backward_args &a, int64_t row, int64_t j, float dh,
                          float *carry)
{
    const int64_t H = a.in.w_hh.cols;
    const float r = dt_get<T>(a.gates, row, j), z = dt_get<T>(a.gates, row, H + j),
                n = dt_get<T>(a.gates, row, 2 * H + j), q = dt_get<T>(a.gates, row, 3 * H + j);
    const float dz = dh * (dt_get<T>(a.previous, row, j) - n) * z * (1.0f - z);
    const float dn = dh * (1.0f - z) * (1.0f - n * n);
    const float dr = dn * q * r * (1.0f - r);
    *carry = dh * z;
    dt_put<T>(a.dx, row, j, dr);
    dt_put<T>(a.dx, row, H + j, dz);
    dt_put<T>(a.dx, row, 2 * H + j, dn);
    dt_put<T>(a.dp, row, j, dr);
    dt_put<T>(a.dp, row, H + j, dz);
    dt_put<T>(a.dp, row, 2 * H + j, dn * r);
}

template <class T>
DT_DEVICE void lstm_slopes(const dt_rnn_backward_args &a, int64_t row, int64_t t, int64_t b,
                           int64_t j, float dh, float dc, float *carry)
{
    const int64_t H = a.in.w_hh.cols;
    const float i = dt_get<T>(a.gates, row, j), f = dt_get<T>(a.gates, row, H + j),
                g = dt_get<T>(a.gates, row, 2 * H + j), o = dt_get<T>(a.gates, row, 3 * H + j);
    const float c = tanhf(dt_get<T>(a.cells, row, j));
    float before = 0.0f;
    if (!starts(a.in, row))
        before = t > 0 ? dt_get<T>(a.cells, row - 1, j) : a.in.c0 ? a.in.c0[b * H + j] : 0.0f;
    dc += dh * o * (1.0f - c * c);
    *carry = dc * f;
    dt_put<T>(a.dx, row, j, dc * g * i * (1.0f - i));
    dt_put<T>(a.dx, row, H + j, dc * before * f * (1.0f - f));
    dt_put<T>(a.dx, row, 2 * H + j, dc * i * (1.0f - g * g));
    dt_put<T>(a.dx, row, 3 * H + j, dh * c * o * (1.0f - o));
}

// `carry` [B, H]: the cell's gradient from t + 1 to t, of h (GRU) or c (LSTM).
template <class T>
__global__ static void __launch_bounds__(THREADS)
    backward_kernel(dt_rnn_backward_args a, int64_t t, float *carry)
{
    const int64_t H = a.in.w_hh.cols, L = a.in.length;
    const bool gru = a.in.cell == DT_RNN_GRU;
    const place p = place_of(a.in.batch, H);
    const float sum = t + 1 < L ? from_next<T>(a.in, gru ? a.dp : a.dx, p, t) : 0.0f;
    if (!p.inside)
        return;
    const int64_t row = p.b * L + t;
    const bool last = t + 1 == L || starts(a.in, row + 1);
    float *own = carry + p.b * H + p.j;
    float kept = last ? 0.0f : *own, from_after = last ? 0.0f : gru ? kept + sum : sum;
    if (t + 1 == L && a.dh_last)
        from_after = a.dh_last[p.b * H + p.j];
    if (t + 1 == L && a.dc_last)
        kept = a.dc_last[p.b * H + p.j];
    const float dh = dt_get<T>(a.dy, row, p.j) + from_after;
    if (gru)
        gru_slopes<T>(a, row, p.j, dh, own);
    else
        lstm_slopes<T>(a, row, t, p.b, p.j, dh, kept, own);
}

// dh0 and dc0, from position 0.
template <class T>
__global__ static void __launch_bounds__(THREADS)
    first_kernel(dt_rnn_backward_args a, const float *carry)
{
    const int64_t H = a.in.w_hh.cols;
    const bool gru = a.in.cell == DT_RNN_GRU;
    const place p = place_of(a.in.batch, H);
    const float sum = from_next<T>(a.in, gru ? a.dp : a.dx, p, -1);
    if (!p.inside)
        return;
    const int64_t at = p.b * H + p.j;
    const bool cut = starts(a.in, p.b * a.in.length);
    a.dh0[at] = cut ? 0.0f : gru ? carry[at] + sum : sum;
    if (!gru)
        a.dc0[at] = cut ? 0.0f : carry[at];
}

// Sums the columns of dx and dp over `each` rows into [parts, 2, G·H].
template <class T>
__global__ static void __launch_bounds__(SUM_THREADS)
    sums_kernel(dt_view dx, dt_view dp, int64_t each, float *parts)
{
    const int64_t blocks = dt_div_up(dx.cols, SUM_THREADS), part = blockIdx.x / blocks,
                  column = blockIdx.x % blocks * SUM_THREADS + threadIdx.x;
    if (column >= dx.cols)
        return;
    float x = 0.0f, p = 0.0f;
    for (int64_t row = part * each; row < dt_least((part + 1) * each, dx.rows); row++) {
        x += dt_get<T>(dx, row, column);
        p += dt_get<T>(dp, row, column);
    }
    parts[2 * part * dx.cols + column] = x;
    parts[(2 * part + 1) * dx.cols + column] = p;
}

template <class T> static void backward_typed(const dt_rnn_backward_args *a, dt_stream *stream)
{
    const int64_t rows = a->dx.rows, width = a->dx.cols, each = rows_of_part(rows, MAX_PARTS),
                  parts = dt_div_up(rows, each);
    const dt_view dp = a->in.cell == DT_RNN_GRU ? a->dp : a->dx;
    float *carry = (float *)a->workspace, *sums = carry + a->in.batch * a->in.w_hh.cols;
    for (int64_t t = a->in.length; t-- > 0;)
        DT_LAUNCH((backward_kernel<T>), blocks_of(a->in), THREADS, 0, stream, *a, t, carry);
    if (a->dh0)
        DT_LAUNCH((first_kernel<T>), blocks_of(a->in), THREADS, 0, stream, *a, carry);
    DT_LAUNCH((sums_kernel<T>), (unsigned)(parts * dt_div_up(width, SUM_THREADS)), SUM_THREADS, 0,
              stream, a->dx, dp, each, sums);
    partials_launch({sums, parts, width, 0, NULL, a->db_ih, a->db_hh, a->accumulate}, stream);
}

DT_OP_CUDA(rnn_backward)
{
    DT_STORAGE_SWITCH(args->in.w_hh.dtype, T, backward_typed<T>(args, stream));
    return DT_LAUNCHED("rnn_backward");
}

DT_OP_CUDA_WORKSPACE(rnn_backward)
{
    const int64_t rows = args->in.batch * args->in.length;
    return (args->in.batch * args->in.w_hh.cols +
            2 * dt_div_up(rows, rows_of_part(rows, MAX_PARTS)) * args->in.w_hh.rows) *
           (int64_t)sizeof(float);
}
