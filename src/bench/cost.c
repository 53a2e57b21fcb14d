// What each op's calls must move and compute, from their arguments, and how their shape is told.
#include "bench/ops.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

// M = rows, d = width, E = channels, N = state. Vector operations are counted in the CPU's loops
// (kernels/*_cpu.c), per element. Where CUDA's algorithm differs (kernels/scan_*.cu) so do the
// counts: there an exponential is one instruction of the special function unit, as is a reciprocal,
// which counts as one; and backward runs all tokens of a chunk but the last tile's once more.
enum {
    NORM_FORWARD = 4,   // add, square; scale twice
    NORM_BACKWARD = 10, // dy n, its two sums; g, n, mean, rstd, sum
    SILU = 3,           // beside its exponential: add, divide, multiply
    SILU_SLOPE = 7,
    SCAN_FORWARD = 9,   // a state, its exponential included: kernels/scan_cpu.h
    SCAN_BACKWARD = 17, // likewise
    SCAN_FORWARD_FLOPS = 7,
    SCAN_BACKWARD_FLOPS = 21,
    ADAMW = 12,
    SCAN_RUN_CUDA = 3,    // a state: Δ a, the decay, B
    SCAN_SWEEP_CUDA = 10, // a state: its gradients, and its share of sums over lanes
    SCAN_STEP_CUDA = 2,   // a channel, exponentials: softplus, and its slope
    SCAN_GATE_CUDA = 2,   // likewise
    SCAN_TILE_CUDA = 8,   // tokens
};

static bool on_cuda(const struct dt_bench_rig *rig)
{
    return strcmp(rig->backend.table->name, "cuda") == 0;
}

static double product(int64_t a, int64_t b)
{
    return (double)a * (double)b;
}

static double size_of(enum dt_dtype type)
{
    return (double)dt_dtype_size(type);
}

static void tell(struct dt_bench_call *call, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void tell(struct dt_bench_call *call, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(call->shape, sizeof call->shape, format, list);
    va_end(list);
}

// "in_proj" of the tensor "backbone.layers.0.mixer.in_proj.weight" that `element` lies in.
static void matrix_name(const struct dt_params *params, int64_t element, char *name, size_t size)
{
    snprintf(name, size, "other");
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        if (element < row->offset || element >= row->offset + row->count)
            continue;
        snprintf(name, size, "%s", row->name);
        char *end = strstr(name, ".weight");
        if (end)
            *end = 0;
        char *dot = strrchr(name, '.');
        if (dot)
            memmove(name, dot + 1, strlen(dot));
    }
    if (strcmp(name, "embeddings") == 0 || strcmp(name, "lm_head") == 0)
        snprintf(name, size, "head"); // tied
}

// Which element of the flat array `base` (NULL: none) `pointer` is, or -1.
static int64_t element_of(const struct dt_params *params, const void *base, enum dt_dtype type,
                          const void *pointer)
{
    uintptr_t from = (uintptr_t)base, at = (uintptr_t)pointer;
    uintptr_t bytes = (uintptr_t)(params->elements * dt_dtype_size(type));
    return base && at >= from && at < from + bytes ? (int64_t)(at - from) / dt_dtype_size(type)
                                                   : -1;
}

// The weights are B in forward and dX, their gradient is C in dW.
static void linear_name(const struct dt_bench_rig *rig, const struct dt_gemm_args *a, char *name,
                        size_t size)
{
    const struct dt_params *params = dt_model_params(rig->model);
    const void *copies = dt_model_weights_bf16(rig->model);
    const void *matrices = copies ? copies : dt_model_weights(rig->model);
    const void *gradients = dt_model_gradients(rig->model);
    int64_t element = a->trans_a ? element_of(params, gradients, a->c.dtype, a->c.data)
                                 : element_of(params, matrices, a->b.dtype, a->b.data);
    matrix_name(params, element, name, size);
}

static void describe_gemm(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    const struct dt_gemm_args *a = &call->args.gemm;
    char name[DT_PARAM_NAME];
    linear_name(rig, a, name, sizeof name);
    int64_t m = a->c.rows, n = a->c.cols, k = dt_gemm_k(a);
    const char *role = a->trans_a ? "dW" : a->trans_b ? "forward" : "dX";
    tell(call, "%.12s %s %lldx%lldx%lld%s", name, role, (long long)m, (long long)n, (long long)k,
         a->accumulate ? " +=" : "");
    double c = product(m, n) * size_of(a->c.dtype);
    call->cost = (struct dt_bench_cost){.bytes = product(m, k) * size_of(a->a.dtype) +
                                                 product(k, n) * size_of(a->b.dtype) +
                                                 (a->accumulate ? 2 * c : c),
                                        .flops = 2 * product(m, n) * (double)k,
                                        .gemm = true,
                                        .type = a->a.dtype};
}

static void describe_embed_forward(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_embed_forward_args *a = &call->args.embed_forward;
    int64_t read = a->rows < a->vocab ? a->rows : a->vocab; // rows of the table
    tell(call, "%lldx%lld of %lld", (long long)a->rows, (long long)a->width, (long long)a->vocab);
    call->cost.bytes = product(a->rows, a->width) * 4 +
                       product(read, a->width) * size_of(a->dtype) + (double)a->rows * 4;
}

