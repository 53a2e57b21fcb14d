// Tests the interfaces of stem, block and head with models that combine dtrain's kinds and those of
// this folder: gradients against finite differences, carried states, and the pattern of
// model.layers.
#include "samples.h"

#include "base/rng.h"
#include "model/kinds.h"

#include "default_model.h"
#include "test.h"

enum { B = 2, L = 7, WIDEST = SAMPLE_WIDTH };

static struct dt_backend backend;

static void must(dt_status status)
{
    CHECK(status == DT_OK, "%s", dt_error_current()->message);
    if (status != DT_OK)
        exit(test_end());
}

static struct dt_model_config config_of(const char *stem, const char *layers, const char *head)
{
    struct dt_model_config config = {.d_model = 8,
                                     .vocab_size = 11,
                                     .norm_eps = 1e-5,
                                     .pad_vocab_multiple = 8,
                                     .frame_size = 5,
                                     .ids = "11 17",
                                     .storage = DT_F32};
    WHOLE_OF(config, d_state) = WHOLE_OF(config, d_conv) = 3;
    WHOLE_OF(config, expand) = 2;
    REAL_OF(config, label_smoothing) = strchr(head, ':') ? 0.1 : 0;
    REAL_OF(config, gain_start) = 0.75;
    snprintf(config.stem, sizeof config.stem, "%s", stem);
    snprintf(config.layers, sizeof config.layers, "%s", layers);
    snprintf(config.heads, sizeof config.heads, "%s", head);
    return config;
}

// Every array that a model may read, by name. Floats are normal; ids are below the vocabulary and
// the sizes of tables. A document starts at the fifth position, and the second position is not
// counted. Targets are valid for their output, and some targets of the second output are missing. A
// position counts as one, whatever the weights of its outputs are.
struct data {
    struct dt_model_input input;
    void *arrays[DT_BATCH_ARRAYS];
};

static void make_targets(const struct dt_outputs *outputs, float *targets, int64_t width)
{
    for (int64_t j = 0; j < B * L * outputs->n; j++) {
        const struct dt_output *output = &outputs->list[j % outputs->n];
        float *target = targets + j / outputs->n * width + output->target;
        if (output->type == &dt_categorical)
            *target = (float)(j * 7 % output->width);
        for (int64_t i = 0; i < output->target_width; i++) {
            if (output->type == &dt_bernoulli)
                target[i] = target[i] > 0;
            if (j % outputs->n == 1 && (j + i) % 4 == 0)
                target[i] = NAN;
        }
    }
}

static struct data make_data(const struct dt_model *model)
{
    struct data data = {.input = {.sequences = B, .length = L}};
    const struct dt_array_list *list = dt_model_arrays(model);
    struct dt_philox rng = dt_philox_init(7, 0, 0);
    for (int i = 0; i < list->n; i++) {
        const struct dt_array_spec *spec = &list->arrays[i];
        data.arrays[i] = malloc((size_t)dt_array_bytes(spec, B * L));
        for (int64_t j = 0; j < B * L * spec->width; j++) {
            float x = dt_philox_normal(&rng);
            if (spec->type == DT_F32)
                ((float *)data.arrays[i])[j] = x;
            else if (spec->type == DT_I32)
                ((int32_t *)data.arrays[i])[j] = (int32_t)fmodf(fabsf(x) * 1000, 11);
            else if (strcmp(spec->name, "mask") == 0)
                ((uint8_t *)data.arrays[i])[j] = j % L != 1;
            else
                ((uint8_t *)data.arrays[i])[j] = j % L == 4;
        }
        float *numbers = data.arrays[i];
        if (strcmp(spec->name, "targets") == 0)
            make_targets(dt_model_outputs(model), numbers, spec->width);
        for (int64_t j = 0; j < B * L * spec->width && strcmp(spec->name, "weights") == 0; j++)
            numbers[j] = j % spec->width == 0 ? 1 : fabsf(numbers[j]);
        data.input.arrays[i] = data.arrays[i];
    }
    return data;
}

static void free_data(struct data *data)
{
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        free(data->arrays[i]);
}

static double loss_of(struct dt_model *model, const struct dt_model_input *input,
                      const struct dt_model_state *before, struct dt_model_state *after)
{
    struct dt_loss_sum sum = {0};
    const struct dt_pass pass = {.input = *input, .before = before, .after = after};
    must(dt_model_forward(model, &pass));
    must(dt_model_loss(model, &pass, 0, &sum));
    const struct dt_array_list *list = dt_model_arrays(model);
    bool masked = dt_array_list_find(list, "mask") >= 0;
    CHECK_INT(sum.counted, input->sequences * (input->length - masked));
    return sum.loss;
}

