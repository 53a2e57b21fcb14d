// The costs of the ops. Bytes come from the ops' rows (op_rows.h), the rest from one function per
// op. Vector operations are counted per element in the CPU's loops (kernels/*_cpu.c); the scan's
// differ by backend and are in the op tables.
#include "backend/cost.h"

#include "backend/op_rows.h"
#include "backend/op_times.h"
#include "base/round.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

enum {
    NORM_FORWARD = 4,   // add, square; scale twice
    NORM_BACKWARD = 10, // dy n, its two sums; g, n, mean, rstd, sum
    SILU = 3,           // without its exponential: add, divide, multiply
    SILU_SLOPE = 7,
    SCAN_FORWARD_FLOPS = 7, // per state
    SCAN_BACKWARD_FLOPS = 21,
    ADAMW = 12,
};

// cost->bytes is computed from the rows.
#define COST(name)                                                                                 \
    static void cost_of_##name(const struct dt_backend *backend, const struct dt_##name##_args *a, \
                               struct dt_op_cost *cost);                                           \
    struct dt_op_cost dt_##name##_cost(const struct dt_backend *backend,                           \
                                       const struct dt_##name##_args *a)                           \
    {                                                                                              \
        struct dt_op_cost cost = {.exp_unit = backend->op->exp_unit};                              \
        dt_visit_##name(backend, a, add_bytes, &cost.bytes);                                       \
        cost_of_##name(backend, a, &cost);                                                         \
        return cost;                                                                               \
    }                                                                                              \
    static void cost_of_##name(__attribute__((unused)) const struct dt_backend *backend,           \
                               const struct dt_##name##_args *a, struct dt_op_cost *cost)

static dt_status add_bytes(void *sum, const struct dt_op_row *row)
{
    int times = !!(row->role & DT_ROLE_IN) + !!(row->role & DT_ROLE_OUT);
    bool there = row->field.view.data || !(row->role & DT_ROLE_OR_NULL);
    if (row->kind == DT_ROW_ARRAY && there && !(row->role & DT_ROLE_CACHED))
        *(double *)sum +=
            times * (double)row->rows * (double)row->cols * (double)dt_dtype_size(row->type);
    return DT_OK;
}

static double elements(const struct dt_view *view)
{
    return (double)view->rows * (double)view->cols;
}

__attribute__((format(printf, 2, 3))) static void shape(struct dt_op_cost *cost, const char *format,
                                                        ...)
{
    va_list list;
    if (dt_op_times_now && !dt_op_times_has_listener(dt_op_times_now)) // formatting takes half of a
                                                                       // timer's time
        return;
    va_start(list, format);
    vsnprintf(cost->shape, sizeof cost->shape, format, list);
    va_end(list);
}

static void raise(struct dt_op_floor *floor, double seconds, const char *bound)
{
    if (seconds > floor->seconds)
        *floor = (struct dt_op_floor){seconds, bound};
}

struct dt_op_floor dt_op_floor(const struct dt_op_cost *cost, const struct dt_machine_limits *m)
{
    struct dt_op_floor floor = {cost->bytes / m->copy, "copy"};
    double exps = cost->exps / m->exps + cost->exp2s / m->exp2s, issue = cost->lanes / m->lanes;
    const char *larger = exps > issue ? "exp" : "issue";
    raise(&floor, cost->exp_unit ? fmax(exps, issue) : exps + issue, larger);
    if (cost->gemm)
        raise(&floor, cost->flops / (cost->type == DT_BF16 ? m->gemm_bf16 : m->gemm_f32), "gemm");
    return floor;
}

COST(gemm)
{
    int64_t m = a->c.rows, n = a->c.cols, k = dt_gemm_k(a);
    double batch = (double)dt_gemm_batch(a);
    const char *form = a->trans_a ? "dW" : a->trans_b ? "forward" : "dX";
    shape(cost, "%s %lldx%lldx%lld%s", form, (long long)m, (long long)n, (long long)k,
          a->accumulate ? " +=" : "");
    cost->bytes *= batch;
    cost->flops = 2 * batch * (double)m * (double)n * (double)k;
    cost->gemm = true;
    cost->type = a->a.dtype;
    cost->name = a->trans_a ? "gemm dW" : a->trans_b ? "gemm forward" : "gemm dX";
}

COST(normalize)
{
    shape(cost, "%lldx%lld %s", (long long)a->x.rows, (long long)a->x.cols,
          dt_dtype_name(a->x.dtype));
    cost->flops = cost->lanes = 2 * elements(&a->x);
}

