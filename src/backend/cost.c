// The costs of the ops, one function each. Vector operations are counted in the CPU's loops
// (kernels/*_cpu.c), per element; the scan's, which differ by backend, are in the op tables.
#include "backend/cost.h"

#include "backend/op_times.h"
#include "base/round.h"

#include <stdarg.h>
#include <stdio.h>

enum {
    NORM_FORWARD = 4,   // add, square; scale twice
    NORM_BACKWARD = 10, // dy n, its two sums; g, n, mean, rstd, sum
    SILU = 3,           // beside its exponential: add, divide, multiply
    SILU_SLOPE = 7,
    SCAN_FORWARD_FLOPS = 7, // a state
    SCAN_BACKWARD_FLOPS = 21,
    ADAMW = 12,
};

#define COST(op)                                                                                   \
    struct dt_op_cost dt_##op##_cost(__attribute__((unused)) const struct dt_backend *backend,     \
                                     const struct dt_##op##_args *a)

static double size_of(enum dt_dtype type)
{
    return (double)dt_dtype_size(type);
}

static double view_bytes(const struct dt_view *view)
{
    return (double)view->rows * (double)view->cols * size_of(view->dtype);
}

__attribute__((format(printf, 1, 2))) static struct dt_op_cost shaped(const char *format, ...)
{
    struct dt_op_cost cost = {0};
    va_list list;
    if (dt_op_times_now) // in every call of a run: half of a timer's own time
        return cost;
    va_start(list, format);
    vsnprintf(cost.shape, sizeof cost.shape, format, list);
    va_end(list);
    return cost;
}

static void raise(struct dt_op_floor *floor, double seconds, const char *bound)
{
    if (seconds > floor->seconds)
        *floor = (struct dt_op_floor){seconds, bound};
}

struct dt_op_floor dt_op_floor(const struct dt_op_cost *cost, const struct dt_machine_limits *m)
{
    struct dt_op_floor floor = {cost->bytes / m->copy, "copy"};
    raise(&floor, cost->exps / m->exps + cost->exp2s / m->exp2s, "exp");
    raise(&floor, cost->lanes / m->lanes, "issue");
    if (cost->gemm)
        raise(&floor, cost->flops / (cost->type == DT_BF16 ? m->gemm_bf16 : m->gemm_f32), "gemm");
    return floor;
}

COST(gemm)
{
    int64_t m = a->c.rows, n = a->c.cols, k = dt_gemm_k(a);
    double batch = (double)dt_gemm_batch(a);
    struct dt_op_cost cost =
        shaped("%s %lldx%lldx%lld%s",
               a->trans_a   ? "dW"
               : a->trans_b ? "forward"
                            : "dX",
               (long long)m, (long long)n, (long long)k, a->accumulate ? " +=" : "");
    cost.bytes = batch * (view_bytes(&a->a) + view_bytes(&a->b) +
                          (a->accumulate ? 2 : 1) * view_bytes(&a->c));
    cost.flops = 2 * batch * (double)m * (double)n * (double)k;
    cost.gemm = true;
    cost.type = a->a.dtype;
    cost.name = a->trans_a ? "gemm dW" : a->trans_b ? "gemm forward" : "gemm dX";
    return cost;
}

COST(normalize)
{
    struct dt_op_cost cost = shaped("%lldx%lld %s", (long long)a->x.rows, (long long)a->x.cols,
                                    dt_dtype_name(a->x.dtype));
    cost.bytes = view_bytes(&a->x) + view_bytes(&a->y);
    cost.flops = 2 * (double)a->x.rows * (double)a->x.cols;
    cost.lanes = cost.flops;
    return cost;
}

COST(embed_forward)
{
    double read = (double)(a->rows < a->vocab ? a->rows : a->vocab), width = (double)a->width;
    struct dt_op_cost cost =
        shaped("%lldx%lld of %lld", (long long)a->rows, (long long)a->width, (long long)a->vocab);
    cost.bytes = (double)a->rows * (width * 4 + 4) + read * width * size_of(a->dtype);
    return cost;
}

