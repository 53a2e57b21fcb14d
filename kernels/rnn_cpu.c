// GRU and LSTM on the CPU: a piece of work is up to PIECE sequences through all positions, so that
// threads do not wait for each other at every position. The recurrent matrix is copied once a call
// into panels as wide as the inner product reads them; a panel of BLOCK_K rows stays in L1 for all
// rows of a piece, and all panels stay in L2 from position to position (measured at B = 32, H = 256
// on one core: a gemm at each position takes 1.36 times as long, which copies the matrix again). A
// sequence's numbers depend neither on its piece nor on threads. One position (L = 1) is a plain
// gemm.
#include "kernels/cpu.h"
#include "kernels/onednn.h"
#include "kernels/storage_cpu.h"

#include <omp.h>
#include <string.h>

enum {
    PIECE = 16,    // sequences of a piece; half as many where there are few
    BLOCK_K = 256, // rows of a panel
    ALIGN = 64,    // bytes
    PITCH = 16,    // floats more than a row has: no power of two, for the caches' sake
    ROWS_MAX = 8,  // of the inner product
};

// c[ROWS, columns] (+)= a[ROWS, k] · panel[k, columns]
struct product {
    int64_t rows, columns;
    void (*multiply)(const float *a, int64_t lda, const float *panel, int64_t k, float *c,
                     int64_t ldc, bool add);
};