static void describe_embed_backward(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_embed_backward_args *a = &call->args.embed_backward;
    double sums = product(a->rows, a->width), table = product(a->vocab, a->width);
    tell(call, "%lldx%lld of %lld%s", (long long)a->rows, (long long)a->width, (long long)a->vocab,
         a->accumulate ? " +=" : "");
    call->cost = (struct dt_bench_cost){.bytes = sums * 4 + table * (a->accumulate ? 8 : 4) +
                                                 (double)a->rows * 4,
                                        .flops = sums,
                                        .lanes = sums};
}

static void describe_rmsnorm_residual_forward(const struct dt_bench_rig *rig,
                                              struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_rmsnorm_residual_forward_args *a = &call->args.rmsnorm_residual_forward;
    double n = product(a->rows, a->width), size = size_of(a->dtype);
    tell(call, "%lldx%lld%s", (long long)a->rows, (long long)a->width, a->x ? "" : " no x");
    call->cost = (struct dt_bench_cost){
        .bytes =
            n * (4 + (a->x ? size : 0) + (a->residual_out ? 4 : 0) + size) + (double)a->rows * 4,
        .flops = n * (a->x ? 5 : 4),
        .lanes = n * NORM_FORWARD};
}

static void describe_rmsnorm_residual_backward(const struct dt_bench_rig *rig,
                                               struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_rmsnorm_residual_backward_args *a = &call->args.rmsnorm_residual_backward;
    double n = product(a->rows, a->width), size = size_of(a->dtype);
    tell(call, "%lldx%lld%s%s", (long long)a->rows, (long long)a->width, a->first ? " first" : "",
         a->dx ? "" : " no dx");
    call->cost = (struct dt_bench_cost){
        .bytes = n * (size + 4 + (a->first ? 4 : 8) + (a->dx ? size : 0)) + (double)a->rows * 4,
        .flops = n * 12,
        .lanes = n * NORM_BACKWARD};
}

static void describe_conv1d_silu_forward(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_conv1d_silu_forward_args *a = &call->args.conv1d_silu_forward;
    double n = product(a->in.batch * a->in.length, a->in.x.cols), taps = (double)a->in.taps;
    tell(call, "%lldx%lldx%lld, %lld taps", (long long)a->in.batch, (long long)a->in.length,
         (long long)a->in.x.cols, (long long)a->in.taps);
    call->cost = (struct dt_bench_cost){.bytes = n * 2 * size_of(a->in.x.dtype),
                                        .flops = n * (2 * taps + SILU),
                                        .lanes = n * (taps + SILU),
                                        .exps = n};
}

static void describe_conv1d_silu_backward(const struct dt_bench_rig *rig,
                                          struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_conv1d_silu_backward_args *a = &call->args.conv1d_silu_backward;
    double n = product(a->in.batch * a->in.length, a->in.x.cols), taps = (double)a->in.taps;
    tell(call, "%lldx%lldx%lld, %lld taps", (long long)a->in.batch, (long long)a->in.length,
         (long long)a->in.x.cols, (long long)a->in.taps);
    call->cost = (struct dt_bench_cost){.bytes = n * 3 * size_of(a->in.x.dtype),
                                        .flops = n * (6 * taps + SILU_SLOPE),
                                        .lanes = n * (3 * taps + SILU_SLOPE),
                                        .exps = n};
}

// fp32 states kept every `chunk` steps.
static double states_bytes(int64_t batch, int64_t length, int64_t chunk, double state)
{
    return (double)(batch * ((length - 1) / chunk + 1)) * state * 4;
}

static void describe_scan_forward(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    const struct dt_scan_forward_args *a = &call->args.scan_forward;
    double M = product(a->in.batch, a->in.length), E = (double)a->in.u.cols,
           N = (double)a->in.b.cols;
    double states = a->states ? states_bytes(a->in.batch, a->in.length, a->in.chunk, E * N) : 0;
    tell(call, "%lldx%lldx%lld, %lld states", (long long)a->in.batch, (long long)a->in.length,
         (long long)a->in.u.cols, (long long)a->in.b.cols);
    call->cost =
        (struct dt_bench_cost){.bytes = M * (4 * E + 2 * N) * size_of(a->in.u.dtype) + states,
                               .flops = M * E * N * SCAN_FORWARD_FLOPS,
                               .lanes = M * E * N * SCAN_FORWARD,
                               .exps = M * E * 2, // softplus and silu
                               .exp2s = M * E * N};
    if (on_cuda(rig)) {
        call->cost.lanes = M * E * N * (SCAN_RUN_CUDA + 1); // and C
        call->cost.exps = M * E * (SCAN_STEP_CUDA - 1 + SCAN_GATE_CUDA);
    }
}

// Runs of the recurrence over a chunk backward, on average.
static double cuda_runs(int64_t chunk)
{
    return chunk > SCAN_TILE_CUDA ? 2 - (double)SCAN_TILE_CUDA / (double)chunk : 1;
}

