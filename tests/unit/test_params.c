// Tests the parameter table: its arithmetic, the distributions of initial values, and that these
// depend only on seed and name.
#include "base/rng.h"
#include "model/mamba.h"
#include "model/params.h"

#include "default_model.h"
#include "test.h"

#include <xxhash.h>

// Statistics of n samples may differ by 5 standard errors. As the seed is fixed, a check passes
// always or never. With these n a scale that is wrong by 1 % is found.
static const double errors_allowed = 5.0;

static struct dt_params one_row(dt_init *init, double scale, int64_t rows, int64_t columns)
{
    struct dt_params params = {0};
    CHECK_INT(dt_params_add(&params, init, scale, rows, 2, (int64_t[]){rows, columns}, "w"), 0);
    return params;
}

static float *init_values(const struct dt_params *params, uint64_t seed)
{
    float *weights = malloc((size_t)params->elements * sizeof *weights);
    for (int64_t i = 0; i < params->elements; i++)
        weights[i] = NAN; // everything must be written, padding included
    dt_params_init(params, seed, weights);
    return weights;
}

struct moments {
    double mean, std, min, max;
};

static struct moments measure(const double *x, int64_t n)
{
    struct moments s = {0, 0, INFINITY, -INFINITY};
    for (int64_t i = 0; i < n; i++) {
        s.mean += x[i] / (double)n;
        s.min = fmin(s.min, x[i]);
        s.max = fmax(s.max, x[i]);
    }
    for (int64_t i = 0; i < n; i++)
        s.std += (x[i] - s.mean) * (x[i] - s.mean) / (double)n;
    s.std = sqrt(s.std);
    return s;
}

static struct moments measure_row(dt_init *init, double scale, int64_t n, double (*form)(double))
{
    struct dt_params params = one_row(init, scale, 1, n);
    float *w = init_values(&params, 1337);
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = form((double)w[i]);
    struct moments s = measure(x, n);
    free(x);
    free(w);
    dt_params_free(&params);
    return s;
}

static void check_mean(const struct moments *s, double mean, double std, int64_t n)
{
    double error = std / sqrt((double)n);
    CHECK(fabs(s->mean - mean) < errors_allowed * error, "mean %g, not %g", s->mean, mean);
}

static double same(double x)
{
    return x;
}

static double log_softplus(double x)
{
    return log(log1p(exp(x)));
}

static void test_normal(void)
{
    enum { N = 100003 };
    struct moments s = measure_row(dt_init_normal, 0.02, N, same);
    check_mean(&s, 0, 0.02, N);
    // The standard error of a normal sample's deviation is sigma / sqrt(2 n).
    CHECK(fabs(s.std - 0.02) < errors_allowed * 0.02 / sqrt(2.0 * N), "std %g", s.std);
    CHECK(s.max > 4 * 0.02 && s.min < -4 * 0.02, "no tails: %g %g", s.min, s.max);
}

static void check_uniform(const struct moments *s, double low, double high, int64_t n)
{
    double std = (high - low) / sqrt(12.0), width = high - low;
    check_mean(s, (low + high) / 2, std, n);
    // The fourth moment of a uniform gives the deviation a standard error of std sqrt(0.2 / n).
    CHECK(fabs(s->std - std) < errors_allowed * std * sqrt(0.2 / (double)n), "std %g, not %g",
          s->std, std);
    // 1e-6 allows for rounding of the ends to fp32. With 1e-3 of the width, n samples leave a
    // larger gap with probability e^-100.
    CHECK(s->min >= low - 1e-6 * width && s->max <= high + 1e-6 * width, "%g %g", s->min, s->max);
    CHECK(s->min < low + 1e-3 * width && s->max > high - 1e-3 * width, "%g %g", s->min, s->max);
}

static void test_uniform(void)
{
    enum { N = 100003 };
    struct moments s = measure_row(dt_init_uniform, 0.125, N, same);
    check_uniform(&s, -0.125, 0.125, N);
    s = measure_row(dt_mamba_init_dt_bias, 0.01, N, log_softplus);
    check_uniform(&s, log(1e-5), log(1e-3), N);
}

