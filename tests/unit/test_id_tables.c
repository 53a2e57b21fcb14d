// Tests id columns that share a table. A model with one shared table has the loss of a model with
// equal separate tables, and the sum of their gradients. Also tests the syntax of model.ids and the
// names of columns, and that frames which the mask leaves out do not matter.
#include "random_pass.h"

enum { B = 3, L = 11 };

// Whether a row is the shared table, or one of the separate tables in its place.
static bool is_char(const char *row)
{
    static const char *const names[] = {"stem.ids.char.weight", "stem.ids.0.weight",
                                        "stem.ids.2.weight", "stem.ids.3.weight"};
    for (int i = 0; i < 4; i++)
        if (strcmp(row, names[i]) == 0)
            return true;
    return false;
}

static void open_model(struct random_pass *p, const char *ids)
{
    struct dt_model_config config = random_pass_config("frames", "gru", "a:bernoulli*5 c:huber");
    snprintf(config.ids, sizeof config.ids, "%s", ids);
    CHECK_OK(dt_model_config_check(&config));
    random_pass_open(p, 1);
    random_pass_create(p, &config, B, L);
    const struct dt_params *params = dt_model_params(p->model);
    float *weights = calloc((size_t)p->elements, sizeof *weights);
    for (int i = 0; i < params->n; i++) {
        const struct dt_param *row = &params->rows[i];
        struct dt_philox rng = dt_philox_init(1, is_char(row->name) ? 7 : (uint32_t)row->count, 0);
        for (int64_t k = 0; k < row->count; k++)
            weights[row->offset + k] = 0.1f * dt_philox_normal(&rng);
    }
    CHECK_OK(dt_model_set_weights(p->model, weights));
    free(weights);
}

static const float *gradient(const struct random_pass *p, const char *name, int64_t *n)
{
    const struct dt_param *row = dt_params_find(dt_model_params(p->model), name);
    CHECK(row != NULL, "no row %s", name);
    *n = row ? row->count : 0;
    return row ? dt_model_gradients(p->model) + row->offset : NULL;
}

// Compares "40=char 40 40=char 40=char" with four separate tables.
static void test_shared(void)
{
    struct random_pass shared, own;
    open_model(&shared, "40=char 40 40=char 40=char");
    open_model(&own, "40 40 40 40");
    CHECK(dt_params_find(dt_model_params(shared.model), "stem.ids.0.weight") == NULL &&
              dt_params_find(dt_model_params(shared.model), "stem.ids.1.weight") != NULL &&
              dt_params_find(dt_model_params(shared.model), "stem.ids.2.weight") == NULL,
          "the rows of the shared model");
    for (int pass = 0; pass < 2; pass++) { // the second pass adds to the gradients
        double one = random_pass_run(&shared, pass).loss, other = random_pass_run(&own, pass).loss;
        CHECK(one == other && one > 0, "losses %.9g and %.9g", one, other);
    }
    int64_t n;
    const float *got = gradient(&shared, "stem.ids.char.weight", &n), *of[3];
    static const char *const names[] = {"stem.ids.0.weight", "stem.ids.2.weight",
                                        "stem.ids.3.weight"};
    float *sum = calloc((size_t)n, sizeof *sum);
    for (int k = 0; k < 3; k++) {
        of[k] = gradient(&own, names[k], &n);
        for (int64_t i = 0; i < n; i++)
            sum[i] += of[k][i];
    }
    // Three numbers are summed in another order, in fp32.
    CHECK(random_pass_distance(got, sum, n) < 1e-6, "the gradients differ by %.2g",
          random_pass_distance(got, sum, n));
    CHECK(random_pass_distance(sum, of[0], n) > 0.1, "the other columns have no gradient");
    got = gradient(&shared, "stem.ids.1.weight", &n);
    CHECK(memcmp(got, gradient(&own, "stem.ids.1.weight", &n), (size_t)n * sizeof *got) == 0,
          "the table of its own has another gradient");
    free(sum);
    random_pass_close(&shared);
    random_pass_close(&own);
}

static void refuse(const char *ids, const char *phrase)
{
    struct dt_id_tables tables;
    CHECK_FAILS(dt_ids_parse(ids, &tables), DT_USER, phrase);
}

