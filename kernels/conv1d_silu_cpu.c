// Causal depthwise convolution and SiLU on the CPU. Pieces (see piece_cpu.h) walk their sequence in
// blocks, forward from first to last, backward from last to first. Loops have 4 or 8 taps, so the
// weights of a vector of channels stay in registers; a tap that a reset cuts, or from K on, reads a
// row of zeros.
//
// Floor: per element an exponential and 7 vector operations forward, an exponential and 19
// backward. The division takes almost as long as the exponential, but has a unit of its own.
#include "kernels/cpu.h"
#include "kernels/piece_cpu.h"

enum {
    TAPS_MAX = DT_CONV1D_TAPS_MAX,
    LEAD = TAPS_MAX - 1,     // rows outside a block that its taps reach
    ZEROS = LEAD + DT_BLOCK, // the row of zeros
    ROWS = ZEROS + 1,
};

// lag[m] is the weight of x_{t-m}, zero from m = K on.
struct weights {
    float lag[TAPS_MAX][DT_PITCH];
    float bias[DT_PITCH];
};

// Rows of a block. Of x: LEAD rows before the block, then the block; x_{t-m} is at LEAD + t - m. Of
// ds: the block, then LEAD rows after it; ds_{t+m} is at t + m. Lags of step t beyond reach[t] are
// from K on or cross a document's start.
struct window {
    int64_t reach[DT_BLOCK];
    float rows[ROWS][DT_PITCH];
};
enum side { BEFORE = -1, AFTER = 1 }; // where lags are: those of x, of ds

static void load_weights(const struct dt_conv1d_silu_inputs *in, const struct dt_piece *piece,
                         struct weights *w)
{
    memset(w, 0, sizeof *w);
    for (int64_t i = 0; i < piece->count; i++) {
        const float *row = in->weight + (piece->first + i) * in->taps;
        for (int64_t m = 0; m < in->taps; m++)
            w->lag[m][i] = row[in->taps - 1 - m];
        w->bias[i] = in->bias[piece->first + i];
    }
}

static bool reset_at(const struct dt_conv1d_silu_inputs *in, const struct dt_piece *piece,
                     int64_t t)
{
    return in->reset && t >= 0 && t < in->length && in->reset[piece->sequence * in->length + t];
}

// The piece's channels of input t >= 1 - K in storage: in x, in x0, or NULL for zeros.
static inline const void *input_at(const struct dt_conv1d_silu_inputs *in,
                                   const struct dt_piece *piece, int64_t t)
{
    int64_t keep = in->taps - 1;
    struct dt_view x0 = dt_view_of(in->x0, in->batch * keep, in->x.cols, in->x.dtype);
    return t >= 0 ? dt_view_at(&in->x, piece->sequence * in->length + t, piece->first)
                  : dt_view_at(&x0, (piece->sequence + 1) * keep + t, piece->first);
}

DT_CLONES
static void load_window(const struct dt_conv1d_silu_inputs *in, const struct dt_piece *piece,
                        int64_t begin, int64_t steps, struct window *x)
{
    for (int64_t t = 1 - in->taps; t < steps; t++) {
        const void *from = input_at(in, piece, begin + t);
        if (from)
            dt_load_row(in->x.dtype, from, piece->count, piece->padded, x->rows[LEAD + t]);
        else
            memset(x->rows[LEAD + t], 0, sizeof x->rows[LEAD + t]);
    }
    memset(x->rows[ZEROS], 0, sizeof x->rows[ZEROS]);
    int64_t reach = 0;
    while (reach < LEAD && !reset_at(in, piece, begin - 1 - reach))
        reach++;
    for (int64_t t = 0; t < steps; t++) {
        reach = reset_at(in, piece, begin + t) ? 0 : reach + 1;
        x->reach[t] = dt_min_i64(reach, in->taps - 1);
    }
}

// Finds the rows that the lags of step t read.
DT_INLINE void find_rows(const struct window *window, enum side side, int64_t t, int64_t lane,
                         int taps, const float *row[TAPS_MAX])
{
    const float *now = window->rows[side == BEFORE ? LEAD + t : t] + lane;
    for (int m = 0; m < taps; m++)
        row[m] = m <= window->reach[t] ? now + side * m * DT_PITCH : window->rows[ZEROS] + lane;
}

