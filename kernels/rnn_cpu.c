// GRU and LSTM on the CPU: a piece of work is up to PIECE sequences through all positions, so that
// threads do not wait for each other at every position. The recurrent matrix is copied once per
// call into panels as wide as the inner product (dt_gemm_direct) reads them, which stay in L2. (At
// B = 32, H = 256 on one core a gemm per position, which copies the matrix again, took 1.36 times
// as long.) A sequence's bits depend neither on its piece nor on threads. One position (L = 1) in
// inference is a plain gemm.
#include "kernels/cpu.h"
#include "kernels/gemm_tile_cpu.h"
#include "kernels/storage_cpu.h"

#include <omp.h>
#include <string.h>

enum {
    PIECE = 16,                  // sequences per piece; half if there are few
    ALIGN = 64,                  // bytes
    COLUMNS = DT_DIRECT_COLUMNS, // columns per panel
};

// ---- the recurrent matrix [k, n] in panels, [panels][k, COLUMNS]

struct packed {
    const struct dt_gemm_kernel *kernel;
    int64_t k, n, padded; // padded: n in whole panels
    float *panels;
};

static struct packed packed_of(int64_t k, int64_t n, float *panels)
{
    return (struct packed){dt_gemm_kernel(dt_cpu_isa(), DT_F32), k, n, dt_round_up(n, COLUMNS),
                           panels};
}

// Element (p, j) of the matrix is w[p, j] or, with `turned`, w[j, p]. Call inside a parallel
// region; its threads share the panels.
static void pack(const struct packed *b, const struct dt_view *w, bool turned)
{
    bool bf16 = w->dtype == DT_BF16;
#pragma omp for
    for (int64_t n0 = 0; n0 < b->padded; n0 += COLUMNS) {
        float *to = b->panels + n0 * b->k;
        int64_t inside = dt_min_i64(COLUMNS, b->n - n0);
        memset(to, 0, (size_t)(b->k * COLUMNS) * sizeof *to);
        for (int64_t i = 0; i < (turned ? inside : b->k); i++)
            for (int64_t j = 0; j < (turned ? b->k : inside); j++)
                to[turned ? j * COLUMNS + i : i * COLUMNS + j] = dt_load(
                    w->data, turned ? (n0 + i) * w->stride + j : i * w->stride + n0 + j, bf16);
    }
}

// ---- pieces and their memory

static int64_t piece_size(int64_t batch)
{
    return batch >= 2 * PIECE ? PIECE : PIECE / 2;
}

// A thread's arrays, PIECE rows each: carried h and c (backward: their gradients), the operand [k]
// and the product [padded n].
struct rows {
    int64_t state, in, out; // floats between rows of h and c, operand, product
    float *h, *c, *operand, *product;
};

// Floats between rows: not a power of two, against cache conflicts.
static int64_t pitch_of(int64_t size)
{
    return dt_round_up(size, 16) + 16;
}

static struct rows rows_at(const struct packed *w, int64_t H, float *memory)
{
    struct rows r = {.state = pitch_of(H), .in = pitch_of(w->k), .out = pitch_of(w->padded)};
    r.h = memory;
    r.c = r.h + PIECE * r.state;
    r.operand = r.c + PIECE * r.state;
    r.product = r.operand + PIECE * r.in;
    return r;
}

static int64_t rows_floats(const struct packed *w, int64_t H)
{
    return PIECE * (2 * pitch_of(H) + pitch_of(w->k) + pitch_of(w->padded));
}

// product = operand · matrix for the first n rows.
static void multiply(const struct packed *w, int64_t n, const struct rows *r)
{
    for (int64_t n0 = 0; n0 < w->padded; n0 += COLUMNS) {
        struct dt_gemm_direct product = dt_gemm_direct_of(
            n, COLUMNS, w->k, dt_as_rows(r->operand, r->in),
            dt_as_rows(w->panels + n0 * w->k, COLUMNS), r->product + n0, r->out, 0.0f);
        dt_gemm_direct(w->kernel, &product);
    }
}

