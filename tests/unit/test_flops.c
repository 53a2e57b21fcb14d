// The FLOPs of a token as the model reports them, and the bytes of ops that benchmarks and profiles
// report, against what a training step calls. FLOPs: every product's 2 m n k, and of the
// recurrences and of attention what a position costs by their formulas, three times as much in
// training as in the forward pass.
#include "backend/cost.h"
#include "random_pass.h"

enum { B = 2, L = 16, ROWS = B * L };

static double flops; // of the calls so far

static dt_status count_gemm(struct dt_device *device, const struct dt_gemm_args *a,
                            struct dt_stream *stream)
{
    flops +=
        2 * (double)dt_gemm_batch(a) * (double)a->c.rows * (double)a->c.cols * (double)dt_gemm_k(a);
    return dt_cpu_op_table.gemm(device, a, stream);
}

// A state: exp(ΔA), times h, ΔuB added, times C, summed: 9 as the paper counts them.
static dt_status count_scan(struct dt_device *device, const struct dt_scan_forward_args *a,
                            struct dt_stream *stream)
{
    flops += 3 * 9 * (double)a->y.rows * (double)a->in.u.cols * (double)a->in.b.cols;
    return dt_cpu_op_table.scan_forward(device, a, stream);
}

// One decay for all states of a head: two products and their sums, and C.
static dt_status count_ssd(struct dt_device *device, const struct dt_ssd_forward_args *a,
                           struct dt_stream *stream)
{
    double states = (double)a->in.b.cols / (double)a->in.groups;
    flops += 3 * 5 * (double)a->y.rows * (double)a->in.x.cols * states;
    return dt_cpu_op_table.ssd_forward(device, a, stream);
}

// Half of the window's keys: a product with the query and one with the value.
static dt_status count_attention(struct dt_device *device,
                                 const struct dt_attention_forward_args *a,
                                 struct dt_stream *stream)
{
    double keys = (double)a->in.window / 2;
    flops += 3 * (double)a->y.rows * (double)a->in.n_head * keys * 4 * (double)a->in.width;
    return dt_cpu_op_table.attention_forward(device, a, stream);
}

// The recurrent product, forward and backward; its weight's gradient is a gemm.
static dt_status count_rnn(struct dt_device *device, const struct dt_rnn_forward_args *a,
                           struct dt_stream *stream)
{
    flops += 2 * 2 * (double)a->y.rows * (double)a->in.w_hh.rows * (double)a->in.w_hh.cols;
    return dt_cpu_op_table.rnn_forward(device, a, stream);
}

static void check(struct dt_model_config config)
{
    struct random_pass p;
    random_pass_open(&p, 1);
    p.op.gemm = count_gemm;
    p.op.scan_forward = count_scan;
    p.op.ssd_forward = count_ssd;
    p.op.attention_forward = count_attention;
    p.op.rnn_forward = count_rnn;
    random_pass_create(&p, &config, B, L);
    flops = 0;
    random_pass_run(&p, false);
    double reported = dt_model_flops_per_token(&config);
    CHECK(fabs(reported - flops / ROWS) <= 1e-9 * reported,
          "%s, %s, %s, chained %d: %.0f FLOPs a token are reported, %.6f are computed", config.stem,
          config.layers, config.heads, config.autoregressive, reported, flops / ROWS);
    random_pass_close(&p);
}

// ---- bytes

static const struct dt_backend *running;
static struct {
#define SUM(op) double op;
    DT_OPS(SUM)
} bytes;
#define COUNT(op)                                                                                  \
    static dt_status count_bytes_##op(struct dt_device *device, const struct dt_##op##_args *a,    \
                                      struct dt_stream *stream)                                    \
    {                                                                                              \
        bytes.op += dt_##op##_cost(running, a).bytes;                                              \
        return dt_cpu_op_table.op(device, a, stream);                                              \
    }
DT_OPS(COUNT)

static void run_counted(const char *layers, bool gated)
{
    struct dt_model_config config = random_pass_config("tokens", layers, "lm");
    struct random_pass p;
    config.mlp_gated = gated;
    random_pass_open(&p, 1);
#define WRAP(name) p.op.name = count_bytes_##name;
    DT_OPS(WRAP)
    running = &p.backend;
    random_pass_create(&p, &config, B, L);
    memset(&bytes, 0, sizeof bytes);
    random_pass_run(&p, false);
    random_pass_close(&p);
}