// One step of DT_LANES channels: s = bias + Σ_m w[m] row[m]. `taps` is a constant, so the inner
// loop is unrolled before the outer one is vectorised.
DT_INLINE void convolve(const float *const row[TAPS_MAX], int taps, float w[TAPS_MAX][DT_LANES],
                        const float *restrict bias, float *restrict s)
{
#pragma omp simd
    for (int l = 0; l < DT_LANES; l++) {
        float sum = bias[l];
        for (int m = 0; m < taps; m++)
            sum += w[m][l] * row[m][l];
        s[l] = sum;
    }
}

DT_INLINE void load_lags(const struct weights *weights, int64_t lane, int taps,
                         float w[TAPS_MAX][DT_LANES])
{
    for (int m = 0; m < taps; m++)
        dt_load_lanes(weights->lag[m] + lane, w[m]);
}

DT_INLINE void forward_block(const struct window *x, const struct weights *weights, int64_t steps,
                             int64_t padded, int taps, const struct dt_ahead *ahead, float *y)
{
    for (int64_t lane = 0; lane < padded; lane += DT_LANES) {
        float w[TAPS_MAX][DT_LANES], bias[DT_LANES], s[DT_LANES];
        load_lags(weights, lane, taps, w);
        dt_load_lanes(weights->bias + lane, bias);
        for (int64_t t = 0; t < steps; t++) {
            const float *row[TAPS_MAX];
            dt_prefetch(ahead, t, lane);
            find_rows(x, BEFORE, t, lane, taps, row);
            convolve(row, taps, w, bias, s);
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++)
                y[t * DT_PITCH + lane + l] = dt_siluf(s[l]);
        }
    }
}

// Computes ds of DT_LANES channels from x and dy, and the block's share of dweight (by lag) and
// dbias.
DT_INLINE void slope_lanes(const struct window *x, const struct weights *weights, int64_t steps,
                           int64_t lane, int taps, const struct dt_ahead *ahead, const float *dy,
                           struct window *ds, struct weights *gradient)
{
    float w[TAPS_MAX][DT_LANES], dw[TAPS_MAX][DT_LANES] = {{0}};
    float bias[DT_LANES], s[DT_LANES], dbias[DT_LANES] = {0};
    load_lags(weights, lane, taps, w);
    dt_load_lanes(weights->bias + lane, bias);
    for (int64_t t = 0; t < steps; t++) {
        const float *row[TAPS_MAX];
        float slope[DT_LANES];
        dt_prefetch(ahead, t, lane);
        find_rows(x, BEFORE, t, lane, taps, row);
        convolve(row, taps, w, bias, s);
#pragma omp simd
        for (int l = 0; l < DT_LANES; l++) {
            float gate = dt_sigmoidf(s[l]);
            slope[l] = dy[t * DT_PITCH + lane + l] * gate * (1.0f + s[l] * (1.0f - gate));
            dbias[l] += slope[l];
            for (int m = 0; m < taps; m++)
                dw[m][l] += slope[l] * row[m][l];
        }
        dt_store_lanes(slope, ds->rows[t] + lane);
    }
#pragma omp simd
    for (int l = 0; l < DT_LANES; l++) {
        gradient->bias[lane + l] += dbias[l];
        for (int m = 0; m < taps; m++)
            gradient->lag[m][lane + l] += dw[m][l];
    }
}

// Computes dx of DT_LANES channels; their ds is still in the L1 cache.
DT_INLINE void dx_lanes(const struct window *ds, const struct weights *weights, int64_t steps,
                        int64_t lane, int taps, float *dx)
{
    const float no_bias[DT_LANES] = {0};
    float w[TAPS_MAX][DT_LANES];
    load_lags(weights, lane, taps, w);
    for (int64_t t = 0; t < steps; t++) {
        const float *row[TAPS_MAX];
        find_rows(ds, AFTER, t, lane, taps, row);
        convolve(row, taps, w, no_bias, dx + t * DT_PITCH + lane);
    }
}

DT_CLONES
static void run_forward(const struct dt_conv1d_silu_forward_args *args,
                        const struct dt_piece *piece, const struct weights *weights, int64_t begin,
                        int64_t steps)
{
    const struct dt_conv1d_silu_inputs *in = &args->in;
    struct window x;
    float y[DT_BLOCK * DT_PITCH];
    int64_t row = piece->sequence * in->length + begin;
    struct dt_ahead ahead[DT_AHEAD] = {dt_ahead(piece, &args->y, row)};
    if (begin + steps < in->length)
        ahead[1] = dt_ahead(piece, &args->in.x, row + steps);
    load_window(in, piece, begin, steps, &x);
    if (in->taps <= 4)
        forward_block(&x, weights, steps, piece->padded, 4, ahead, y);
    else
        forward_block(&x, weights, steps, piece->padded, TAPS_MAX, ahead, y);
    for (int64_t t = 0; t < steps; t++)
        dt_store_piece(piece, &args->y, row + t, y + t * DT_PITCH);
}