static void test_a_log_and_one(void)
{
    struct dt_params params = one_row(dt_mamba_init_a_log, 0, 3, 5);
    float *w = init_values(&params, 1);
    for (int i = 0; i < 15; i++)
        CHECK_NEAR(exp((double)w[i]), i % 5 + 1, 1e-6); // the logarithm is fp32
    free(w);
    dt_params_free(&params);
    params = one_row(dt_init_one, 0, 3, 5);
    w = init_values(&params, 1);
    for (int i = 0; i < 15; i++)
        CHECK(w[i] == 1.0f, "element %d is %g", i, (double)w[i]);
    free(w);
    dt_params_free(&params);
}

// Element i depends only on the seed, the name and i. Here it is computed without the elements
// before it.
static void test_any_order(void)
{
    struct dt_params params = one_row(dt_init_uniform, 1, 7, 11);
    uint64_t seed = UINT64_C(0x123456789abcdef0);
    float *w = init_values(&params, seed);
    struct dt_philox rng = dt_philox_init(seed, 0x494e4954, XXH64("w", 1, 0));
    for (int i = 76; i >= 0; i -= 3) {
        uint32_t counter[4] = {(uint32_t)i / 4, rng.counter[1], rng.counter[2], rng.counter[3]};
        uint32_t out[4];
        dt_philox_block(rng.key, counter, out);
        float u = (float)(out[i % 4] >> 8) * 0x1p-24f;
        CHECK(w[i] == 2 * u - 1, "element %d is %g, not %g", i, (double)w[i], (double)(2 * u - 1));
    }
    free(w);
    dt_params_free(&params);
}

static const char *const names[] = {"a", "b", "c"};

// Rows with the same name have the same bits in every table.
static void test_other_table(void)
{
    struct dt_params forward = {0}, backward = {0};
    for (int i = 0; i < 3; i++) {
        dt_params_add(&forward, dt_init_normal, 1, 9, 2, (int64_t[]){9, 10}, "%s", names[i]);
        dt_params_add(&backward, dt_init_normal, 1, 9, 2, (int64_t[]){9, 10}, "%s", names[2 - i]);
    }
    float *x = init_values(&forward, 3), *y = init_values(&backward, 3),
          *z = init_values(&forward, 4);
    for (int i = 0; i < 3; i++) {
        const float *here = x + dt_params_find(&forward, names[i])->offset;
        const float *there = y + dt_params_find(&backward, names[i])->offset;
        CHECK(memcmp(here, there, 90 * sizeof *here) == 0, "row %s depends on its place", names[i]);
        CHECK(memcmp(here, z + forward.rows[i].offset, 90 * sizeof *here) != 0,
              "row %s does not depend on the seed", names[i]);
    }
    CHECK(memcmp(x, x + forward.rows[1].offset, 90 * sizeof *x) != 0, "rows a and b are the same");
    free(x);
    free(y);
    free(z);
    dt_params_free(&forward);
    dt_params_free(&backward);
}

static struct dt_params mixed_table(void)
{
    struct dt_params params = {0};
    dt_params_add(&params, dt_init_normal, 1, 8, 2, (int64_t[]){5, 3}, "padded");
    dt_params_add(&params, dt_init_uniform, 1, 7, 3, (int64_t[]){7, 1, 4}, "taps.%d", 7);
    dt_params_add(&params, dt_init_uniform, 1, 65, 1, (int64_t[]){65}, "bias");
    dt_params_add(&params, dt_mamba_init_a_log, 0, 4, 2, (int64_t[]){4, 16}, "A_log");
    dt_params_keep(&params, 3);
    dt_params_add(&params, dt_init_normal, 1, 1, 2, (int64_t[]){1, 1}, "single");
    return params;
}

static void test_table(void)
{
    struct dt_params params = mixed_table();
    const int64_t offset[] = {0, 64, 128, 256, 320}, count[] = {24, 28, 65, 64, 1},
                  file_count[] = {15, 28, 65, 64, 1};
    const bool decay[] = {true, true, false, false, true};
    CHECK_INT(params.n, 5);
    CHECK_INT(params.elements, 384);
    CHECK_INT(params.count, 15 + 28 + 65 + 64 + 1);
    for (int i = 0; i < 5; i++) {
        CHECK_INT(params.rows[i].offset, offset[i]);
        CHECK_INT(params.rows[i].count, count[i]);
        CHECK_INT(params.rows[i].file_count, file_count[i]);
        CHECK_INT(params.rows[i].decay, decay[i]);
    }
    CHECK(dt_params_find(&params, "taps.7") == &params.rows[1], "taps.7 is not found");
    CHECK(dt_params_find(&params, "taps") == NULL, "taps is found");
    dt_params_free(&params);
    CHECK_INT(params.n, 0);
}