COST(embed_backward)
{
    double sums = (double)a->rows * (double)a->width, table = (double)a->vocab * (double)a->width;
    struct dt_op_cost cost = shaped("%lldx%lld of %lld%s", (long long)a->rows, (long long)a->width,
                                    (long long)a->vocab, a->accumulate ? " +=" : "");
    cost.bytes = sums * 4 + table * (a->accumulate ? 8 : 4) + (double)a->rows * 4;
    cost.flops = cost.lanes = sums;
    return cost;
}

COST(rmsnorm_residual_forward)
{
    double n = (double)a->rows * (double)a->width, size = size_of(a->dtype);
    struct dt_op_cost cost =
        shaped("%lldx%lld%s", (long long)a->rows, (long long)a->width, a->x ? "" : " no x");
    cost.bytes =
        n * (4 + (a->x ? size : 0) + (a->residual_out ? 4 : 0) + size) + (double)a->rows * 4;
    cost.flops = n * (a->x ? 5 : 4);
    cost.lanes = n * NORM_FORWARD;
    return cost;
}

COST(rmsnorm_residual_backward)
{
    double n = (double)a->rows * (double)a->width, size = size_of(a->dtype);
    struct dt_op_cost cost = shaped("%lldx%lld%s%s", (long long)a->rows, (long long)a->width,
                                    a->first ? " first" : "", a->dx ? "" : " no dx");
    cost.bytes = n * (size + 4 + (a->first ? 4 : 8) + (a->dx ? size : 0)) + (double)a->rows * 4;
    cost.flops = n * 12;
    cost.lanes = n * NORM_BACKWARD;
    return cost;
}

static struct dt_op_cost conv_cost(const struct dt_conv1d_silu_inputs *in, double arrays,
                                   double products, double silu)
{
    double n = (double)in->x.rows * (double)in->x.cols, taps = (double)in->taps;
    struct dt_op_cost cost =
        shaped("%lldx%lldx%lld, %lld taps", (long long)in->batch, (long long)in->length,
               (long long)in->x.cols, (long long)in->taps);
    cost.bytes = arrays * view_bytes(&in->x);
    cost.flops = n * (2 * products * taps + silu);
    cost.lanes = n * (products * taps + silu);
    cost.exps = n;
    return cost;
}

COST(conv1d_silu_forward)
{
    return conv_cost(&a->in, 2, 1, SILU); // x and y
}

COST(conv1d_silu_backward)
{
    return conv_cost(&a->in, 3, 3, SILU_SLOPE); // x, dy and dx; s, dw and dx
}

// `wide` views of D columns, `narrow` ones of N, and the states that are kept.
static struct dt_op_cost scan_cost(const struct dt_scan_inputs *in, double wide, double narrow,
                                   bool states)
{
    double state = (double)in->u.cols * (double)in->b.cols;
    struct dt_op_cost cost =
        shaped("%lldx%lldx%lld, %lld states", (long long)in->batch, (long long)in->length,
               (long long)in->u.cols, (long long)in->b.cols);
    cost.bytes = wide * view_bytes(&in->u) + narrow * view_bytes(&in->b);
    if (states)
        cost.bytes += (double)(in->batch * dt_ceil_div(in->length, in->chunk)) * state * 4;
    return cost;
}

COST(scan_forward)
{
    const struct dt_scan_cost *scan = &backend->op->scan_cost;
    double channels = (double)a->in.u.rows * (double)a->in.u.cols;
    double n = channels * (double)a->in.b.cols;
    struct dt_op_cost cost = scan_cost(&a->in, 4, 2, a->states);
    if (a->states && backend->op->scan_keeps_s)
        cost.bytes += channels * 4;
    cost.flops = n * SCAN_FORWARD_FLOPS;
    cost.lanes = n * scan->forward_lanes;
    cost.exps = channels * scan->forward_exps;
    cost.exp2s = n;
    return cost;
}