// Stores x_last, the inputs that the next call needs before its first.
static void store_x_last(const struct dt_conv1d_silu_inputs *in, const struct dt_piece *piece,
                         void *x_last)
{
    int64_t keep = in->taps - 1;
    struct dt_view last = dt_view_of(x_last, in->batch * keep, in->x.cols, in->x.dtype);
    size_t bytes = (size_t)(piece->count * dt_dtype_size(in->x.dtype));
    bool cut = false;
    for (int64_t i = keep - 1; i >= 0; i--) {
        int64_t t = in->length - keep + i;
        const void *from = cut ? NULL : input_at(in, piece, t);
        void *to = dt_view_at(&last, piece->sequence * keep + i, piece->first);
        if (from)
            memcpy(to, from, bytes);
        else
            memset(to, 0, bytes);
        cut = cut || reset_at(in, piece, t);
    }
}

DT_OP_CPU(conv1d_silu_forward)
{
    bool step = args->in.length == 1; // for one token, pieces cost more than they save
    struct dt_cut cut = dt_cut(step ? DT_PIECES : args->in.batch, args->in.x.cols);
#pragma omp parallel for num_threads(device->threads) schedule(dynamic) if (!step)
    for (int64_t i = 0; i < args->in.batch * cut.groups; i++) {
        struct dt_piece piece = dt_piece(&cut, args->in.x.cols, i);
        struct weights weights;
        load_weights(&args->in, &piece, &weights);
        for (int64_t t = 0; t < args->in.length; t += DT_BLOCK)
            run_forward(args, &piece, &weights, t, dt_min_i64(DT_BLOCK, args->in.length - t));
        if (args->x_last)
            store_x_last(&args->in, &piece, args->x_last);
    }
    return DT_OK;
}

// The piece's channels of dx_last for input t in [1 - K, L); NULL if it is not among the last K - 1
// or a document starts after it.
static const float *last_gradient(const struct dt_conv1d_silu_backward_args *args,
                                  const struct dt_piece *piece, int64_t t)
{
    int64_t keep = args->in.taps - 1, row = t - (args->in.length - keep);
    if (!args->dx_last || row < 0)
        return NULL;
    for (int64_t next = t + 1; next < args->in.length; next++)
        if (reset_at(&args->in, piece, next))
            return NULL;
    return args->dx_last + (piece->sequence * keep + row) * args->in.x.cols + piece->first;
}

// Stores dx of the K - 1 inputs before the first block, whose ds is available.
static void store_dx0(const struct dt_conv1d_silu_backward_args *args, const struct dt_piece *piece,
                      const struct weights *weights, const struct window *ds)
{
    const struct dt_conv1d_silu_inputs *in = &args->in;
    int64_t keep = in->taps - 1;
    for (int64_t t = -keep; t < 0; t++) {
        float *to = args->dx0 + ((piece->sequence + 1) * keep + t) * in->x.cols + piece->first;
        const float *last = last_gradient(args, piece, t);
        for (int64_t i = 0; i < piece->count; i++)
            to[i] = last ? last[i] : 0.0f;
        for (int64_t at = 0; at < in->length && at - t <= keep; at++) {
            if (reset_at(in, piece, at))
                break;
            for (int64_t i = 0; i < piece->count; i++)
                to[i] += weights->lag[at - t][i] * ds->rows[at][i];
        }
    }
}