static float *aligned(const void *workspace)
{
    return (float *)dt_round_up((int64_t)(intptr_t)workspace, ALIGN);
}

// Stores x and returns the stored value.
DT_INLINE float put(void *to, int64_t i, float x, bool bf16)
{
    dt_store(to, i, x, bf16);
    return dt_load(to, i, bf16);
}

// Unit j of an array of four gates of H.
DT_INLINE void put_gates(void *to, int64_t j, int64_t H, float a, float b, float c, float d,
                         bool bf16)
{
    dt_store(to, j, a, bf16);
    dt_store(to, H + j, b, bf16);
    dt_store(to, 2 * H + j, c, bf16);
    dt_store(to, 3 * H + j, d, bf16);
}

// ---- a position of a sequence, forward

struct cell {
    const void *x;
    const float *b_ih, *b_hh, *p; // p: the product, without bias
    float *restrict h, *restrict c, *restrict operand;
    void *y, *previous, *gates, *cells;
};

DT_INLINE void gru_forward(const struct cell *from, int64_t H, bool keep, bool bf16)
{
    const struct cell s = *from; // in registers: no store below may change it
    const float *bi = s.b_ih, *bh = s.b_hh, *p = s.p;
    float *restrict h = s.h, *restrict operand = s.operand;
#pragma omp simd
    for (int64_t j = 0; j < H; j++) {
        float r = dt_sigmoidf(dt_load(s.x, j, bf16) + bi[j] + (p[j] + bh[j]));
        float z = dt_sigmoidf(dt_load(s.x, H + j, bf16) + bi[H + j] + (p[H + j] + bh[H + j]));
        float q = p[2 * H + j] + bh[2 * H + j];
        float n = dt_tanhf(dt_load(s.x, 2 * H + j, bf16) + bi[2 * H + j] + r * q);
        float next = n + z * (h[j] - n);
        dt_store(s.previous, j, operand[j], bf16);
        operand[j] = put(s.y, j, next, bf16);
        h[j] = next;
        if (keep)
            put_gates(s.gates, j, H, r, z, n, q, bf16);
    }
}

DT_INLINE void lstm_forward(const struct cell *from, int64_t H, bool keep, bool bf16)
{
    const struct cell s = *from; // in registers: no store below may change it
    const float *bi = s.b_ih, *bh = s.b_hh, *p = s.p;
    float *restrict h = s.h, *restrict c = s.c, *restrict operand = s.operand;
#pragma omp simd
    for (int64_t j = 0; j < H; j++) {
        float i = dt_sigmoidf(dt_load(s.x, j, bf16) + bi[j] + (p[j] + bh[j]));
        float f = dt_sigmoidf(dt_load(s.x, H + j, bf16) + bi[H + j] + (p[H + j] + bh[H + j]));
        float g = dt_tanhf(dt_load(s.x, 2 * H + j, bf16) + bi[2 * H + j] +
                           (p[2 * H + j] + bh[2 * H + j]));
        float o = dt_sigmoidf(dt_load(s.x, 3 * H + j, bf16) + bi[3 * H + j] +
                              (p[3 * H + j] + bh[3 * H + j]));
        float cell = f * c[j] + i * g, next = o * dt_tanhf(cell);
        dt_store(s.previous, j, operand[j], bf16);
        operand[j] = put(s.y, j, next, bf16);
        c[j] = cell;
        h[j] = next;
        if (keep) {
            put_gates(s.gates, j, H, i, f, g, o, bf16);
            dt_store(s.cells, j, cell, bf16);
        }
    }
}

// The switches are constants in each call, so that the loops have no branches.
DT_CLONES static void cell_forward(const struct cell *s, bool lstm, int64_t H, enum dt_dtype type)
{
    DT_STORAGE_SWITCH(
        type, bf16,
        if (lstm) s->gates ? lstm_forward(s, H, true, bf16) : lstm_forward(s, H, false, bf16);
        else s->gates ? gru_forward(s, H, true, bf16) : gru_forward(s, H, false, bf16));
}

