// predict_tool MODEL DATA LENGTH PREDICTIONS [INPUTS TARGETS [SOME]]: compares predictions with the
// outputs of the model in MODEL in one forward pass over each segment of DATA, none of which is
// longer than LENGTH. Prints how many numbers it compared and the sum of the log-probabilities of
// tokens. SOME holds predictions of some of the episodes, which share datasets: their rows equal
// those of PREDICTIONS, and all others are NaN.
#include "base/memory.h"
#include "job/job.h"
#include "model/hf.h"
#include "test.h"

#include <hdf5.h>
#include <string.h>

// The passes of dtrain predict have products of other numbers of rows and pass states on at other
// positions: outputs near 1 agree in five digits.
static const double tolerance = 2e-5;

static struct {
    struct dt_backend backend;
    struct dt_model_config config;
    struct dt_model *model;
    struct dt_dataset *data;
    struct dt_read_rules rules;
    struct dt_array_list yields;
    void *arrays[DT_BATCH_ARRAYS];
    hid_t file;
    int64_t length, compared;
    double log_probabilities;
} t;

static void load_model(const char *dir)
{
    const struct dt_model_shape shape = {.sequences = 1, .length = t.length};
    t.config = (struct dt_model_config){.pad_vocab_multiple = 8, .storage = DT_F32};
    CHECK_OK(dt_backend_open("cpu", 0, 0, &t.backend));
    CHECK_OK(dt_hf_read_config(dir, &t.config));
    CHECK_OK(dt_model_config_check(&t.config));
    CHECK_OK(dt_model_create(&t.backend, &t.config, &shape, &t.model));
    float *weights = dt_model_weights(t.model);
    const struct dt_params *params = dt_model_params(t.model);
    CHECK_OK(dt_hf_read_weights(dir, false, params, t.config.tie_embeddings, weights));
    CHECK_OK(dt_model_refresh(t.model, NULL));
    t.rules = (struct dt_read_rules){
        .vocab_size = t.config.vocab_size, .reset_token = -1, .carry = true, .frames_type = DT_F32};
    const struct dt_param *mean = dt_params_find(params, "stem.mean"),
                          *deviation = dt_params_find(params, "stem.deviation");
    if (mean) {
        t.rules.mean = weights + mean->offset;
        t.rules.deviation = weights + deviation->offset;
    }
}

static void load_data(const char *path, const char *inputs, const char *targets)
{
    struct dt_scan_rules rules = {.seq_len = t.length,
                                  .vocab_size = t.config.vocab_size,
                                  .whole = true,
                                  .mask_default = "valid"};
    snprintf(rules.inputs, sizeof rules.inputs, "%s", inputs);
    snprintf(rules.targets, sizeof rules.targets, "%s", targets);
    CHECK_OK(dt_job_targets(&t.config, &rules));
    CHECK_OK(dt_dataset_scan(path, &rules, &t.data));
    t.data->kind->arrays(t.data, &t.rules, &t.yields);
    for (int i = 0; i < t.yields.n; i++)
        t.arrays[i] = calloc((size_t)dt_array_bytes(&t.yields.arrays[i], t.length), 1);
}

// Reads a dataset of the predictions, which has `width` numbers in each row.
static float *read_all(const char *path, int64_t rows, int64_t width)
{
    float *values = calloc((size_t)(rows * width) + 1, sizeof *values);
    hid_t id = H5Dopen2(t.file, path, H5P_DEFAULT);
    CHECK(id >= 0, "there is no %s", path);
    hid_t space = H5Dget_space(id);
    CHECK_INT(H5Sget_simple_extent_npoints(space), rows * width);
    CHECK(H5Dread(id, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0, "%s", path);
    H5Sclose(space);
    H5Dclose(id);
    return values;
}

static void compare(const char *path, int64_t row, double found, double expected)
{
    CHECK(fabs(found - expected) <= tolerance * (1 + fabs(expected)), "%s, row %lld: %g, not %g",
          path, (long long)row, found, expected);
    t.compared++;
}

// Compares the rows of a view with those of a dataset from row `first` on.
static void compare_view(const char *path, const float *found, int64_t first, int64_t n,
                         const struct dt_view *view)
{
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < view->cols; i++)
            compare(path, r, found[(first + r) * view->cols + i], *(float *)dt_view_at(view, r, i));
}

