// Every wrong argument is refused with DT_MACHINE before a kernel sees it, and the message names
// op, argument and value: products, norms, heads, the optimizer.
#include "checks.h"

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
    struct dt_backend poor = {.table = &named, .op = &few};
    struct dt_cast_args args = {0};
    check_refused(dt_cast(&poor, &args, NULL), "cast", "few", "no");
    CHECK_INT(dt_cast_workspace(&poor, &args), 0);
    check_refused(dt_cast(&backend, NULL, NULL), "cast", "args", "NULL");
    CHECK_INT(dt_backend_open("cuda7", 0, 1, &poor), DT_USER);
    CHECK(strstr(dt_error_current()->message, "cuda7") != NULL, "the message lacks the name");
    dt_error_clear();
}

int main(void)
{
    open_backend();
    test_gemm();
    test_gemm_without_int8();
    test_embed();
    test_rmsnorm();
    test_xent();
    test_policy();
    test_encode_and_bias();
    test_optimizer();
    test_flat();
    test_dispatch();
    dt_backend_close(&backend);
    return test_end();
}