// Rows read by several ids stay in caches, so each row of the table counts once.
COST(embed_forward)
{
    double read = (double)(a->ids.rows < a->table.rows ? a->ids.rows : a->table.rows),
           width = (double)a->table.cols;
    shape(cost, "%lldx%lld of %lld", (long long)a->ids.rows, (long long)a->table.cols,
          (long long)a->table.rows);
    cost->bytes += read * width * (double)dt_dtype_size(a->table.dtype);
}

COST(embed_backward)
{
    shape(cost, "%lldx%lld of %lld%s", (long long)a->ids.rows, (long long)a->width,
          (long long)a->vocab, a->accumulate ? " +=" : "");
    cost->flops = cost->lanes = (double)a->ids.rows * (double)a->width;
}

COST(rmsnorm_residual_forward)
{
    double n = elements(&a->y);
    shape(cost, "%lldx%lld%s", (long long)a->y.rows, (long long)a->y.cols,
          a->x.data ? "" : " no x");
    cost->flops = n * (a->x.data ? 5 : 4);
    cost->lanes = n * NORM_FORWARD;
}

COST(rmsnorm_residual_backward)
{
    double n = elements(&a->dy);
    shape(cost, "%lldx%lld%s%s", (long long)a->dy.rows, (long long)a->dy.cols,
          a->first ? " first" : "", a->dx.data ? "" : " no dx");
    cost->flops = n * 12;
    cost->lanes = n * NORM_BACKWARD;
}

static void conv_cost(struct dt_op_cost *cost, const struct dt_conv1d_silu_inputs *in,
                      double products, double silu)
{
    double n = elements(&in->x), taps = (double)in->taps;
    shape(cost, "%lldx%lldx%lld, %lld taps", (long long)in->batch, (long long)in->length,
          (long long)in->x.cols, (long long)in->taps);
    cost->flops = n * (2 * products * taps + silu);
    cost->lanes = n * (products * taps + silu);
    cost->exps = n;
}

COST(conv1d_silu_forward)
{
    conv_cost(cost, &a->in, 1, SILU);
}

COST(conv1d_silu_backward)
{
    conv_cost(cost, &a->in, 3, SILU_SLOPE); // s, dw and dx
}

static void scan_shape(struct dt_op_cost *cost, const struct dt_scan_inputs *in)
{
    shape(cost, "%lldx%lldx%lld, %lld states", (long long)in->batch, (long long)in->length,
          (long long)in->u.cols, (long long)in->b.cols);
}

COST(scan_forward)
{
    const struct dt_scan_cost *scan = &backend->op->scan_cost;
    double channels = elements(&a->in.u), n = channels * (double)a->in.b.cols;
    scan_shape(cost, &a->in);
    cost->flops = n * SCAN_FORWARD_FLOPS;
    cost->lanes = n * scan->forward_lanes;
    cost->exps = channels * scan->forward_exps;
    cost->exp2s = n;
}

// Chunks longer than the backend's are recomputed tile by tile: all tokens except the last tile's
// run once more.
COST(scan_backward)
{
    const struct dt_scan_cost *scan = &backend->op->scan_cost;
    double channels = elements(&a->in.u), n = channels * (double)a->in.b.cols;
    double tile = (double)backend->op->scan_chunk;
    double runs = (double)a->in.chunk > tile ? 2 - tile / (double)a->in.chunk : 1;
    scan_shape(cost, &a->in);
    cost->flops = n * SCAN_BACKWARD_FLOPS;
    cost->lanes = n * (scan->run_lanes * runs + scan->sweep_lanes);
    cost->exps = channels * (scan->run_exps * runs + scan->gate_exps);
    cost->exp2s = n * runs;
}

// Counts pairs of a query and a visible key, ignoring document borders, which reduce them. Each
// pair costs `products` products over the width of a head.
static void attention_cost(const struct dt_backend *backend, struct dt_op_cost *cost,
                           const struct dt_attention_inputs *in, double products, double other)
{
    double L = (double)in->length, W = (double)dt_min_i64(in->window, in->length);
    double seen = in->k0 ? L * (double)in->window : W * (W + 1) / 2 + (L - W) * W;
    double pairs = (double)in->batch * (double)in->n_head * (in->both ? 2 * seen - L : seen);
    shape(cost, "%lldx%lldx%lld, %lld of %lld heads, window %lld", (long long)in->batch,
          (long long)in->length, (long long)in->width, (long long)in->n_kv_head,
          (long long)in->n_head, (long long)in->window);
    cost->gemm = backend->op->attention_mma && dt_attention_on_mma(in->q.dtype, in->width);
    cost->type = in->q.dtype;
    cost->lanes = pairs * ((cost->gemm ? 0 : products * (double)in->width) + other);
    cost->flops = pairs * (2 * products * (double)in->width + other);
    cost->exps = pairs;
}

COST(attention_forward)
{
    attention_cost(backend, cost, &a->in, 2, 3); // maximum, subtract, sum
}