// In chunks longer than those that suit the backend all tokens but the last ones run once more.
COST(scan_backward)
{
    const struct dt_scan_cost *scan = &backend->op->scan_cost;
    double channels = (double)a->in.u.rows * (double)a->in.u.cols;
    double n = channels * (double)a->in.b.cols, tile = (double)backend->op->scan_chunk;
    double runs = (double)a->in.chunk > tile ? 2 - tile / (double)a->in.chunk : 1;
    struct dt_op_cost cost = scan_cost(&a->in, 7, 4, true);
    if (backend->op->scan_keeps_s)
        cost.bytes += channels * 4;
    cost.flops = n * SCAN_BACKWARD_FLOPS;
    cost.lanes = n * (scan->run_lanes * runs + scan->sweep_lanes);
    cost.exps = channels * (scan->run_exps * runs + scan->gate_exps);
    cost.exp2s = n * runs;
    return cost;
}

// Pairs of a query and a key that it sees, of a full window; documents make them fewer.
static double attention_pairs(const struct dt_attention_inputs *in)
{
    double L = (double)in->length, W = (double)dt_min_i64(in->window, in->length);
    double seen = in->k0 ? L * (double)in->window : W * (W + 1) / 2 + (L - W) * W;
    return (double)in->batch * (double)in->n_head * seen;
}

// `wide` views of H·E columns, `narrow` ones of G·E; `products` of E for every pair.
static struct dt_op_cost attention_cost(const struct dt_attention_inputs *in, double wide,
                                        double narrow, double products, double other)
{
    double pairs = attention_pairs(in);
    struct dt_op_cost cost =
        shaped("%lldx%lldx%lld, %lld of %lld heads, window %lld", (long long)in->batch,
               (long long)in->length, (long long)in->width, (long long)in->n_kv_head,
               (long long)in->n_head, (long long)in->window);
    cost.bytes = wide * view_bytes(&in->q) + narrow * view_bytes(&in->k);
    cost.lanes = pairs * (products * (double)in->width + other);
    cost.flops = pairs * (2 * products * (double)in->width + other);
    cost.exps = pairs;
    return cost;
}

COST(attention_forward)
{
    return attention_cost(&a->in, 2, 2, 2, 3); // maximum, subtract, sum
}

COST(attention_backward)
{
    return attention_cost(&a->in, 4, 4, 5, 3);
}

// The recurrent product, at the rate of GEMM, and the cell: four exponentials a unit.
static struct dt_op_cost rnn_cost(const struct dt_rnn_inputs *in, double arrays)
{
    double rows = (double)in->batch * (double)in->length, H = (double)in->w_hh.cols;
    struct dt_op_cost cost =
        shaped("%s %lldx%lldx%lld", in->cell == DT_RNN_GRU ? "gru" : "lstm", (long long)in->batch,
               (long long)in->length, (long long)in->w_hh.cols);
    cost.bytes = arrays * rows * H * size_of(in->w_hh.dtype);
    cost.flops = 2 * rows * (double)in->w_hh.rows * H;
    cost.gemm = true;
    cost.type = in->w_hh.dtype;
    return cost;
}

COST(rnn_forward)
{
    double G = (double)dt_rnn_gates(a->in.cell); // x, y, previous, gates, cells
    struct dt_op_cost cost =
        rnn_cost(&a->in, G + 2 + (a->gates.data ? 4 : 0) + (a->cells.data ? 1 : 0));
    cost.exps = 4 * (double)a->y.rows * (double)a->y.cols;
    return cost;
}

COST(rnn_backward)
{
    bool lstm = a->in.cell == DT_RNN_LSTM; // gates, previous or cells, dy, dx, dp
    return rnn_cost(&a->in, lstm ? 4 + 1 + 1 + 4 : 4 + 1 + 1 + 3 + 3);
}

static struct dt_op_cost gate_cost(const struct dt_view *x, bool gate, double arrays, double lanes)
{
    double n = (double)x->rows * (double)x->cols;
    struct dt_op_cost cost =
        shaped("%lldx%lld%s", (long long)x->rows, (long long)x->cols, gate ? " gated" : "");
    cost.bytes = arrays * view_bytes(x);
    cost.flops = cost.lanes = n * lanes;
    cost.exps = n;
    return cost;
}

COST(silu_gate_forward)
{
    bool gate = a->u.data;
    return gate_cost(&a->x, gate, gate ? 3 : 2, SILU + gate);
}