// Runs a block of backward. On entry `ds` has the rows after the block, from the block done before;
// on return it has the rows that the next, earlier block needs after it.
DT_CLONES
static void run_backward(const struct dt_conv1d_silu_backward_args *args,
                         const struct dt_piece *piece, const struct weights *weights, int64_t begin,
                         int64_t steps, struct window *ds, struct weights *gradient)
{
    const struct dt_conv1d_silu_inputs *in = &args->in;
    struct window x;
    float dy[DT_BLOCK * DT_PITCH], *dx = dy;
    int64_t row = piece->sequence * in->length + begin, next = row - DT_BLOCK;
    struct dt_ahead ahead[DT_AHEAD] = {dt_ahead(piece, &args->dx, row)};
    if (begin > 0) {
        ahead[1] = dt_ahead(piece, &args->in.x, next);
        ahead[2] = dt_ahead(piece, &args->dy, next);
    }
    load_window(in, piece, begin, steps, &x);
    for (int64_t t = 0; t < steps; t++) {
        int64_t reach = 0;
        while (reach < in->taps - 1 && !reset_at(in, piece, begin + t + reach + 1))
            reach++;
        ds->reach[t] = reach;
        dt_load_piece(piece, &args->dy, row + t, dy + t * DT_PITCH);
    }
    for (int64_t lane = 0; lane < piece->padded; lane += DT_LANES)
        if (in->taps <= 4) {
            slope_lanes(&x, weights, steps, lane, 4, ahead, dy, ds, gradient);
            dx_lanes(ds, weights, steps, lane, 4, dx);
        } else {
            slope_lanes(&x, weights, steps, lane, TAPS_MAX, ahead, dy, ds, gradient);
            dx_lanes(ds, weights, steps, lane, TAPS_MAX, dx);
        }
    for (int64_t t = 0; t < steps; t++) {
        const float *last = last_gradient(args, piece, begin + t);
        for (int64_t i = 0; last && i < piece->count; i++)
            dx[t * DT_PITCH + i] += last[i];
        dt_store_piece(piece, &args->dx, row + t, dx + t * DT_PITCH);
    }
    if (begin == 0 && args->dx0)
        store_dx0(args, piece, weights, ds);
    memmove(ds->rows[DT_BLOCK], ds->rows[0], LEAD * sizeof ds->rows[0]);
}

// Partial sums: [B, K + 1] rows of the padded channels, by lag, dbias last.
static int64_t partial_row(const struct dt_cut *cut, int64_t taps, int64_t sequence, int64_t m)
{
    return (sequence * (taps + 1) + m) * cut->groups * cut->width;
}

DT_OP_CPU_WORKSPACE(conv1d_silu_backward)
{
    struct dt_cut cut = dt_cut(args->in.batch, args->in.x.cols);
    return partial_row(&cut, args->in.taps, args->in.batch, 0) * (int64_t)sizeof(float);
}

// Sums a channel's dweight (taps are lags in reverse) and dbias over sequences in order.
static void finish_channel(const struct dt_conv1d_silu_backward_args *args,
                           const struct dt_cut *cut, int64_t d)
{
    const float *partials = args->workspace;
    int64_t taps = args->in.taps;
    for (int64_t m = 0; m <= taps; m++) {
        float *to = m < taps ? args->dweight + d * taps + taps - 1 - m : args->dbias + d;
        double sum = 0.0;
        for (int64_t b = 0; b < args->in.batch; b++)
            sum += (double)partials[partial_row(cut, taps, b, m) + d];
        *to = (float)(args->accumulate ? (double)*to + sum : sum);
    }
}

DT_OP_CPU(conv1d_silu_backward)
{
    struct dt_cut cut = dt_cut(args->in.batch, args->in.x.cols);
#pragma omp parallel num_threads(device->threads)
    {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < args->in.batch * cut.groups; i++) {
            struct dt_piece piece = dt_piece(&cut, args->in.x.cols, i);
            const struct dt_conv1d_silu_inputs *in = &args->in;
            struct weights weights, gradient = {0};
            struct window ds;
            float *partials = (float *)args->workspace + piece.first;
            int64_t last = (in->length - 1) / DT_BLOCK * DT_BLOCK;
            load_weights(in, &piece, &weights);
            memset(&ds, 0, sizeof ds);
            for (int64_t t = last; t >= 0; t -= DT_BLOCK)
                run_backward(args, &piece, &weights, t, t == last ? in->length - t : DT_BLOCK, &ds,
                             &gradient);
            for (int64_t m = 0; m <= in->taps; m++)
                memcpy(partials + partial_row(&cut, in->taps, piece.sequence, m),
                       m < in->taps ? gradient.lag[m] : gradient.bias,
                       (size_t)piece.padded * sizeof *partials);
        }
#pragma omp for schedule(static)
        for (int64_t d = 0; d < args->in.x.cols; d++)
            finish_channel(args, &cut, d);
    }
    return DT_OK;
}
