// GRU, LSTM and the gated activation: lengths and batches on both sides of a tile and of the CPU's
// pieces, hidden sizes on both sides of a panel, strides, resets everywhere, states, and a single
// position. tests/golden/rnn.py shows that backward is the gradient of forward.
#include "parity.h"

struct shape {
    enum dt_rnn_cell cell;
    int64_t batch, length, hidden;
    dt_dtype type;
    enum resets resets;
    bool state, last, accumulate;
    unsigned dh; // DH_LAST: has dh_last and dc_last; DH0: has dh0 and dc0
};

static double state_at(const float *state, int64_t at)
{
    return state ? (double)state[at] : 0.0;
}

static double as_stored(const struct dt_view *like, double x)
{
    return like->dtype == DT_BF16 ? (double)dt_bf16_to_f32(dt_f32_to_bf16((float)x)) : x;
}

static void put(const struct dt_view *to, int64_t row, int64_t col, double x)
{
    if (to->data)
        set_at(to, row, col, x);
}

static void cell_forward(const struct dt_rnn_forward_args *a, int64_t row, int64_t j,
                         const double *operand, double *h, double *c)
{
    int64_t H = a->in.w_hh.cols, G = dt_rnn_gates(a->in.cell);
    double x[4], p[4], g[4];
    for (int64_t k = 0; k < G; k++) {
        p[k] = (double)a->b_hh[k * H + j];
        for (int64_t i = 0; i < H; i++)
            p[k] += operand[i] * get_at(&a->in.w_hh, k * H + j, i);
        x[k] = get_at(&a->x, row, k * H + j) + (double)a->b_ih[k * H + j];
    }
    if (a->in.cell == DT_RNN_GRU) {
        g[0] = sigmoid(x[0] + p[0]), g[1] = sigmoid(x[1] + p[1]);
        g[2] = tanh(x[2] + g[0] * p[2]), g[3] = p[2];
        *h = (1.0 - g[1]) * g[2] + g[1] * *h;
    } else {
        g[0] = sigmoid(x[0] + p[0]), g[1] = sigmoid(x[1] + p[1]);
        g[2] = tanh(x[2] + p[2]), g[3] = sigmoid(x[3] + p[3]);
        *c = g[1] * *c + g[0] * g[2];
        *h = g[3] * tanh(*c);
        put(&a->cells, row, j, *c);
    }
    for (int k = 0; k < 4; k++)
        put(&a->gates, row, k * H + j, g[k]);
    put(&a->y, row, j, *h);
}

REFERENCE(rnn_forward)
{
    int64_t L = a->in.length, H = a->in.w_hh.cols;
    double *h = zeros(H), *c = zeros(H), *operand = zeros(H);
    for (int64_t row = 0; row < a->in.batch * L; row++) {
        int64_t b = row / L, t = row % L;
        for (int64_t j = 0; j < H; j++) {
            if (t == 0)
                h[j] = state_at(a->in.h0, b * H + j), c[j] = state_at(a->in.c0, b * H + j);
            if (a->in.reset && a->in.reset[row])
                h[j] = c[j] = 0.0;
            operand[j] = as_stored(&a->y, h[j]);
            put(&a->previous, row, j, h[j]);
        }
        for (int64_t j = 0; j < H; j++) {
            cell_forward(a, row, j, operand, &h[j], &c[j]);
            if (t == L - 1 && a->h_last)
                a->h_last[b * H + j] = (float)h[j];
            if (t == L - 1 && a->c_last)
                a->c_last[b * H + j] = (float)c[j];
        }
    }
    return DT_OK;
}