COST(silu_gate_backward)
{
    bool gate = a->u.data;
    return gate_cost(&a->x, gate, gate ? 5 : 3, SILU_SLOPE + 3 * gate);
}

// The products of the matrix form, with half of each square within a chunk; `wide` views of H P
// columns, `narrow` ones of G N; products of a head's P x N and of its chunk squares.
static struct dt_op_cost ssd_cost(const struct dt_ssd_inputs *in, double wide, double narrow,
                                  double states, double squares, double scores)
{
    double rows = (double)in->x.rows, channels = (double)in->x.cols, heads = (double)in->heads,
           n = (double)in->b.cols / (double)in->groups, half = (double)in->chunk / 2;
    struct dt_op_cost cost =
        shaped("%lldx%lld, %lld heads of %lld, %lld states", (long long)in->batch,
               (long long)in->length, (long long)in->heads, (long long)(in->x.cols / in->heads),
               (long long)(in->b.cols / in->groups));
    cost.bytes = wide * view_bytes(&in->x) + narrow * view_bytes(&in->b) +
                 narrow / 2 * view_bytes(&in->dt) + // with ddt where there are db and dc
                 (double)(in->batch * dt_ceil_div(in->length, in->chunk)) * channels * n * 4;
    cost.flops =
        2 * rows * (channels * (states * n + squares * half) + scores * (double)in->b.cols * half);
    cost.exps = rows * heads * (half + 3);
    cost.gemm = true;
    cost.type = in->x.dtype;
    return cost;
}

COST(ssd_forward)
{
    return ssd_cost(&a->in, 2, 2, 2, 1, 1); // x and y
}

COST(ssd_backward)
{
    return ssd_cost(&a->in, 3, 4, 4, 2, 3); // x, dy and dx
}

static struct dt_op_cost gated_cost(const struct dt_view *x, int64_t groups, double arrays,
                                    double lanes)
{
    double n = (double)x->rows * (double)x->cols;
    struct dt_op_cost cost =
        shaped("%lldx%lld, %lld groups", (long long)x->rows, (long long)x->cols, (long long)groups);
    cost.bytes = arrays * view_bytes(x);
    cost.flops = cost.lanes = n * lanes;
    cost.exps = n;
    return cost;
}

COST(gated_rmsnorm_forward)
{
    return gated_cost(&a->x, a->groups, 3, NORM_FORWARD + SILU); // x, z and y
}

COST(gated_rmsnorm_backward)
{
    return gated_cost(&a->x, a->groups, 5, NORM_BACKWARD + SILU_SLOPE + 2); // and dy, dx, dz
}

COST(xent)
{
    double n = (double)a->rows * (double)a->width, passes = a->dlogits ? 2 : 1;
    struct dt_op_cost cost = shaped("%lldx%lld%s", (long long)a->rows, (long long)a->width,
                                    a->dlogits ? " with gradient" : "");
    cost.bytes = n * (4 + (a->dlogits ? size_of(a->dtype) : 0)) + (double)a->rows * 8;
    cost.flops = cost.lanes = n * (1 + 2 * passes); // maximum; subtract and sum; subtract and scale
    cost.exps = (double)a->rows * (double)a->vocab * passes;
    return cost;
}

COST(bias_forward)
{
    double n = (double)a->rows * (double)a->width;
    struct dt_op_cost cost = shaped("%lldx%lld", (long long)a->rows, (long long)a->width);
    cost.bytes = n * 8;
    cost.flops = cost.lanes = n;
    return cost;
}

COST(bias_backward)
{
    double n = (double)a->rows * (double)a->width;
    struct dt_op_cost cost = shaped("%lldx%lld", (long long)a->rows, (long long)a->width);
    cost.bytes = n * size_of(a->dtype);
    cost.flops = cost.lanes = n;
    return cost;
}

COST(encode_targets)
{
    struct dt_op_cost cost = shaped("%lldx%lld, %lld outputs", (long long)a->out.rows,
                                    (long long)a->out.cols, (long long)a->n);
    cost.bytes = view_bytes(&a->targets) + view_bytes(&a->out);
    return cost;
}