static void run_cell(const struct dt_rnn_forward_args *a, const struct rows *rows, int64_t i,
                     int64_t position)
{
    struct cell cell = {.x = dt_view_at(&a->x, position, 0),
                        .b_ih = a->b_ih,
                        .b_hh = a->b_hh,
                        .p = rows->product + i * rows->out,
                        .h = rows->h + i * rows->state,
                        .c = rows->c + i * rows->state,
                        .operand = rows->operand + i * rows->in,
                        .y = dt_view_at(&a->y, position, 0),
                        .previous = dt_view_at(&a->previous, position, 0),
                        .gates = dt_view_at(&a->gates, position, 0),
                        .cells = dt_view_at(&a->cells, position, 0)};
    cell_forward(&cell, a->in.cell == DT_RNN_LSTM, a->in.w_hh.cols, a->x.dtype);
}

static bool starts(const struct dt_rnn_inputs *in, int64_t position)
{
    return in->reset && in->reset[position];
}

// Loads h_{-1} and c_{-1} of n sequences, and h as the operand.
static void load_state(const struct dt_rnn_inputs *in, int64_t first, int64_t n,
                       const struct rows *rows)
{
    int64_t H = in->w_hh.cols;
    bool bf16 = in->w_hh.dtype == DT_BF16;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < H; j++) {
            float h = in->h0 ? in->h0[(first + i) * H + j] : 0.0f;
            rows->h[i * rows->state + j] = h;
            rows->c[i * rows->state + j] = in->c0 ? in->c0[(first + i) * H + j] : 0.0f;
            rows->operand[i * rows->in + j] = bf16 ? dt_bf16_to_f32(dt_f32_to_bf16(h)) : h;
        }
}

static void clear_started(const struct dt_rnn_inputs *in, int64_t first, int64_t n, int64_t t,
                          const struct rows *rows)
{
    size_t bytes = (size_t)in->w_hh.cols * sizeof(float);
    for (int64_t i = 0; i < n; i++)
        if (starts(in, (first + i) * in->length + t)) {
            memset(rows->h + i * rows->state, 0, bytes);
            memset(rows->c + i * rows->state, 0, bytes);
            memset(rows->operand + i * rows->in, 0, bytes);
        }
}

static void store_state(const struct dt_rnn_forward_args *a, int64_t first, int64_t n,
                        const struct rows *rows)
{
    int64_t H = a->in.w_hh.cols;
    for (int64_t i = 0; i < n; i++) {
        if (a->h_last)
            memcpy(a->h_last + (first + i) * H, rows->h + i * rows->state, (size_t)H * 4);
        if (a->c_last)
            memcpy(a->c_last + (first + i) * H, rows->c + i * rows->state, (size_t)H * 4);
    }
}

static void piece_forward(const struct dt_rnn_forward_args *a, const struct packed *w,
                          const struct rows *rows, int64_t first, int64_t n)
{
    int64_t L = a->in.length;
    load_state(&a->in, first, n, rows);
    for (int64_t t = 0; t < L; t++) {
        clear_started(&a->in, first, n, t, rows);
        multiply(w, n, rows);
        for (int64_t i = 0; i < n; i++)
            run_cell(a, rows, i, (first + i) * L + t);
    }
    store_state(a, first, n, rows);
}

// The product of one position as a gemm: fp32 [B, G·H] at the start of the workspace.
static struct dt_gemm_args single(const struct dt_rnn_forward_args *a)
{
    const struct dt_view *w = &a->in.w_hh;
    struct dt_gemm_args gemm = {.a = a->previous,
                                .b = *w,
                                .c =
                                    dt_view_of(aligned(a->workspace), a->in.batch, w->rows, DT_F32),
                                .trans_b = true,
                                .play = true};
    gemm.workspace = (float *)gemm.c.data + gemm.c.rows * gemm.c.cols;
    return gemm;
}