// Computes dx and dp [G·H] of one position from dh. dh and dc become the part of t - 1's gradients
// that comes from the cell itself.
static void cell_backward(const struct dt_rnn_backward_args *a, int64_t row, int64_t j, double *dh,
                          double *dc, double *dx, double *dp)
{
    int64_t L = a->in.length, H = a->in.w_hh.cols;
    double g[4], d = *dh + get_at(&a->dy, row, j);
    for (int k = 0; k < 4; k++)
        g[k] = get_at(&a->gates, row, k * H + j);
    bool starts = a->in.reset && a->in.reset[row];
    if (a->in.cell == DT_RNN_GRU) {
        dx[H + j] = dp[H + j] = d * (get_at(&a->previous, row, j) - g[2]) * g[1] * (1.0 - g[1]);
        dx[2 * H + j] = d * (1.0 - g[1]) * (1.0 - g[2] * g[2]);
        dp[2 * H + j] = dx[2 * H + j] * g[0];
        dx[j] = dp[j] = dx[2 * H + j] * g[3] * g[0] * (1.0 - g[0]);
        *dh = d * g[1];
        return;
    }
    double c = tanh(get_at(&a->cells, row, j)), before = 0.0;
    if (!starts)
        before = row % L > 0 ? get_at(&a->cells, row - 1, j) : state_at(a->in.c0, row / L * H + j);
    *dc += d * g[3] * (1.0 - c * c);
    dx[j] = *dc * g[2] * g[0] * (1.0 - g[0]);
    dx[H + j] = *dc * before * g[1] * (1.0 - g[1]);
    dx[2 * H + j] = *dc * g[0] * (1.0 - g[2] * g[2]);
    dx[3 * H + j] = d * c * g[3] * (1.0 - g[3]);
    memcpy(dp, dx, (size_t)(4 * H) * sizeof *dp);
    *dc *= g[1];
    *dh = 0.0;
}

REFERENCE(rnn_backward)
{
    int64_t L = a->in.length, H = a->in.w_hh.cols, n = a->in.w_hh.rows;
    double *dh = zeros(H), *dc = zeros(H), *dx = zeros(n), *dp = zeros(n), *bx = zeros(n),
           *bp = zeros(n);
    for (int64_t row = a->in.batch * L; row-- > 0;) {
        bool last = row % L == L - 1;
        for (int64_t j = 0; j < H && (last || (a->in.reset && a->in.reset[row + 1])); j++) {
            dh[j] = last ? state_at(a->dh_last, row / L * H + j) : 0.0;
            dc[j] = last ? state_at(a->dc_last, row / L * H + j) : 0.0;
        }
        for (int64_t j = 0; j < H; j++)
            cell_backward(a, row, j, &dh[j], &dc[j], dx, dp);
        for (int64_t k = 0; k < n; k++) {
            bx[k] += dx[k], bp[k] += dp[k];
            put(&a->dx, row, k, dx[k]);
            put(&a->dp, row, k, dp[k]);
            for (int64_t j = 0; j < H; j++)
                dh[j] += as_stored(&a->dx, dp[k]) * get_at(&a->in.w_hh, k, j);
        }
        bool cut = a->in.reset && a->in.reset[row];
        for (int64_t j = 0; j < H && row % L == 0; j++) {
            if (a->dh0)
                a->dh0[row / L * H + j] = cut ? 0.0f : (float)dh[j];
            if (a->dc0)
                a->dc0[row / L * H + j] = cut ? 0.0f : (float)dc[j];
        }
    }
    store_array(a->db_ih, n, bx, a->accumulate);
    store_array(a->db_hh, n, bp, a->accumulate);
    return DT_OK;
}

// A rounding of h to bf16 affects all positions after it. If h is near the middle of two values,
// the backends may round differently, and some later values then differ by one more rounding.
static double elements(dt_dtype type)
{
    return type == DT_BF16 ? 2e-2 : 4e-6;
}

static struct dt_rnn_forward_args forward(struct parity *p, const struct shape *s,
                                          const struct dt_rnn_inputs *in)
{
    int64_t H = s->hidden, n = in->w_hh.rows, M = s->batch * s->length;
    bool lstm = s->cell == DT_RNN_LSTM;
    struct dt_rnn_forward_args a = {.in = *in,
                                    .x = normal_view(s->type, M, n, n + 8, 1.0, 4),
                                    .b_ih = normal(n, 0.3, 5),
                                    .b_hh = normal(n, 0.3, 6),
                                    .y = fresh_view(s->type, M, H, H + 8),
                                    .previous = fresh_view(s->type, M, H, H),
                                    .gates = fresh_view(s->type, M, 4 * H, 4 * H),
                                    .cells =
                                        lstm ? fresh_view(s->type, M, H, H) : (struct dt_view){0},
                                    .h_last = s->last ? guarded(s->batch * H * 4) : NULL,
                                    .c_last = s->last && lstm ? guarded(s->batch * H * 4) : NULL};
    double each = elements(s->type);
    PARITY(p, rnn_forward, &a, OTHERS(.each = each));
    return a;
}

