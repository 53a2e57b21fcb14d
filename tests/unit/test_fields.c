// Tests which fields of a model belong to which kinds. A field that a model's kinds do not list
// changes nothing about the model. A field without a default is required if one of the kinds reads
// it.
#include "base/text.h"
#include "default_model.h"
#include "job/job.h"
#include "model/kinds.h"
#include "test.h"

static const char heads[] = "buttons:bernoulli*8 stick:categorical*5";

static struct dt_model_config config_of(const char *stem, const char *layers, const char *head)
{
    struct dt_settings s;
    dt_settings_defaults(&s);
    s.model.d_model = 64, s.model.vocab_size = 10, s.model.frame_size = 7;
    snprintf(s.model.stem, sizeof s.model.stem, "%s", stem);
    snprintf(s.model.layers, sizeof s.model.layers, "%s", layers);
    snprintf(s.model.heads, sizeof s.model.heads, "%s", head);
    CHECK_OK(dt_model_config_resolve(&s.model, 32));
    CHECK_OK(dt_model_config_check(&s.model));
    return s.model;
}

// No two lists have fields with the same name or the same offset.
static void test_names(void)
{
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        for (const struct dt_config_key *other = key + 1; other->name; other++)
            CHECK(strcmp(key->name, other->name) != 0 && key->offset != other->offset,
                  "%s and %s are the same field", key->name, other->name);
}

static bool same_rows(const struct dt_params *a, const struct dt_params *b)
{
    bool same = a->count == b->count && a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same =
            strcmp(a->rows[i].name, b->rows[i].name) == 0 && a->rows[i].count == b->rows[i].count;
    return same;
}

static bool same_arrays(const struct dt_array_list *a, const struct dt_array_list *b)
{
    bool same = a->n == b->n;
    for (int i = 0; same && i < a->n; i++)
        same = strcmp(a->arrays[i].name, b->arrays[i].name) == 0 &&
               a->arrays[i].width == b->arrays[i].width;
    return same;
}

// Gives the field another value in its range.
static void change(const struct dt_config_key *key, struct dt_model_config *config)
{
    void *value = (char *)config + key->offset;
    if (key->type == DT_CONFIG_INT)
        *(int64_t *)value = *(int64_t *)value == 2 ? 4 : 2;
    else if (key->type == DT_CONFIG_FLOAT)
        *(double *)value += 0.25;
    else if (key->type == DT_CONFIG_BOOL)
        *(bool *)value = !*(bool *)value;
    else if (key->type == DT_CONFIG_ENUM)
        *(int *)value = !*(int *)value;
    else
        strcpy(value, "13 14");
}

static void test_unnamed(const char *stem, const char *layers, const char *head)
{
    struct dt_model_config config = config_of(stem, layers, head);
    struct dt_params params, others;
    struct dt_array_list arrays, reads;
    CHECK_OK(dt_model_list(&config, &params, &arrays));
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        struct dt_model_config other = config;
        if (dt_model_has_field(&config, key))
            continue;
        change(key, &other);
        CHECK(!dt_config_equal(key, &config, &other), "%s did not change", key->name);
        CHECK_OK(dt_model_config_check(&other));
        CHECK_OK(dt_model_list(&other, &others, &reads));
        CHECK(same_rows(&params, &others) && same_arrays(&arrays, &reads) &&
                  dt_model_flops_per_token(&config) == dt_model_flops_per_token(&other),
              "%s, %s, %s: %s changes it, and no kind lists it", stem, layers, head, key->name);
        dt_params_free(&others);
    }
    dt_params_free(&params);
}

// A kind that a model does not use neither checks nor sets its fields.
static void test_absent(void)
{
    struct dt_model_config config = config_of("tokens", "gru", "lm");
    char kinds[DT_CONFIG_ALLOWED], common[DT_CONFIG_ALLOWED] = "";
    CHECK_INT(WHOLE_OF(config, d_rnn), 64);
    CHECK_INT(WHOLE_OF(config, n_head), 0);
    CHECK_INT(WHOLE_OF(config, dt_rank), 0);
    WHOLE_OF(config, n_head) = 5, WHOLE_OF(config, dt_rank) = 1000;
    CHECK_OK(dt_model_config_check(&config));
    strcpy(config.layers, "gru attention"), config.n_layer = 0;
    CHECK_FAILS(dt_model_config_check(&config), DT_USER, "model.n_head is 5");
    strcpy(config.layers, "gru mamba"), config.n_layer = 0;
    CHECK_FAILS(dt_model_config_check(&config), DT_USER, "model.dt_rank is 1000");
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (strcmp(key->name, "d_rnn") == 0)
            CHECK_STR(dt_model_field_kinds(key, kinds), "gru, lstm");
        else if (!dt_model_field_kinds(key, kinds)[0])
            dt_append(common, sizeof common, " %s", key->name);
    CHECK_STR(common, " d_model n_layer layers stem heads direction tie_directions mup_base "
                      "norm_eps quantize recompute segment");
}

// The default width of an MLP is 4 d, or with a gate 8/3 d, rounded up to a multiple of 8.
static void test_mlp_width(void)
{
    for (int64_t d = 8; d <= 72; d += 8)
        for (int gated = 0; gated < 2; gated++) {
            struct dt_settings s;
            dt_settings_defaults(&s);
            s.model.d_model = d, s.model.n_layer = 1;
            *(bool *)dt_model_field(&s.model, "mlp_gated") = gated;
            strcpy(s.model.layers, "mlp");
            CHECK_OK(dt_model_config_resolve(&s.model, 32));
            int64_t width = WHOLE_OF(s.model, d_mlp);
            CHECK(gated ? width % 8 == 0 && 3 * width >= 8 * d && 3 * (width - 8) < 8 * d
                        : width == 4 * d,
                  "%ld of a model of %ld, gate: %d", (long)width, (long)d, gated);
        }
}