static void compare_probabilities(const char *path, const float *found, int64_t first, int64_t n,
                                  const struct dt_view *view, bool one_of)
{
    for (int64_t r = 0; r < n; r++) {
        long double total = 0; // double cannot hold e^10000
        for (int64_t i = 0; i < view->cols; i++)
            total += expl(*(float *)dt_view_at(view, r, i));
        for (int64_t i = 0; i < view->cols; i++) {
            long double e = expl(*(float *)dt_view_at(view, r, i));
            compare(path, r, found[(first + r) * view->cols + i],
                    (double)(one_of ? e / total : e / (1 + e)));
        }
    }
}

static void compare_tokens(const char *group, const struct dt_pass *pass, int64_t rows,
                           const struct dt_segment *segment, int64_t first, int64_t n)
{
    char path[600];
    int64_t V = t.config.vocab_size;
    float *logits = calloc((size_t)(t.length * V), sizeof *logits);
    const int32_t *labels = t.arrays[dt_array_list_find(&t.yields, "labels")];
    struct dt_view view = {.data = logits};
    CHECK_OK(dt_model_logits(t.model, pass, &view));
    snprintf(path, sizeof path, "%s/log_probabilities", group);
    float *found = read_all(path, rows, 1);
    if (segment->label == 1)
        CHECK(isnan(found[first]), "the first token has a probability");
    for (int64_t r = 0; r + segment->label < n; r++) {
        long double total = 0;
        double value = found[first + r + segment->label];
        for (int64_t i = 0; i < V; i++)
            total += expl(logits[r * V + i]);
        if (labels[r] < 0)
            CHECK(isnan(value), "an ignored label has a probability");
        else
            compare(path, r, value, logits[r * V + labels[r]] - (double)logl(total));
        t.log_probabilities += labels[r] < 0 ? 0 : value;
    }
    free(found);
    free(logits);
}

static void compare_heads(const char *group, const struct dt_pass *pass, int64_t rows,
                          int64_t first, int64_t n)
{
    const struct dt_outputs *outputs = dt_model_outputs(t.model);
    struct dt_predictions all;
    char path[600];
    int64_t column = 0;
    CHECK_OK(dt_model_predictions(t.model, pass, false, &all));
    for (int k = 0; k < outputs->n; column += outputs->list[k++].width) {
        const struct dt_output *output = &outputs->list[k];
        bool classes = output->type->one_of || output->type->classes == 2;
        struct dt_view view = dt_view_cols(all.values, column, column + output->width);
        if (output->pool != DT_POOL_NONE) { // the output of the last window pools the whole segment
            CHECK_OK(dt_model_output(t.model, pass, k, &view));
            snprintf(path, sizeof path, "%s/%s/logits", group, output->name);
            float *pooled = read_all(path, rows, view.cols);
            compare_view(path, pooled, first + n - 1, 1, &view);
            free(pooled);
            continue;
        }
        snprintf(path, sizeof path, "%s/%s/%s", group, output->name, classes ? "logits" : "values");
        float *found = read_all(path, rows, view.cols);
        compare_view(path, found, first, n, &view);
        free(found);
        if (!classes)
            continue;
        snprintf(path, sizeof path, "%s/%s/probabilities", group, output->name);
        found = read_all(path, rows, view.cols);
        compare_probabilities(path, found, first, n, &view, output->type->one_of);
        free(found);
    }
    snprintf(path, sizeof path, "%s/hidden", group);
    if (H5Lexists(t.file, path, H5P_DEFAULT) > 0) {
        struct dt_view hidden = dt_model_hidden(t.model, pass);
        float *found = read_all(path, rows, hidden.cols);
        compare_view(path, found, first, n, &hidden);
        free(found);
    }
}