static dt_status single_position(struct dt_device *device, const struct dt_rnn_forward_args *a,
                                 const struct packed *w)
{
    struct dt_gemm_args gemm = single(a);
    int64_t H = a->in.w_hh.cols;
    gemm.workspace_bytes = gemm_cpu_workspace(device, &gemm);
    float *sequences = aligned((char *)gemm.workspace + gemm.workspace_bytes);
    for (int64_t b = 0; b < a->in.batch; b++)
        for (int64_t j = 0; j < H; j++)
            dt_store(a->previous.data, b * a->previous.stride + j,
                     a->in.h0 && !starts(&a->in, b) ? a->in.h0[b * H + j] : 0.0f,
                     a->x.dtype == DT_BF16);
    DT_TRY(gemm_cpu(device, &gemm, NULL));
#pragma omp parallel for num_threads(device->threads) if (a->in.batch > 1)
    for (int64_t b = 0; b < a->in.batch; b++) {
        struct rows rows = rows_at(w, H, sequences + omp_get_thread_num() * rows_floats(w, H));
        load_state(&a->in, b, 1, &rows);
        clear_started(&a->in, b, 1, 0, &rows);
        rows.product = (float *)gemm.c.data + b * gemm.c.cols;
        run_cell(a, &rows, 0, b);
        store_state(a, b, 1, &rows);
    }
    return DT_OK;
}

DT_OP_CPU_WORKSPACE(rnn_forward)
{
    const struct dt_rnn_inputs *in = &args->in;
    struct packed w = packed_of(in->w_hh.cols, in->w_hh.rows, NULL);
    struct dt_gemm_args gemm = single(args);
    int64_t threads = device->threads * rows_floats(&w, w.k);
    bool single = in->length == 1 && in->play;
    int64_t shared = single ? in->batch * w.n : w.k * w.padded;
    return (shared + threads) * (int64_t)sizeof(float) + 2 * ALIGN +
           (single ? gemm_cpu_workspace(device, &gemm) : 0);
}

DT_OP_CPU(rnn_forward)
{
    const struct packed w =
        packed_of(args->in.w_hh.cols, args->in.w_hh.rows, aligned(args->workspace));
    int64_t batch = args->in.batch, size = piece_size(batch);
    if (args->in.length == 1 && args->in.play)
        return single_position(device, args, &w);
#pragma omp parallel num_threads(device->threads)
    {
        pack(&w, &args->in.w_hh, true);
        struct rows rows = rows_at(
            &w, w.k, w.panels + w.k * w.padded + omp_get_thread_num() * rows_floats(&w, w.k));
#pragma omp for schedule(dynamic)
        for (int64_t first = 0; first < batch; first += size)
            piece_forward(args, &w, &rows, first, dt_min_i64(size, batch - first));
    }
    return DT_OK;
}

// ---- backward

struct slope {
    const void *gates, *previous, *dy, *cells, *cells_before; // cells_before: NULL, c0 or zero
    const float *c0;
    void *dx, *dp;
    const float *product;                                // dp_{t+1} · W_hh
    float *restrict dh, *restrict dc, *restrict operand; // gradients from t + 1; dp as stored
    float *restrict sum_x, *restrict sum_p;              // [G·H], per piece
};