static dt_status note_row(void *next, int64_t row)
{
    int64_t *wanted = next;
    CHECK_INT(row, *wanted);
    ++*wanted;
    return DT_OK;
}

// Compares a gradient g with a difference quotient along a random direction v, which is as long as
// the weights of one row: g · v = (L(w + εv) - L(w - εv)) / 2ε. With ε = 2^-8 the third derivative
// contributes an error of about ε² of the slope, and rounding of the loss (2^-24 of 2^7 terms near
// 1) an error of about 2^-17 / ε = 2^-9.
static void check_row(struct dt_model *model, const struct data *data, const struct dt_param *row,
                      const float *gradient)
{
    const double epsilon = 0x1p-8;
    float *w = dt_model_weights(model) + row->offset, *v = malloc((size_t)row->count * sizeof *v);
    double slope = 0, norm = 0, size = 0, loss[2];
    struct dt_philox rng = dt_philox_init(11, 0, (uint64_t)row->offset);
    for (int64_t i = 0; i < row->file_count; i++)
        size += (double)w[i] * (double)w[i];
    for (int64_t i = 0; i < row->file_count; i++) {
        double g = (double)gradient[row->offset + i];
        v[i] = (float)sqrt(size / (double)row->file_count) * dt_philox_normal(&rng);
        slope += (double)v[i] * g;
        norm += g * g * size / (double)row->file_count;
    }
    for (int side = 0; side < 2; side++) {
        for (int64_t i = 0; i < row->file_count; i++)
            w[i] += (float)((side ? -2 : 1) * epsilon) * v[i];
        loss[side] = loss_of(model, &data->input, NULL, NULL);
    }
    for (int64_t i = 0; i < row->file_count; i++)
        w[i] += (float)epsilon * v[i];
    double measured = (loss[0] - loss[1]) / (2 * epsilon);
    CHECK(norm > 0 && fabs(measured - slope) <= 0x1p-8 * (1 + sqrt(norm)),
          "%s: the loss changes by %.6g along a direction, its gradient says %.6g (norm %.6g)",
          row->name, measured, slope, sqrt(norm));
    free(v);
}

static void check_frozen(const struct dt_param *row, const float *gradient)
{
    CHECK(!row->decay, "%s decays", row->name);
    for (int64_t i = 0; i < row->count; i++)
        CHECK(gradient[row->offset + i] == 0, "%s has a gradient", row->name);
}

// Biases start as zeros. Gives them other values, so that the check of their slopes means
// something.
static void fill_biases(struct dt_model *model)
{
    const struct dt_params *params = dt_model_params(model);
    struct dt_philox rng = dt_philox_init(5, 0, 0);
    for (int i = 0; i < params->n; i++)
        for (int64_t j = 0; j < params->rows[i].file_count; j++)
            if (params->rows[i].init == dt_init_zero)
                dt_model_weights(model)[params->rows[i].offset + j] = dt_philox_normal(&rng);
}

static void test_gradients(const char *stem, const char *layers, const char *head, bool tied,
                           enum dt_recompute recompute)
{
    bool chained = strcmp(stem, "chained") == 0; // frames with an autoregressive policy
    bool ids = strcmp(stem, "ids") == 0;         // frames that are ids alone
    struct dt_model_config config = config_of(chained || ids ? "frames" : stem, layers, head);
    struct dt_model *model;
    FLAG_OF(config, autoregressive) = chained;
    config.frame_size = ids ? 0 : config.frame_size;
    config.tie_embeddings = tied;
    config.recompute = recompute;
    must(dt_model_config_check(&config));
    must(dt_model_create(&backend, &config,
                         &(struct dt_model_shape){.sequences = B, .length = L, .training = true},
                         &model));
    const struct dt_params *params = dt_model_params(model);
    dt_params_init(params, 3, dt_model_weights(model));
    fill_biases(model);
    struct data data = make_data(model);
    struct dt_loss_sum sum = {0};
    int64_t rows = 0;
    const struct dt_pass pass = {.input = data.input, .grad_ready = note_row, .context = &rows};
    must(dt_model_forward(model, &pass));
    must(dt_model_loss(model, &pass, 1, &sum));
    must(dt_model_backward(model, &pass));
    CHECK_INT(rows, params->n); // each row was announced once, in order
    struct dt_pass wide = pass; // the same number of positions in more sequences
    wide.input.sequences = 2 * B;
    wide.input.length = L / 2;
    CHECK_FAILS(dt_model_forward(model, &wide), DT_MACHINE, "does not fit the model's");
    for (int i = 0; i < params->n; i++)
        if (params->rows[i].frozen)
            check_frozen(&params->rows[i], dt_model_gradients(model));
        else
            check_row(model, &data, &params->rows[i], dt_model_gradients(model));
    free_data(&data);
    dt_model_destroy(model);
}

