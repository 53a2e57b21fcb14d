// Tests config.json of Hugging Face directories: what is read and written for each model type, and
// every way in which it can be wrong. test_hf.c tests the weights.
#include "model/hf.h"
#include "model/mamba.h"

#include "default_model.h"
#include "small_model.h"

#include <sys/stat.h>
#include <xxhash.h>

static struct dt_model_config tied_config; // a small model with tied embeddings

static dt_status parse_config(const char *text, struct dt_model_config *config)
{
    dt_make_dirs(in_scratch("config"));
    put_text(in_scratch("config/config.json"), text);
    return dt_hf_read_config(in_scratch("config"), config);
}

// Writes `config` as a config.json and checks that the same model is read from it. The caller frees
// the text.
static char *write_and_read(const struct dt_model_config *config)
{
    struct dt_model_config read = {0};
    struct dt_problems problems = {0};
    char *text = NULL;
    CHECK_OK(dt_hf_config_text(config, &text));
    CHECK_OK(parse_config(text, &read));
    dt_model_config_compare(&problems, &read, config);
    CHECK(problems.n == 0, "%s", problems.text);
    return text;
}

// transformers 5 refuses an integer where its field is a float.
static void test_config_floats(void)
{
    static const char *const fields[] = {
        "layer_norm_epsilon", "initializer_range", "time_step_min",
        "time_step_max",      "time_step_floor",   "time_step_scale",
    };
    char *text, name[64];
    struct dt_model_config config = tied_config;
    config.norm_eps = 1;
    CHECK_OK(dt_hf_config_text(&config, &text));
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        snprintf(name, sizeof name, "\"%s\":", fields[i]);
        const char *value = strstr(text, name);
        value = value ? value + strlen(name) : "";
        size_t length = strcspn(value, ",\n");
        CHECK(memchr(value, '.', length) || memchr(value, 'e', length), "%s%.*s", name, (int)length,
              value);
    }
    free(text);
    config.norm_eps = 1e-5 / 3; // a checkpoint must have a run's value to the last bit
    CHECK_OK(dt_hf_config_text(&config, &text));
    CHECK_OK(parse_config(text, &config));
    CHECK(config.norm_eps == 1e-5 / 3, "norm_eps is %.17g", config.norm_eps);
    free(text);
}

static double number_of(const char *text, const char *name)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\":", name);
    const char *at = strstr(text, quoted);
    CHECK(at, "no %s", name);
    return at ? atof(at + strlen(quoted)) : NAN;
}

// The step sizes of new weights fill the range from `least` to `most`.
static void check_initial_steps(const struct dt_model_config *config, double least, double most)
{
    struct dt_params params = {0};
    CHECK_OK(dt_model_list(config, &params, NULL));
    float *weights = malloc((size_t)params.elements * sizeof *weights);
    dt_params_init(&params, 1, weights);
    double from = INFINITY, to = 0;
    for (int r = 0; r < params.n; r++)
        for (int64_t i = 0; i < params.rows[r].count; i++)
            if (params.rows[r].init == dt_mamba_init_dt_bias) {
                double step = log1p(exp((double)weights[params.rows[r].offset + i]));
                from = fmin(from, step), to = fmax(to, step);
            }
    // 1e-5: the bias is an fp32 number; 5 %: 1,536 steps leave a larger gap with e^-16.
    CHECK(from > least * (1 - 1e-5) && from < least * 1.05, "the least is %g, not %g", from, least);
    CHECK(to < most * (1 + 1e-5) && to > most / 1.05, "the largest is %g, not %g", to, most);
    free(weights);
    dt_params_free(&params);
}