// Backward uses what forward kept. Its results are compared relative to their size.
static void backward(struct parity *p, const struct shape *s, const struct dt_rnn_forward_args *f)
{
    int64_t n = f->in.w_hh.rows, M = s->batch * s->length, states = s->batch * s->hidden;
    bool gru = s->cell == DT_RNN_GRU, last = s->dh & DH_LAST, first = s->dh & DH0;
    struct dt_rnn_backward_args a = {.in = f->in,
                                     .gates = f->gates,
                                     .cells = f->cells,
                                     .previous = f->previous,
                                     .dh_last = last ? normal(states, 1.0, 10) : NULL,
                                     .dc_last = last && !gru ? normal(states, 1.0, 11) : NULL,
                                     .dh0 = first ? guarded(states * 4) : NULL,
                                     .dc0 = first && !gru ? guarded(states * 4) : NULL,
                                     .dy =
                                         normal_view(s->type, M, s->hidden, s->hidden + 8, 1.0, 7),
                                     .dx = fresh_view(s->type, M, n, n + 8),
                                     .dp = gru ? fresh_view(s->type, M, n, n) : (struct dt_view){0},
                                     .db_ih = gradient_array(n, s->accumulate, 8),
                                     .db_hh = gradient_array(n, s->accumulate, 9),
                                     .accumulate = s->accumulate};
    double each = elements(s->type), size = fmax(1.0, 2.0 * sqrt((double)M));
    PARITY(p, rnn_backward, &a, OTHERS(.each = each), OUT(db_ih, .each = each, .floor = size),
           OUT(db_hh, .each = each, .floor = size));
}

static void compare(struct parity *p, const struct shape *s)
{
    static const char *const resets[] = {"no", "first", "in a row", "chunks", "many", "last"};
    if (!parity_case(p, "%s: batch %lld, length %lld, hidden %lld, %s, resets %s%s%s%s, dh %u",
                     s->cell == DT_RNN_GRU ? "gru" : "lstm", (long long)s->batch,
                     (long long)s->length, (long long)s->hidden, dt_dtype_name(s->type),
                     resets[s->resets], s->state ? " state" : "", s->last ? " last" : "",
                     s->accumulate ? " +=" : "", s->dh))
        return;
    int64_t H = s->hidden, n = dt_rnn_gates(s->cell) * H;
    struct dt_rnn_inputs in = {
        .cell = s->cell,
        .batch = s->batch,
        .length = s->length,
        .w_hh = normal_view(s->type, n, H, H + 8, 1.0 / sqrt((double)H), 1),
        .h0 = s->state ? normal(s->batch * H, 0.5, 2) : NULL,
        .c0 = s->state && s->cell == DT_RNN_LSTM ? normal(s->batch * H, 1.0, 3) : NULL,
        .reset = make_reset(s->batch, s->length, s->resets, 4)};
    struct dt_rnn_forward_args f = forward(p, s, &in);
    backward(p, s, &f);
}

// ---- the gated activation

REFERENCE(silu_gate_forward)
{
    for (int64_t r = 0; r < a->x.rows; r++)
        for (int64_t i = 0; i < a->x.cols; i++) {
            double x = get_at(&a->x, r, i), u = a->u.data ? get_at(&a->u, r, i) : 1.0;
            double f = a->f == DT_RELU2 ? fmax(x, 0) * fmax(x, 0) : x * sigmoid(x);
            put(&a->y, r, i, f * u);
        }
    return DT_OK;
}

REFERENCE(silu_gate_backward)
{
    for (int64_t r = 0; r < a->x.rows; r++)
        for (int64_t i = 0; i < a->x.cols; i++) {
            double x = get_at(&a->x, r, i), s = sigmoid(x), dy = get_at(&a->dy, r, i);
            double u = a->u.data ? get_at(&a->u, r, i) : 1.0;
            double f = x * s, slope = s * (1.0 + x * (1.0 - s));
            if (a->f == DT_RELU2)
                f = fmax(x, 0) * fmax(x, 0), slope = 2.0 * fmax(x, 0);
            put(&a->dx, r, i, dy * u * slope);
            put(&a->du, r, i, dy * f);
        }
    return DT_OK;
}