COST(attention_backward)
{
    attention_cost(backend, cost, &a->in, backend->op->attention_mma ? 7 : 5, 3);
}

// The recurrent product, counted at the rate of GEMM, and the cell's exponentials.
static void rnn_cost(struct dt_op_cost *cost, const struct dt_rnn_inputs *in)
{
    shape(cost, "%s %lldx%lldx%lld", in->cell == DT_RNN_GRU ? "gru" : "lstm", (long long)in->batch,
          (long long)in->length, (long long)in->w_hh.cols);
    cost->flops = 2 * (double)in->batch * (double)in->length * elements(&in->w_hh);
    cost->gemm = true;
    cost->type = in->w_hh.dtype;
}

COST(rnn_forward)
{
    rnn_cost(cost, &a->in);
    cost->exps = 4 * elements(&a->y);
}

COST(rnn_backward)
{
    rnn_cost(cost, &a->in);
}

static void gate_cost(struct dt_op_cost *cost, const struct dt_view *x, bool gate, double lanes)
{
    shape(cost, "%lldx%lld%s", (long long)x->rows, (long long)x->cols, gate ? " gated" : "");
    cost->flops = cost->lanes = elements(x) * lanes;
    cost->exps = elements(x);
}

COST(silu_gate_forward)
{
    gate_cost(cost, &a->x, a->u.data, SILU + (a->u.data ? 1 : 0));
}

COST(silu_gate_backward)
{
    gate_cost(cost, &a->x, a->u.data, SILU_SLOPE + (a->u.data ? 3 : 0));
}

// Counts of products in the matrix form: `states` with a head's [P, N] state, `squares` with its
// [chunk, chunk] matrix, of which half is computed, and `scores` of B with C.
static void ssd_cost(struct dt_op_cost *cost, const struct dt_ssd_inputs *in, double states,
                     double squares, double scores)
{
    double rows = (double)in->x.rows, channels = (double)in->x.cols,
           n = (double)in->b.cols / (double)in->groups, half = (double)in->chunk / 2;
    shape(cost, "%lldx%lld, %lld heads of %lld, %lld states", (long long)in->batch,
          (long long)in->length, (long long)in->heads, (long long)(in->x.cols / in->heads),
          (long long)(in->b.cols / in->groups));
    cost->flops =
        2 * rows * (channels * (states * n + squares * half) + scores * (double)in->b.cols * half);
    cost->exps = rows * (double)in->heads * (half + 3);
    cost->gemm = true;
    cost->type = in->x.dtype;
}

COST(ssd_forward)
{
    ssd_cost(cost, &a->in, 2, 1, 1);
}

COST(ssd_backward)
{
    ssd_cost(cost, &a->in, 4, 2, 3);
}

static void norm_cost(struct dt_op_cost *cost, const struct dt_view *x, int64_t groups,
                      double lanes)
{
    shape(cost, "%lldx%lld, %lld groups", (long long)x->rows, (long long)x->cols,
          (long long)groups);
    cost->flops = cost->lanes = elements(x) * lanes;
}

COST(gated_rmsnorm_forward)
{
    norm_cost(cost, &a->x, a->groups, NORM_FORWARD + SILU);
    cost->exps = elements(&a->x);
}

COST(gated_rmsnorm_backward)
{
    norm_cost(cost, &a->x, a->groups, NORM_BACKWARD + SILU_SLOPE + 2);
    cost->exps = elements(&a->x);
}

COST(rmsnorm_forward)
{
    norm_cost(cost, &a->x, a->groups, 3); // square, sum; scale
}

COST(rmsnorm_backward)
{
    norm_cost(cost, &a->n, a->groups, 5); // dx n, sum; n mean, difference, scale
}

COST(xent)
{
    double n = elements(&a->logits), passes = a->dlogits.data ? 2 : 1;
    shape(cost, "%lldx%lld%s", (long long)a->logits.rows, (long long)a->logits.cols,
          a->dlogits.data ? " with gradient" : "");
    cost->bytes += (double)a->logits.rows * 4; // each row's loss
    cost->flops = cost->lanes =
        n * (1 + 2 * passes + (a->right ? 1 : 0)); // maximum; subtract and sum; subtract and scale
    cost->exps = (double)a->logits.rows * (double)a->vocab * passes;
}

COST(bias_forward)
{
    shape(cost, "%lldx%lld", (long long)a->y.rows, (long long)a->y.cols);
    cost->flops = cost->lanes = elements(&a->y);
}

COST(bias_backward)
{
    shape(cost, "%lldx%lld", (long long)a->dy.rows, (long long)a->dy.cols);
    cost->flops = cost->lanes = elements(&a->dy);
}