// model.dt_init_min moves the whole range of initial step sizes, in config.json as in the weights.
static void test_config_initial_steps(void)
{
    static const char *const kinds[] = {"mamba", "mamba2"};
    static const double least[] = {0, 1e-5, 0.25};
    for (int i = 0; i < 2 * 3; i++) {
        struct dt_model_config config = default_model(kinds[i % 2], 768, 16);
        double from = least[i / 2] > 0 ? least[i / 2] : 1e-3;
        char *text;
        REAL_OF(config, dt_init_min) = least[i / 2];
        if (i % 2 == 1)
            WHOLE_OF(config, head_dim) = 1;
        CHECK_OK(dt_model_config_check(&config));
        CHECK_OK(dt_hf_config_text(&config, &text));
        CHECK_NEAR(number_of(text, "time_step_min"), from, 1e-12);
        CHECK_NEAR(number_of(text, "time_step_max"), 100 * from, 1e-12);
        CHECK_NEAR(number_of(text, "time_step_floor"), from / 10, 1e-12);
        check_initial_steps(&config, from, 100 * from);
        free(text);
    }
}

// mamba-130m-hf states only these members; the others have defaults.
static void test_config_defaults(void)
{
    struct dt_model_config config = {0};
    CHECK_OK(parse_config("{\"model_type\": \"mamba\", \"hidden_size\": 70, "
                          "\"num_hidden_layers\": 3, \"vocab_size\": 50280, "
                          "\"time_step_rank\": \"auto\", \"state_size\": null, "
                          "\"unknown\": [1, 2]}",
                          &config));
    CHECK_INT(WHOLE_OF(config, d_state), 16);
    CHECK_INT(WHOLE_OF(config, d_conv), 4);
    CHECK_INT(WHOLE_OF(config, expand), 2);
    CHECK_INT(WHOLE_OF(config, dt_rank), 5);
    CHECK_INT(config.tie_embeddings, true);
    CHECK(config.norm_eps == 1e-5, "norm_eps is %g", config.norm_eps);
}

// The config.json of a Mamba does not change by a byte.
static void test_config_bytes(void)
{
    struct dt_model_config config = default_model("", 192, 256);
    config.n_layer = 4;
    char *text;
    CHECK_OK(dt_hf_config_text(&config, &text));
    CHECK(XXH64(text, strlen(text), 0) == UINT64_C(0x5385ca9ca8203c04), "%s", text);
    free(text);
}

#define DTRAIN                                                                                     \
    "{\"model_type\": \"dtrain\", \"hidden_size\": 8, \"vocab_size\": 50, \"num_hidden_layers\": " \
    "3"

// A config.json of type dtrain names the layers, stem and heads. A model that is a Mamba, however
// its layers are written, is written as one.
static void test_config_kinds(void)
{
    struct dt_model_config config = {0}, read = {0};
    char *plain, *text;
    CHECK_OK(parse_config(DTRAIN ", \"layers\": \"mamba mamba*2\"}", &config));
    CHECK_STR(config.layers, "mamba*3");
    CHECK_STR(config.stem, "tokens");
    CHECK_STR(config.heads, "lm");
    CHECK_OK(dt_hf_config_text(&config, &text));
    CHECK(strstr(text, "MambaForCausalLM") && !strstr(text, "layers\":\t\"mamba"), "%s", text);
    config.layers[0] = config.stem[0] = config.heads[0] = '\0';
    CHECK_OK(dt_hf_config_text(&config, &plain));
    CHECK_STR(plain, text);
    CHECK_OK(parse_config(text, &read));
    CHECK_STR(read.layers, "mamba*3");
    free(plain);
    free(text);
    CHECK_FAILS(parse_config(DTRAIN ", \"layers\": \"mamba*2\"}", &read), DT_USER,
                "model.layers has 2 layers, but model.n_layer is 3");
    // A wrong pattern is reported, and not what models of other kinds would need.
    CHECK_FAILS(parse_config("{\"model_type\": \"dtrain\", \"hidden_size\": 8, \"frame_size\": 4, "
                             "\"num_hidden_layers\": 3, \"heads\": \"x:categorical*3\", "
                             "\"layers\": \"mamba*1000000000\"}",
                             &read),
                DT_USER, "model.layers has 1000000000 layers, but model.n_layer is 3");
    CHECK_FAILS(parse_config(DTRAIN ", \"heads\": \"lmm\"}", &read), DT_USER,
                "model.heads: unknown kind 'lmm': did you mean 'lm'?");
}