COST(policy_loss)
{
    double n = (double)a->rows * (double)a->width, passes = a->dlogits ? 2 : 1;
    struct dt_op_cost cost =
        shaped("%lldx%lld, %lld outputs%s", (long long)a->rows, (long long)a->width,
               (long long)a->n, a->dlogits ? " with gradient" : "");
    cost.bytes = n * (4 + (a->dlogits ? size_of(a->dtype) : 0)) +
                 (double)a->rows * (double)(a->target_width + 4 * a->n) * 4;
    cost.flops = cost.lanes = n * (1 + 3 * passes); // of categorical outputs; others have less
    cost.exps = n * passes;
    return cost;
}

COST(sum_squares)
{
    struct dt_op_cost cost = shaped("%lld", (long long)a->n);
    double n = a->part == DT_SQUARES_TOTAL ? 0 : (double)a->n;
    cost.bytes = n * 4;
    cost.flops = cost.lanes = n * 2; // in double: half as many at once
    return cost;
}

COST(checksum)
{
    struct dt_op_cost cost = shaped("%lld", (long long)a->n);
    cost.bytes = (double)a->n * 4;
    return cost;
}

COST(update_control)
{
    struct dt_op_cost cost = shaped("one");
    cost.bytes = (double)(2 * sizeof *a->control + sizeof *a->sum + sizeof *a->sum_squares);
    return cost;
}

COST(adamw)
{
    double n = (double)a->n; // reads w, m, v and the gradient; writes w, m, v and the copy
    struct dt_op_cost cost = shaped("%lld%s%s", (long long)a->n, a->copy ? " with copy" : "",
                                    a->average ? " and average" : "");
    cost.bytes = n * (28 + (a->copy ? 2 : 0) + (a->average ? 8 : 0));
    cost.flops = n * (14 + (a->average ? 3 : 0));
    cost.lanes = n * (ADAMW + (a->average ? 2 : 0));
    return cost;
}

COST(cast)
{
    struct dt_op_cost cost = shaped("%lld %s to %s", (long long)a->n, dt_dtype_name(a->x_type),
                                    dt_dtype_name(a->y_type));
    cost.bytes = (double)a->n * (size_of(a->x_type) + size_of(a->y_type));
    return cost;
}

COST(quantize)
{
    struct dt_op_cost cost =
        shaped("%lld x %lld %s to %s", (long long)a->x.rows, (long long)a->x.cols,
               dt_dtype_name(a->x.dtype), dt_dtype_name(a->y.dtype));
    double n = (double)a->x.rows * (double)a->x.cols;
    cost.bytes = n * (size_of(a->x.dtype) + size_of(a->y.dtype));
    cost.lanes = n * 5;
    return cost;
}

COST(accumulate)
{
    struct dt_op_cost cost = shaped("%lld %s", (long long)a->n, dt_dtype_name(a->x_type));
    double y_size = a->x_type == DT_F64 ? 8 : 4;
    cost.bytes = (double)a->n * (2 * y_size + size_of(a->x_type));
    cost.flops = cost.lanes = (double)a->n;
    return cost;
}

COST(commit)
{
    struct dt_op_cost cost = shaped("%lld bytes", (long long)a->bytes);
    cost.bytes = 2 * (double)a->bytes;
    return cost;
}

COST(stamp)
{
    struct dt_op_cost cost = shaped("one");
    cost.bytes = (double)(sizeof *a->time + 2 * sizeof *a->count);
    return cost;
}

COST(spin)
{
    static const char *const kinds[] = {"exp", "exp2", "fma"};
    double rounds = (double)a->n * (double)a->rounds;
    struct dt_op_cost cost =
        shaped("%lld %s, %lld rounds", (long long)a->n, kinds[a->kind], (long long)a->rounds);
    cost.bytes = (double)a->n * 4;
    if (a->kind == DT_SPIN_EXP)
        cost.exps = rounds;
    else if (a->kind == DT_SPIN_EXP2)
        cost.exp2s = rounds;
    else
        cost.flops = 2 * (cost.lanes = rounds);
    return cost;
}