DT_INLINE void gru_backward(const struct slope *from, int64_t H, bool bf16)
{
    const struct slope s = *from; // in registers: no store below may change it
    float *restrict dh = s.dh, *restrict dp = s.operand, *restrict sx = s.sum_x,
                    *restrict sp = s.sum_p;
#pragma omp simd
    for (int64_t j = 0; j < H; j++) {
        float r = dt_load(s.gates, j, bf16), z = dt_load(s.gates, H + j, bf16),
              n = dt_load(s.gates, 2 * H + j, bf16), q = dt_load(s.gates, 3 * H + j, bf16);
        float d = dt_load(s.dy, j, bf16) + (dh[j] + s.product[j]);
        float dz = d * (dt_load(s.previous, j, bf16) - n) * z * (1.0f - z);
        float dn = d * (1.0f - z) * (1.0f - n * n);
        float dr = dn * q * r * (1.0f - r), dq = dn * r;
        dh[j] = d * z;
        sx[j] += dr, sx[H + j] += dz, sx[2 * H + j] += dn;
        sp[j] += dr, sp[H + j] += dz, sp[2 * H + j] += dq;
        dt_store(s.dx, j, dr, bf16);
        dt_store(s.dx, H + j, dz, bf16);
        dt_store(s.dx, 2 * H + j, dn, bf16);
        dp[j] = put(s.dp, j, dr, bf16);
        dp[H + j] = put(s.dp, H + j, dz, bf16);
        dp[2 * H + j] = put(s.dp, 2 * H + j, dq, bf16);
    }
}

DT_INLINE void lstm_backward(const struct slope *from, int64_t H, bool bf16)
{
    const struct slope s = *from; // in registers: no store below may change it
    float *restrict dh = s.dh, *restrict dcs = s.dc, *restrict dp = s.operand,
                    *restrict sx = s.sum_x;
#pragma omp simd
    for (int64_t j = 0; j < H; j++) {
        float i = dt_load(s.gates, j, bf16), f = dt_load(s.gates, H + j, bf16),
              g = dt_load(s.gates, 2 * H + j, bf16), o = dt_load(s.gates, 3 * H + j, bf16);
        float d = dt_load(s.dy, j, bf16) + (dh[j] + s.product[j]);
        float t = dt_tanhf(dt_load(s.cells, j, bf16));
        float before = s.cells_before ? dt_load(s.cells_before, j, bf16) : s.c0[j];
        float dc = dcs[j] + d * o * (1.0f - t * t);
        float di = dc * g * i * (1.0f - i), df = dc * before * f * (1.0f - f),
              dg = dc * i * (1.0f - g * g), dO = d * t * o * (1.0f - o);
        dh[j] = 0.0f;
        dcs[j] = dc * f;
        sx[j] += di, sx[H + j] += df, sx[2 * H + j] += dg, sx[3 * H + j] += dO;
        dp[j] = put(s.dx, j, di, bf16);
        dp[H + j] = put(s.dx, H + j, df, bf16);
        dp[2 * H + j] = put(s.dx, 2 * H + j, dg, bf16);
        dp[3 * H + j] = put(s.dx, 3 * H + j, dO, bf16);
    }
}

DT_CLONES static void cell_backward(const struct slope *s, bool lstm, int64_t H, enum dt_dtype type)
{
    DT_STORAGE_SWITCH(type, bf16, lstm ? lstm_backward(s, H, bf16) : gru_backward(s, H, bf16));
}

static void copy_row(const float *from, int64_t H, float *to)
{
    memcpy(to, from, (size_t)H * sizeof *to);
}

// Takes sequence b, row i of the piece, back over position t; `zeros` is [H].
static void run_slope(const struct dt_rnn_backward_args *a, const struct rows *rows,
                      const float *zeros, float *sums, int64_t i, int64_t b, int64_t t)
{
    const struct dt_rnn_inputs *in = &a->in;
    int64_t H = in->w_hh.cols, at = b * in->length + t;
    bool carried = t > 0 && !starts(in, at), first = t == 0 && !starts(in, at);
    struct slope s = {.gates = dt_view_at(&a->gates, at, 0),
                      .previous = dt_view_at(&a->previous, at, 0),
                      .dy = dt_view_at(&a->dy, at, 0),
                      .cells = dt_view_at(&a->cells, at, 0),
                      .cells_before = carried ? dt_view_at(&a->cells, at - 1, 0) : NULL,
                      .c0 = first && in->c0 ? in->c0 + b * H : zeros,
                      .dx = dt_view_at(&a->dx, at, 0),
                      .dp = dt_view_at(&a->dp, at, 0),
                      .product = rows->product + i * rows->out,
                      .dh = rows->h + i * rows->state,
                      .dc = rows->c + i * rows->state,
                      .operand = rows->operand + i * rows->in,
                      .sum_x = sums,
                      .sum_p = sums + in->w_hh.rows};
    if (t + 1 == in->length || starts(in, at + 1)) {
        bool last = t + 1 == in->length;
        copy_row(last && a->dh_last ? a->dh_last + b * H : zeros, H, s.dh);
        copy_row(last && a->dc_last ? a->dc_last + b * H : zeros, H, s.dc);
        s.product = zeros;
    }
    cell_backward(&s, in->cell == DT_RNN_LSTM, H, a->dy.dtype);
}