#define MAMBA2                                                                                     \
    "{\"model_type\": \"mamba2\", \"hidden_size\": 64, \"vocab_size\": 50, "                       \
    "\"num_hidden_layers\": 3"

// Members that a file lacks have the defaults of Mamba2Config. Files write infinity in two ways.
static void test_config_mamba2(void)
{
    static const char *const limits[] = {"[0.0, Infinity]", "[0.0, {\"__float__\": \"Infinity\"}]",
                                         "[0, 0.5]"};
    struct dt_model_config config = {0};
    char text[512], *written;
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text,
                 MAMBA2
                 ", \"hidden_act\": \"swish\", \"head_dim\": 16, \"num_heads\": 8, \"note\": "
                 "\"to Infinity\", \"time_step_limit\": %s}",
                 limits[i]);
        CHECK_OK(parse_config(text, &config));
        CHECK_STR(config.layers, "mamba2*3");
        CHECK_INT(WHOLE_OF(config, d_state), 128);
        CHECK_INT(WHOLE_OF(config, n_groups), 8);
        CHECK_INT(WHOLE_OF(config, head_dim), 16);
        CHECK_INT(config.tie_embeddings, false);
        CHECK(REAL_OF(config, dt_max) == (i < 2 ? 0.0 : 0.5), "%s: %g", limits[i],
              REAL_OF(config, dt_max));
        // Mamba2Config has no member `quantize`; dtrain adds one.
        config.quantize = i == 2 ? DT_QUANTIZE_INT8 : DT_QUANTIZE_NONE;
        written = write_and_read(&config);
        CHECK(strstr(written, "Mamba2ForCausalLM") && strstr(written, "\"num_heads\":\t8"), "%s",
              written);
        free(written);
    }
}

#define FALCON                                                                                     \
    "{\"model_type\": \"falcon_mamba\", \"hidden_size\": 64, \"vocab_size\": 50, "                 \
    "\"num_hidden_layers\": 3, \"expand\": 16, "

// In tiiuae/falcon-mamba-7b, intermediate_size is the number of inner channels instead of `expand`
// times the width, and mixer_rms_eps is missing.
static void test_config_falcon(void)
{
    struct dt_model_config config = {0}, read = {0};
    char *written;
    CHECK_OK(parse_config(FALCON "\"intermediate_size\": 192, \"tie_word_embeddings\": false}",
                          &config));
    CHECK_STR(config.layers, "mamba*3");
    CHECK_INT(WHOLE_OF(config, expand), 3);
    CHECK(REAL_OF(config, mixer_rms_eps) == 1e-6, "%g", REAL_OF(config, mixer_rms_eps));
    written = write_and_read(&config);
    CHECK(strstr(written, "FalconMambaForCausalLM") &&
              strstr(written, "\"intermediate_size\":\t192") && strstr(written, "mixer_rms_eps"),
          "%s", written);
    free(written);
    CHECK_FAILS(dt_hf_official_text(&config, &written), DT_USER, "this one is falcon_mamba");
    CHECK_FAILS(parse_config(FALCON "\"intermediate_size\": 100}", &read), DT_USER,
                "intermediate_size is 100; it must be a multiple of hidden_size = 64");
    CHECK_FAILS(parse_config(FALCON "\"mixer_rms_eps\": 0}", &read), DT_USER,
                "mixer_rms_eps is 0; it must be above 0");
}

#define NEMOTRON(layers)                                                                           \
    "{\"model_type\": \"nemotron_h\", \"hidden_size\": 64, \"vocab_size\": 50, "                   \
    "\"num_attention_heads\": 4, \"head_dim\": 16, \"mamba_num_heads\": 8, \"mamba_head_dim\": "   \
    "16, "                                                                                         \
    "\"rope_theta\": 10000, \"sliding_window\": null, \"num_hidden_layers\": 99, " layers

