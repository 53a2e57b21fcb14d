// Compares the FLOPs per token that a model reports, and the costs of ops that benchmarks and
// profiles report, with the calls of a training step. The FLOPs are 2 m n k of every product and,
// for recurrences and attention, what their formulas give for a position, three times as many in
// training as in the forward pass.
#include "backend/cost.h"
#include "random_pass.h"

enum { B = 2, L = 16, ROWS = B * L };

static double flops; // FLOPs of all calls so far

static dt_status product_flops(struct dt_device *device, const struct dt_gemm_args *a,
                               struct dt_stream *stream)
{
    flops +=
        2 * (double)dt_gemm_batch(a) * (double)a->c.rows * (double)a->c.cols * (double)dt_gemm_k(a);
    return dt_cpu_op_table.gemm(device, a, stream);
}

// 9 operations for each state, as in the paper: exp(ΔA), its product with h, ΔuB, their sum, the
// product with C, and the sum over states.
static dt_status scan_flops(struct dt_device *device, const struct dt_scan_forward_args *a,
                            struct dt_stream *stream)
{
    flops += 3 * 9 * (double)a->y.rows * (double)a->in.u.cols * (double)a->in.b.cols;
    return dt_cpu_op_table.scan_forward(device, a, stream);
}

// 5 operations for each state, as all states of a head share one decay: two products and a sum, and
// a product with C and its sum.
static dt_status ssd_flops(struct dt_device *device, const struct dt_ssd_forward_args *a,
                           struct dt_stream *stream)
{
    double states = (double)a->in.b.cols / (double)a->in.groups;
    flops += 3 * 5 * (double)a->y.rows * (double)a->in.x.cols * states;
    return dt_cpu_op_table.ssd_forward(device, a, stream);
}

// On average a query sees half of the window's keys, or in both directions all of them. Each costs
// a product with the query and one with the value.
static dt_status attention_flops(struct dt_device *device,
                                 const struct dt_attention_forward_args *a,
                                 struct dt_stream *stream)
{
    double keys = (double)a->in.window / (a->in.both ? 1 : 2);
    flops += 3 * (double)a->y.rows * (double)a->in.n_head * keys * 4 * (double)a->in.width;
    return dt_cpu_op_table.attention_forward(device, a, stream);
}

// The product with the recurrent matrix, in forward and in backward. The gradient of the matrix is
// a gemm.
static dt_status rnn_flops(struct dt_device *device, const struct dt_rnn_forward_args *a,
                           struct dt_stream *stream)
{
    flops += 2 * 2 * (double)a->y.rows * (double)a->in.w_hh.rows * (double)a->in.w_hh.cols;
    return dt_cpu_op_table.rnn_forward(device, a, stream);
}

static void check(struct dt_model_config config)
{
    struct random_pass p;
    random_pass_open(&p, 1);
    p.op.gemm = product_flops;
    p.op.scan_forward = scan_flops;
    p.op.ssd_forward = ssd_flops;
    p.op.attention_forward = attention_flops;
    p.op.rnn_forward = rnn_flops;
    random_pass_create(&p, &config, B, L);
    flops = 0;
    random_pass_run(&p, false);
    double reported = dt_model_flops_per_token(&config);
    CHECK(
        fabs(reported - flops / ROWS) <= 1e-9 * reported,
        "%s, %s, %s, chained %d, direction %d: %.0f FLOPs a token are reported, %.6f are computed",
        config.stem, config.layers, config.heads, FLAG_OF(config, autoregressive), config.direction,
        reported, flops / ROWS);
    random_pass_close(&p);
}

// ---- costs of ops

static const struct dt_backend *running;
static struct {
#define SUM(op) struct dt_op_cost op;
    DT_OPS(SUM)
} cost;

static void add(struct dt_op_cost *sum, struct dt_op_cost call)
{
    sum->bytes += call.bytes;
    sum->flops += call.flops;
    sum->lanes += call.lanes;
    sum->exps += call.exps + call.exp2s;
}