static void compare_segment(struct dt_reader *reader, const struct dt_segment *segment)
{
    const struct dt_shard *shard = &t.data->shards[0];
    const struct dt_reader_kind *kind = t.data->kind;
    const struct dt_array_list *reads = dt_model_arrays(t.model);
    struct dt_block block = {.first = segment->window, .windows = 1};
    struct dt_pass pass = {.input = {.sequences = 1, .length = t.length}};
    int64_t n = segment->count * shard->row;
    const char *group = segment->group ? segment->group : "";
    CHECK(n <= t.length, "a segment of %lld rows", (long long)n);
    CHECK_OK(dt_memory_new(&block.memory, kind->block_bytes(t.data, &t.rules, shard, 1), 1, 64,
                           NULL, "a window"));
    CHECK_OK(kind->read(reader, t.data, &t.rules, &block));
    CHECK_OK(kind->write(t.data, &t.rules, &block, segment->window, t.arrays));
    for (int i = 0; i < reads->n; i++) {
        int k = dt_array_list_find(&t.yields, reads->arrays[i].name);
        pass.input.arrays[i] = k < 0 ? NULL : t.arrays[k];
    }
    CHECK_OK(dt_model_forward(t.model, &pass));
    int64_t rows = segment->rows * shard->row, first = segment->first * shard->row;
    if (dt_model_outputs(t.model)->perplexity)
        compare_tokens(group, &pass, rows, segment, first, n);
    else
        compare_heads(group, &pass, rows, first, n);
    free(block.memory);
}

static void compare_some(const char *some)
{
    hid_t other = H5Fopen(some, H5F_ACC_RDONLY, H5P_DEFAULT), all = t.file;
    int64_t n = t.data->shards[0].count, width = 5, there = 0;
    float *want = read_all("/stick/logits", n, width);
    t.file = other;
    float *got = read_all("/stick/logits", n, width);
    for (int64_t r = 0; r < n; r++) {
        bool missing = isnan(got[r * width]);
        there += !missing;
        for (int64_t i = 0; i < width; i++)
            if (missing)
                CHECK(isnan(got[r * width + i]), "row %lld is there in part", (long long)r);
            else
                compare("/stick/logits", r, got[r * width + i], want[r * width + i]);
    }
    CHECK(there > n / 10 && there < n / 10 * 9, "%lld of %lld rows", (long long)there,
          (long long)n);
    free(want);
    free(got);
    t.file = all;
    H5Fclose(other);
}

int main(int argc, char **argv)
{
    struct dt_reader *reader;
    struct dt_segment segment;
    if (argc < 5)
        return 2;
    t.length = atoll(argv[3]);
    load_model(argv[1]);
    load_data(argv[2], argc > 5 ? argv[5] : "", argc > 6 ? argv[6] : "");
    t.file = H5Fopen(argv[4], H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(t.file >= 0, "cannot open %s", argv[4]);
    CHECK_OK(dt_reader_open(argv[2], &t.data->rules, &(struct dt_shard){.path = argv[2]}, &reader));
    for (int64_t i = 0; t.data->kind->segment(reader, &t.data->shards[0], i, &segment); i++)
        compare_segment(reader, &segment);
    if (argc > 7)
        compare_some(argv[7]);
    CHECK(t.compared > 0, "nothing was compared");
    printf("%lld %.9g\n", (long long)t.compared, t.log_probabilities);
    dt_reader_close(reader);
    H5Fclose(t.file);
    dt_dataset_free(t.data);
    dt_model_destroy(t.model);
    for (int i = 0; i < t.yields.n; i++)
        free(t.arrays[i]);
    dt_backend_close(&t.backend);
    return test_end();
}