// A sequence that is run as two windows with carried state has the loss of the whole sequence. With
// one tap there is no conv_state.
static void test_state(int64_t taps)
{
    struct dt_model_config config = config_of("tokens", "dense mamba dense mamba", "squares");
    WHOLE_OF(config, d_conv) = taps;
    struct dt_model *model;
    struct dt_model_state *state[3];
    must(dt_model_config_check(&config));
    must(dt_model_create(&backend, &config, &(struct dt_model_shape){.sequences = B, .length = L},
                         &model));
    dt_params_init(dt_model_params(model), 3, dt_model_weights(model));
    CHECK_INT(dt_model_state_arrays(model, 0)->n, 0);
    CHECK_INT(dt_array_list_find(dt_model_state_arrays(model, 3), "ssm_state"), 0);
    for (int i = 0; i < 3; i++)
        must(dt_model_state_create(model, 1, &state[i]));
    struct data data = make_data(model);
    struct dt_model_input window = {.sequences = 1, .length = L};
    memcpy(window.arrays, data.input.arrays, sizeof window.arrays);
    double whole = loss_of(model, &window, NULL, NULL), parts = 0;
    for (int part = 0; part < 2; part++) {
        int64_t from = part ? 3 : 0;
        window.length = part ? L - 3 : 3;
        for (int i = 0; i < dt_model_arrays(model)->n; i++)
            window.arrays[i] = (const char *)data.arrays[i] +
                               dt_array_bytes(&dt_model_arrays(model)->arrays[i], from);
        parts += loss_of(model, &window, state[part], state[part + 1]);
    }
    CHECK_NEAR(parts, whole, 1e-5); // fp32 products have other tiles
    int tokens;
    struct dt_view logits = {0};
    CHECK_INT(dt_model_token_array(model, &tokens), DT_OK);
    CHECK_FAILS(dt_model_logits(model, &(struct dt_pass){.input = window}, &logits), DT_USER,
                "head \"squares\" has no logits");
    for (int i = 0; i < 3; i++)
        dt_model_state_destroy(model, state[i]);
    free_data(&data);
    dt_model_destroy(model);
}

// The loss of one output at one position, without label smoothing, in the units of the data, as a
// player sees them.
static double loss_of_output(const struct dt_output *output, const float *z, const float *target,
                             const float *deviation)
{
    double loss = 0, n = 0;
    for (int64_t i = 0; i < output->target_width; i++)
        n += !isnan(target[i]);
    for (int64_t i = 0; i < output->width && n > 0; i++)
        if (output->type == &dt_categorical)
            loss += exp((double)(z[i] - z[(int64_t)*target]));
        else if (isnan(target[i]))
            continue;
        else if (output->type == &dt_bernoulli)
            loss += log1p(exp((double)(target[i] > 0.5f ? -z[i] : z[i]))) / n;
        else
            loss += pow((double)((z[i] - target[i]) / deviation[i]), 2) / n;
    if (n == 0)
        return 0;
    return output->weight * (output->type == &dt_categorical ? log(loss) : loss);
}

