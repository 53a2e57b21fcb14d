// Causal depthwise convolution and SiLU on the CPU. Pieces (see piece_cpu.h) walk their sequence in
// blocks, forward from first to last, backward from last to first. A tap that a reset cuts, or that
// K does not have, reads a row of zeros: K is 4 or 8 in the loops, so the weights of a vector of
// channels stay in registers.
//
// Floor: bytes. Forward reads x and writes y; backward reads x and dy and writes dx. Beside them
// SiLU costs an exponential and a division an element.
#include "kernels/cpu.h"
#include "kernels/piece_cpu.h"

enum {
    TAPS_MAX = 8,
    LEAD = TAPS_MAX - 1,     // rows beside a block that its taps reach
    ZEROS = LEAD + DT_BLOCK, // the row of zeros
    ROWS = ZEROS + 1,
};

// What forward and backward have in common.
struct conv {
    int64_t length, channels, taps;
    dt_dtype dtype;
    const void *x;
    int64_t x_stride;
    const float *weight, *bias;
    const void *x0;
    const uint8_t *reset;
};

// lag[m] weighs x_{t-m}; it is zero from m = K on.
struct weights {
    float lag[TAPS_MAX][DT_PITCH];
    float bias[DT_PITCH];
};

// Rows of a block and which of them lag m of step t reads. Of x: LEAD rows before the block, then
// the block, so x_{t-m} lies at LEAD + t - m. Of ds: the block, then LEAD rows behind it, ds_{t+m}
// at t + m.
struct window {
    int row[DT_BLOCK][TAPS_MAX];
    float rows[ROWS][DT_PITCH];
};

static void load_weights(const struct conv *conv, const struct dt_piece *piece, struct weights *w)
{
    memset(w, 0, sizeof *w);
    for (int64_t i = 0; i < piece->count; i++) {
        const float *row = conv->weight + (piece->first + i) * conv->taps;
        for (int64_t m = 0; m < conv->taps; m++)
            w->lag[m][i] = row[conv->taps - 1 - m];
        w->bias[i] = conv->bias[piece->first + i];
    }
}

static bool reset_at(const struct conv *conv, const struct dt_piece *piece, int64_t t)
{
    return conv->reset && t >= 0 && t < conv->length &&
           conv->reset[piece->sequence * conv->length + t];
}

// x_{t-m} counts for output t unless a document starts in (t - m, t].
static void find_inputs(const struct conv *conv, const struct dt_piece *piece, int64_t begin,
                        int64_t steps, struct window *x)
{
    for (int64_t t = 0; t < steps; t++) {
        bool cut = false;
        for (int64_t m = 0; m < TAPS_MAX; m++) {
            x->row[t][m] = cut || m >= conv->taps ? ZEROS : (int)(LEAD + t - m);
            cut = cut || reset_at(conv, piece, begin + t - m);
        }
    }
}

// ds_{t+m} counts for dx_t unless a document starts in (t, t + m].
static void find_outputs(const struct conv *conv, const struct dt_piece *piece, int64_t begin,
                         int64_t steps, struct window *ds)
{
    for (int64_t t = 0; t < steps; t++) {
        bool cut = false;
        for (int64_t m = 0; m < TAPS_MAX; m++) {
            cut = cut || (m > 0 && reset_at(conv, piece, begin + t + m));
            ds->row[t][m] = cut || m >= conv->taps ? ZEROS : (int)(t + m);
        }
    }
}

// Row t of the piece's inputs, t >= 1 - K: from x, x0, or zeros.
DT_INLINE void load_input(const struct conv *conv, const struct dt_piece *piece, int64_t t,
                          float *row)
{
    if (t >= 0)
        dt_load_piece(piece, conv->dtype, conv->x, conv->x_stride,
                      piece->sequence * conv->length + t, row);
    else if (conv->x0)
        dt_load_piece(piece, conv->dtype, conv->x0, conv->channels,
                      (piece->sequence + 1) * (conv->taps - 1) + t, row);
    else
        memset(row, 0, DT_PITCH * sizeof *row);
}