COST(decode_outputs)
{
    shape(cost, "%lldx%lld, %lld outputs", (long long)a->z.rows, (long long)a->z.cols,
          (long long)a->n);
}

COST(encode_targets)
{
    shape(cost, "%lldx%lld, %lld outputs", (long long)a->out.rows, (long long)a->out.cols,
          (long long)a->n);
}

COST(policy_loss)
{
    double n = elements(&a->logits), passes = a->dlogits.data ? 2 : 1;
    shape(cost, "%lldx%lld, %lld outputs%s", (long long)a->logits.rows, (long long)a->logits.cols,
          (long long)a->n, a->dlogits.data ? " with gradient" : "");
    // Metrics of each row and output are written and read.
    cost->bytes += (double)a->logits.rows * (double)a->n * DT_OUTPUT_METRICS * 8;
    cost->flops = cost->lanes = n * (1 + 3 * passes); // categorical outputs; others need less
    cost->exps = n * passes;
}

static void pool_cost(struct dt_op_cost *cost, const struct dt_view *h, int64_t length)
{
    shape(cost, "%lldx%lld, windows of %lld", (long long)h->rows, (long long)h->cols,
          (long long)length);
    cost->flops = cost->lanes = 2 * elements(h);
}

COST(pool_forward)
{
    pool_cost(cost, &a->h, a->length);
}

COST(pool_backward)
{
    pool_cost(cost, &a->h, a->length);
}

COST(pool_targets)
{
    shape(cost, "%lldx%lld, windows of %lld", (long long)a->targets.rows,
          (long long)a->targets.cols, (long long)a->length);
}

COST(reverse_rows)
{
    shape(cost, "%lldx%lld%s", (long long)a->x.rows, (long long)a->x.cols,
          a->accumulate ? " +=" : "");
    cost->flops = cost->lanes = a->accumulate ? elements(&a->x) : 0;
}

COST(reverse_resets)
{
    shape(cost, "%lldx%lld", (long long)a->batch, (long long)a->length);
}

COST(sum_squares)
{
    bool total = a->part == DT_SQUARES_TOTAL; // only the blocks' sums
    shape(cost, "%lld%s", (long long)a->n, total ? " total" : "");
    cost->flops = cost->lanes = total ? 0 : (double)a->n * 2; // in double, at half the rate
}

COST(checksum)
{
    shape(cost, "%lld", (long long)a->n);
}

COST(update_control)
{
    shape(cost, "one");
    (void)a;
}

COST(adamw)
{
    double n = (double)a->n;
    shape(cost, "%lld%s%s", (long long)a->n, a->copy ? " with copy" : "",
          a->average ? " and average" : "");
    cost->flops = n * (14 + (a->average ? 3 : 0));
    cost->lanes = n * (ADAMW + (a->average ? 2 : 0));
}

COST(muon)
{
    static const struct {
        const char *name;
        int flops;
    } parts[] = {[DT_MUON_MOMENTUM] = {"momentum", 6},
                 [DT_MUON_START] = {"start", 1},
                 [DT_MUON_POLYNOMIAL] = {"polynomial", 3},
                 [DT_MUON_APPLY] = {"apply", 3}};
    shape(cost, "%lld %s%s%s", (long long)a->n, parts[a->part].name, a->copy ? " with copy" : "",
          a->average ? " and average" : "");
    cost->flops = cost->lanes = (double)a->n * (parts[a->part].flops + (a->average ? 3 : 0));
}

COST(cast)
{
    shape(cost, "%lld %s to %s", (long long)a->n, dt_dtype_name(a->x_type),
          dt_dtype_name(a->y_type));
}

COST(quantize)
{
    shape(cost, "%lld x %lld %s to %s", (long long)a->x.rows, (long long)a->x.cols,
          dt_dtype_name(a->x.dtype), dt_dtype_name(a->y.dtype));
    cost->lanes = elements(&a->x) * 5;
}

COST(accumulate)
{
    shape(cost, "%lld %s", (long long)a->n, dt_dtype_name(a->x_type));
    cost->flops = cost->lanes = (double)a->n;
}

COST(commit)
{
    shape(cost, "%lld bytes", (long long)a->bytes);
}

COST(stamp)
{
    shape(cost, "one");
    (void)a;
}

COST(spin)
{
    static const char *const kinds[] = {"exp", "exp2", "fma"};
    double rounds = (double)a->n * (double)a->rounds;
    shape(cost, "%lld %s, %lld rounds", (long long)a->n, kinds[a->kind], (long long)a->rounds);
    if (a->kind == DT_SPIN_EXP)
        cost->exps = rounds;
    else if (a->kind == DT_SPIN_EXP2)
        cost->exp2s = rounds;
    else
        cost->flops = 2 * (cost->lanes = rounds);
}