// The logits that a player reads at a position are those of the training loss: the loss of the
// first t + 1 positions is the loss of the first t plus that of the outputs at position t.
static void test_outputs(bool autoregressive)
{
    const char *heads = "b:categorical*5 a:bernoulli*3@0.5 c:regression*2 e:categorical*2";
    struct dt_model_config config = config_of("frames", "dense mamba", heads);
    FLAG_OF(config, autoregressive) = autoregressive;
    REAL_OF(config, label_smoothing) = 0;
    struct dt_model *model;
    must(dt_model_config_check(&config));
    must(dt_model_create(&backend, &config, &(struct dt_model_shape){.sequences = B, .length = L},
                         &model));
    dt_params_init(dt_model_params(model), 3, dt_model_weights(model));
    fill_biases(model);
    struct data data = make_data(model);
    const struct dt_outputs *outputs = dt_model_outputs(model);
    int targets = dt_array_list_find(dt_model_arrays(model), "targets"),
        mask = dt_array_list_find(dt_model_arrays(model), "mask");
    int64_t width = dt_model_arrays(model)->arrays[targets].width;
    memset(data.arrays[mask], 1, B * L);
    float *deviation =
        dt_model_weights(model) + dt_params_find(dt_model_params(model), "heads.deviation")->offset;
    for (int64_t i = 0; i < width; i++)
        deviation[i] = 0.5f + 0.25f * (float)i;
    data.input.arrays[dt_array_list_find(dt_model_arrays(model), "weights")] = NULL;
    CHECK_INT(outputs->n, 4);
    CHECK_INT(outputs->autoregressive, autoregressive);
    for (int64_t t = 1; t < L; t++) {
        struct dt_loss_sum sum[2] = {{0}};
        struct dt_pass pass = {.input = data.input};
        double last = 0;
        pass.input.sequences = 1;
        for (int more = 0; more < 2; more++) {
            pass.input.length = t + more;
            must(dt_model_forward(model, &pass));
            must(dt_model_loss(model, &pass, 0, &sum[more]));
        }
        for (int k = 0; k < outputs->n; k++) {
            struct dt_view z;
            must(dt_model_output(model, &pass, k, &z));
            CHECK_INT(z.rows, 1);
            CHECK_INT(z.cols, outputs->list[k].width);
            last += loss_of_output(&outputs->list[k], z.data,
                                   (const float *)data.arrays[targets] + t * width +
                                       outputs->list[k].target,
                                   deviation + outputs->list[k].target);
        }
        CHECK_NEAR(sum[1].loss - sum[0].loss, last, 1e-5);
    }
    struct dt_view z;
    CHECK_FAILS(dt_model_output(model, &(struct dt_pass){.input = data.input}, 4, &z), DT_USER,
                "has 4 outputs, not number 4");
    free_data(&data);
    dt_model_destroy(model);
}

static dt_status parse(const char *text, int64_t n_layer, char names[64])
{
    struct dt_layers layers;
    names[0] = 0;
    DT_TRY(dt_layers_parse(text, n_layer, &layers));
    for (int64_t i = 0; i < layers.n_layer; i++)
        strncat(names, dt_layers_kind(&layers, i)->name, 1);
    return DT_OK;
}

static void test_patterns(void)
{
    char names[64];
    CHECK_INT(parse("", 3, names), DT_OK);
    CHECK_STR(names, "ddd");
    CHECK_INT(parse("mamba*4", 0, names), DT_OK);
    CHECK_STR(names, "mmmm");
    CHECK_INT(parse(" mamba*2 dense  mamba*3 dense*1 ", 7, names), DT_OK);
    CHECK_STR(names, "mmdmmmd");
    CHECK_FAILS(parse("mamba*2 dense", 4, names), DT_USER,
                "model.layers has 3 layers, but model.n_layer");
    CHECK_FAILS(parse("mamba*2 mambo", 0, names), DT_USER,
                "model.layers: unknown kind 'mambo': did you mean 'mamba'? (known: dense, mamba, "
                "gain, leak)");
    CHECK_FAILS(parse("mamba*", 0, names), DT_USER, "expected KIND or KIND*COUNT, not \"mamba*\"");
    CHECK_FAILS(parse("mamba*0", 0, names), DT_USER, "expected KIND or KIND*COUNT");
    CHECK_FAILS(parse("mamba*-1", 0, names), DT_USER, "expected KIND or KIND*COUNT");
    CHECK_FAILS(parse("mamba*2x dense", 0, names), DT_USER,
                "expected KIND or KIND*COUNT, not \"mamba*2x\"");
    CHECK_FAILS(parse("mamba*2147483648", 0, names), DT_USER, "expected KIND or KIND*COUNT");
    CHECK_FAILS(parse("mamba*99999999999999999999", 0, names), DT_USER,
                "expected KIND or KIND*COUNT");
    CHECK_FAILS(parse("*3", 0, names), DT_USER, "expected KIND or KIND*COUNT, not \"*3\"");
    CHECK_INT(parse("  ", 2, names), DT_OK);
    CHECK_STR(names, "dd");
    char many[1024] = "";
    for (int i = 0; i <= DT_LAYER_RUNS; i++)
        strcat(many, i % 2 ? "dense " : "mamba ");
    CHECK_FAILS(parse(many, 0, names), DT_USER, "more than 64 entries");
}

