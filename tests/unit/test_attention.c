// Tests the attention block as a whole: which sizes fit together, that memory is linear in the
// length of a sequence, and that its state does not age.
#include "op_fixture.h"

#include "default_model.h"

static struct dt_model_config make_config(void)
{
    struct dt_model_config config = default_model("attention*2", 64, 10);
    WHOLE_OF(config, attn_window) = 16;
    return config;
}

static void test_sizes(void)
{
    struct dt_model_config config = make_config(), other;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_INT(WHOLE_OF(config, n_head), 1);
    CHECK_INT(WHOLE_OF(config, n_kv_head), 1);
    other = config, WHOLE_OF(other, n_head) = 5;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER,
                "model.n_head is 5; it must divide model.d_model = 64");
    other = config, WHOLE_OF(other, n_head) = 64;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER,
                "d_model / n_head = 1; it must be even and at most 256");
    other.d_model = 256, WHOLE_OF(other, n_head) = 1, WHOLE_OF(other, n_kv_head) = 1;
    CHECK_OK(dt_model_config_check(&other));
    WHOLE_OF(other, attn_window) = 0;
    CHECK_OK(dt_model_config_resolve(&other, DT_ATTENTION_WINDOW_MAX + 5));
    CHECK_INT(WHOLE_OF(other, attn_window), DT_ATTENTION_WINDOW_MAX);
    other = config, other.d_model = 514, WHOLE_OF(other, n_head) = 1;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER,
                "d_model / n_head = 514; it must be even and at most 256");
    other = config, WHOLE_OF(other, n_head) = 8, WHOLE_OF(other, n_kv_head) = 3;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER,
                "model.n_kv_head is 3; it must divide model.n_head = 8");
    other = config, WHOLE_OF(other, attn_window) = 0;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER, "model.attn_window is auto");
    strcpy(other.layers, "mamba"); // these layers need no heads
    other.n_layer = 1;
    CHECK_OK(dt_model_config_check(&other));
}

// What reads both ways continues no earlier window.
static void test_both_ways(void)
{
    struct dt_model_config config = make_config();
    int64_t bytes;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_OK(dt_model_state_bytes(&config, 3, &bytes));
    CHECK(bytes > 0, "a causal block has no state");
    config.direction = DT_DIRECTION_BOTH;
    CHECK_OK(dt_model_state_bytes(&config, 3, &bytes));
    CHECK_INT(bytes, 0);
}

// Returns the bytes of a training step of one sequence except those of weights and gradients.
static double bytes_at(const struct dt_backend *backend, int64_t length, int64_t window,
                       int64_t heads, int64_t groups)
{
    struct dt_model_config config = make_config();
    const struct dt_model_shape shape = {.sequences = 1, .length = length, .training = true};
    struct dt_memory_plan plan = {0};
    WHOLE_OF(config, attn_window) = window;
    WHOLE_OF(config, n_head) = heads, WHOLE_OF(config, n_kv_head) = groups;
    CHECK_OK(dt_model_plan(backend, &config, &shape, &plan, NULL));
    double bytes = 0;
    for (int i = 0; i < plan.n; i++)
        if (!strstr(plan.rows[i].what, "weights") && !strstr(plan.rows[i].what, "gradients"))
            bytes += (double)plan.rows[i].bytes;
    return bytes;
}

// Heads that share keys need less memory. Ten times the positions need at most ten times the
// memory, whether the window grows with them or not; an array of pairs in fp32 alone would need 4
// L^2 bytes.
static void test_memory(const struct dt_backend *backend)
{
    const int64_t L = 20000;
    double small = bytes_at(backend, L, L, 1, 1), large = bytes_at(backend, 10 * L, 10 * L, 1, 1);
    CHECK(large <= 10 * small, "%g bytes at L %d, %g at ten times that", small, (int)L, large);
    CHECK(large < 0.1 * 4 * (10.0 * (double)L) * (10.0 * (double)L), "%g bytes", large);
    CHECK(bytes_at(backend, 10 * L, 100, 1, 1) <= 10 * bytes_at(backend, L, 100, 1, 1),
          "at a fixed window");
    double shared = bytes_at(backend, L, L, 8, 1), apart = bytes_at(backend, L, L, 8, 8);
    CHECK(shared < apart, "%g bytes where eight heads share keys, %g where none do", shared, apart);
}

// Runs single steps on inputs that repeat after PERIOD = W steps. Once the window is full, outputs
// and state must repeat bit by bit, however many steps came before.
static void test_age(const struct dt_backend *backend)
{
    enum { PERIOD = 3, STEPS = 300000, E = 8, ROW = 3 * E, KEPT = (PERIOD - 1) * E };
    float *input = normal(PERIOD * ROW, 1.0, 1), *y = normal(E, 1.0, 2), first[PERIOD][E];
    float *keys[2], *values[2], workspace[1 << 16];
    int32_t count[2] = {0};
    for (int i = 0; i < 2; i++) {
        keys[i] = memset(guarded(KEPT * 4), 0, KEPT * 4);
        values[i] = memset(guarded(KEPT * 4), 0, KEPT * 4);
    }
    int64_t differ = 0;
    for (int t = 0; t < STEPS; t++) {
        struct dt_view row = dt_view_of(input + t % PERIOD * ROW, 1, ROW, DT_F32);
        struct dt_attention_forward_args args = {.in = {.batch = 1,
                                                        .length = 1,
                                                        .n_head = 1,
                                                        .n_kv_head = 1,
                                                        .width = E,
                                                        .window = PERIOD,
                                                        .rope_base = 10000,
                                                        .q = dt_view_cols(row, 0, E),
                                                        .k = dt_view_cols(row, E, 2 * E),
                                                        .v = dt_view_cols(row, 2 * E, ROW),
                                                        .k0 = keys[t % 2],
                                                        .v0 = values[t % 2],
                                                        .count0 = &count[t % 2]},
                                                 .y = dt_view_of(y, 1, E, DT_F32),
                                                 .k_last = keys[1 - t % 2],
                                                 .v_last = values[1 - t % 2],
                                                 .count_last = &count[1 - t % 2],
                                                 .workspace = workspace,
                                                 .workspace_bytes = sizeof workspace};
        CHECK_OK(dt_attention_forward(backend, &args, NULL));
        if (t >= PERIOD && t < 2 * PERIOD)
            memcpy(first[t % PERIOD], y, sizeof first[0]);
        else if (t >= 2 * PERIOD)
            differ += memcmp(first[t % PERIOD], y, sizeof first[0]) != 0;
    }
    CHECK_INT(differ, 0);
    CHECK_INT(count[0], PERIOD - 1);
    release_all();
}

int main(void)
{
    struct dt_backend backend = open_cpu(1);
    test_sizes();
    test_both_ways();
    test_memory(&backend);
    test_age(&backend);
    dt_backend_close(&backend);
    return test_end();
}