#define COUNT(op)                                                                                  \
    static dt_status count_##op(struct dt_device *device, const struct dt_##op##_args *a,          \
                                struct dt_stream *stream)                                          \
    {                                                                                              \
        add(&cost.op, dt_##op##_cost(running, a));                                                 \
        return dt_cpu_op_table.op(device, a, stream);                                              \
    }
DT_OPS(COUNT)

// Runs a training step that adds up the cost of each op. `extra` adds the gate of mlp and the norms
// of mamba.
static void run_counted(const char *layers, bool extra)
{
    struct dt_model_config config = random_pass_config("tokens", layers, "lm");
    struct random_pass p;
    FLAG_OF(config, mlp_gated) = extra;
    REAL_OF(config, mixer_rms_eps) = extra ? 1e-6 : 0;
    random_pass_open(&p, 1);
#define WRAP(name) p.op.name = count_##name;
    DT_OPS(WRAP)
    running = &p.backend;
    random_pass_create(&p, &config, B, L);
    memset(&cost, 0, sizeof cost);
    random_pass_run(&p, false);
    random_pass_close(&p);
}

// Checks a cost whose bytes are given in numbers of 4 bytes. FLOPs of a product count as lanes too
// unless matrix units compute it.
static void check_cost(const char *op, const struct dt_op_cost *is, double numbers, double flops_,
                       double lanes, double exps)
{
    const double got[] = {is->bytes / 4, is->flops, is->lanes, is->exps};
    const double want[] = {numbers, flops_, lanes, exps};
    static const char *const what[] = {"numbers", "FLOPs", "lanes", "exponentials"};
    for (int i = 0; i < 4; i++)
        CHECK(fabs(got[i] - want[i]) <= 1e-9 * want[i], "%s: %g %s are reported, not %g", op,
              got[i], what[i], want[i]);
}
#define CHECK_COST(op, ...) check_cost(#op, &cost.op, __VA_ARGS__)

// The expected bytes: each array that a header of kernels/ lists is read or written once, in fp32.
// The expected arithmetic is that of the loops in kernels/*_cpu.c. There are M rows of d = 24, E =
// 48 and V = 40 numbers; mamba2 has N = 4 states, G = 2 groups and 6 heads; attention has 3 heads
// of 8 that share one head of keys; H = 16 units; P = 40 in mlp; 4 taps. A query sees 8 keys, the
// first ones see fewer.
static void check_costs(void)
{
    const double M = ROWS, d = 24, E = 48, V = 40, N = 4, G = 2, H = 16, P = 40;
    const double pairs = B * 3 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 * (L - 7));
    run_counted("mamba", false);
    CHECK_COST(embed_forward, M + M * d + M * d, 0, 0, 0);              // ids, rows, out
    CHECK_COST(embed_backward, M + M * d + V * d * 2, M * d, M * d, 0); // added to the head's
    CHECK_COST(conv1d_silu_forward, 2 * M * E, M * E * 11, M * E * 7, M * E);
    CHECK_COST(conv1d_silu_backward, 3 * M * E, M * E * 31, M * E * 19, M * E);
    CHECK_COST(scan_forward, 4 * M * E + 2 * M * N + B * E * N, M * E * N * 7, M * E * N * 4,
               M * E * (N + 2));
    CHECK_COST(scan_backward, 7 * M * E + 4 * M * N + B * E * N, M * E * N * 21, M * E * N * 12,
               M * E * (N + 3));
    CHECK_COST(xent, 2 * M * V + 2 * M, M * V * 5, M * V * 5, M * V * 2);
    run_counted("mamba", true); // norms of dt (R = 2 columns) and of B and C
    CHECK_COST(rmsnorm_forward, 2 * M * (2 + 2 * N), M * (2 + 2 * N) * 3, M * (2 + 2 * N) * 3, 0);
    CHECK_COST(rmsnorm_backward, 3 * M * (2 + 2 * N), M * (2 + 2 * N) * 5, M * (2 + 2 * N) * 5, 0);
    run_counted("mamba2", false);
    const double half = (double)dt_cpu_op_table.ssd_chunk / 2; // half of the square of a chunk
    CHECK_COST(ssd_forward, 2 * M * E + 2 * M * G * N + M * 6 + B * E * N,
               2 * M * (E * (2 * N + half) + G * N * half), 0, M * 6 * (half + 3));
    CHECK_COST(ssd_backward, 3 * M * E + 4 * M * G * N + 2 * M * 6 + B * E * N,
               2 * M * (E * (4 * N + 2 * half) + 3 * G * N * half), 0, M * 6 * (half + 3));
    CHECK_COST(gated_rmsnorm_forward, 3 * M * E, M * E * 7, M * E * 7, M * E);
    CHECK_COST(gated_rmsnorm_backward, 5 * M * E, M * E * 19, M * E * 19, M * E);
    run_counted("attention", false);
    CHECK_COST(attention_forward, 2 * M * d + 2 * M * 8, pairs * 35, pairs * 19, pairs);
    CHECK_COST(attention_backward, 4 * M * d + 4 * M * 8, pairs * 83, pairs * 43, pairs);
    run_counted("gru", false);
    CHECK_COST(rnn_forward, M * H * (3 + 1 + 1 + 4), M * 6 * H * H, 0,
               M * H * 4); // x, y, previous, gates
    CHECK_COST(rnn_backward, M * H * (4 + 1 + 1 + 3 + 3), M * 6 * H * H, 0, 0); // dy, dx, dp too
    run_counted("lstm", false);
    CHECK_COST(rnn_forward, M * H * (4 + 1 + 1 + 4 + 1), M * 8 * H * H, 0, M * H * 4); // cells too
    CHECK_COST(rnn_backward, M * H * (4 + 1 + 1 + 4), M * 8 * H * H, 0, 0);
    // Norms read the stream and write y and rstd. A norm after a block also reads the block's
    // output and writes the sum. Backward reads dy, the stream and rstd and writes dx and the
    // gradient of the stream: the first norm sets that gradient, the others add to it.
    run_counted("mlp*2", false);
    CHECK_COST(rmsnorm_residual_forward, (2 + 4 + 4) * M * d + 3 * M, M * d * (4 + 5 + 5),
               M * d * 4 * 3, 0);
    CHECK_COST(rmsnorm_residual_backward, (4 + 5 + 5) * M * d + 3 * M, M * d * 12 * 3,
               M * d * 10 * 3, 0);
    run_counted("mlp", false);
    CHECK_COST(silu_gate_forward, 2 * M * P, M * P * 3, M * P * 3, M * P);
    CHECK_COST(silu_gate_backward, 3 * M * P, M * P * 7, M * P * 7, M * P);
    run_counted("mlp", true);
    CHECK_COST(silu_gate_forward, 3 * M * P, M * P * 4, M * P * 4, M * P);
    CHECK_COST(silu_gate_backward, 5 * M * P, M * P * 10, M * P * 10, M * P);

    float average;
    const struct dt_adamw_args adamw = {.n = 10, .average = &average};
    const struct dt_sum_squares_args squares = {.n = 10};
    const struct dt_accumulate_args accumulate = {.n = 10};
    // There are more ids than rows of the table: each row is read once.
    const struct dt_embed_forward_args embed = {.ids = dt_view_of(NULL, 100, 1, DT_I32),
                                                .table = dt_view_of(NULL, 7, 3, DT_F32)};
    // With a carried state, every query sees a whole window.
    const float state[1] = {0};
    const struct dt_view heads = dt_view_of(NULL, 2 * 5, 8, DT_F32);
    const struct dt_attention_forward_args attention = {.in = {.batch = 2,
                                                               .length = 5,
                                                               .n_head = 1,
                                                               .n_kv_head = 1,
                                                               .width = 8,
                                                               .window = 3,
                                                               .q = heads,
                                                               .k = heads,
                                                               .v = heads,
                                                               .k0 = state},
                                                        .y = heads};
    // Tensor cores compute the products of bf16 heads of 64, and the lanes a maximum, a difference
    // and a sum. Backward computes two of five products again.
    const struct dt_view wide = dt_view_of(NULL, 2 * 5, 64, DT_BF16);
    const struct dt_attention_backward_args slope = {.in = {.batch = 2,
                                                            .length = 5,
                                                            .n_head = 1,
                                                            .n_kv_head = 1,
                                                            .width = 64,
                                                            .window = 1,
                                                            .q = wide,
                                                            .k = wide,
                                                            .v = wide}};
    struct dt_op_table table = dt_cpu_op_table;
    const struct dt_backend plain = {.op = &table};
    running = &plain;
    struct dt_op_cost on_lanes = dt_attention_backward_cost(running, &slope);
    table.attention_mma = true;
    struct dt_op_cost on_mma = dt_attention_backward_cost(running, &slope);
    CHECK(!on_lanes.gemm && on_lanes.lanes == 10 * (5 * 64 + 3), "%g lanes", on_lanes.lanes);
    CHECK(on_mma.gemm && on_mma.type == DT_BF16 && on_mma.lanes == 10 * 3 &&
              on_mma.flops == 10 * (2 * 7 * 64 + 3),
          "%g lanes, %g FLOPs", on_mma.lanes, on_mma.flops);
    memset(&cost, 0, sizeof cost);
    add(&cost.embed_forward, dt_embed_forward_cost(running, &embed));
    struct dt_op_cost seen = dt_attention_forward_cost(running, &attention);
    CHECK(seen.exps == 2 * 5 * 3, "%g pairs of a query and a key", seen.exps);
    // In both directions: of five positions, 3, 4, 5, 4 and 3 are less than three away.
    struct dt_attention_forward_args both = attention;
    both.in.both = true, both.in.k0 = NULL;
    seen = dt_attention_forward_cost(running, &both);
    CHECK(seen.exps == 2 * 19, "both ways: %g pairs of a query and a key", seen.exps);
    const struct dt_gemm_args products = {.a = dt_view_of(NULL, 4, 3, DT_F32),
                                          .b = dt_view_of(NULL, 3, 5, DT_F32),
                                          .c = dt_view_of(NULL, 4, 5, DT_F32),
                                          .batch = 2};
    seen = dt_gemm_cost(running, &products);
    CHECK(seen.bytes == 2 * 4 * (12 + 15 + 20) && seen.flops == 2 * 2 * 4 * 3 * 5,
          "two products: %g bytes, %g FLOPs", seen.bytes, seen.flops);
    add(&cost.adamw, dt_adamw_cost(running, &adamw));
    add(&cost.sum_squares, dt_sum_squares_cost(running, &squares));
    add(&cost.accumulate, dt_accumulate_cost(running, &accumulate));
    CHECK_COST(embed_forward, 100 + 7 * 3 + 100 * 3, 0, 0, 0);
    CHECK_COST(adamw, 90, 170, 140, 0);
    CHECK_COST(sum_squares, 10, 20, 20, 0);
    CHECK_COST(accumulate, 30, 10, 10, 0);
}