// Old versions of transformers write layers as letters, later ones as words. Members that a file
// lacks have the defaults of NemotronHConfig.
static void test_config_nemotron_h(void)
{
    static const char *const texts[] = {
        NEMOTRON("\"hybrid_override_pattern\": \"MM*-\"}"),
        NEMOTRON("\"layers_block_type\": [\"mamba\", \"mamba\", \"attention\", \"mlp\"]}"),
        NEMOTRON("\"time_step_min\": 1e-30, \"layers_block_type\": [\"linear_attention\", "
                 "\"linear_attention\", \"full_attention\", \"mlp\"], "
                 "\"hybrid_override_pattern\": null, \"mlp_hidden_act\": \"silu\"}"),
    };
    struct dt_model_config config = {0};
    char *written;
    for (int i = 0; i < 3; i++) {
        CHECK_OK(parse_config(texts[i], &config));
        CHECK_STR(config.layers, "mamba2*2 attention*1 mlp*1");
        CHECK_INT(config.n_layer, 4);
        CHECK_INT(WHOLE_OF(config, d_state), 128);
        CHECK_INT(WHOLE_OF(config, n_groups), 8);
        CHECK_INT(WHOLE_OF(config, n_kv_head), 8);
        CHECK_INT(WHOLE_OF(config, head_dim), 16);
        CHECK_INT(WHOLE_OF(config, d_mlp), 21504);
        CHECK_INT(WHOLE_OF(config, attn_window), 4096);
        CHECK(REAL_OF(config, rope_base) == 0 && !FLAG_OF(config, mlp_gated), "rotary or gated");
        CHECK(REAL_OF(config, dt_min) == (i < 2 ? 0.001 : 0), "%g", REAL_OF(config, dt_min));
        CHECK_INT(*(int *)dt_model_field(&config, "mlp_activation"), i < 2 ? DT_RELU2 : DT_SILU);
        CHECK_INT(config.tie_embeddings, false);
        written = write_and_read(&config);
        CHECK(strstr(written, "NemotronHForCausalLM") &&
                  strstr(written, "\"hybrid_override_pattern\":\t\"MM*-\"") &&
                  strstr(written, i < 2 ? "\"relu2\"" : "\"mlp_hidden_act\":\t\"silu\"") &&
                  !strstr(written, "rope_theta") && !strstr(written, "\"state_size"),
              "%s", written);
        free(written);
    }
}

// dt_hf_type_text states the type that a model is written as, or which keys prevent a type that
// transformers loads.
static void test_type_text(void)
{
    static const struct {
        const char *layers, *text;
    } cases[] = {
        {"mamba*2", "mamba, which transformers loads"},
        {"mamba2*2", "mamba2, which transformers loads"},
        {"mamba2*2 attention",
         "dtrain; it would be nemotron_h, which transformers loads, with model.rope_base = 0, "
         "model.tie_embeddings = false"},
        {"mamba2 mlp", "dtrain; it would be nemotron_h, which transformers loads, with "
                       "model.mlp_gated = false, model.tie_embeddings = false"},
        {"mamba attention", "dtrain; transformers has no model with these layers, stem and heads"},
    };
    char text[DT_CONFIG_ALLOWED];
    struct dt_model_config config;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        config = default_model(cases[i].layers, 64, 50);
        CHECK_OK(dt_hf_type_text(&config, text, sizeof text));
        CHECK_STR(text, cases[i].text);
    }
    config = default_model("mamba2 attention mlp", 64, 50);
    config.tie_embeddings = FLAG_OF(config, mlp_gated) = false;
    REAL_OF(config, rope_base) = 0;
    CHECK_OK(dt_hf_type_text(&config, text, sizeof text));
    CHECK_STR(text, "nemotron_h, which transformers loads");
}

#define TEN "0123456789"
#define BASE                                                                                       \
    "\"model_type\": \"mamba\", \"hidden_size\": 8, \"num_hidden_layers\": 3, \"vocab_size\": 50"