// Arrays as the headers of kernels list them, in fp32: each is read or written once. M rows of d =
// 24, E = 48, V = 40 numbers; N = 4 states, G = 2 groups of them and 6 heads in mamba2; 3 heads and
// one of keys, of 8; H = 16 units; 40 in mlp.
static void check_bytes(void)
{
    const double M = ROWS, d = 24, E = 48, V = 40, N = 4, G = 2, H = 16, P = 40;
    run_counted("mamba", false);
    CHECK_NEAR(bytes.embed_forward, 4 * (M + M * d + M * d), 0);      // ids, rows of the table, out
    CHECK_NEAR(bytes.embed_backward, 4 * (M + M * d + V * d * 2), 0); // += after the head
    CHECK_NEAR(bytes.conv1d_silu_forward, 4 * 2 * M * E, 0);
    CHECK_NEAR(bytes.conv1d_silu_backward, 4 * 3 * M * E, 0);
    CHECK_NEAR(bytes.scan_forward, 4 * (4 * M * E + 2 * M * N + B * E * N), 0);
    CHECK_NEAR(bytes.scan_backward, 4 * (7 * M * E + 4 * M * N + B * E * N), 0);
    CHECK_NEAR(bytes.xent, 4 * (2 * M * V + 2 * M), 0);
    run_counted("mamba2", false);
    CHECK_NEAR(bytes.ssd_forward, 4 * (2 * M * E + 2 * M * G * N + M * 6 + B * E * N), 0);
    CHECK_NEAR(bytes.ssd_backward, 4 * (3 * M * E + 4 * M * G * N + 2 * M * 6 + B * E * N), 0);
    CHECK_NEAR(bytes.gated_rmsnorm_forward, 4 * 3 * M * E, 0);
    CHECK_NEAR(bytes.gated_rmsnorm_backward, 4 * 5 * M * E, 0);
    run_counted("attention", false);
    CHECK_NEAR(bytes.attention_forward, 4 * (2 * M * d + 2 * M * 8), 0);
    CHECK_NEAR(bytes.attention_backward, 4 * (4 * M * d + 4 * M * 8), 0);
    run_counted("gru", false);
    CHECK_NEAR(bytes.rnn_forward, 4 * M * H * (3 + 1 + 1 + 4), 0);      // x, y, previous, gates
    CHECK_NEAR(bytes.rnn_backward, 4 * M * H * (4 + 1 + 1 + 3 + 3), 0); // and dy, dx, dp
    run_counted("lstm", false);
    CHECK_NEAR(bytes.rnn_forward, 4 * M * H * (4 + 1 + 1 + 4 + 1), 0); // and cells
    CHECK_NEAR(bytes.rnn_backward, 4 * M * H * (4 + 1 + 1 + 4), 0);
    // Norms: the stream, y and rstd; after a block its output and the stream that it is added to.
    // Back: dy, the stream, its gradient (the first one's =, then +=), dx and rstd.
    run_counted("mlp*2", false);
    CHECK_NEAR(bytes.rmsnorm_residual_forward, 4 * (2 + 4 + 4) * M * d + 4 * 3 * M, 0);
    CHECK_NEAR(bytes.rmsnorm_residual_backward, 4 * (4 + 5 + 5) * M * d + 4 * 3 * M, 0);
    run_counted("mlp", false);
    CHECK_NEAR(bytes.silu_gate_forward, 4 * 2 * M * P, 0);
    CHECK_NEAR(bytes.silu_gate_backward, 4 * 3 * M * P, 0);
    run_counted("mlp", true);
    CHECK_NEAR(bytes.silu_gate_forward, 4 * 3 * M * P, 0);
    CHECK_NEAR(bytes.silu_gate_backward, 4 * 5 * M * P, 0);
}

int main(void)
{
    static const char heads[] = "a:bernoulli*5 b:categorical*8 c:regression*2 d:huber";
    struct dt_model_config config;
    for (int i = 0; dt_block_kinds[i]; i++) {
        config = random_pass_config("tokens", dt_block_kinds[i]->name, "lm");
        check(config);
        config.d_rnn = config.d_model, config.mlp_gated = true, config.tie_embeddings = false;
        check(config);
    }
    config = random_pass_config("frames", "mlp mamba*2", heads);
    check(config);
    config.autoregressive = true;
    check(config);
    check_bytes();
    return test_end();
}