static void test_parse(void)
{
    struct dt_id_tables tables;
    CHECK_OK(dt_ids_parse(" 33=char 7  33=char 7 9=c-2_x", &tables));
    CHECK_INT(tables.n, 5);
    const int first[] = {0, 1, 0, 3, 4};
    const int64_t size[] = {33, 7, 33, 7, 9};
    for (int i = 0; i < 5; i++) {
        CHECK_INT(tables.first[i], first[i]);
        CHECK_INT(tables.size[i], size[i]);
    }
    CHECK_STR(tables.name[2], "char");
    CHECK_STR(tables.name[4], "c-2_x");
    refuse("33=", "model.ids: expected sizes of tables, not \"33=\"");
    refuse("33=1x", "model.ids: expected sizes of tables");
    refuse("33=a 34=a", "model.ids: the table a has 33 and 34 rows");
    refuse("34=a 9 33=a", "model.ids: the table a has 34 and 33 rows");
    CHECK_OK(dt_ids_parse("33=a2345678901234567890123", &tables));
    refuse("33=a23456789012345678901234", "model.ids: expected sizes of tables");
    refuse("0=a", "model.ids: expected sizes of tables");
    CHECK_OK(dt_ids_parse("1 2147483647", &tables));
    refuse("2147483648", "model.ids: expected sizes of tables");
    CHECK_OK(dt_ids_parse("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16", &tables));
    refuse("1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "more than 16 id columns");
}

// The columns that a checkpoint names must be those of the data. Checkpoints of an older dtrain
// name none.
static void test_names(void)
{
    struct dt_model_config now = random_pass_config("frames", "gru", "a:huber"), saved = now;
    struct dt_problems problems = {0};
    snprintf(now.inputs, sizeof now.inputs, "obs/a[0:16]");
    dt_model_config_compare(&problems, &now, &saved);
    CHECK_INT(problems.n, 0);
    snprintf(saved.inputs, sizeof saved.inputs, "obs/a[0:16]@-1");
    dt_model_config_compare(&problems, &now, &saved);
    CHECK_FAILS(dt_problems_raise(&problems, NULL), DT_USER,
                "model.inputs is obs/a[0:16], the checkpoint has obs/a[0:16]@-1");

    struct dt_frame_layout layout = {.frame_width = 16};
    struct dt_model_data data = {
        .frames = &layout, .inputs = "obs/a[0:8] obs/b[0:8]@+1", .targets = ""};
    struct dt_model_config model = random_pass_config("frames", "gru", "a:huber");
    CHECK_OK(dt_model_config_fit(&model, &data)); // names the columns
    CHECK_STR(model.inputs, data.inputs);
    data.inputs = "obs/a[0:8] obs/b[0:8]";
    CHECK_FAILS(dt_model_config_fit(&model, &data), DT_USER,
                "data.inputs: word 2 is obs/b[0:8], the model has obs/b[0:8]@+1");
    data.inputs = "obs/a[0:8]";
    CHECK_FAILS(dt_model_config_fit(&model, &data), DT_USER,
                "data.inputs: word 2 is nothing, the model has obs/b[0:8]@+1");
    data.inputs = "";
    CHECK_OK(dt_model_config_fit(&model, &data)); // synthetic frames have no names
    data.inputs = "obs/a[0:8] obs/c[0:8]";
    data.renames = true;
    CHECK_OK(dt_model_config_fit(&model, &data));
    CHECK_STR(model.inputs, data.inputs);
}

// Frames that the mask leaves out are read as zeros, both bytes and floats, whatever the arrays
// hold.
static void test_masked_frames(void)
{
    struct dt_model_config config = random_pass_config("frames", "gru", "a:bernoulli*5");
    struct random_pass p;
    config.bytes = (struct dt_byte_columns){1, {{3, 7}}};
    random_pass_open(&p, 1);
    random_pass_create(&p, &config, B, L);
    double loss = random_pass_run(&p, false).loss;
    const struct dt_array_list *list = dt_model_arrays(p.model);
    const uint8_t *mask = p.arrays[dt_array_list_find(list, "mask")];
    for (int left_out = 1; left_out >= 0; left_out--) {
        for (int i = 0; i < B * L; i++)
            if ((mask[i] == 0) == left_out) {
                uint8_t *bytes = p.arrays[dt_array_list_find(list, "bytes")];
                float *frames = p.arrays[dt_array_list_find(list, "frames")];
                bytes[4 * i] += 100;
                frames[12 * i] += 100;
            }
        double now = random_pass_run(&p, false).loss;
        CHECK((now == loss) == left_out, "left out: %d, loss %.9g, before %.9g", left_out, now,
              loss);
    }
    random_pass_close(&p);
}

int main(void)
{
    RUN(test_shared, test_parse, test_names, test_masked_frames);
    return test_end();
}
