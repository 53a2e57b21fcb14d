// Which ops a training step calls: the step runs with a table of ops that records each call before
// it forwards it, so the benchmark has the model's own shapes and arrays.
#include "bench/ops.h"

#include <stdio.h>
#include <string.h>

enum { SPIN_ROUNDS = 16 };

#define RUN(op)                                                                                    \
    static dt_status run_##op(const struct dt_backend *backend, const union dt_bench_args *args,   \
                              struct dt_stream *stream)                                            \
    {                                                                                              \
        return dt_##op(backend, &args->op, stream);                                                \
    }                                                                                              \
    static struct dt_op_cost cost_##op(const struct dt_backend *backend,                           \
                                       const union dt_bench_args *args)                            \
    {                                                                                              \
        return dt_##op##_cost(backend, &args->op);                                                 \
    }
DT_OPS(RUN)

#define ROW(op) [DT_BENCH_##op] = {#op, run_##op, cost_##op},
const struct dt_bench_op dt_bench_op_table[DT_BENCH_OP_COUNT] = {DT_OPS(ROW)};

dt_status dt_bench_run_call(const void *what, struct dt_stream *stream)
{
    const struct dt_bench_call *call = what;
    return dt_bench_op_table[call->op].run(call->backend, &call->args, stream);
}

// The ops have no context of their own, so there is one recording at a time.
static struct {
    const struct dt_op_table *below;
    const struct dt_bench_rig *rig;
    struct dt_bench_calls *calls; // NULL: calls are passed on and not noted
    bool in_step;
} recording;

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
    const void *bf16 = dt_model_weights_bf16(rig->model);
    const void *weights = bf16 ? bf16 : dt_model_weights(rig->model);
    const void *gradients = dt_model_gradients(rig->model);
    int64_t element = a->trans_a ? element_of(params, gradients, a->c.dtype, a->c.data)
                                 : element_of(params, weights, a->b.dtype, a->b.data);
    matrix_name(params, element, name, size);
}

static dt_status note(enum dt_bench_op_index op, const union dt_bench_args *args)
{
    struct dt_bench_calls *calls = recording.calls;
    if (!calls)
        return DT_OK;
    if (calls->n == (int64_t)(sizeof calls->at / sizeof *calls->at))
        return DT_FAIL(DT_MACHINE, NULL, "a step makes more than %lld distinct op calls",
                       (long long)calls->n);
    struct dt_bench_call *call = &calls->at[calls->n], *seen = calls->at;
    const struct dt_backend *backend = &recording.rig->backend;
    struct dt_op_cost cost = dt_bench_op_table[op].cost(backend, args);
    *call = (struct dt_bench_call){.backend = backend, .op = op, .args = *args, .cost = cost};
    char layer[DT_PARAM_NAME] = "";
    if (op == DT_BENCH_gemm)
        linear_name(recording.rig, &args->gemm, layer, sizeof layer);
    snprintf(call->shape, sizeof call->shape, "%.12s%s%s", layer, layer[0] ? " " : "", cost.shape);
    while (seen->op != op || strcmp(seen->shape, call->shape) != 0)
        seen++;
    calls->n += seen == call;
    seen->count += recording.in_step;
    return DT_OK;
}

#define RECORD(op)                                                                                 \
    static dt_status record_##op(struct dt_device *device, const struct dt_##op##_args *args,      \
                                 struct dt_stream *stream)                                         \
    {                                                                                              \
        union dt_bench_args any = {.op = *args};                                                   \
        DT_TRY(note(DT_BENCH_##op, &any));                                                         \
        return recording.below->op(device, args, stream);                                          \
    }
DT_OPS(RECORD)

static const struct dt_op_table *wrap(const struct dt_op_table *below)
{
    static struct dt_op_table table;
    recording.below = below;
    table = *below;
#define WRAP(op)                                                                                   \
    if (below->op)                                                                                 \
        table.op = record_##op;
    DT_OPS(WRAP)
#undef WRAP
    return &table;
}

// Ops that a step of one process makes no call of, at the size of all weights.
static dt_status call_the_rest(const struct dt_bench_rig *rig)
{
    const struct dt_backend *backend = &rig->backend;
    int64_t n = dt_model_params(rig->model)->elements;
    struct dt_cast_args cast = {.n = n,
                                .x = dt_model_weights(rig->model),
                                .x_type = DT_F32,
                                .y = rig->spare,
                                .y_type = DT_BF16};
    struct dt_accumulate_args accumulate = {.n = n,
                                            .x = dt_model_weights(rig->model),
                                            .x_type = DT_F32,
                                            .y = dt_model_gradients(rig->model)};
    struct dt_quantize_args quantize = {
        .x = dt_view_of(dt_model_weights(rig->model), n / 64, 64, DT_F32),
        .y = dt_view_of(dt_model_gradients(rig->model), n / 64, 64, DT_F32)};
    DT_TRY(dt_quantize(backend, &quantize, NULL));
    DT_TRY(dt_cast(backend, &cast, NULL));
    DT_TRY(dt_accumulate(backend, &accumulate, NULL));
    struct dt_commit_args commit = {.bytes = 2 * n, // at most, in the spare memory
                                    .from = dt_model_weights(rig->model),
                                    .to = rig->spare,
                                    .control = dt_stepper_optimizer(rig->stepper)->control};
    DT_TRY(dt_commit(backend, &commit, NULL));
    struct dt_checksum_args checksum = {
        .n = n, .x = dt_model_weights(rig->model), .sum = (uint64_t *)(void *)rig->spare};
    checksum.workspace_bytes = dt_checksum_workspace(backend, &checksum);
    checksum.workspace = checksum.sum + 1;
    DT_TRY(dt_checksum(backend, &checksum, NULL));
    struct dt_spin_args spin = {.kind = DT_SPIN_EXP2,
                                .n = n / 2, // as many floats as there are bf16 elements
                                .rounds = SPIN_ROUNDS,
                                .y = (float *)(void *)rig->spare};
    return dt_spin(backend, &spin, NULL);
}

static dt_status record(struct dt_bench_rig *rig, struct dt_bench_calls *calls)
{
    struct dt_step_result result;
    recording.rig = rig;
    recording.calls = calls;
    recording.in_step = true;
    dt_status status = dt_bench_rig_launch(rig);
    if (status == DT_OK)
        status = dt_stepper_collect(rig->stepper, &result);
    recording.in_step = false;
    if (status == DT_OK)
        status = call_the_rest(rig);
    recording.calls = NULL;
    return status;
}

dt_status dt_bench_record(const struct dt_bench_options *options, struct dt_bench_rig *rig,
                          struct dt_bench_calls *calls)
{
    // A graph's launch makes no calls: without graphs every call of the step is noted.
    struct dt_bench_options plain = *options;
    plain.cuda_graph = DT_TOGGLE_FALSE;
    calls->n = 0;
    DT_TRY(dt_bench_rig_open(&plain, wrap, rig));
    dt_status status = record(rig, calls);
    rig->backend.op = recording.below;
    if (status != DT_OK)
        dt_bench_rig_close(rig);
    return status;
}
