// Every wrong argument is refused with DT_MACHINE before a kernel sees it, and the message names
// op, argument and value: the ops of mixers.
#include "checks.h"

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
    open_backend();
    test_conv();
    test_rnn();
    test_silu_gate();
    test_scan();
    test_ssd();
    test_gated_rmsnorm();
    test_attention();
    dt_backend_close(&backend);
    return test_end();
}