// The largest allowed value of each size, and one more.
static void test_limits(void)
{
    static const struct {
        const char *heads, *says; // NULL: nothing
    } cases[] = {
        {"a:quantile(.01,.02,.03,.04,.05,.06,.07,.08,.1,.2,.3,.4,.5,.6,.7,.8)", NULL},
        {"a:quantile(.01,.02,.03,.04,.05,.06,.07,.08,.1,.2,.3,.4,.5,.6,.7,.8,.9)", "expected NAME"},
        {"a:categorical*2 b:categorical*65536", NULL},
        {"a:categorical*1", "1 classes (allowed: 2 to 65536)"},
        {"a:categorical*65537", "65537 classes (allowed: 2 to 65536)"},
        {"a:bernoulli*1 b:bernoulli*65536", NULL},
        {"a:bernoulli*0", "0 values (allowed: 1 to 65536)"},
        {"a:gmm(32)*1023", NULL},
        {"a:gmm(32)*1024", "65568 numbers to predict"},
        {"a:gmm(33)", "1 to 32 components"},
        {"a:huber@1e6", NULL},
        {"a:huber@1000001", "the weight is above 1e6"},
        {"a234567890123456789012345678901:huber", NULL},
        {"a2345678901234567890123456789012:huber", "is longer than 31 bytes"},
    };
    struct dt_outputs outputs;
    char many[16 * (DT_OUTPUTS_MAX + 1)] = "";
    for (int n = 1; n <= DT_OUTPUTS_MAX; n++)
        dt_append(many, sizeof many, "h%d:huber ", n);
    CHECK_OK(dt_heads_parse(many, &outputs));
    CHECK_INT(outputs.n, DT_OUTPUTS_MAX);
    dt_append(many, sizeof many, "last:huber");
    CHECK_FAILS(dt_heads_parse(many, &outputs), DT_USER, "model.heads: more than 32 heads");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (cases[i].says)
            CHECK_FAILS(dt_heads_parse(cases[i].heads, &outputs), DT_USER, cases[i].says);
        else
            CHECK_OK(dt_heads_parse(cases[i].heads, &outputs));
    CHECK_OK(dt_heads_parse("a:quantile(0.375,0.625)", &outputs));
    CHECK_INT(outputs.list[0].median, 0); // the first of two that are equally near
    struct dt_model_config config = config_of("tokens", "mamba2", "lm");
    REAL_OF(config, dt_min) = REAL_OF(config, dt_max) = 0.5;
    CHECK_OK(dt_model_config_check(&config));
    REAL_OF(config, dt_max) = 0.25;
    CHECK_FAILS(dt_model_config_check(&config), DT_USER, "dt_max is 0.25, less than dt_min = 0.5");
}

enum { WORDS = 8 };

// Loads the settings of a run with these words on the command line, which NULL ends.
static dt_status required(const char *const words[WORDS])
{
    static struct dt_settings s;
    struct dt_config *config;
    const char *all[3 + WORDS] = {"data.train=t.h5", "data.batch=2", "optim.lr=1"};
    int n = 3;
    for (int i = 0; i < WORDS && words[i]; i++)
        all[n++] = words[i];
    dt_status status =
        dt_config_load(&dt_settings_table, dt_job_require_model, NULL, all, n, &s, &config);
    dt_config_free(config);
    return status;
}

#define REQUIRED(...) required((const char *const[WORDS]){__VA_ARGS__})
#define NO_SIZE                                                                                    \
    "model.d_model: required unless run.init_from gives it\n"                                      \
    "model.n_layer: this or model.layers is required unless run.init_from gives it"
#define NO_VOCABULARY "model.vocab_size: required unless run.init_from gives it"

static void test_required(void)
{
    CHECK_INT(REQUIRED("data.seq_len=8"), DT_USER);
    CHECK_STR(dt_error_current()->message, NO_SIZE "\n" NO_VOCABULARY);
    CHECK_OK(REQUIRED("data.seq_len=8", "run.init_from=m"));
    CHECK_FAILS(REQUIRED("data.seq_len=8", "model.d_model=8", "model.layers=mamba*3"), DT_USER,
                NO_VOCABULARY);
    CHECK_OK(REQUIRED("data.seq_len=8", "model.d_model=8", "model.layers=mamba*3",
                      // Models of frames with policy heads have no vocabulary.
                      "model.heads=a:huber"));
    // Missing keys are reported together with all other errors. A key with a wrong value is not
    // missing.
    CHECK_INT(REQUIRED("model.vocab_size=x"), DT_USER);
    CHECK_SAYS("data.seq_len is required");
    CHECK_SAYS("model.vocab_size: 'x' is not a whole number");
    CHECK_SAYS(NO_SIZE);
    CHECK(!strstr(dt_error_current()->message, NO_VOCABULARY), "it was given");
    CHECK_INT(REQUIRED("data.seq_len=8", "model.layers=mamba*2 tree"), DT_USER);
    CHECK_SAYS("command line: model.layers: unknown kind 'tree'");
    CHECK_SAYS("\nmodel.d_model: required");
    dt_error_clear();
}

int main(void)
{
    test_names();
    for (int i = 0; dt_block_kinds[i]; i++) {
        test_unnamed("tokens", dt_block_kinds[i]->name, "lm");
        test_unnamed("frames", dt_block_kinds[i]->name, heads);
    }
    RUN(test_absent, test_mlp_width, test_limits, test_required);
    return test_end();
}