static void describe_scan_backward(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    const struct dt_scan_backward_args *a = &call->args.scan_backward;
    double M = product(a->in.batch, a->in.length), E = (double)a->in.u.cols,
           N = (double)a->in.b.cols;
    double states = states_bytes(a->in.batch, a->in.length, a->in.chunk, E * N);
    tell(call, "%lldx%lldx%lld, %lld states", (long long)a->in.batch, (long long)a->in.length,
         (long long)a->in.u.cols, (long long)a->in.b.cols);
    call->cost =
        (struct dt_bench_cost){.bytes = M * (7 * E + 4 * N) * size_of(a->in.u.dtype) + states,
                               .flops = M * E * N * SCAN_BACKWARD_FLOPS,
                               .lanes = M * E * N * SCAN_BACKWARD,
                               .exps = M * E * 3, // softplus, its slope, the gate
                               .exp2s = M * E * N};
    if (on_cuda(rig)) {
        double runs = cuda_runs(a->in.chunk);
        call->cost.lanes = M * E * N * (SCAN_RUN_CUDA * runs + SCAN_SWEEP_CUDA);
        call->cost.exps = M * E * (SCAN_STEP_CUDA * runs + SCAN_GATE_CUDA);
        call->cost.exp2s = M * E * N * runs;
    }
}

static void describe_xent(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_xent_args *a = &call->args.xent;
    double n = product(a->rows, a->width), passes = a->dlogits ? 2 : 1;
    tell(call, "%lldx%lld%s", (long long)a->rows, (long long)a->width,
         a->dlogits ? " with gradient" : "");
    call->cost = (struct dt_bench_cost){
        .bytes = n * (4 + (a->dlogits ? size_of(a->dtype) : 0)) + (double)a->rows * 8,
        .flops = n * (1 + 2 * passes), // maximum; subtract and sum; subtract and scale
        .lanes = n * (1 + 2 * passes),
        .exps = product(a->rows, a->vocab) * passes};
}

static void describe_sum_squares(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    double n = (double)call->args.sum_squares.n;
    tell(call, "%lld", (long long)call->args.sum_squares.n);
    call->cost = (struct dt_bench_cost){
        .bytes = n * 4, .flops = n * 2, .lanes = n * 2}; // in double: half as many at once
}

static void describe_update_control(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    tell(call, "one");
    call->cost.bytes =
        2 * sizeof(struct dt_update_control) + sizeof(struct dt_loss_sum) + sizeof(double);
}

static void describe_adamw(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_adamw_args *a = &call->args.adamw;
    double n = (double)a->n; // reads w, m, v and the gradient; writes w, m, v and the copy
    tell(call, "%lld%s", (long long)a->n, a->copy ? " with copy" : "");
    call->cost = (struct dt_bench_cost){
        .bytes = n * (28 + (a->copy ? 2 : 0)), .flops = n * 14, .lanes = n * ADAMW};
}

static void describe_cast(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_cast_args *a = &call->args.cast;
    tell(call, "%lld %s to %s", (long long)a->n, dt_dtype_name(a->x_type),
         dt_dtype_name(a->y_type));
    call->cost.bytes = (double)a->n * (size_of(a->x_type) + size_of(a->y_type));
}

static void describe_accumulate(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    const struct dt_accumulate_args *a = &call->args.accumulate;
    double n = (double)a->n;
    tell(call, "%lld %s", (long long)a->n, dt_dtype_name(a->x_type));
    call->cost =
        (struct dt_bench_cost){.bytes = n * (8 + size_of(a->x_type)), .flops = n, .lanes = n};
}

static void describe_stamp(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    tell(call, "one");
    call->cost.bytes = sizeof *call->args.stamp.time + 2 * sizeof *call->args.stamp.count;
}

static void describe_spin(const struct dt_bench_rig *rig, struct dt_bench_call *call)
{
    (void)rig;
    static const char *const kinds[] = {"exp", "exp2", "fma"};
    const struct dt_spin_args *a = &call->args.spin;
    double rounds = product(a->n, a->rounds);
    tell(call, "%lld %s, %lld rounds", (long long)a->n, kinds[a->kind], (long long)a->rounds);
    call->cost = (struct dt_bench_cost){.bytes = (double)a->n * 4,
                                        .flops = a->kind == DT_SPIN_FMA ? 2 * rounds : 0,
                                        .lanes = a->kind == DT_SPIN_FMA ? rounds : 0,
                                        .exps = a->kind == DT_SPIN_EXP ? rounds : 0,
                                        .exp2s = a->kind == DT_SPIN_EXP2 ? rounds : 0};
}

#define RUN(op)                                                                                    \
    static dt_status run_##op(const struct dt_backend *backend, const union dt_bench_args *args,   \
                              struct dt_stream *stream)                                            \
    {                                                                                              \
        return dt_##op(backend, &args->op, stream);                                                \
    }
DT_OPS(RUN)

#define ROW(op) [DT_BENCH_##op] = {#op, run_##op, describe_##op},
const struct dt_bench_op dt_bench_op_table[DT_BENCH_OP_COUNT] = {DT_OPS(ROW)};