DT_CLONES
static void load_window(const struct conv *conv, const struct dt_piece *piece, int64_t begin,
                        int64_t steps, struct window *x)
{
    for (int64_t t = 1 - conv->taps; t < steps; t++)
        load_input(conv, piece, begin + t, x->rows[LEAD + t]);
    memset(x->rows[ZEROS], 0, sizeof x->rows[ZEROS]);
    find_inputs(conv, piece, begin, steps, x);
}

// The rows that the lags of step t read.
DT_INLINE void find_rows(const struct window *window, int64_t t, int64_t lane, int taps,
                         const float *row[TAPS_MAX])
{
    for (int m = 0; m < taps; m++)
        row[m] = window->rows[window->row[t][m]] + lane;
}

// One step of DT_LANES channels: s = bias + Σ_m w[m] row[m]. `taps` is a constant, so the inner
// loop is unrolled before the outer is made a vector.
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
            find_rows(x, t, lane, taps, row);
            convolve(row, taps, w, bias, s);
#pragma omp simd
            for (int l = 0; l < DT_LANES; l++)
                y[t * DT_PITCH + lane + l] = dt_siluf(s[l]);
        }
    }
}

// ds from x and dy, and the block's share of dweight (by lag) and dbias.
DT_INLINE void slope_block(const struct window *x, const struct weights *weights, int64_t steps,
                           int64_t padded, int taps, const struct dt_ahead *ahead, const float *dy,
                           struct window *ds, struct weights *gradient)
{
    for (int64_t lane = 0; lane < padded; lane += DT_LANES) {
        float w[TAPS_MAX][DT_LANES], dw[TAPS_MAX][DT_LANES] = {{0}};
        float bias[DT_LANES], s[DT_LANES], dbias[DT_LANES] = {0};
        load_lags(weights, lane, taps, w);
        dt_load_lanes(weights->bias + lane, bias);
        for (int64_t t = 0; t < steps; t++) {
            const float *row[TAPS_MAX];
            float slope[DT_LANES];
            dt_prefetch(ahead, t, lane);
            find_rows(x, t, lane, taps, row);
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
}

DT_INLINE void dx_block(const struct window *ds, const struct weights *weights, int64_t steps,
                        int64_t padded, int taps, float *dx)
{
    const float no_bias[DT_LANES] = {0};
    for (int64_t lane = 0; lane < padded; lane += DT_LANES) {
        float w[TAPS_MAX][DT_LANES];
        load_lags(weights, lane, taps, w);
        for (int64_t t = 0; t < steps; t++) {
            const float *row[TAPS_MAX];
            find_rows(ds, t, lane, taps, row);
            convolve(row, taps, w, no_bias, dx + t * DT_PITCH + lane);
        }
    }
}

DT_CLONES
static void run_forward(const struct dt_conv1d_silu_forward_args *args, const struct conv *conv,
                        const struct dt_piece *piece, const struct weights *weights, int64_t begin,
                        int64_t steps)
{
    struct window x;
    float y[DT_BLOCK * DT_PITCH];
    int64_t row = piece->sequence * conv->length + begin;
    struct dt_ahead ahead[DT_AHEAD] = {dt_ahead(piece, conv->dtype, args->y, args->y_stride, row)};
    if (begin + steps < conv->length)
        ahead[1] = dt_ahead(piece, conv->dtype, args->x, args->x_stride, row + steps);
    load_window(conv, piece, begin, steps, &x);
    if (conv->taps <= 4)
        forward_block(&x, weights, steps, piece->padded, 4, ahead, y);
    else
        forward_block(&x, weights, steps, piece->padded, TAPS_MAX, ahead, y);
    for (int64_t t = 0; t < steps; t++)
        dt_store_piece(piece, conv->dtype, args->y, args->y_stride, row + t, y + t * DT_PITCH);
}

// The piece's part of input t >= 1 - K in storage, or NULL: zeros.
static const char *input_at(const struct conv *conv, const struct dt_piece *piece, int64_t t)
{
    int64_t size = dt_dtype_size(conv->dtype), keep = conv->taps - 1;
    if (t >= 0)
        return (const char *)conv->x +
               ((piece->sequence * conv->length + t) * conv->x_stride + piece->first) * size;
    if (!conv->x0)
        return NULL;
    return (const char *)conv->x0 +
           (((piece->sequence + 1) * keep + t) * conv->channels + piece->first) * size;
}

// The inputs that a call for what follows needs before its first.
static void store_x_last(const struct conv *conv, const struct dt_piece *piece, void *x_last)
{
    int64_t keep = conv->taps - 1, size = dt_dtype_size(conv->dtype);
    size_t bytes = (size_t)(piece->count * size);
    bool cut = false;
    for (int64_t i = keep - 1; i >= 0; i--) {
        int64_t t = conv->length - keep + i;
        const char *from = cut ? NULL : input_at(conv, piece, t);
        char *to =
            (char *)x_last + ((piece->sequence * keep + i) * conv->channels + piece->first) * size;
        if (from)
            memcpy(to, from, bytes);
        else
            memset(to, 0, bytes);
        cut = cut || reset_at(conv, piece, t);
    }
}

int64_t conv1d_silu_forward_cpu_workspace(struct dt_device *device,
                                          const struct dt_conv1d_silu_forward_args *args)
{
    (void)device;
    (void)args;
    return 0;
}

dt_status conv1d_silu_forward_cpu(struct dt_device *device,
                                  const struct dt_conv1d_silu_forward_args *args,
                                  struct dt_stream *stream)
{
    struct dt_cut cut = dt_cut(args->batch, args->channels);
    struct conv conv = {.length = args->length,
                        .channels = args->channels,
                        .taps = args->taps,
                        .dtype = args->dtype,
                        .x = args->x,
                        .x_stride = args->x_stride,
                        .weight = args->weight,
                        .bias = args->bias,
                        .x0 = args->x0,
                        .reset = args->reset};
    (void)stream;
#pragma omp parallel for num_threads(dt_cpu_threads(device)) schedule(dynamic)
    for (int64_t i = 0; i < args->batch * cut.groups; i++) {
        struct dt_piece piece = dt_piece(&cut, args->channels, i);
        struct weights weights;
        load_weights(&conv, &piece, &weights);
        for (int64_t t = 0; t < conv.length; t += DT_BLOCK)
            run_forward(args, &conv, &piece, &weights, t,
                        conv.length - t < DT_BLOCK ? conv.length - t : DT_BLOCK);
        if (args->x_last)
            store_x_last(&conv, &piece, args->x_last);
    }
    return DT_OK;
}

// A block of backward. `ds` holds the rows behind it (of the block that was done before) on entry,
// and on return the rows that the next one, which ends where this begins, needs behind it.
DT_CLONES
static void run_backward(const struct dt_conv1d_silu_backward_args *args, const struct conv *conv,
                         const struct dt_piece *piece, const struct weights *weights, int64_t begin,
                         int64_t steps, struct window *ds, struct weights *gradient)
{
    struct window x;
    float dy[DT_BLOCK * DT_PITCH], *dx = dy;
    int64_t row = piece->sequence * conv->length + begin, next = row - DT_BLOCK;
    struct dt_ahead ahead[DT_AHEAD] = {
        dt_ahead(piece, conv->dtype, args->dx, args->dx_stride, row)};
    if (begin > 0) {
        ahead[1] = dt_ahead(piece, conv->dtype, args->x, args->x_stride, next);
        ahead[2] = dt_ahead(piece, conv->dtype, args->dy, args->dy_stride, next);
    }
    load_window(conv, piece, begin, steps, &x);
    find_outputs(conv, piece, begin, steps, ds);
    for (int64_t t = 0; t < steps; t++)
        dt_load_piece(piece, conv->dtype, args->dy, args->dy_stride, row + t, dy + t * DT_PITCH);
    if (conv->taps <= 4) {
        slope_block(&x, weights, steps, piece->padded, 4, ahead, dy, ds, gradient);
        dx_block(ds, weights, steps, piece->padded, 4, dx);
    } else {
        slope_block(&x, weights, steps, piece->padded, TAPS_MAX, ahead, dy, ds, gradient);
        dx_block(ds, weights, steps, piece->padded, TAPS_MAX, dx);
    }
    for (int64_t t = 0; t < steps; t++)
        dt_store_piece(piece, conv->dtype, args->dx, args->dx_stride, row + t, dx + t * DT_PITCH);
    memmove(ds->rows[DT_BLOCK], ds->rows[0], LEAD * sizeof ds->rows[0]);
}

// Partial sums: [B, K + 1] rows of the padded channels, by lag, dbias last.
static int64_t partial_row(const struct dt_cut *cut, int64_t taps, int64_t sequence, int64_t m)
{
    return (sequence * (taps + 1) + m) * cut->groups * cut->width;
}

int64_t conv1d_silu_backward_cpu_workspace(struct dt_device *device,
                                           const struct dt_conv1d_silu_backward_args *args)
{
    struct dt_cut cut = dt_cut(args->batch, args->channels);
    (void)device;
    return partial_row(&cut, args->taps, args->batch, 0) * (int64_t)sizeof(float);
}

static void backward_piece(const struct dt_conv1d_silu_backward_args *args, const struct conv *conv,
                           const struct dt_cut *cut, const struct dt_piece *piece)
{
    struct weights weights, gradient = {0};
    struct window ds;
    float *partials = (float *)args->workspace + piece->first;
    int64_t last = (conv->length - 1) / DT_BLOCK * DT_BLOCK;
    load_weights(conv, piece, &weights);
    memset(&ds, 0, sizeof ds);
    for (int64_t t = last; t >= 0; t -= DT_BLOCK)
        run_backward(args, conv, piece, &weights, t, t == last ? conv->length - t : DT_BLOCK, &ds,
                     &gradient);
    for (int64_t m = 0; m <= conv->taps; m++)
        memcpy(partials + partial_row(cut, conv->taps, piece->sequence, m),
               m < conv->taps ? gradient.lag[m] : gradient.bias,
               (size_t)piece->padded * sizeof *partials);
}

// Σ over sequences of a channel's partials of lag m, in order.
static double add_partials(const struct dt_conv1d_silu_backward_args *args,
                           const struct dt_cut *cut, int64_t m, int64_t channel)
{
    const float *partials = args->workspace;
    double sum = 0.0;
    for (int64_t b = 0; b < args->batch; b++)
        sum += (double)partials[partial_row(cut, args->taps, b, m) + channel];
    return sum;
}

static void finish_channel(const struct dt_conv1d_silu_backward_args *args,
                           const struct dt_cut *cut, int64_t d)
{
    float *dweight = args->dweight + d * args->taps, *dbias = args->dbias + d;
    for (int64_t m = 0; m < args->taps; m++) {
        float *dw = dweight + args->taps - 1 - m;
        double sum = add_partials(args, cut, m, d);
        *dw = (float)(args->accumulate ? (double)*dw + sum : sum);
    }
    double sum = add_partials(args, cut, args->taps, d);
    *dbias = (float)(args->accumulate ? (double)*dbias + sum : sum);
}

dt_status conv1d_silu_backward_cpu(struct dt_device *device,
                                   const struct dt_conv1d_silu_backward_args *args,
                                   struct dt_stream *stream)
{
    struct dt_cut cut = dt_cut(args->batch, args->channels);
    struct conv conv = {.length = args->length,
                        .channels = args->channels,
                        .taps = args->taps,
                        .dtype = args->dtype,
                        .x = args->x,
                        .x_stride = args->x_stride,
                        .weight = args->weight,
                        .bias = args->bias,
                        .x0 = args->x0,
                        .reset = args->reset};
    (void)stream;
#pragma omp parallel num_threads(dt_cpu_threads(device))
    {
#pragma omp for schedule(dynamic)
        for (int64_t i = 0; i < args->batch * cut.groups; i++) {
            struct dt_piece piece = dt_piece(&cut, args->channels, i);
            backward_piece(args, &conv, &cut, &piece);
        }
#pragma omp for schedule(static)
        for (int64_t d = 0; d < args->channels; d++)
            finish_channel(args, &cut, d);
    }
    return DT_OK;
}