#define PRODUCT(set, LANES, ROWS, ...)                                                             \
    typedef float set##_vector                                                                     \
        __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));                \
    __VA_ARGS__ static void set##_multiply(const float *a, int64_t lda, const float *panel,        \
                                           int64_t k, float *c, int64_t ldc, bool add)             \
    {                                                                                              \
        set##_vector sum[ROWS][2];                                                                 \
        for (int i = 0; i < ROWS; i++)                                                             \
            for (int j = 0; j < 2; j++)                                                            \
                sum[i][j] =                                                                        \
                    add ? *(const set##_vector *)(c + i * ldc + j * LANES) : (set##_vector){0};    \
        for (int64_t p = 0; p < k; p++, panel += 2 * LANES) {                                      \
            set##_vector first = *(const set##_vector *)panel,                                     \
                         second = *(const set##_vector *)(panel + LANES);                          \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                 \
            {                                                                                      \
                sum[i][0] += a[i * lda + p] * first;                                               \
                sum[i][1] += a[i * lda + p] * second;                                              \
            }                                                                                      \
        }                                                                                          \
        for (int i = 0; i < ROWS; i++)                                                             \
            for (int j = 0; j < 2; j++)                                                            \
                *(set##_vector *)(c + i * ldc + j * LANES) = sum[i][j];                            \
    }                                                                                              \
    static const struct product set##_product = {ROWS, 2 * LANES, set##_multiply};

PRODUCT(plain, 4, 4)
#ifdef __x86_64__
PRODUCT(avx2, 8, 4, __attribute__((target("avx2,fma"))))
PRODUCT(avx512, 16, ROWS_MAX,
        __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl,prefer-vector-width=512"))))
#endif

static const struct product *choose_product(void)
{
#ifdef __x86_64__
    enum dt_cpu_isa isa = dt_onednn_isa();
    if (isa >= DT_ISA_AVX512)
        return &avx512_product;
    if (isa >= DT_ISA_AVX2)
        return &avx2_product;
#endif
    return &plain_product;
}

// ---- the recurrent matrix in panels: [k in blocks of BLOCK_K][panels of columns][BLOCK_K,
// columns]

struct packed {
    const struct product *product;
    int64_t k, n, padded; // padded: n in whole panels
    float *panels;
};

static struct packed packed_of(int64_t k, int64_t n, float *panels)
{
    const struct product *product = choose_product();
    return (struct packed){product, k, n, dt_round_up(n, product->columns), panels};
}

static int64_t packed_floats(const struct packed *b)
{
    return dt_round_up(b->k, BLOCK_K) * b->padded;
}

static float *panel_at(const struct packed *b, int64_t k0, int64_t n0)
{
    return b->panels + k0 * b->padded + n0 * BLOCK_K;
}

// One panel; its element (p, j) is w[p, j] or, turned, w[j, p].
static void pack_panel(const struct packed *b, const struct dt_view *w, bool turned, int64_t k0,
                       int64_t n0)
{
    float *to = panel_at(b, k0, n0);
    int64_t rows = dt_min_i64(BLOCK_K, b->k - k0), columns = b->product->columns,
            inside = dt_min_i64(columns, b->n - n0);
    bool bf16 = w->dtype == DT_BF16;
    memset(to, 0, (size_t)(rows * columns) * sizeof *to);
    for (int64_t i = 0; i < (turned ? inside : rows); i++)
        for (int64_t j = 0; j < (turned ? rows : inside); j++)
            to[turned ? j * columns + i : i * columns + j] =
                turned ? dt_load(w->data, (n0 + i) * w->stride + k0 + j, bf16)
                       : dt_load(w->data, (k0 + i) * w->stride + n0 + j, bf16);
}

// By all threads of a parallel region.
static void pack(const struct packed *b, const struct dt_view *w, bool turned)
{
    int64_t across = b->padded / b->product->columns, panels = across * dt_ceil_div(b->k, BLOCK_K);
#pragma omp for
    for (int64_t i = 0; i < panels; i++)
        pack_panel(b, w, turned, i / across * BLOCK_K, i % across * b->product->columns);
}

// c [rows, padded n] = a [rows, k] · b, rows a multiple of the inner product's.
static void multiply(const struct packed *b, int64_t rows, const float *a, int64_t lda, float *c,
                     int64_t ldc)
{
    const struct product *product = b->product;
    for (int64_t k0 = 0; k0 < b->k; k0 += BLOCK_K)
        for (int64_t n0 = 0; n0 < b->padded; n0 += product->columns)
            for (int64_t i = 0; i < rows; i += product->rows)
                product->multiply(a + i * lda + k0, lda, panel_at(b, k0, n0),
                                  dt_min_i64(BLOCK_K, b->k - k0), c + i * ldc + n0, ldc, k0 > 0);
}

// ---- pieces and their memory

static int64_t piece_size(int64_t batch)
{
    return batch >= 2 * PIECE ? PIECE : PIECE / 2;
}

// A thread's rows: carried h and c (backward: their gradients), the operand of the product, [rows,
// across]; the product, [rows, out].
struct rows {
    int64_t across, out; // floats between rows
    float *h, *c, *operand, *product;
};

static int64_t rows_floats(int64_t across, int64_t out)
{
    return PIECE * (3 * across + out);
}

static struct rows rows_at(float *memory, int64_t across, int64_t out)
{
    return (struct rows){across,
                         out,
                         memory,
                         memory + PIECE * across,
                         memory + 2 * PIECE * across,
                         memory + 3 * PIECE * across};
}

static float *aligned(const void *workspace)
{
    return (float *)dt_round_up((int64_t)(intptr_t)workspace, ALIGN);
}

static float stored(float x, bool bf16)
{
    return bf16 ? dt_bf16_to_f32(dt_f32_to_bf16(x)) : x;
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
        dt_store(s.y, j, next, bf16);
        h[j] = next;
        operand[j] = dt_load(s.y, j, bf16);
        if (keep) {
            dt_store(s.gates, j, r, bf16);
            dt_store(s.gates, H + j, z, bf16);
            dt_store(s.gates, 2 * H + j, n, bf16);
            dt_store(s.gates, 3 * H + j, q, bf16);
        }
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
        dt_store(s.y, j, next, bf16);
        c[j] = cell;
        h[j] = next;
        operand[j] = dt_load(s.y, j, bf16);
        if (keep) {
            dt_store(s.gates, j, i, bf16);
            dt_store(s.gates, H + j, f, bf16);
            dt_store(s.gates, 2 * H + j, g, bf16);
            dt_store(s.gates, 3 * H + j, o, bf16);
            dt_store(s.cells, j, cell, bf16);
        }
    }
}

DT_CLONES static void cell_forward(const struct cell *s, bool lstm, int64_t H, bool bf16)
{
    if (lstm && bf16)
        s->gates ? lstm_forward(s, H, true, true) : lstm_forward(s, H, false, true);
    else if (lstm)
        s->gates ? lstm_forward(s, H, true, false) : lstm_forward(s, H, false, false);
    else if (bf16)
        s->gates ? gru_forward(s, H, true, true) : gru_forward(s, H, false, true);
    else
        s->gates ? gru_forward(s, H, true, false) : gru_forward(s, H, false, false);
}

static void run_cell(const struct dt_rnn_forward_args *a, const struct rows *rows, int64_t i,
                     int64_t position)
{
    struct cell cell = {.x = dt_view_at(&a->x, position, 0),
                        .b_ih = a->b_ih,
                        .b_hh = a->b_hh,
                        .p = rows->product + i * rows->out,
                        .h = rows->h + i * rows->across,
                        .c = rows->c + i * rows->across,
                        .operand = rows->operand + i * rows->across,
                        .y = dt_view_at(&a->y, position, 0),
                        .previous = dt_view_at(&a->previous, position, 0),
                        .gates = dt_view_at(&a->gates, position, 0),
                        .cells = dt_view_at(&a->cells, position, 0)};
    cell_forward(&cell, a->in.cell == DT_RNN_LSTM, a->in.w_hh.cols, a->x.dtype == DT_BF16);
}

static bool starts(const struct dt_rnn_inputs *in, int64_t position)
{
    return in->reset && in->reset[position];
}

// h_{-1} and c_{-1} of n sequences, and the operand that h is.
static void load_state(const struct dt_rnn_inputs *in, int64_t first, int64_t n,
                       const struct rows *rows)
{
    int64_t H = in->w_hh.cols, floats = rows_floats(rows->across, rows->out);
    memset(rows->h, 0, (size_t)floats * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < H; j++) {
            int64_t at = i * rows->across + j, from = (first + i) * H + j;
            rows->h[at] = in->h0 ? in->h0[from] : 0.0f;
            rows->c[at] = in->c0 ? in->c0[from] : 0.0f;
            rows->operand[at] = stored(rows->h[at], in->w_hh.dtype == DT_BF16);
        }
}

static void clear_started(const struct dt_rnn_inputs *in, int64_t first, int64_t n, int64_t t,
                          const struct rows *rows)
{
    size_t bytes = (size_t)in->w_hh.cols * sizeof(float);
    for (int64_t i = 0; i < n; i++)
        if (starts(in, (first + i) * in->length + t)) {
            memset(rows->h + i * rows->across, 0, bytes);
            memset(rows->c + i * rows->across, 0, bytes);
            memset(rows->operand + i * rows->across, 0, bytes);
        }
}

static void store_state(const struct dt_rnn_forward_args *a, int64_t first, int64_t n,
                        const struct rows *rows)
{
    int64_t H = a->in.w_hh.cols;
    for (int64_t i = 0; i < n; i++) {
        if (a->h_last)
            memcpy(a->h_last + (first + i) * H, rows->h + i * rows->across, (size_t)H * 4);
        if (a->c_last)
            memcpy(a->c_last + (first + i) * H, rows->c + i * rows->across, (size_t)H * 4);
    }
}

static void piece_forward(const struct dt_rnn_forward_args *a, const struct packed *w,
                          const struct rows *rows, int64_t first, int64_t n)
{
    int64_t L = a->in.length;
    load_state(&a->in, first, n, rows);
    for (int64_t t = 0; t < L; t++) {
        clear_started(&a->in, first, n, t, rows);
        multiply(w, dt_round_up(n, w->product->rows), rows->operand, rows->across, rows->product,
                 rows->out);
        for (int64_t i = 0; i < n; i++)
            run_cell(a, rows, i, (first + i) * L + t);
    }
    store_state(a, first, n, rows);
}

static int64_t across_of(int64_t size)
{
    return dt_round_up(size, 16) + PITCH;
}

// The product of one position as a gemm: fp32 [B, G·H] at the start of the workspace.
static struct dt_gemm_args single(const struct dt_rnn_forward_args *a)
{
    const struct dt_view *w = &a->in.w_hh;
    struct dt_gemm_args gemm = {.a = a->previous,
                                .b = *w,
                                .c =
                                    dt_view_of(aligned(a->workspace), a->in.batch, w->rows, DT_F32),
                                .trans_b = true};
    gemm.workspace = (float *)gemm.c.data + gemm.c.rows * gemm.c.cols;
    return gemm;
}

static dt_status single_position(struct dt_device *device, const struct dt_rnn_forward_args *a)
{
    struct dt_gemm_args gemm = single(a);
    int64_t H = a->in.w_hh.cols;
    bool bf16 = a->x.dtype == DT_BF16;
    gemm.workspace_bytes = gemm_cpu_workspace(device, &gemm);
    float *sequences =
        (float *)dt_round_up((int64_t)(intptr_t)gemm.workspace + gemm.workspace_bytes, ALIGN);
    for (int64_t b = 0; b < a->in.batch; b++)
        for (int64_t j = 0; j < H; j++)
            dt_store(a->previous.data, b * a->previous.stride + j,
                     a->in.h0 && !starts(&a->in, b) ? a->in.h0[b * H + j] : 0.0f, bf16);
    DT_TRY(gemm_cpu(device, &gemm, NULL));
#pragma omp parallel for num_threads(dt_cpu_threads(device)) if (a->in.batch > 1)
    for (int64_t b = 0; b < a->in.batch; b++) {
        struct rows rows = rows_at(sequences + omp_get_thread_num() * rows_floats(across_of(H), 0),
                                   across_of(H), 0);
        load_state(&a->in, b, 1, &rows);
        clear_started(&a->in, b, 1, 0, &rows);
        rows.product = (float *)gemm.c.data + b * gemm.c.cols;
        run_cell(a, &rows, 0, b);
        store_state(a, b, 1, &rows);
    }
    return DT_OK;
}

static struct packed forward_panels(const struct dt_rnn_inputs *in, float *panels)
{
    return packed_of(in->w_hh.cols, in->w_hh.rows, panels);
}

DT_OP_CPU_WORKSPACE(rnn_forward)
{
    const struct dt_rnn_inputs *in = &args->in;
    struct packed w = forward_panels(in, NULL);
    int64_t across = across_of(w.k), threads = dt_cpu_threads(device),
            bytes = (int64_t)sizeof(float);
    struct dt_gemm_args gemm = single(args);
    int64_t many = (packed_floats(&w) + threads * rows_floats(across, across_of(w.padded))) * bytes;
    int64_t one = (in->batch * w.n + threads * rows_floats(across, 0)) * bytes +
                  gemm_cpu_workspace(device, &gemm) + ALIGN;
    return ALIGN + (in->length == 1 ? one : many);
}

DT_OP_CPU(rnn_forward)
{
    if (args->in.length == 1)
        return single_position(device, args);
    const struct packed w = forward_panels(&args->in, aligned(args->workspace));
    int64_t batch = args->in.batch, size = piece_size(batch), across = across_of(w.k),
            out = across_of(w.padded);
#pragma omp parallel num_threads(dt_cpu_threads(device))
    {
        pack(&w, &args->in.w_hh, true);
        struct rows rows =
            rows_at(w.panels + packed_floats(&w) + omp_get_thread_num() * rows_floats(across, out),
                    across, out);
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
    const float *product;                                // of dp at t + 1 with W_hh
    float *restrict dh, *restrict dc, *restrict operand; // what t + 1 gives; dp as stored
    float *restrict sum_x, *restrict sum_p;              // [G·H] of the piece
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
        dt_store(s.dp, j, dr, bf16);
        dt_store(s.dp, H + j, dz, bf16);
        dt_store(s.dp, 2 * H + j, dq, bf16);
        dp[j] = dt_load(s.dp, j, bf16);
        dp[H + j] = dt_load(s.dp, H + j, bf16);
        dp[2 * H + j] = dt_load(s.dp, 2 * H + j, bf16);
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
        dt_store(s.dx, j, di, bf16);
        dt_store(s.dx, H + j, df, bf16);
        dt_store(s.dx, 2 * H + j, dg, bf16);
        dt_store(s.dx, 3 * H + j, dO, bf16);
        dp[j] = dt_load(s.dx, j, bf16);
        dp[H + j] = dt_load(s.dx, H + j, bf16);
        dp[2 * H + j] = dt_load(s.dx, 2 * H + j, bf16);
        dp[3 * H + j] = dt_load(s.dx, 3 * H + j, bf16);
    }
}

DT_CLONES static void cell_backward(const struct slope *s, bool lstm, int64_t H, bool bf16)
{
    if (lstm)
        bf16 ? lstm_backward(s, H, true) : lstm_backward(s, H, false);
    else
        bf16 ? gru_backward(s, H, true) : gru_backward(s, H, false);
}

// `zeros` [H]. Row i's operand is as wide as the product's inputs, `wide` floats apart.
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
                      .dh = rows->h + i * rows->out,
                      .dc = rows->c + i * rows->out,
                      .operand = rows->operand + i * rows->across,
                      .sum_x = sums,
                      .sum_p = sums + in->w_hh.rows};
    if (t + 1 == in->length || starts(in, at + 1)) {
        memset(s.dh, 0, (size_t)H * sizeof(float));
        memset(s.dc, 0, (size_t)H * sizeof(float));
        s.product = zeros;
    }
    cell_backward(&s, in->cell == DT_RNN_LSTM, H, a->dy.dtype == DT_BF16);
}

static void piece_backward(const struct dt_rnn_backward_args *a, const struct packed *w,
                           const struct rows *rows, const float *zeros, float *sums, int64_t first,
                           int64_t n)
{
    memset(sums, 0, (size_t)(2 * a->in.w_hh.rows) * sizeof *sums);
    for (int64_t t = a->in.length; t-- > 0;) {
        for (int64_t i = 0; i < n; i++)
            run_slope(a, rows, zeros, sums, i, first + i, t);
        if (t > 0)
            multiply(w, dt_round_up(n, w->product->rows), rows->operand, rows->across,
                     rows->product, rows->out);
    }
}

// Of the pieces' sums, [pieces, 2, G·H]; LSTM: db_hh is db_ih.
static void add_biases(const struct dt_rnn_backward_args *a, const float *sums, int64_t pieces,
                       int64_t column)
{
    int64_t n = a->in.w_hh.rows;
    for (int side = 0; side < 2; side++) {
        double sum = 0;
        float *to = (side ? a->db_hh : a->db_ih) + column;
        for (int64_t piece = 0; piece < pieces; piece++)
            sum += (double)sums[(2 * piece + (a->in.cell == DT_RNN_GRU && side)) * n + column];
        *to = (float)(a->accumulate ? (double)*to + sum : sum);
    }
}

// Of a thread: dh and dc [PIECE, out], product [PIECE, out], operand [PIECE, across].
static struct rows backward_rows(float *memory, int64_t across, int64_t out)
{
    return (struct rows){across,
                         out,
                         memory,
                         memory + PIECE * out,
                         memory + 3 * PIECE * out,
                         memory + 2 * PIECE * out};
}

static int64_t backward_floats(int64_t across, int64_t out)
{
    return PIECE * (3 * out + across);
}

static struct packed backward_panels(const struct dt_rnn_inputs *in, float *panels)
{
    return packed_of(in->w_hh.rows, in->w_hh.cols, panels);
}

DT_OP_CPU_WORKSPACE(rnn_backward)
{
    struct packed w = backward_panels(&args->in, NULL);
    int64_t across = across_of(w.k), out = across_of(w.padded);
    int64_t pieces = dt_ceil_div(args->in.batch, piece_size(args->in.batch));
    int64_t floats = packed_floats(&w) + out + pieces * 2 * dt_round_up(w.k, 16) +
                     dt_cpu_threads(device) * backward_floats(across, out);
    return ALIGN + floats * (int64_t)sizeof(float);
}

DT_OP_CPU(rnn_backward)
{
    const struct packed w = backward_panels(&args->in, aligned(args->workspace));
    int64_t batch = args->in.batch, size = piece_size(batch), pieces = dt_ceil_div(batch, size),
            across = across_of(w.k), out = across_of(w.padded);
    float *zeros = w.panels + packed_floats(&w), *sums = zeros + out,
          *threads = sums + pieces * 2 * dt_round_up(w.k, 16);
    memset(zeros, 0, (size_t)out * sizeof *zeros);
#pragma omp parallel num_threads(dt_cpu_threads(device))
    {
        pack(&w, &args->in.w_hh, false);
        float *own = threads + omp_get_thread_num() * backward_floats(across, out);
        struct rows rows = backward_rows(own, across, out);
        memset(own, 0, (size_t)backward_floats(across, out) * sizeof *own);
#pragma omp for schedule(dynamic)
        for (int64_t piece = 0; piece < pieces; piece++)
            piece_backward(args, &w, &rows, zeros, sums + piece * 2 * w.k, piece * size,
                           dt_min_i64(size, batch - piece * size));
#pragma omp for
        for (int64_t column = 0; column < w.k; column++)
            add_biases(args, sums, pieces, column);
    }
    return DT_OK;
}
