// Every wrong argument must be refused with DT_MACHINE before a kernel sees it, with a message that
// names op, argument and value. Each op has valid arguments here. Loops over its rows make one
// argument after another wrong, in every way that its row excludes. Rules between several arguments
// are checked after that.
#include "op_fixture.h"

#include "op_forms.h"

enum { ARRAY_BYTES = 1 << 12, WORKSPACE_MOST = 1 << 22 };

static struct dt_backend backend;
static struct dt_op_table table; // a copy of the CPU's table whose ops only count their calls
static int calls;

#define COUNTED(op)                                                                                \
    static dt_status count_##op(struct dt_device *device, const struct dt_##op##_args *args,       \
                                struct dt_stream *stream)                                          \
    {                                                                                              \
        (void)device, (void)args, (void)stream;                                                    \
        calls++;                                                                                   \
        return DT_OK;                                                                              \
    }
DT_OPS(COUNTED)

// ---- an op and its arguments

struct call {
    const struct op_form *form;
    char args[ARGS_MOST];
    struct dt_op_row rows[FIELDS_MOST];
    int n_rows;
};

static dt_status collect(void *context, const struct dt_op_row *row)
{
    struct call *call = context;
    call->rows[call->n_rows++] = *row;
    return DT_OK;
}

// Gives every optional array memory and its shape.
static dt_status fill(void *context, const struct dt_op_row *row)
{
    static char memory[FIELDS_MOST][ARRAY_BYTES];
    struct call *call = context;
    char *data = memory[call->n_rows++], *field = call->args + row->field.at;
    struct dt_view view = dt_view_of(data, row->rows, row->cols, row->type);
    if (row->kind != DT_ROW_ARRAY || !row->role || row->field.view.data)
        return DT_OK;
    if (row->field.is_view)
        memcpy(field, &view, sizeof view);
    else
        memcpy(field, &data, sizeof data);
    return DT_OK;
}

static void check_refused(const struct call *call, const void *args, const char *name,
                          const char *value)
{
    int before = calls;
    dt_status status = call->form->run(&backend, args, NULL);
    const char *message = status == DT_OK ? "" : dt_error_current()->message;
    CHECK(status == DT_MACHINE && calls == before, "%s with %s %s is taken (status %d)",
          call->form->name, name, value, (int)status);
    CHECK(strstr(message, call->form->name) && strstr(message, name) && strstr(message, value),
          "\"%s\" lacks one of \"%s\", \"%s\", \"%s\"", message, call->form->name, name, value);
    dt_error_clear();
}

// ---- one row at a time

static void spoil(const struct call *call, const char *name, size_t at, const void *value,
                  size_t size, const char *text)
{
    char args[ARGS_MOST];
    memcpy(args, call->args, call->form->size);
    memcpy(args + at, value, size);
    check_refused(call, args, name, text);
}

static void spoil_whole(struct call *call, const struct dt_op_row *row, int64_t value,
                        const char *refusal)
{
    char text[64];
    int32_t small = (int32_t)value;
    snprintf(text, sizeof text, "%lld%s", (long long)value, refusal);
    if (row->field.bytes == sizeof value)
        spoil(call, row->field.name, row->field.at, &value, sizeof value, text);
    else if (row->field.bytes == sizeof small && value >= 0 && value <= INT32_MAX)
        spoil(call, row->field.name, row->field.at, &small, sizeof small, text);
}

static void spoil_number(struct call *call, const struct dt_op_row *row, double value)
{
    char text[64];
    float single = (float)value;
    snprintf(text, sizeof text, "%g", value);
    if (row->field.bytes == sizeof value)
        spoil(call, row->field.name, row->field.at, &value, sizeof value, text);
    else
        spoil(call, row->field.name, row->field.at, &single, sizeof single, text);
}

static void spoil_type(struct call *call, const char *name, size_t at, enum dt_dtype type,
                       const char *text)
{
    spoil(call, name, at, &type, sizeof type, text);
}

// Gives a view another shape, which must be refused unless the expected shape follows from it.
static void spoil_shape(struct call *call, int i, size_t at, const void *value, size_t size,
                        const char *text)
{
    struct call other = *call;
    const struct dt_op_row *is = &call->rows[i], *row = &other.rows[i];
    memcpy(other.args + is->field.at + at, value, size);
    other.n_rows = 0;
    bool visited = other.form->visit(&backend, other.args, collect, &other) == DT_OK;
    dt_error_clear();
    if (visited && row->rows == is->rows && row->cols == is->cols && row->type == is->type)
        check_refused(call, other.args, is->field.name, text);
}