static void test_config_refused(void)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "line 1 is not JSON"},
        {"{\n\"a\": 1,\n]", "line 3 is not JSON"},
        {"[1]", "JSON object"},
        {"{} {}", "not JSON"},
        {"{}", "model_type is missing"},
        {"{\"model_type\": \"llama\"}",
         "model_type is \"llama\"; it must be \"mamba\", \"falcon_mamba\", \"mamba2\", "
         "\"nemotron_h\" or \"dtrain\""},
        {"{\"model_type\": 7}", "model_type is 7"},
        {"{\"model_type\": \"mamba\"}", "hidden_size is missing; it must be a whole number from 1"},
        {"{" BASE ", \"use_bias\": true}", "use_bias is true"},
        {"{" BASE ", \"use_bias\": 0}",
         "use_bias is 0; it must be false (nothing else is supported)"},
        {"{" BASE ", \"use_conv_bias\": false}", "use_conv_bias is false"},
        {"{" BASE ", \"hidden_act\": \"gelu\"}", "hidden_act is \"gelu\""},
        {"{" BASE ", \"state_size\": -16}", "state_size is -16"},
        // The message shows the first 60 bytes.
        {"{" BASE ", \"state_size\": \"" TEN TEN TEN TEN TEN TEN "\"}",
         "state_size is \"" TEN TEN TEN TEN TEN "012345678...; it must be"},
        {"{" BASE ", \"state_size\": 0}", "state_size is 0"},
        {"{" BASE ", \"state_size\": 16.5}", "state_size is 16.5"},
        {"{" BASE ", \"state_size\": 1e300}", "state_size is 1e+300"},
        {"{" BASE ", \"state_size\": 1e999}", "state_size is"},
        {"{" BASE ", \"state_size\": \"16\"}", "state_size is \"16\""},
        {"{" BASE ", \"state_size\": [16]}", "state_size is [16]"},
        {"{" BASE ", \"expand\": 4294967296}", "expand is 4294967296"},
        {"{" BASE ", \"intermediate_size\": 15}", "expand * hidden_size = 16"},
        {"{" BASE ", \"time_step_rank\": \"many\"}", "time_step_rank is \"many\""},
        {"{" BASE ", \"layer_norm_epsilon\": 0}", "layer_norm_epsilon is 0"},
        {"{" BASE ", \"layer_norm_epsilon\": -1e-5}", "layer_norm_epsilon is -1e-05"},
        {"{" BASE ", \"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings is \"yes\""},
        {"{\"model_type\": \"mamba\", \"hidden_size\": NaN}", "not JSON"},
        {"{\"model_type\": \"mamba\\u001b[31m\"}", "\\u001b"},
        {MAMBA2 ", \"head_dim\": 16, \"num_heads\": 7}", "expand * hidden_size / head_dim = 8"},
        {MAMBA2 ", \"time_step_limit\": [0.5, 0.1]}", "[smallest, largest] of step sizes"},
        {MAMBA2 ", \"time_step_limit\": [0.1, 0.5, 1]}", "[smallest, largest] of step sizes"},
        {MAMBA2 ", \"time_step_limit\": 3}", "[smallest, largest] of step sizes"},
        {NEMOTRON("\"hybrid_override_pattern\": \"MEM\"}"), "made of the letters M, * and -"},
        {NEMOTRON("\"hybrid_override_pattern\": \"\"}"), "made of the letters M, * and -"},
        {NEMOTRON("\"hybrid_override_pattern\": 3}"), "hybrid_override_pattern is 3"},
        {NEMOTRON("\"layers_block_type\": [\"moe\"]}"), "made of \"linear_attention\""},
        {NEMOTRON("\"layers_block_type\": [7]}"), "made of \"linear_attention\""},
        {NEMOTRON("\"layers_block_type\": []}"), "a list of layers"},
        {NEMOTRON("\"n\": 3}"), "hybrid_override_pattern is missing"},
        {NEMOTRON("\"expand\": 3, \"hybrid_override_pattern\": \"M\"}"),
         "expand * hidden_size / mamba_head_dim = 12"},
        {NEMOTRON("\"mlp_bias\": true, \"hybrid_override_pattern\": \"-\"}"), "mlp_bias is true"},
        {NEMOTRON("\"mlp_hidden_act\": \"gelu\", \"hybrid_override_pattern\": \"-\"}"),
         "mlp_hidden_act"},
    };
    struct dt_model_config config = {.d_model = 99};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_INT(parse_config(cases[i].text, &config), DT_USER);
        CHECK_SAYS(cases[i].part);
        CHECK_SAYS("config.json");
        dt_error_clear();
    }
    CHECK_INT(config.d_model, 99);
}