// Chunks longer than a tile: the tokens of all tiles except the last are computed twice.
static void check_long_chunks(void)
{
    enum { TILES = 4, CHANNELS = 24, STATES = 4 };
    struct dt_backend cpu;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &cpu));
    int64_t chunk = TILES * cpu.op->scan_chunk;
    struct dt_view channels = dt_view_of(NULL, chunk, CHANNELS, DT_F32),
                   states = dt_view_of(NULL, chunk, STATES, DT_F32);
    const struct dt_scan_backward_args args = {
        .in = {.batch = 1, .length = chunk, .chunk = chunk, .u = channels, .b = states}};
    double n = (double)(chunk * CHANNELS * STATES), runs = 2 - 1.0 / TILES;
    struct dt_op_cost is = dt_scan_backward_cost(&cpu, &args);
    CHECK(is.exp2s == n * runs, "%g of %g exponentials", is.exp2s, n * runs);
    dt_backend_close(&cpu);
}

// Exponentials and vector operations take turns on a CPU and overlap where they have units of their
// own; copying overlaps both.
static void check_floor(void)
{
    const struct dt_machine_limits m = {.copy = 10, .exps = 2, .exp2s = 4, .lanes = 5};
    struct dt_op_cost op = {.bytes = 10, .exps = 2, .exp2s = 4, .lanes = 15};
    struct dt_op_floor floor = dt_op_floor(&op, &m);
    CHECK(floor.seconds == 5 && strcmp(floor.bound, "issue") == 0, "%g", floor.seconds);
    op.lanes = 5;
    floor = dt_op_floor(&op, &m);
    CHECK(floor.seconds == 3 && strcmp(floor.bound, "exp") == 0, "%g", floor.seconds);
    op.exp_unit = true;
    floor = dt_op_floor(&op, &m);
    CHECK(floor.seconds == 2 && strcmp(floor.bound, "exp") == 0, "%g", floor.seconds);
    op.lanes = 15;
    floor = dt_op_floor(&op, &m);
    CHECK(floor.seconds == 3 && strcmp(floor.bound, "issue") == 0, "%g", floor.seconds);
    op.bytes = 60;
    floor = dt_op_floor(&op, &m);
    CHECK(floor.seconds == 6 && strcmp(floor.bound, "copy") == 0, "%g", floor.seconds);
}

int main(void)
{
    static const char heads[] = "a:bernoulli*5 b:categorical*8 c:regression*2 d:huber";
    struct dt_model_config config;
    for (int i = 0; dt_block_kinds[i]; i++) {
        config = random_pass_config("tokens", dt_block_kinds[i]->name, "lm");
        check(config);
        WHOLE_OF(config, d_rnn) = config.d_model;
        FLAG_OF(config, mlp_gated) = true;
        config.tie_embeddings = false;
        check(config);
        config = random_pass_config("frames", dt_block_kinds[i]->name, heads);
        config.direction = DT_DIRECTION_BOTH;
        check(config);
    }
    config = random_pass_config("frames", "mlp mamba*2", heads);
    check(config);
    FLAG_OF(config, autoregressive) = true;
    check(config);
    check_costs();
    check_long_chunks();
    check_floor();
    return test_end();
}