static void spoil_array(struct call *call, int i)
{
    static void *const null;
    const struct dt_op_row *row = &call->rows[i];
    const char *name = row->field.name;
    size_t at = row->field.at, data = row->field.is_view ? offsetof(struct dt_view, data) : 0;
    char text[96];
    if (!(row->role & DT_ROLE_OR_NULL))
        spoil(call, name, at + data, &null, sizeof null, "NULL");
    if (!row->field.is_view)
        return;
    int64_t rows = row->rows + 1, cols = row->cols + 1, stride = row->cols - 1, far = INT64_MAX;
    enum dt_dtype other = row->type == DT_F32 ? DT_BF16 : DT_F32;
    snprintf(text, sizeof text, "[%lld, %lld], must be [%lld, %lld]", (long long)rows,
             (long long)row->cols, (long long)row->rows, (long long)row->cols);
    spoil_shape(call, i, offsetof(struct dt_view, rows), &rows, sizeof rows, text);
    snprintf(text, sizeof text, "[%lld, %lld], must be [%lld, %lld]", (long long)row->rows,
             (long long)cols, (long long)row->rows, (long long)row->cols);
    spoil_shape(call, i, offsetof(struct dt_view, cols), &cols, sizeof cols, text);
    snprintf(text, sizeof text, "%s.stride is %lld", name, (long long)stride);
    spoil(call, name, at + offsetof(struct dt_view, stride), &stride, sizeof stride, text);
    spoil(call, name, at + offsetof(struct dt_view, stride), &far, sizeof far,
          "223372036854775807");
    spoil_type(call, name, at + offsetof(struct dt_view, dtype), DT_F16, "fp16");
    spoil_shape(call, i, offsetof(struct dt_view, dtype), &other, sizeof other,
                dt_dtype_name(other));
}

static void spoil_row(struct call *call, int i)
{
    const struct dt_op_row *row = &call->rows[i];
    const char *name = row->field.name;
    size_t data = row->field.is_view ? offsetof(struct dt_view, data) : 0;
    switch (row->kind) {
    case DT_ROW_RANGE:
        spoil_whole(call, row, row->least - 1, ", not in");
        spoil_whole(call, row, row->most + 1, ", not in");
        spoil_whole(call, row, INT64_MAX, ", not in");
        break;
    case DT_ROW_LENGTH:
        spoil_whole(call, row, row->most + 1, ", at most");
        break;
    case DT_ROW_MULTIPLE:
        CHECK(row->least > 1, "%s: everything is a multiple", call->form->name);
        spoil_whole(call, row, row->value + 1, ", not a multiple of");
        break;
    case DT_ROW_NUMBER:
        spoil_number(call, row, row->from - 1);
        spoil_number(call, row, row->below);
        spoil_number(call, row, (double)NAN);
        break;
    case DT_ROW_TYPE:
        spoil_type(call, name, row->field.at, DT_F16, "fp16");
        spoil_type(call, name, row->field.at, (enum dt_dtype)99, "99");
        break;
    case DT_ROW_ARRAY:
        if (row->role)
            spoil_array(call, i);
        break;
    case DT_ROW_APART:
        spoil(call, name, row->field.at + data, &row->other.view.data, sizeof(void *), "itself");
        break;
    case DT_ROW_IN_PLACE: // checked by hand below
        break;
    }
}

static bool done[N_OPS];

static void check_op(struct call *call, enum op_index op, const void *good)
{
    static char memory[WORKSPACE_MOST];
    static void *const null;
    const struct op_form *form = call->form = &op_forms[op];
    char text[64], *data = memory;
    memcpy(call->args, good, form->size);
    call->n_rows = 0;
    CHECK_OK(form->visit(&backend, call->args, fill, call));
    call->n_rows = 0;
    CHECK_OK(form->visit(&backend, call->args, collect, call));
    int64_t bytes = form->workspace(&backend, call->args), less = bytes - 1;
    CHECK(bytes <= WORKSPACE_MOST, "%s needs a workspace of %lld", form->name, (long long)bytes);
    if (bytes > 0) {
        memcpy(call->args + form->workspace_at, &data, sizeof data);
        memcpy(call->args + form->workspace_bytes_at, &bytes, sizeof bytes);
        snprintf(text, sizeof text, "%lld, %lld are needed", (long long)less, (long long)bytes);
        spoil(call, "workspace", form->workspace_at, &null, sizeof null, "NULL");
        spoil(call, "workspace_bytes", form->workspace_bytes_at, &less, sizeof less, text);
    }
    int before = calls;
    CHECK_OK(form->run(&backend, call->args, NULL));
    CHECK_INT(calls, before + 1);
    for (int i = 0; i < call->n_rows; i++)
        spoil_row(call, i);
    check_refused(call, NULL, "args", "NULL");
    done[op] = true;
}