static void test_config_monsters(void)
{
    struct dt_model_config config;
    char *text = malloc((1 << 20) + 100);
    memset(text, '[', 1 << 19); // deeper than any reader may recurse
    text[1 << 19] = '\0';
    CHECK_FAILS(parse_config(text, &config), DT_USER, "not JSON");
    memset(text, ' ', 1 << 20);
    strcpy(text + (1 << 20), "{" BASE "}");
    CHECK_FAILS(parse_config(text, &config), DT_USER, "config.json");
    free(text);
    CHECK_FAILS(dt_hf_read_config(in_scratch("nowhere"), &config), DT_USER, "nowhere/config.json");
    mkdir(in_scratch("dir"), 0777);
    mkdir(in_scratch("dir/config.json"), 0777);
    CHECK_FAILS(dt_hf_read_config(in_scratch("dir"), &config), DT_USER, "dir/config.json");
}

// Members that a file of state-spaces/mamba lacks have the defaults of mamba_ssm.
static void test_config_official(void)
{
    static const struct {
        const char *text, *part;
    } refused[] = {
        {"{\"d_model\": 8, \"n_layer\": 2, \"vocab_size\": 9, \"attn_layer_idx\": [1]}",
         "attn_layer_idx is [1]"},
        {"{\"d_model\": 8, \"n_layer\": 2, \"vocab_size\": 9, \"d_intermediate\": 4}",
         "d_intermediate is 4"},
        {"{\"d_model\": 8, \"n_layer\": 2, \"vocab_size\": 9, \"rms_norm\": false}",
         "rms_norm is false"},
        {"{\"d_model\": 8, \"n_layer\": 2}", "vocab_size is missing"},
        {"{\"d_model\": 0, \"n_layer\": 2, \"vocab_size\": 9}", "hidden_size is 0"},
        {"{\"d_model\": 8, \"n_layer\": 2, \"vocab_size\": 9, \"pad_vocab_size_multiple\": 0}",
         "pad_vocab_size_multiple is 0"},
    };
    struct dt_model_config read = {0};
    char *text;
    CHECK_OK(
        parse_config("{\"d_model\": 16, \"n_layer\": 3, \"vocab_size\": 50277, \"ssm_cfg\": {}, "
                     "\"rms_norm\": true, \"attn_layer_idx\": []}",
                     &read));
    CHECK_STR(read.layers, "mamba*3");
    CHECK_INT(read.vocab_size, 50280);
    CHECK_INT(read.tie_embeddings, true);
    CHECK_OK(parse_config("{\"d_model\": 64, \"n_layer\": 3, \"vocab_size\": 50288, "
                          "\"pad_vocab_size_multiple\": 16, \"ssm_cfg\": {\"layer\": \"Mamba2\"}}",
                          &read));
    CHECK_STR(read.layers, "mamba2*3");
    CHECK_INT(WHOLE_OF(read, d_state), 128);
    CHECK_INT(WHOLE_OF(read, n_groups), 1);
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        CHECK_FAILS(parse_config(refused[i].text, &read), DT_USER, refused[i].part);
    read = default_model("mamba attention", 64, 50);
    CHECK_FAILS(dt_hf_official_text(&read, &text), DT_USER, "all mamba or all mamba2");
    CHECK_FAILS(dt_hf_official_text(&tied_config, &text), DT_USER, "norm_eps = 1e-5");
}

int main(void)
{
    make_scratch();
    struct small_model tied = small_model_make(true);
    tied_config = tied.config;
    RUN(test_config_floats, test_config_initial_steps, test_config_defaults, test_config_bytes,
        test_config_kinds, test_config_falcon, test_config_mamba2, test_config_nemotron_h,
        test_type_text, test_config_refused, test_config_monsters, test_config_official);
    small_model_free(&tied);
    remove_scratch();
    return test_end();
}