static void test_own_initial_values(void)
{
    struct dt_model_config config = config_of("samples", "gain", "squares");
    struct dt_params params;
    must(dt_model_config_check(&config));
    must(dt_model_list(&config, &params, NULL));
    float *weights = calloc((size_t)params.elements, sizeof *weights);
    dt_params_init(&params, 3, weights);
    const struct dt_param *row = dt_params_find(&params, "backbone.layers.0.mixer.gain");
    for (int64_t i = 0; i < 8 * 8; i++)
        CHECK_NEAR(weights[row->offset + i], i % 9 == 0 ? 0.75 : 0, 0);
    free(weights);
    dt_params_free(&params);
}

static void test_wrong_models(void)
{
    struct dt_model_config config = config_of("pixels", "", "squares");
    struct dt_params params;
    config.n_layer = 1;
    CHECK_FAILS(dt_model_config_check(&config), DT_USER,
                "stem: unknown kind 'pixels' (known: samples, tokens, frames)");
    config = config_of("samples", "dense", "lm");
    config.tie_embeddings = true;
    CHECK_INT(dt_model_config_check(&config), DT_OK);
    CHECK_FAILS(dt_model_list(&config, &params, NULL), DT_USER,
                "shares the tensor backbone.embeddings.weight, but no part of it has one");
}

// A block with more states than a list can hold fails when its rows are complete.
static void test_too_many_states(void)
{
    struct dt_params params = {0};
    struct dt_part block = {0};
    const struct dt_model_config config = {0};
    const struct dt_build build = {.config = &config, .params = &params};
    char names[DT_BATCH_ARRAYS + 1][16];
    for (int i = 0; i <= DT_BATCH_ARRAYS; i++) {
        snprintf(names[i], sizeof names[i], "s%d", i);
        CHECK_INT(dt_build_state(&build, &block, names[i], DT_F32, 1),
                  i < DT_BATCH_ARRAYS ? i : -1);
        CHECK_INT(params.failed, i == DT_BATCH_ARRAYS);
    }
    CHECK_FAILS(dt_params_complete(&params), DT_USER, "array s8: at most 8 arrays");
}

int main(void)
{
    must(dt_backend_open("cpu", 0, 1, &backend));
    for (int level = DT_RECOMPUTE_NONE; level <= DT_RECOMPUTE_BLOCK; level++)
        test_gradients("", "dense mamba dense", "", false, (enum dt_recompute)level);
    test_gradients("tokens", "mamba dense", "lm", true, DT_RECOMPUTE_NONE);
    test_gradients("samples", "gain*2", "squares", false, DT_RECOMPUTE_BLOCK);
    test_gradients("tokens", "dense", "squares", true, DT_RECOMPUTE_NONE);
    test_gradients("samples", "mamba", "lm", false, DT_RECOMPUTE_NONE);
    test_gradients("", "dense", "a:categorical*5", false, DT_RECOMPUTE_NONE);
    test_gradients("ids", "dense", "a:categorical*5", false, DT_RECOMPUTE_NONE);
    for (int level = DT_RECOMPUTE_NONE; level <= DT_RECOMPUTE_BLOCK; level++)
        test_gradients(
            "frames", "mamba dense",
            "a:bernoulli*3@0.5 b:categorical*5 c:regression*2 d:huber*3@2 e:categorical*2", false,
            (enum dt_recompute)level);
    for (int level = DT_RECOMPUTE_NONE; level <= DT_RECOMPUTE_BLOCK; level++)
        test_gradients("chained", "dense mamba",
                       "b:categorical*5 a:bernoulli*3@0.5 c:regression*2 e:categorical*2", false,
                       (enum dt_recompute)level);
    static const char numbers[] = "g:gmm(3)*2 m:gmm(2,-1,2)*3@0.5 q:quantile(0.2,0.5,0.9)*2 "
                                  "r:regression(-2,2)*2 h:huber(0,3)";
    test_gradients("frames", "dense", numbers, false, DT_RECOMPUTE_NONE);
    test_gradients("chained", "dense", numbers, false, DT_RECOMPUTE_NONE);
    test_outputs(false);
    test_outputs(true);
    test_state(4);
    test_state(1);
    RUN(test_patterns, test_too_many_states, test_own_initial_values, test_wrong_models);
    dt_backend_close(&backend);
    return test_end();
}