// ---- the ops

static struct call call; // the last call of CHECK_OP

// Checks an op with valid arguments. Arrays that are not given get memory and the shape of their
// row.
#define CHECK_OP(op, ...) check_op(&call, OP_##op, &(struct dt_##op##_args){__VA_ARGS__})
// Changes one more field; the arguments are then wrong, or still valid.
#define CHANGED(op, field, value)                                                                  \
    struct dt_##op##_args args;                                                                    \
    memcpy(&args, call.args, sizeof args);                                                         \
    args.field = value;
#define REFUSE(op, field, value, name, text)                                                       \
    do {                                                                                           \
        CHANGED(op, field, value)                                                                  \
        check_refused(&call, &args, name, text);                                                   \
    } while (0)
#define CHANGE(op, field, value)                                                                   \
    do {                                                                                           \
        CHANGED(op, field, value)                                                                  \
        memcpy(call.args, &args, sizeof args);                                                     \
        CHECK_OK(dt_##op(&backend, &args, NULL));                                                  \
    } while (0)

static void check_gemm(void)
{
    CHECK_OP(gemm, .a.cols = 4, .c = {.rows = 2, .cols = 3}, .batch = 2, .c_step = 6);
    REFUSE(gemm, c_step, 0, "c_step", "0");
    CHANGE(gemm, batch, 0);
    REFUSE(gemm, a.cols, 0, "k", "0");
    REFUSE(gemm, b.dtype, DT_BF16, "b.dtype", "bf16");
    REFUSE(gemm, c.dtype, DT_BF16, "c.dtype", "bf16");
    REFUSE(gemm, trans_b, true, "b", "[4, 3], must be [3, 4]");
    REFUSE(gemm, trans_a, true, "a", "[2, 4], must be [2, 2]");
}

static void check_int8(void)
{
    CHECK_OP(gemm, .a = {.cols = 16, .dtype = DT_I8}, .b.dtype = DT_I8, .trans_b = true,
             .c = {.rows = 2, .cols = 2});
    REFUSE(gemm, trans_a, true, "trans_a", "1");
    REFUSE(gemm, a_scale, NULL, "a_scale", "NULL");
    REFUSE(gemm, b_scale, NULL, "b_scale", "NULL");
    REFUSE(gemm, trans_b, false, "trans_b", "0");
    REFUSE(gemm, accumulate, true, "accumulate", "1");
    REFUSE(gemm, a.cols, DT_GEMM_INT8_K + 1, "k", "131073");
    table.int8 = false;
    REFUSE(gemm, batch, 0, "a.dtype", "int8");
    table.int8 = true;
}

static void check_heads(void)
{
    CHECK_OP(embed_forward, .ids.rows = 2, .table = {.rows = 4, .cols = 4});
    CHECK_OP(embed_backward, .width = 4, .vocab = 4, .ids.rows = 2);
    CHECK_OP(xent, .vocab = 3, .logits = {.rows = 2, .cols = 4});
    CHANGE(xent, dlogits, args.logits);
    REFUSE(xent, dlogits.stride, 5, "dlogits", "the strides 5 and 4");
    REFUSE(xent, dlogits.dtype, DT_BF16, "dlogits", "bf16");
    CHECK_OP(policy_loss, .n = 2,
             .outputs = {{DT_OUTPUT_CATEGORICAL, 0, 2, 0, 1, 1, 0, 1, 0},
                         {DT_OUTPUT_BERNOULLI, 2, 2, 1, 2, 1, 0, 1, 0}},
             .logits = {.rows = 2, .cols = 4}, .targets.cols = 3);
    REFUSE(policy_loss, outputs[1].first, 1, "outputs.first", "1"); // inside the first output
    REFUSE(policy_loss, deviation, NULL, "deviation", "NULL"); // required by an output with a mean
    CHECK_OP(policy_loss, .n = 1,
             .outputs = {{.kind = DT_OUTPUT_QUANTILE,
                          .width = 4,
                          .columns = 2,
                          .parts = 2,
                          .levels = {0.25f, 0.5f}}},
             .logits = {.rows = 2, .cols = 4}, .targets.cols = 2);
    CHECK_OP(decode_outputs, .n = 1,
             .outputs = {{.kind = DT_OUTPUT_GMM, .width = 5, .columns = 2, .parts = 1}},
             .targets = 2, .z = {.rows = 2, .cols = 5});
    CHECK_OP(encode_targets, .n = 1, .outputs = {{DT_OUTPUT_REGRESSION, 1, 2, 0, 2, 1, 0, 0, 0}},
             .targets.cols = 2, .out = {.rows = 2, .cols = 3});
}

static void check_pools(void)
{
    CHECK_OP(pool_forward, .pool = DT_POOL_MEAN, .length = 2, .h = {.rows = 4, .cols = 3});
    REFUSE(pool_forward, pool, DT_POOL_NONE, "pool", "0");
    REFUSE(pool_forward, length, 3, "h.rows", "4");
    REFUSE(pool_forward, before_count, NULL, "before_count", "NULL");
    REFUSE(pool_forward, after_count, NULL, "after_count", "NULL");
    CHECK_OP(pool_backward, .pool = DT_POOL_MAX, .length = 2, .h = {.rows = 4, .cols = 3});
    CHECK_OP(pool_targets, .n = 1, .length = 2, .outputs = {{0, 2}},
             .targets = {.rows = 4, .cols = 2});
    REFUSE(pool_targets, weights_out.data, NULL, "weights_out", "NULL");
    CHECK_OP(reverse_resets, .batch = 2, .window = 5, .first = 1, .length = 3);
    CHECK_OP(reverse_rows, .length = 2, .x = {.rows = 4, .cols = 3});
    REFUSE(reverse_rows, length, 3, "x.rows", "4");
}

static void check_norms(void)
{
    CHECK_OP(rmsnorm_residual_forward, .y = {.rows = 2, .cols = 4});
    CHANGE(rmsnorm_residual_forward, eps, 1.0f); // the largest value that the keys allow
    CHECK_OP(rmsnorm_residual_backward, .dy = {.rows = 2, .cols = 4});
    CHECK_OP(gated_rmsnorm_forward, .groups = 2, .x = {.rows = 2, .cols = 4});
    CHANGE(gated_rmsnorm_forward, eps, 1.0f);
    CHECK_OP(gated_rmsnorm_backward, .groups = 2, .x = {.rows = 2, .cols = 4});
    CHECK_OP(rmsnorm_forward, .groups = 2, .x = {.rows = 2, .cols = 4});
    CHECK_OP(rmsnorm_backward, .groups = 2, .n = {.rows = 2, .cols = 4});
    CHECK_OP(normalize, .x = {.rows = 2, .cols = 4});
    CHANGE(normalize, x.dtype, DT_U8);
    CHECK_OP(silu_gate_forward, .x = {.rows = 2, .cols = 4});
    CHECK_OP(silu_gate_backward, .x = {.rows = 2, .cols = 4});
    REFUSE(silu_gate_backward, du.data, NULL, "du", "NULL");
    CHECK_OP(bias_forward, .y = {.rows = 2, .cols = 4});
    CHECK_OP(bias_backward, .dy = {.rows = 2, .cols = 4});
}

static void check_mixers(void)
{
    const struct dt_conv1d_silu_inputs conv = {.batch = 1, .length = 2, .taps = 4, .x.cols = 4};
    CHECK_OP(conv1d_silu_forward, .in = conv);
    REFUSE(conv1d_silu_forward, in.taps, 1, "x0", "no rows");
    CHECK_OP(conv1d_silu_backward, .in = conv);

    const struct dt_scan_inputs scan = {
        .batch = 1, .length = 2, .chunk = 2, .u.cols = 4, .b.cols = 2};
    CHECK_OP(scan_forward, .in = scan);
    REFUSE(scan_forward, in.batch, (int64_t)1 << 31, "M = B * L", "4294967296");
    REFUSE(scan_forward, s, NULL, "s", "NULL");
    CHECK_OP(scan_backward, .in = scan);
    REFUSE(scan_backward, s, NULL, "s", "NULL");

    const struct dt_ssd_inputs ssd = {.batch = 1,
                                      .length = 2,
                                      .heads = 4,
                                      .groups = 2,
                                      .chunk = 2,
                                      .dt_max = INFINITY,
                                      .x.cols = 12,
                                      .b.cols = 6};
    CHECK_OP(ssd_forward, .in = ssd);
    REFUSE(ssd_forward, in.dt_max, -1.0f, "in.dt_max", "less than in.dt_min");
    CHANGE(ssd_forward, in.chunk, DT_SSD_CHUNK_MAX + 1); // more than there are positions
    REFUSE(ssd_forward, in.length, DT_SSD_CHUNK_MAX + 1, "tokens = ", "1025");
    CHECK_OP(ssd_backward, .in = ssd);

    const struct dt_attention_inputs attention = {.batch = 1,
                                                  .length = 2,
                                                  .n_head = 4,
                                                  .n_kv_head = 2,
                                                  .width = 4,
                                                  .window = 2,
                                                  .rope_base = 10000};
    CHECK_OP(attention_forward, .in = attention);
    REFUSE(attention_forward, in.window, 1, "in.k0", "no rows");
    REFUSE(attention_forward, in.both, true, "in.k0", "no rows");
    REFUSE(attention_forward, in.v0, NULL, "in.v0", "NULL");
    REFUSE(attention_forward, in.count0, NULL, "in.count0", "NULL");
    REFUSE(attention_forward, v_last, NULL, "v_last", "NULL");
    REFUSE(attention_forward, count_last, NULL, "count_last", "NULL");
    CHECK_OP(attention_backward, .in = attention);

    for (enum dt_rnn_cell cell = DT_RNN_GRU; cell <= DT_RNN_LSTM; cell++) {
        const struct dt_rnn_inputs rnn = {.cell = cell, .batch = 1, .length = 2, .w_hh.cols = 3};
        CHECK_OP(rnn_forward, .in = rnn);
        if (cell == DT_RNN_LSTM) {
            REFUSE(rnn_forward, cells.data, NULL, "cells", "NULL");
            REFUSE(rnn_forward, h_last, NULL, "h_last", "NULL");
            REFUSE(rnn_forward, c_last, NULL, "c_last", "NULL");
        }
        CHECK_OP(rnn_backward, .in = rnn);
        if (cell == DT_RNN_GRU)
            REFUSE(rnn_backward, dp.data, NULL, "dp", "NULL");
    }
}

static void check_flat(void)
{
    CHECK_OP(update_control, .expected = 1.0);
    REFUSE(update_control, expected, 0.0, "expected", "0");
    CHECK_OP(adamw, .n = 4, .n_spans = 1);
    CHANGE(adamw, eps, 1.0f);
    for (enum dt_muon part = DT_MUON_MOMENTUM; part <= DT_MUON_APPLY; part++)
        CHECK_OP(muon, .n = 4, .side = part == DT_MUON_POLYNOMIAL ? 2 : 1, .part = part);
    CHECK_OP(commit, .bytes = 16);
    for (enum dt_squares part = DT_SQUARES; part <= DT_SQUARES_TOTAL; part++)
        CHECK_OP(sum_squares, .n = 4, .part = part);
    CHECK_OP(checksum, .n = 4);
    CHECK_OP(cast, .n = 4);
    CHANGE(cast, n, (int64_t)1 << 40); // flat arrays have no stride that could overflow
    CHECK_OP(quantize, .x = {.rows = 2, .cols = 4});
    CHECK_OP(quantize, .x = {.rows = 2, .cols = 4}, .y.dtype = DT_I8);
    REFUSE(quantize, scale, NULL, "scale", "NULL");
    CHECK_OP(accumulate, .n = 4);
    CHANGE(accumulate, x_type, DT_F64);
    CHECK_OP(spin, .n = 4);
    CHECK_OP(stamp, .time = NULL);
}

static void check_dispatch(void)
{
    struct dt_op_table few = {.name = "few"};
    struct dt_device_table named = {.name = "few"};
    struct dt_backend poor = {.table = &named, .op = &few};
    struct dt_cast_args args = {0};
    CHECK_FAILS(dt_cast(&poor, &args, NULL), DT_MACHINE, "the few backend has no cast");
    CHECK_INT(dt_cast_workspace(&poor, &args), 0);
    CHECK_FAILS(dt_backend_open("cuda7", 0, 1, &poor), DT_USER, "cuda7");
}

int main(void)
{
    struct dt_backend cpu = open_cpu(1);
    table = *cpu.op;
    table.scan_keeps_s = true;
#define COUNTING(name) table.name = count_##name;
    DT_OPS(COUNTING)
    backend = cpu;
    backend.op = &table;
    RUN(check_gemm, check_int8, check_heads, check_pools, check_norms, check_mixers, check_flat,
        check_dispatch);
    for (int op = 0; op < N_OPS; op++)
        CHECK(done[op], "nothing checks %s", op_forms[op].name);
    dt_backend_close(&cpu);
    return test_end();
}