static void test_padding(void)
{
    struct dt_params params = mixed_table();
    float *w = init_values(&params, 5);
    int64_t end = 0;
    for (int i = 0; i <= params.n; i++) {
        int64_t next = i < params.n ? params.rows[i].offset : params.elements;
        for (int64_t j = end; j < next; j++)
            CHECK(w[j] == 0.0f, "padding at %lld is %g", (long long)j, (double)w[j]);
        end = i < params.n ? next + params.rows[i].file_count : next;
    }
    CHECK(w[14] != 0.0f, "the last element in a file is not set");
    free(w);
    dt_params_free(&params);
}

static void check_refused(int64_t memory_rows, int n_dims, const int64_t *shape)
{
    struct dt_params params = mixed_table();
    CHECK_INT(dt_params_add(&params, dt_init_one, 0, memory_rows, n_dims, shape, "hostile"), -1);
    CHECK_SAYS("hostile");
    CHECK_INT(params.n, 5);
    CHECK_INT(params.elements, 384);
    dt_error_clear();
    dt_params_free(&params);
}

// A frozen row keeps its values and does not decay. Besides the part that owns a tensor, only one
// part may add to its gradient.
static void test_frozen_and_shared(void)
{
    struct dt_params params = mixed_table();
    int row = -1;
    dt_params_freeze(&params, 0);
    CHECK(params.rows[0].frozen && !params.rows[0].decay, "a frozen row decays");
    dt_params_share(&params, "later", &row);
    CHECK_INT(params.failed, false);
    dt_params_share(&params, "later", &row);
    CHECK_INT(params.failed, true);
    CHECK_SAYS("later is shared by two parts");
    dt_error_clear();
    dt_params_free(&params);
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

// Checks the flags of every row of all kinds of blocks. The rows that normalise data are frozen.
// Matrices decay, except one that is not used in a product. Files of older versions may lack rows
// that did not exist then.
static void test_flags(void)
{
    struct dt_model_config config =
        default_model("mamba mamba2 gru lstm mlp attention mamba", 64, 0);
    struct dt_params params;
    snprintf(config.stem, sizeof config.stem, "frames");
    snprintf(config.heads, sizeof config.heads, "aim:regression*2 kind:categorical*5");
    config.frame_size = 9;
    CHECK_OK(dt_model_config_normalize(&config));
    CHECK_OK(dt_model_config_resolve(&config, 32));
    CHECK_OK(dt_model_list(&config, &params, NULL));
    for (int i = 0; i < params.n; i++) {
        const struct dt_param *row = &params.rows[i];
        bool is_frozen = ends_with(row->name, ".mean") || ends_with(row->name, ".deviation");
        bool is_optional = is_frozen && strncmp(row->name, "heads.", 6) == 0;
        bool decays = row->n_dims > 1 && !is_frozen && !ends_with(row->name, "A_log");
        CHECK(row->frozen == is_frozen && row->optional == is_optional && row->decay == decays,
              "%s: frozen %d, optional %d, decay %d", row->name, row->frozen, row->optional,
              row->decay);
    }
    CHECK(params.n > 50, "%d rows", params.n);
    dt_params_free(&params);
}

static void test_overflow(void)
{
    int64_t big = INT64_C(1) << 31;
    check_refused(big, 3, (int64_t[]){big, big, big});
    check_refused(big * big / 4, 2, (int64_t[]){big, 8});
    check_refused(INT64_MAX / 8, 1, (int64_t[]){5});
    check_refused(0, 1, (int64_t[]){0});
    check_refused(4, 1, (int64_t[]){5});
    check_refused(4, 2, (int64_t[]){4, -1});
}

static void test_spans(void)
{
    struct dt_params params = mixed_table();
    struct dt_adamw_span *spans;
    struct dt_param_rate *rates;
    int64_t n;
    CHECK_OK(dt_params_rates(&params, "", 1, false, &rates));
    CHECK_OK(dt_params_spans(&params, 0.1f, rates, &spans, &n));
    CHECK_INT(n, 3);
    CHECK_INT(spans[0].end, 128);
    CHECK_INT(spans[1].end, 320);
    CHECK_INT(spans[2].end, params.elements);
    CHECK(spans[0].decay == 0.1f && spans[1].decay == 0.0f && spans[2].decay == 0.1f, "decay");
    free(spans);
    CHECK_OK(dt_params_spans(&params, 0.0f, rates, &spans, &n));
    CHECK_INT(n, 1);
    CHECK_INT(spans[0].end, params.elements);
    free(spans);
    rates[1].group = 0.5f, rates[1].lr = 0.25f;
    CHECK_OK(dt_params_spans(&params, 0.0f, rates, &spans, &n));
    CHECK_INT(n, 3);
    CHECK(spans[0].lr == 1 && spans[1].lr == 0.25f && spans[2].lr == 1, "rates");
    free(spans);
    free(rates);
    dt_params_free(&params);
}

static float rate_of(const struct dt_params *params, const struct dt_param_rate *rates,
                     const char *name)
{
    return rates[dt_params_find(params, name) - params->rows].lr;
}

// Learning rates by name: the last pattern that matches counts, plain numbers are rates, and
// factors multiply the rate.
static void test_rates(void)
{
    static const char embedding[] = "backbone.embeddings.weight",
                      in[] = "backbone.layers.0.mixer.in_proj.weight",
                      skip[] = "backbone.layers.1.mixer.D";
    static const char *const wrong[][2] = {{"*D:", "optim.lr[*D]"},
                                           {"*D:2y", "'2y' is no number"},
                                           {"*D:-1", "'-1' is no number"},
                                           {"*D:nan", "'nan' is no number"},
                                           {"*D:1e4", "'1e4' is no number"},
                                           {":1", "optim.lr["},
                                           {"D", "optim.lr[D]"},
                                           {"*D:1 *E:1", "optim.lr[*E] matches no name"}};
    struct dt_model_config config = default_model("mamba*2", 24, 19);
    struct dt_params params;
    struct dt_param_rate *rates;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_OK(dt_model_list(&config, &params, NULL));
    CHECK_OK(
        dt_params_rates(&params, "*layers*:0.5x  *.D:1e-3 *.1.mixer.D:0x", 4e-3, false, &rates));
    CHECK(rate_of(&params, rates, embedding) == 1, "the embedding's rate");
    CHECK(rate_of(&params, rates, in) == 0.5f, "in_proj's rate");
    CHECK(rate_of(&params, rates, "backbone.layers.0.mixer.D") == 0.25f, "D's rate");
    CHECK(rate_of(&params, rates, skip) == 0, "the last layer's D's rate");
    free(rates);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        CHECK_FAILS(dt_params_rates(&params, wrong[i][0], 1, false, &rates), DT_USER, wrong[i][1]);
    CHECK_INT(dt_params_rates(&params, "none:1", 1, false, &rates), DT_USER);
    CHECK_ADVISES("backbone.embeddings.weight, backbone.layers.*.");
    dt_error_clear();
    dt_params_free(&params);
}

// µP scales the rates of matrices in blocks by their fan-in, which includes dt_rank if that grows
// with the width, and the output through the last norm. Everything else stays as it is.
static void test_mup(void)
{
    static const struct {
        const char *name;
        float adamw, muon;
    } rows[] = {{"backbone.embeddings.weight", 1, 1},
                {"backbone.norm_f.weight", 0.25f, 0.25f},
                {"backbone.layers.0.norm.weight", 1, 1},
                {"backbone.layers.0.mixer.in_proj.weight", 0.25f, 0.5f},
                {"backbone.layers.0.mixer.dt_proj.weight", 0.25f, 0.5f},
                {"backbone.layers.0.mixer.out_proj.weight", 0.25f, 0.5f},
                {"backbone.layers.0.mixer.conv1d.weight", 1, 1},
                {"backbone.layers.0.mixer.A_log", 1, 1}};
    struct dt_model_config config = default_model("mamba*2", 128, 19);
    struct dt_params params;
    struct dt_param_rate *rates;
    config.mup_base = 32;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_OK(dt_model_list(&config, &params, NULL));
    for (int muon = 0; muon < 2; muon++) {
        CHECK_OK(dt_params_rates(&params, "", 1, muon, &rates));
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            CHECK(rate_of(&params, rates, rows[i].name) == (muon ? rows[i].muon : rows[i].adamw),
                  "%s: %g", rows[i].name, (double)rate_of(&params, rates, rows[i].name));
        free(rates);
    }
    float *weights = malloc((size_t)params.elements * sizeof *weights);
    dt_params_init(&params, 1, weights);
    CHECK(weights[dt_params_find(&params, "backbone.norm_f.weight")->offset] == 0.25f,
          "the output's multiplier");
    free(weights);
    dt_params_free(&params);
    WHOLE_OF(config, dt_rank) = 5; // chosen by the user, so it is the same at every width
    CHECK_OK(dt_model_list(&config, &params, NULL));
    CHECK(dt_params_find(&params, "backbone.layers.0.mixer.dt_proj.weight")->width == 1, "dt_rank");
    dt_params_free(&params);
}

// state-spaces/mamba-130m has 129,135,360 parameters.
static void test_published_size(void)
{
    struct dt_model_config config = default_model("mamba*24", 768, 50280);
    config.pad_vocab_multiple = 64;
    struct dt_params params = {0};
    CHECK_OK(dt_model_config_check(&config));
    CHECK_OK(dt_model_list(&config, &params, NULL));
    CHECK_INT(params.count, 129135360);
    const struct dt_param *out =
        dt_params_find(&params, "backbone.layers.23.mixer.out_proj.weight");
    CHECK(out && fabs((double)out->init_scale - 1 / sqrt(1536.0 * 24)) < 1e-8, "out_proj's scale");
    dt_params_free(&params);
}

// state-spaces/mamba2-130m has 128,989,632 parameters, and A is between 1 and 16.
static void test_published_mamba2(void)
{
    struct dt_model_config config = default_model("mamba2*24", 768, 50288);
    WHOLE_OF(config, d_state) = 128;
    config.pad_vocab_multiple = 16;
    struct dt_params params = {0};
    float least = INFINITY, most = 0;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_OK(dt_model_list(&config, &params, NULL));
    CHECK_INT(params.count, 128989632);
    float *weights = malloc((size_t)params.elements * sizeof *weights);
    dt_params_init(&params, 1, weights);
    for (int r = 0; r < params.n; r++)
        for (int64_t i = 0; i < params.rows[r].count && strstr(params.rows[r].name, "A_log"); i++) {
            float a = expf(weights[params.rows[r].offset + i]);
            CHECK(!params.rows[r].decay && a > 0.999f && a < 16.001f, "%s: A is %g",
                  params.rows[r].name, (double)a);
            least = fminf(least, a), most = fmaxf(most, a);
        }
    CHECK(least < 1.2f && most > 15.8f, "A from %g to %g", (double)least, (double)most);
    free(weights);
    dt_params_free(&params);
}

// Heads of mamba2 have 64 channels unless there are fewer channels. Sizes that do not divide are
// refused.
static void test_mamba2(void)
{
    struct dt_model_config config = default_model("mamba2*2", 96, 19), other;
    CHECK_OK(dt_model_config_check(&config));
    CHECK_INT(WHOLE_OF(config, head_dim), 64);
    CHECK_INT(WHOLE_OF(config, n_groups), 1);
    other = config, other.d_model = 24, WHOLE_OF(other, head_dim) = 0;
    CHECK_OK(dt_model_config_check(&other));
    CHECK_INT(WHOLE_OF(other, head_dim), 48);
    other = config, WHOLE_OF(other, head_dim) = 50;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER,
                "model.head_dim is 50, which does not divide expand * d_model = 192");
    other = config, WHOLE_OF(other, n_groups) = 2;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER,
                "model.n_groups is 2, which does not divide the 3 heads");
    other = config, REAL_OF(other, dt_min) = 1, REAL_OF(other, dt_max) = 0.5;
    CHECK_FAILS(dt_model_config_check(&other), DT_USER, "model.dt_max is 0.5, less than dt_min");
}

int main(void)
{
    RUN(test_normal, test_uniform, test_a_log_and_one, test_any_order, test_other_table, test_table,
        test_padding, test_frozen_and_shared, test_flags, test_overflow, test_spans, test_rates,
        test_mup, test_published_size, test_published_mamba2, test_mamba2);
    return test_end();
}