static void compare_gate(struct parity *p, int64_t rows, int64_t cols, int64_t gap, dt_dtype type,
                         bool gate, enum dt_activation activation)
{
    if (!parity_case(p, "silu_gate: %lld x %lld, gap %lld, %s%s%s", (long long)rows,
                     (long long)cols, (long long)gap, dt_dtype_name(type), gate ? " gated" : "",
                     activation == DT_RELU2 ? " relu2" : ""))
        return;
    struct dt_view none = {0},
                   both = normal_view(type, rows, 2 * cols + gap, 2 * cols + gap, 2.0, 1);
    struct dt_view dboth = fresh_view(type, rows, 2 * cols + gap, 2 * cols + gap);
    struct dt_silu_gate_forward_args f = {.f = activation,
                                          .x = dt_view_cols(both, 0, cols),
                                          .u = gate ? dt_view_cols(both, cols, 2 * cols) : none,
                                          .y = fresh_view(type, rows, cols, cols + gap)};
    struct dt_silu_gate_backward_args b = {.f = activation,
                                           .x = f.x,
                                           .u = f.u,
                                           .dy = normal_view(type, rows, cols, cols + gap, 1.0, 2),
                                           .dx = dt_view_cols(dboth, 0, cols),
                                           .du = gate ? dt_view_cols(dboth, cols, 2 * cols) : none};
    PARITY(p, silu_gate_forward, &f, OUT(y, .each = 2e-6));
    PARITY(p, silu_gate_backward, &b, OTHERS(.each = 2e-6));
}

void parity_rnn(struct parity *p)
{
    static const struct shape shapes[] = {
        {DT_RNN_GRU, 1, 1, 1, DT_F32, NO_RESETS, 0, 0, 0, DH_LAST | DH0},
        {DT_RNN_LSTM, 1, 1, 3, DT_F32, AT_ZERO, 1, 1, 0, DH_LAST | DH0},
        {DT_RNN_GRU, 3, 1, 19, DT_BF16, AT_ZERO, 1, 1, 1, DH_LAST | DH0},
        {DT_RNN_LSTM, 17, 1, 33, DT_F32, NO_RESETS, 1, 1, 1, DH_LAST | DH0},
        {DT_RNN_GRU, 2, 7, 5, DT_F32, MANY, 1, 1, 0, DH_LAST | DH0},
        {DT_RNN_LSTM, 2, 7, 5, DT_F32, MANY, 1, 1, 1, DH_LAST},
        {DT_RNN_GRU, 5, 12, 16, DT_BF16, IN_A_ROW, 1, 0, 1, 0},
        {DT_RNN_LSTM, 5, 12, 17, DT_BF16, AT_END, 0, 1, 0, DH0},
        {DT_RNN_GRU, 17, 9, 31, DT_F32, AT_CHUNKS, 0, 1, 1, 0},
        {DT_RNN_LSTM, 33, 5, 20, DT_F32, AT_END, 1, 0, 0, 0},
        {DT_RNN_GRU, 3, 77, 9, DT_F32, MANY, 1, 1, 0, DH_LAST | DH0},
        {DT_RNN_LSTM, 3, 77, 8, DT_F32, MANY, 0, 1, 0, DH_LAST | DH0},
        {DT_RNN_GRU, 9, 3, 100, DT_BF16, NO_RESETS, 1, 1, 0, DH_LAST | DH0},
        {DT_RNN_LSTM, 2, 4, 260, DT_F32, AT_ZERO, 1, 1, 0, DH_LAST | DH0},
        {DT_RNN_GRU, 34, 2, 65, DT_F32, NO_RESETS, 1, 1, 1, DH_LAST | DH0},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes && !p->model; i++)
        compare(p, &shapes[i]);
    for (int cell = 0; cell < 2 && p->model; cell++)
        compare(p, &(struct shape){(enum dt_rnn_cell)cell, 64, 60, 256, DT_BF16, MANY, 1, 1, 0,
                                   DH_LAST | DH0});
    static const int64_t sizes[][3] = {{1, 1, 0}, {3, 5, 1}, {7, 64, 0}, {65, 24, 8}, {2, 1030, 2}};
    for (int i = 0; i < 5 && !p->model; i++)
        for (int k = 0; k < 8; k++)
            compare_gate(p, sizes[i][0], sizes[i][1], sizes[i][2], k & 1 ? DT_BF16 : DT_F32, k & 2,
                         k & 4 ? DT_RELU2 : DT_SILU);
}
