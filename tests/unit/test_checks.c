// Every wrong argument is refused with DT_MACHINE before a kernel sees it, and the message names
// op, argument and value. A good set of arguments stands first; each case spoils one field of it.
#include "op_fixture.h"

static float memory[64];
static int32_t numbers[16];
static struct dt_backend backend;

static void check_refused(dt_status status, const char *op, const char *argument, const char *value)
{
    const char *message = status == DT_OK ? "" : dt_error_current()->message;
    CHECK(status == DT_MACHINE, "%s with %s %s is taken (status %d)", op, argument, value,
          (int)status);
    CHECK(strstr(message, op) && strstr(message, argument) && strstr(message, value),
          "\"%s\" lacks one of \"%s\", \"%s\", \"%s\"", message, op, argument, value);
    dt_error_clear();
}

// Runs op on `good` with one field spoilt.
#define REFUSE_AS(op, name, field, spoilt, value)                                                  \
    do {                                                                                           \
        struct dt_##op##_args args = good;                                                         \
        args.field = spoilt;                                                                       \
        check_refused(dt_##op(&backend, &args, NULL), #op, name, value);                           \
    } while (0)

#define REFUSE(op, field, spoilt, value) REFUSE_AS(op, #field, field, spoilt, value)
#define REFUSE_NULL(op, field)           REFUSE(op, field, NULL, "NULL")

// Each wrong thing about one view.
#define REFUSE_VIEW(op, view)                                                                      \
    do {                                                                                           \
        REFUSE_AS(op, #view, view.data, NULL, "NULL");                                             \
        REFUSE_AS(op, #view, view.rows, 1, "[1, ");                                                \
        REFUSE_AS(op, #view, view.cols, 3, ", 3]");                                                \
        REFUSE(op, view.stride, 1, "1");                                                           \
        REFUSE_AS(op, #view, view.dtype, DT_F16, "fp16");                                          \
        REFUSE_AS(op, #view, view.dtype, DT_BF16, "bf16");                                         \
    } while (0)

static void test_gemm(void)
{
    static char workspace[1 << 20];
    struct dt_gemm_args good = {.a = dt_view_of(memory, 2, 4, DT_F32),
                                .b = dt_view_of(memory + 16, 4, 3, DT_F32),
                                .c = dt_view_of(memory + 32, 2, 3, DT_F32),
                                .workspace = workspace,
                                .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_gemm(&backend, &good, NULL));
    REFUSE(gemm, c.rows, -1, "-1");
    REFUSE(gemm, c.cols, 0, "0");
    REFUSE(gemm, c.rows, INT64_MAX, "9223372036854775807");
    REFUSE_AS(gemm, "b", b.rows, 5, "[5, 3], must be [4, 3]");
    REFUSE_AS(gemm, "a", a.rows, 1, "[1, 4], must be [2, 4]");
    REFUSE(gemm, a.stride, 3, "3");
    REFUSE(gemm, b.stride, 2, "2");
    REFUSE(gemm, c.stride, -3, "-3");
    REFUSE(gemm, c.stride, INT64_MAX, "9223372036854775807");
    REFUSE(gemm, a.dtype, DT_F16, "fp16");
    REFUSE(gemm, b.dtype, DT_BF16, "bf16");
    REFUSE(gemm, c.dtype, DT_BF16, "bf16");
    REFUSE(gemm, c.dtype, (dt_dtype)99, "99");
    good.trans_b = true; // stored [n, k]
    REFUSE_AS(gemm, "b", b.rows, 4, "[4, 3], must be [3, 4]");
    good.trans_b = false;
    REFUSE_AS(gemm, "a", a.data, NULL, "NULL");
    REFUSE_AS(gemm, "b", b.data, NULL, "NULL");
    REFUSE_AS(gemm, "c", c.data, NULL, "NULL");
    REFUSE(gemm, c.data, memory, "itself");
    REFUSE(gemm, c.data, memory + 16, "itself");
    REFUSE_NULL(gemm, workspace);
    REFUSE(gemm, workspace_bytes, 1, "1");
    REFUSE_AS(gemm, "k", a.cols, 0, "0");
    REFUSE(gemm, batch, DT_GEMM_BATCH_MAX + 1, "65536");
    good.batch = 2, good.a_step = 8, good.c_step = 6; // one B for both
    CHECK_OK(dt_gemm(&backend, &good, NULL));
    REFUSE(gemm, a_step, -1, "-1");
    REFUSE(gemm, b_step, -1, "-1");
    REFUSE(gemm, c_step, 0, "0");
}

// A backend whose gemm does not multiply int8 never gets it.
static void test_gemm_without_int8(void)
{
    static const int8_t bytes[64];
    static const float scales[4] = {1, 1, 1, 1};
    static char workspace[1 << 20];
    const struct dt_op_table *whole = backend.op;
    struct dt_op_table table = *whole;
    struct dt_gemm_args args = {.a = dt_view_of((void *)bytes, 2, 16, DT_I8),
                                .b = dt_view_of((void *)(bytes + 32), 2, 16, DT_I8),
                                .c = dt_view_of(memory, 2, 2, DT_F32),
                                .trans_b = true,
                                .a_scale = scales,
                                .b_scale = scales,
                                .workspace = workspace,
                                .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_gemm(&backend, &args, NULL));
    table.int8 = false;
    backend.op = &table;
    check_refused(dt_gemm(&backend, &args, NULL), "gemm", "a.dtype", "int8");
    backend.op = whole;
}

static void test_embed(void)
{
    static int64_t workspace[32];
    {
        struct dt_embed_forward_args good = {.rows = 2,
                                             .width = 4,
                                             .vocab = 4,
                                             .ids = numbers,
                                             .ids_stride = 1,
                                             .table = memory,
                                             .out = memory + 32};
        CHECK_OK(dt_embed_forward(&backend, &good, NULL));
        REFUSE(embed_forward, rows, -2, "-2");
        REFUSE(embed_forward, width, 0, "0");
        REFUSE(embed_forward, vocab, -1, "-1");
        REFUSE(embed_forward, dtype, DT_I32, "int32");
        REFUSE(embed_forward, ids_stride, 0, "0");
        REFUSE_NULL(embed_forward, ids);
        REFUSE_NULL(embed_forward, table);
        REFUSE_NULL(embed_forward, out);
    }
    struct dt_embed_backward_args good = {.rows = 2,
                                          .width = 4,
                                          .vocab = 4,
                                          .ids = numbers,
                                          .ids_stride = 1,
                                          .dout = memory,
                                          .dtable = memory + 32,
                                          .workspace = workspace,
                                          .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_embed_backward(&backend, &good, NULL));
    REFUSE(embed_backward, rows, 0, "0");
    REFUSE(embed_backward, width, -4, "-4");
    REFUSE(embed_backward, vocab, 0, "0");
    REFUSE(embed_backward, ids_stride, -1, "-1");
    REFUSE_NULL(embed_backward, ids);
    REFUSE_NULL(embed_backward, dout);
    REFUSE_NULL(embed_backward, dtable);
    REFUSE_NULL(embed_backward, workspace);
    REFUSE(embed_backward, workspace_bytes, 55, "55"); // 4 + 1 + 2 offsets are 56 bytes
}

static void test_rmsnorm(void)
{
    static float workspace[64];
    {
        struct dt_rmsnorm_residual_forward_args good = {.rows = 2,
                                                        .width = 4,
                                                        .eps = 1e-5f,
                                                        .residual = memory,
                                                        .x = memory + 8,
                                                        .x_stride = 4,
                                                        .weight = memory + 16,
                                                        .y = memory + 32,
                                                        .y_stride = 4};
        CHECK_OK(dt_rmsnorm_residual_forward(&backend, &good, NULL));
        REFUSE(rmsnorm_residual_forward, rows, 0, "0");
        REFUSE(rmsnorm_residual_forward, width, -4, "-4");
        REFUSE(rmsnorm_residual_forward, dtype, DT_U8, "uint8");
        REFUSE(rmsnorm_residual_forward, eps, -1.0f, "-1");
        REFUSE(rmsnorm_residual_forward, eps, 2.0f, "2");
        good.eps = 1.0f; // the largest that the keys allow
        CHECK_OK(dt_rmsnorm_residual_forward(&backend, &good, NULL));
        REFUSE(rmsnorm_residual_forward, eps, NAN, "nan");
        REFUSE(rmsnorm_residual_forward, x_stride, 3, "3");
        REFUSE(rmsnorm_residual_forward, y_stride, 0, "0");
        REFUSE(rmsnorm_residual_forward, y, memory + 8, "itself");
        REFUSE_NULL(rmsnorm_residual_forward, residual);
        REFUSE_NULL(rmsnorm_residual_forward, weight);
        REFUSE_NULL(rmsnorm_residual_forward, y);
    }
    struct dt_rmsnorm_residual_backward_args good = {.rows = 2,
                                                     .width = 4,
                                                     .dy = memory,
                                                     .dy_stride = 4,
                                                     .residual = memory + 8,
                                                     .rstd = memory + 16,
                                                     .weight = memory + 20,
                                                     .dresidual = memory + 24,
                                                     .dx = memory + 32,
                                                     .dx_stride = 4,
                                                     .dweight = memory + 40,
                                                     .workspace = workspace,
                                                     .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_rmsnorm_residual_backward(&backend, &good, NULL));
    REFUSE(rmsnorm_residual_backward, rows, -1, "-1");
    REFUSE(rmsnorm_residual_backward, width, 0, "0");
    REFUSE(rmsnorm_residual_backward, dtype, DT_F64, "fp64");
    REFUSE(rmsnorm_residual_backward, dy_stride, 3, "3");
    REFUSE(rmsnorm_residual_backward, dx_stride, 1, "1");
    REFUSE(rmsnorm_residual_backward, workspace_bytes, 15, "15");
    REFUSE_NULL(rmsnorm_residual_backward, dy);
    REFUSE_NULL(rmsnorm_residual_backward, residual);
    REFUSE_NULL(rmsnorm_residual_backward, rstd);
    REFUSE_NULL(rmsnorm_residual_backward, weight);
    REFUSE_NULL(rmsnorm_residual_backward, dresidual);
    REFUSE_NULL(rmsnorm_residual_backward, dweight);
    REFUSE_NULL(rmsnorm_residual_backward, workspace);
}

// The kernel is never reached in these two: every case is refused.
static void test_conv(void)
{
    struct dt_view x = dt_view_of(memory, 2, 4, DT_F32), y = dt_view_of(memory + 8, 2, 4, DT_F32);
    struct dt_conv1d_silu_inputs in = {
        .batch = 1, .length = 2, .taps = 4, .x = x, .weight = memory, .bias = memory};
    {
        struct dt_conv1d_silu_forward_args good = {.in = in, .y = y};
        REFUSE(conv1d_silu_forward, in.batch, 0, "0");
        REFUSE(conv1d_silu_forward, in.length, -1, "-1");
        REFUSE(conv1d_silu_forward, in.x.cols, -4, "-4");
        REFUSE(conv1d_silu_forward, in.taps, 9, "9");
        REFUSE(conv1d_silu_forward, in.taps, 0, "0");
        REFUSE(conv1d_silu_forward, in.x.dtype, DT_F16, "fp16");
        REFUSE_AS(conv1d_silu_forward, "in.x", in.x.rows, 3, "[3, 4], must be [2, 4]");
        REFUSE(conv1d_silu_forward, in.x.stride, 3, "3");
        REFUSE_AS(conv1d_silu_forward, "in.x", in.x.data, NULL, "NULL");
        REFUSE_NULL(conv1d_silu_forward, in.weight);
        REFUSE_NULL(conv1d_silu_forward, in.bias);
        REFUSE_VIEW(conv1d_silu_forward, y);
        REFUSE(conv1d_silu_forward, y.data, memory, "itself");
        good.in.x0 = memory + 16;
        REFUSE(conv1d_silu_forward, x_last, memory + 16, "itself");
        REFUSE(conv1d_silu_forward, in.taps, 1, "x0");
    }
    struct dt_conv1d_silu_backward_args good = {.in = in,
                                                .dy = y,
                                                .dx = dt_view_of(memory + 16, 2, 4, DT_F32),
                                                .dweight = memory + 24,
                                                .dbias = memory + 40};
    REFUSE(conv1d_silu_backward, in.batch, 0, "0");
    REFUSE(conv1d_silu_backward, in.taps, 9, "9");
    REFUSE_VIEW(conv1d_silu_backward, dy);
    REFUSE_VIEW(conv1d_silu_backward, dx);
    REFUSE(conv1d_silu_backward, dx.data, memory + 8, "itself");
    REFUSE(conv1d_silu_backward, dx.data, memory, "itself");
    REFUSE_NULL(conv1d_silu_backward, dweight);
    REFUSE_NULL(conv1d_silu_backward, dbias);
    REFUSE_NULL(conv1d_silu_backward, workspace);
}

static void test_scan(void)
{
    struct dt_view wide = dt_view_of(memory, 2, 4, DT_F32),
                   narrow = dt_view_of(memory, 2, 2, DT_F32);
    struct dt_scan_inputs in = {.batch = 1,
                                .length = 2,
                                .chunk = 2,
                                .u = wide,
                                .delta = wide,
                                .z = wide,
                                .b = narrow,
                                .c = narrow,
                                .a_log = memory,
                                .d_skip = memory,
                                .dt_bias = memory};
    {
        struct dt_scan_forward_args good = {.in = in, .y = dt_view_of(memory + 32, 2, 4, DT_F32)};
        REFUSE(scan_forward, in.batch, 0, "0");
        REFUSE(scan_forward, in.length, -2, "-2");
        REFUSE(scan_forward, in.length, INT64_C(1) << 29, "at most 536870911 tokens of fp32");
        REFUSE(scan_forward, in.u.cols, 0, "0");
        REFUSE(scan_forward, in.b.cols, 257, "257");
        REFUSE(scan_forward, in.b.cols, 0, "0");
        REFUSE(scan_forward, in.chunk, 0, "0");
        REFUSE(scan_forward, in.u.dtype, DT_F16, "fp16");
        REFUSE_AS(scan_forward, "in.u", in.u.rows, 1, "[1, 4], must be [2, 4]");
        REFUSE(scan_forward, in.u.stride, 3, "3");
        REFUSE_AS(scan_forward, "in.u", in.u.data, NULL, "NULL");
        REFUSE_VIEW(scan_forward, in.delta);
        REFUSE_VIEW(scan_forward, in.z);
        REFUSE(scan_forward, in.b.stride, 1, "1");
        REFUSE_AS(scan_forward, "in.b", in.b.data, NULL, "NULL");
        REFUSE_VIEW(scan_forward, in.c);
        REFUSE_VIEW(scan_forward, y);
        REFUSE_NULL(scan_forward, in.a_log);
        REFUSE_NULL(scan_forward, in.d_skip);
        REFUSE_NULL(scan_forward, in.dt_bias);
    }
    struct dt_scan_backward_args good = {.in = in,
                                         .states = memory,
                                         .dy = wide,
                                         .du = wide,
                                         .ddelta = wide,
                                         .dz = wide,
                                         .db = narrow,
                                         .dc = narrow,
                                         .da_log = memory,
                                         .dd_skip = memory,
                                         .ddt_bias = memory};
    REFUSE(scan_backward, in.chunk, -1, "-1");
    REFUSE_NULL(scan_backward, states);
    REFUSE_VIEW(scan_backward, dy);
    REFUSE_VIEW(scan_backward, du);
    REFUSE_VIEW(scan_backward, ddelta);
    REFUSE_VIEW(scan_backward, dz);
    REFUSE_VIEW(scan_backward, db);
    REFUSE_VIEW(scan_backward, dc);
    REFUSE_NULL(scan_backward, da_log);
    REFUSE_NULL(scan_backward, dd_skip);
    REFUSE_NULL(scan_backward, ddt_bias);
    REFUSE_NULL(scan_backward, workspace);
}

static void test_ssd(void)
{
    struct dt_view wide = dt_view_of(memory, 2, 12, DT_F32),
                   steps = dt_view_of(memory, 2, 2, DT_F32),
                   narrow = dt_view_of(memory, 2, 6, DT_F32);
    struct dt_ssd_inputs in = {.batch = 1,
                               .length = 2,
                               .heads = 2,
                               .groups = 2,
                               .chunk = 2,
                               .dt_max = INFINITY,
                               .x = wide,
                               .dt = steps,
                               .b = narrow,
                               .c = narrow,
                               .a_log = memory,
                               .d_skip = memory,
                               .dt_bias = memory};
    {
        struct dt_ssd_forward_args good = {.in = in, .y = dt_view_of(memory + 32, 2, 12, DT_F32)};
        REFUSE(ssd_forward, in.batch, 0, "0");
        REFUSE(ssd_forward, in.chunk, 0, "0");
        REFUSE(ssd_forward, in.length, INT64_C(1) << 29, "at most 536870911 tokens of fp32");
        REFUSE(ssd_forward, in.groups, 3, "3");
        REFUSE_AS(ssd_forward, "5 heads", in.heads, 5, "do not divide");
        REFUSE_AS(ssd_forward, "P", in.x.cols, 2 * (DT_SSD_HEAD_MAX + 1), "257");
        REFUSE_AS(ssd_forward, "N", in.b.cols, 2 * (DT_SSD_STATES_MAX + 1), "257");
        REFUSE(ssd_forward, in.dt_min, -1.0f, "-1");
        REFUSE(ssd_forward, in.dt_max, -1.0f, "less than in.dt_min");
        REFUSE(ssd_forward, in.x.dtype, DT_F16, "fp16");
        REFUSE_AS(ssd_forward, "in.x", in.x.data, NULL, "NULL");
        REFUSE_VIEW(ssd_forward, in.dt);
        REFUSE_VIEW(ssd_forward, in.c);
        REFUSE_VIEW(ssd_forward, y);
        REFUSE_NULL(ssd_forward, in.a_log);
        REFUSE_NULL(ssd_forward, in.d_skip);
        REFUSE_NULL(ssd_forward, in.dt_bias);
        REFUSE_NULL(ssd_forward, workspace);
    }
    struct dt_ssd_backward_args good = {.in = in,
                                        .states = memory,
                                        .dy = wide,
                                        .dx = dt_view_of(memory + 32, 2, 12, DT_F32),
                                        .ddt = steps,
                                        .db = narrow,
                                        .dc = narrow,
                                        .da_log = memory,
                                        .dd_skip = memory,
                                        .ddt_bias = memory};
    REFUSE_NULL(ssd_backward, states);
    REFUSE_VIEW(ssd_backward, dy);
    REFUSE_VIEW(ssd_backward, dx);
    REFUSE(ssd_backward, dx.data, memory, "itself");
    REFUSE_VIEW(ssd_backward, ddt);
    REFUSE_VIEW(ssd_backward, db);
    REFUSE_VIEW(ssd_backward, dc);
    REFUSE_NULL(ssd_backward, da_log);
    REFUSE_NULL(ssd_backward, dd_skip);
    REFUSE_NULL(ssd_backward, ddt_bias);
    REFUSE_NULL(ssd_backward, workspace);
}

static void test_gated_rmsnorm(void)
{
    struct dt_view view = dt_view_of(memory, 2, 4, DT_F32);
    {
        struct dt_gated_rmsnorm_forward_args good = {
            .groups = 2, .eps = 1e-5f, .x = view, .z = view, .weight = memory, .y = view};
        REFUSE(gated_rmsnorm_forward, groups, 0, "0");
        REFUSE(gated_rmsnorm_forward, groups, 3, "does not divide");
        REFUSE(gated_rmsnorm_forward, eps, -1.0f, "-1");
        REFUSE(gated_rmsnorm_forward, eps, 2.0f, "2");
        good.eps = 1.0f; // the largest that the keys allow
        CHECK_OK(dt_gated_rmsnorm_forward(&backend, &good, NULL));
        REFUSE_VIEW(gated_rmsnorm_forward, z);
        REFUSE_VIEW(gated_rmsnorm_forward, y);
        REFUSE_NULL(gated_rmsnorm_forward, weight);
    }
    struct dt_gated_rmsnorm_backward_args good = {.groups = 2,
                                                  .x = view,
                                                  .z = view,
                                                  .weight = memory,
                                                  .rstd = memory,
                                                  .dy = view,
                                                  .dx = view,
                                                  .dz = view,
                                                  .dweight = memory};
    REFUSE_NULL(gated_rmsnorm_backward, rstd);
    REFUSE_VIEW(gated_rmsnorm_backward, dy);
    REFUSE_VIEW(gated_rmsnorm_backward, dx);
    REFUSE_VIEW(gated_rmsnorm_backward, dz);
    REFUSE_NULL(gated_rmsnorm_backward, dweight);
    REFUSE_NULL(gated_rmsnorm_backward, workspace);
}

static void test_attention(void)
{
    static float workspace[1 << 20];
    struct dt_attention_inputs in = {.batch = 1,
                                     .length = 2,
                                     .n_head = 2,
                                     .n_kv_head = 1,
                                     .width = 4,
                                     .window = 2,
                                     .rope_base = 10000,
                                     .q = dt_view_of(memory, 2, 8, DT_F32),
                                     .k = dt_view_of(memory + 16, 2, 4, DT_F32),
                                     .v = dt_view_of(memory + 24, 2, 4, DT_F32)};
    {
        struct dt_attention_forward_args good = {.in = in,
                                                 .y = dt_view_of(memory + 32, 2, 8, DT_F32),
                                                 .k_last = memory + 48,
                                                 .v_last = memory + 52,
                                                 .count_last = numbers,
                                                 .workspace = workspace,
                                                 .workspace_bytes = sizeof workspace};
        CHECK_OK(dt_attention_forward(&backend, &good, NULL));
        REFUSE(attention_forward, in.batch, 0, "0");
        REFUSE(attention_forward, in.length, -1, "-1");
        REFUSE(attention_forward, in.width, 258, "258");
        REFUSE(attention_forward, in.width, 3, "3, must be even");
        REFUSE(attention_forward, in.n_head, 0, "0");
        REFUSE(attention_forward, in.n_kv_head, 3, "3");
        REFUSE(attention_forward, in.window, 0, "0");
        REFUSE(attention_forward, in.window, 1, "1: in.k0 and k_last must be NULL");
        REFUSE(attention_forward, in.rope_base, -1, "-1");
        REFUSE(attention_forward, in.rope_base, (double)NAN, "nan");
        REFUSE_VIEW(attention_forward, in.k);
        REFUSE_VIEW(attention_forward, in.v);
        REFUSE_VIEW(attention_forward, y);
        REFUSE_AS(attention_forward, "in.v0", in.k0, memory, "NULL");
        REFUSE_NULL(attention_forward, v_last);
        REFUSE_NULL(attention_forward, count_last);
        REFUSE_NULL(attention_forward, workspace);
        REFUSE(attention_forward, workspace_bytes, 1, "1");
        good.in.n_head = 3;
        REFUSE(attention_forward, in.n_kv_head, 2, "3, must be a multiple of in.n_kv_head 2");
    }
    struct dt_attention_backward_args good = {.in = in,
                                              .y = dt_view_of(memory + 32, 2, 8, DT_F32),
                                              .lse = memory + 60,
                                              .dy = dt_view_of(memory, 2, 8, DT_F32),
                                              .dq = dt_view_of(memory + 32, 2, 8, DT_F32),
                                              .dk = dt_view_of(memory + 48, 2, 4, DT_F32),
                                              .dv = dt_view_of(memory + 52, 2, 4, DT_F32),
                                              .workspace = workspace,
                                              .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_attention_backward(&backend, &good, NULL));
    REFUSE_VIEW(attention_backward, y);
    REFUSE_VIEW(attention_backward, dy);
    REFUSE_VIEW(attention_backward, dq);
    REFUSE_VIEW(attention_backward, dk);
    REFUSE_VIEW(attention_backward, dv);
    REFUSE_NULL(attention_backward, lse);
    REFUSE_NULL(attention_backward, workspace);
}

static void test_xent(void)
{
    static float workspace[8];
    struct dt_loss_sum sum = {0};
    struct dt_xent_args good = {.rows = 2,
                                .vocab = 3,
                                .width = 4,
                                .logits = memory,
                                .logits_stride = 4,
                                .labels = numbers,
                                .scale = 1.0f,
                                .dlogits = memory + 8,
                                .dlogits_stride = 4,
                                .sum = &sum,
                                .workspace = workspace,
                                .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_xent(&backend, &good, NULL));
    REFUSE(xent, rows, 0, "0");
    REFUSE(xent, vocab, 5, "5");
    REFUSE(xent, width, -4, "-4");
    REFUSE(xent, dtype, DT_F16, "fp16");
    REFUSE(xent, logits_stride, 3, "3");
    REFUSE(xent, dlogits_stride, 3, "3");
    REFUSE(xent, workspace_bytes, 7, "7");
    REFUSE_NULL(xent, logits);
    REFUSE_NULL(xent, labels);
    REFUSE_NULL(xent, sum);
    REFUSE_NULL(xent, workspace);
    good.dlogits = memory;
    CHECK_OK(dt_xent(&backend, &good, NULL));
    REFUSE_AS(xent, "dlogits", dlogits_stride, 5, "the strides are 5 and 4");
    good.dtype = DT_BF16;
    REFUSE(xent, dlogits, memory, "bf16");
}

static void test_policy(void)
{
    static float workspace[64];
    struct dt_loss_sum sum = {0};
    struct dt_policy_loss_args good = {
        .rows = 2,
        .width = 4,
        .target_width = 3,
        .n = 2,
        .outputs = {{DT_OUTPUT_CATEGORICAL, 0, 2, 0, 1, 0}, {DT_OUTPUT_BERNOULLI, 2, 2, 1, 1, 0}},
        .logits = memory,
        .logits_stride = 4,
        .bias = memory,
        .targets = memory + 8,
        .scale = 1,
        .sum = &sum,
        .workspace = workspace,
        .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_policy_loss(&backend, &good, NULL));
    REFUSE(policy_loss, rows, 0, "0");
    REFUSE(policy_loss, n, 0, "0");
    REFUSE(policy_loss, n, DT_OUTPUTS_MAX + 1, "33");
    REFUSE_AS(policy_loss, "outputs.kind", outputs[0].kind, (enum dt_output_kind)7, "7");
    REFUSE_AS(policy_loss, "outputs.first", outputs[1].first, 1, "1"); // within the first one
    REFUSE_AS(policy_loss, "outputs.width", outputs[1].width, 3, "3");
    REFUSE_AS(policy_loss, "outputs.target", outputs[1].target, 2, "2");
    REFUSE_AS(policy_loss, "outputs.weight", outputs[0].weight, -1.0f, "-1");
    REFUSE_AS(policy_loss, "outputs.smoothing", outputs[0].smoothing, 1.0f, "1");
    REFUSE(policy_loss, logits_stride, 3, "3");
    REFUSE(policy_loss, workspace_bytes, 39, "39"); // 2 rows of 5 numbers
    REFUSE_NULL(policy_loss, logits);
    REFUSE_NULL(policy_loss, bias);
    REFUSE_NULL(policy_loss, targets);
    REFUSE_NULL(policy_loss, sum);
}

static void test_encode_and_bias(void)
{
    static float workspace[64];
    static const uint8_t bytes[8];
    {
        struct dt_normalize_args good = {.x = dt_view_of(bytes, 2, 4, DT_U8),
                                         .mean = memory,
                                         .deviation = memory + 4,
                                         .y = dt_view_of(memory + 8, 2, 4, DT_F32)};
        CHECK_OK(dt_normalize(&backend, &good, NULL));
        REFUSE_AS(normalize, "x", x.dtype, DT_BF16, "bf16");
        REFUSE_AS(normalize, "y.dtype", y.dtype, DT_U8, "uint8");
        REFUSE_AS(normalize, "y", y.rows, 1, "[1, 4], must be [2, 4]");
        REFUSE_NULL(normalize, mean);
        REFUSE_NULL(normalize, deviation);
    }
    {
        struct dt_encode_targets_args good = {.n = 1,
                                              .outputs = {{DT_OUTPUT_REGRESSION, 1, 2, 0, 0, 0}},
                                              .targets = dt_view_of(memory, 2, 2, DT_F32),
                                              .out = dt_view_of(memory + 16, 2, 3, DT_F32)};
        CHECK_OK(dt_encode_targets(&backend, &good, NULL));
        REFUSE_AS(encode_targets, "targets", targets.rows, 1, "[1, 2], must be [2, 2]");
        REFUSE_AS(encode_targets, "outputs.width", outputs[0].width, 3, "3");
        REFUSE_AS(encode_targets, "out", out.data, NULL, "NULL");
    }
    {
        struct dt_bias_forward_args good = {
            .rows = 2, .width = 4, .bias = memory, .y = memory + 8, .y_stride = 4};
        CHECK_OK(dt_bias_forward(&backend, &good, NULL));
        REFUSE(bias_forward, rows, 0, "0");
        REFUSE(bias_forward, y_stride, 3, "3");
        REFUSE_NULL(bias_forward, bias);
    }
    struct dt_bias_backward_args good = {.rows = 2,
                                         .width = 4,
                                         .dy = memory,
                                         .dy_stride = 4,
                                         .dbias = memory + 16,
                                         .workspace = workspace,
                                         .workspace_bytes = sizeof workspace};
    CHECK_OK(dt_bias_backward(&backend, &good, NULL));
    REFUSE(bias_backward, dtype, DT_I32, "int32");
    REFUSE(bias_backward, dy_stride, 3, "3");
    REFUSE(bias_backward, workspace_bytes, 15, "15");
    REFUSE_NULL(bias_backward, dbias);
}

static void test_optimizer(void)
{
    double squares = 1.0;
    float lr = 0.1f;
    struct dt_loss_sum sum = {.loss = 1.0, .counted = 1.0};
    struct dt_update_control control = {0};
    struct dt_adamw_span span = {4, 0.1f};
    {
        struct dt_update_control_args good = {.sum = &sum,
                                              .sum_squares = &squares,
                                              .expected = 1.0,
                                              .lr = &lr,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.95f,
                                              .control = &control};
        CHECK_OK(dt_update_control(&backend, &good, NULL));
        REFUSE(update_control, expected, 0.0, "0");
        REFUSE(update_control, expected, (double)NAN, "nan");
        REFUSE(update_control, beta1, 1.0f, "1");
        REFUSE(update_control, beta2, -0.5f, "-0.5");
        REFUSE(update_control, grad_clip, -1.0f, "-1");
        REFUSE_NULL(update_control, sum);
        REFUSE_NULL(update_control, sum_squares);
        REFUSE_NULL(update_control, lr);
        REFUSE_NULL(update_control, control);
    }
    struct dt_adamw_args good = {.n = 4,
                                 .weight = memory,
                                 .m = memory + 4,
                                 .v = memory + 8,
                                 .grad = memory + 12,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.9f,
                                 .eps = 1e-8f,
                                 .n_spans = 1,
                                 .spans = &span,
                                 .control = &control};
    CHECK_OK(dt_adamw(&backend, &good, NULL));
    REFUSE(adamw, n, -4, "-4");
    REFUSE(adamw, beta1, 1.5f, "1.5");
    REFUSE(adamw, beta2, NAN, "nan");
    REFUSE(adamw, eps, -1e-8f, "-1e-08");
    REFUSE(adamw, eps, 2.0f, "2");
    good.eps = 1.0f;
    CHECK_OK(dt_adamw(&backend, &good, NULL));
    REFUSE(adamw, average_decay, 1.0f, "1");
    REFUSE(adamw, n_spans, 0, "0");
    REFUSE_NULL(adamw, weight);
    REFUSE_NULL(adamw, m);
    REFUSE_NULL(adamw, v);
    REFUSE_NULL(adamw, grad);
    REFUSE_NULL(adamw, spans);
    REFUSE_NULL(adamw, control);
}

static void test_flat(void)
{
    double total = 0.0, workspace = 0.0;
    struct dt_update_control control = {.skip = 1};
    {
        struct dt_commit_args good = {
            .bytes = 16, .from = memory, .to = memory + 4, .control = &control};
        CHECK_OK(dt_commit(&backend, &good, NULL));
        REFUSE(commit, bytes, -16, "-16");
        REFUSE(commit, bytes, 17, "17");
        REFUSE(commit, to, memory, "itself");
        REFUSE_NULL(commit, from);
        REFUSE_NULL(commit, to);
        REFUSE_NULL(commit, control);
    }
    {
        struct dt_sum_squares_args good = {.n = 4,
                                           .x = memory,
                                           .sum = &total,
                                           .workspace = &workspace,
                                           .workspace_bytes = sizeof workspace};
        CHECK_OK(dt_sum_squares(&backend, &good, NULL));
        REFUSE(sum_squares, n, -1, "-1");
        REFUSE(sum_squares, workspace_bytes, 7, "7");
        REFUSE_NULL(sum_squares, x);
        REFUSE_NULL(sum_squares, sum);
        REFUSE_NULL(sum_squares, workspace);
    }
    {
        uint64_t sum, partial;
        struct dt_checksum_args good = {.n = 4,
                                        .x = memory,
                                        .sum = &sum,
                                        .workspace = &partial,
                                        .workspace_bytes = sizeof partial};
        CHECK_OK(dt_checksum(&backend, &good, NULL));
        REFUSE(checksum, n, -1, "-1");
        REFUSE(checksum, workspace_bytes, 7, "7");
        REFUSE_NULL(checksum, x);
        REFUSE_NULL(checksum, sum);
        REFUSE_NULL(checksum, workspace);
    }
    {
        struct dt_cast_args good = {4, memory, DT_F32, memory + 8, DT_BF16};
        CHECK_OK(dt_cast(&backend, &good, NULL));
        REFUSE(cast, n, -1, "-1");
        REFUSE(cast, x_type, DT_F16, "fp16");
        REFUSE(cast, y_type, DT_U16, "uint16");
        REFUSE(cast, y, memory, "itself");
        REFUSE_NULL(cast, x);
        REFUSE_NULL(cast, y);
    }
    {
        struct dt_spin_args good = {.n = 4, .rounds = 1, .y = memory};
        CHECK_OK(dt_spin(&backend, &good, NULL));
        REFUSE(spin, kind, (enum dt_spin_kind)3, "3");
        REFUSE(spin, n, -1, "-1");
        REFUSE(spin, rounds, -1, "-1");
        REFUSE_NULL(spin, y);
    }
    struct dt_accumulate_args good = {4, memory, DT_F32, memory + 8};
    CHECK_OK(dt_accumulate(&backend, &good, NULL));
    REFUSE(accumulate, n, -1, "-1");
    REFUSE(accumulate, x_type, DT_I64, "int64");
    REFUSE_NULL(accumulate, x);
    REFUSE_NULL(accumulate, y);
}

static void test_dispatch(void)
{
    struct dt_op_table few = {.name = "few"};
    struct dt_device_table named = {.name = "few"};
    struct dt_backend poor = {&named, &few, NULL};
    struct dt_cast_args args = {0};
    check_refused(dt_cast(&poor, &args, NULL), "cast", "few", "no");
    CHECK_INT(dt_cast_workspace(&poor, &args), 0);
    check_refused(dt_cast(&backend, NULL, NULL), "cast", "args", "NULL");
    CHECK_INT(dt_backend_open("cuda7", 0, 1, &poor), DT_USER);
    CHECK(strstr(dt_error_current()->message, "cuda7") != NULL, "the message lacks the name");
    dt_error_clear();
}

static void test_rnn(void)
{
    const struct dt_view one = dt_view_of(memory, 2, 3, DT_F32),
                         three = dt_view_of(memory, 2, 9, DT_F32),
                         four = dt_view_of(memory, 2, 12, DT_F32);
    const struct dt_rnn_inputs in = {
        .cell = DT_RNN_GRU, .batch = 1, .length = 2, .w_hh = dt_view_of(memory, 9, 3, DT_F32)};
    {
        struct dt_rnn_forward_args good = {.in = in,
                                           .x = three,
                                           .b_ih = memory,
                                           .b_hh = memory,
                                           .y = one,
                                           .previous = dt_view_of(memory + 8, 2, 3, DT_F32),
                                           .gates = four};
        REFUSE(rnn_forward, in.batch, 0, "0");
        REFUSE(rnn_forward, in.length, -1, "-1");
        REFUSE(rnn_forward, in.w_hh.dtype, DT_F16, "fp16");
        REFUSE_AS(rnn_forward, "in.w_hh", in.w_hh.rows, 12, "[12, 3], must be [9, 3]");
        REFUSE_AS(rnn_forward, "x", x.cols, 12, "[2, 12], must be [2, 9]");
        REFUSE_AS(rnn_forward, "gates", gates.cols, 9, "[2, 9], must be [2, 12]");
        REFUSE(rnn_forward, y.data, memory + 8, "itself");
        REFUSE_NULL(rnn_forward, b_ih);
        REFUSE_NULL(rnn_forward, b_hh);
        REFUSE_NULL(rnn_forward, workspace);
    }
    {
        struct dt_rnn_backward_args good = {.in = in,
                                            .gates = four,
                                            .previous = one,
                                            .dy = one,
                                            .dx = three,
                                            .dp = three,
                                            .db_ih = memory,
                                            .db_hh = memory};
        REFUSE_AS(rnn_backward, "dp", dp.data, NULL, "NULL");
        REFUSE_AS(rnn_backward, "dx", dx.cols, 12, "[2, 12], must be [2, 9]");
        REFUSE_NULL(rnn_backward, db_ih);
        REFUSE_NULL(rnn_backward, db_hh);
        REFUSE_NULL(rnn_backward, workspace);
    }
}

static void test_silu_gate(void)
{
    const struct dt_view x = dt_view_of(memory, 2, 4, DT_F32),
                         y = dt_view_of(memory + 8, 2, 4, DT_F32);
    struct dt_silu_gate_backward_args good = {.x = x, .u = x, .dy = x, .dx = y, .du = y};
    REFUSE(silu_gate_backward, dx.data, memory, "itself");
    REFUSE_AS(silu_gate_backward, "du", du.data, NULL, "NULL");
    REFUSE_AS(silu_gate_backward, "u", u.dtype, DT_BF16, "bf16, must be fp32");
}

int main(void)
{
    for (int i = 0; i < 64; i++)
        memory[i] = 1.0f;
    backend = open_cpu(1);
    test_gemm();
    test_gemm_without_int8();
    test_embed();
    test_rmsnorm();
    test_conv();
    test_rnn();
    test_silu_gate();
    test_scan();
    test_ssd();
    test_gated_rmsnorm();
    test_attention();
    test_xent();
    test_policy();
    test_encode_and_bias();
    test_optimizer();
    test_flat();
    test_dispatch();
    dt_backend_close(&backend);
    return test_end();
}