// Stores dh0 and dc0 of n sequences, from position 0.
static void store_first(const struct dt_rnn_backward_args *a, const struct rows *rows,
                        int64_t first, int64_t n)
{
    int64_t H = a->in.w_hh.cols;
    for (int64_t i = 0; i < n; i++) {
        bool cut = starts(&a->in, (first + i) * a->in.length);
        for (int64_t j = 0; j < H; j++) {
            float dh = rows->h[i * rows->state + j] + rows->product[i * rows->out + j];
            a->dh0[(first + i) * H + j] = cut ? 0.0f : dh;
            if (a->dc0)
                a->dc0[(first + i) * H + j] = cut ? 0.0f : rows->c[i * rows->state + j];
        }
    }
}

static void piece_backward(const struct dt_rnn_backward_args *a, const struct packed *w,
                           const struct rows *rows, const float *zeros, float *sums, int64_t first,
                           int64_t n)
{
    memset(sums, 0, (size_t)(2 * a->in.w_hh.rows) * sizeof *sums);
    for (int64_t t = a->in.length; t-- > 0;) {
        for (int64_t i = 0; i < n; i++)
            run_slope(a, rows, zeros, sums, i, first + i, t);
        if (t > 0 || a->dh0)
            multiply(w, n, rows);
    }
    if (a->dh0)
        store_first(a, rows, first, n);
}

DT_OP_CPU_WORKSPACE(rnn_backward)
{
    int64_t H = args->in.w_hh.cols,
            pieces = dt_ceil_div(args->in.batch, piece_size(args->in.batch));
    struct packed w = packed_of(args->in.w_hh.rows, H, NULL);
    int64_t floats = w.k * w.padded + H + pieces * 2 * w.k + device->threads * rows_floats(&w, H);
    return 2 * ALIGN + floats * (int64_t)sizeof(float);
}

DT_OP_CPU(rnn_backward)
{
    int64_t H = args->in.w_hh.cols, batch = args->in.batch, size = piece_size(batch),
            pieces = dt_ceil_div(batch, size);
    const struct packed w = packed_of(args->in.w_hh.rows, H, aligned(args->workspace));
    float *zeros = w.panels + w.k * w.padded, *sums = zeros + H,
          *threads = aligned(sums + pieces * 2 * w.k);
    memset(zeros, 0, (size_t)H * sizeof *zeros);
#pragma omp parallel num_threads(device->threads)
    {
        pack(&w, &args->in.w_hh, false);
        struct rows rows = rows_at(&w, H, threads + omp_get_thread_num() * rows_floats(&w, H));
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < pieces; piece++)
            piece_backward(args, &w, &rows, zeros, sums + piece * 2 * w.k, piece * size,
                           dt_min_i64(size, batch - piece * size));
#pragma omp for
        for (int64_t column = 0; column < w.k; column++)
            for (int side = 0; side < 2; side++) {                 // of the sums [pieces, 2, G·H]
                bool second = side && args->in.cell == DT_RNN_GRU; // LSTM: db_hh is db_ih
                float *to = (side ? args->db_hh : args->db_ih) + column;
                double sum = 0;
                for (int64_t piece = 0; piece < pieces; piece++)
                    sum += (double)sums[(2 * piece + second) * w.k + column];
                *to = (float)(args->accumulate ? (double)*to + sum : sum);
            }
    }
    return DT_OK;
}
