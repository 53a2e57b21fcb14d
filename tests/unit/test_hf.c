// Tests the weights in Hugging Face directories: they are read as they were written, and every way
// in which they can be wrong is refused. test_hf_config.c tests config.json.
#include "base/round.h"
#include "base/safetensors.h"
#include "model/hf.h"

#include "small_model.h"

// The models of all tests: `tied` uses the embedding as its lm_head.
static struct small_model tied, untied;

static void write_model(const char *dir, const struct small_model *model)
{
    char path[DT_PATH], *config;
    CHECK_OK(dt_remove_tree(dir));
    CHECK_OK(dt_make_dirs(dir));
    dt_path(path, "%s/config.json", dir);
    CHECK_OK(dt_hf_config_text(&model->config, &config));
    CHECK_OK(dt_write_file_atomic(path, config, (int64_t)strlen(config)));
    free(config);
    dt_path(path, "%s/model.safetensors", dir);
    CHECK_OK(dt_hf_write_weights(path, &model->params, model->weights, NULL, NULL));
}

static dt_status read_into_nan(const char *dir, const struct small_model *model, float **weights)
{
    *weights = malloc((size_t)model->params.elements * sizeof **weights);
    for (int64_t i = 0; i < model->params.elements; i++)
        (*weights)[i] = NAN;
    return dt_hf_read_weights(dir, false, &model->params, model->config.tie_embeddings, *weights);
}

static void check_same_weights(const char *dir, const struct small_model *model)
{
    float *weights;
    CHECK_OK(read_into_nan(dir, model, &weights));
    CHECK(memcmp(weights, model->weights, (size_t)model->params.elements * sizeof *weights) == 0,
          "%s: other weights came back, or padding is not 0", dir);
    free(weights);
}

static void check_weights_refused(const char *dir, const struct small_model *model,
                                  const char *part)
{
    float *weights;
    CHECK_FAILS(read_into_nan(dir, model, &weights), DT_USER, part);
    free(weights);
}

static void test_round_trip(const struct small_model *model)
{
    bool is_tied = model->config.tie_embeddings;
    struct dt_model_config read = {.pad_vocab_multiple = 8, .tie_embeddings = !is_tied};
    write_model(in_scratch("model"), model);
    check_same_weights(in_scratch("model"), model);
    CHECK_OK(dt_hf_read_config(in_scratch("model"), &read));
    CHECK_INT(read.d_model, 12);
    CHECK_INT(read.n_layer, 1);
    CHECK_INT(read.vocab_size, 37);
    CHECK_INT(WHOLE_OF(read, d_state), 5);
    CHECK_INT(WHOLE_OF(read, d_conv), 3);
    CHECK_INT(WHOLE_OF(read, expand), 3);
    CHECK_INT(WHOLE_OF(read, dt_rank), 1);
    CHECK(read.norm_eps == 1.25e-6, "norm_eps is %g", read.norm_eps);
    CHECK_INT(read.tie_embeddings, is_tied);
    CHECK_INT(read.pad_vocab_multiple, 8);
}

// The file holds vocab_size rows, and its size and hash are the reported ones.
static void test_file(void)
{
    struct dt_safetensors *file;
    int64_t size, size_now;
    uint64_t hash, hash_now;
    const char *path = in_scratch("one.safetensors");
    CHECK_OK(dt_hf_write_weights(path, &tied.params, tied.weights, &size, &hash));
    CHECK_OK(dt_hash_file(path, &hash_now, &size_now));
    CHECK(hash == hash_now && size == size_now, "size or hash");
    CHECK_OK(dt_safetensors_open(path, &file));
    const struct dt_safetensor *tensor = dt_safetensors_find(file, "backbone.embeddings.weight");
    CHECK(tensor && tensor->shape[0] == 37 && tensor->shape[1] == 12, "embedding's shape");
    CHECK(!dt_safetensors_find(file, "lm_head.weight"), "a tied head is written");
    CHECK_STR(dt_safetensors_metadata(file, "format"), "pt");
    dt_safetensors_close(file);
    path = in_scratch("absent/model.safetensors");
    CHECK_FAILS(dt_hf_write_weights(path, &tied.params, tied.weights, NULL, NULL), DT_USER, path);
}

// Files have separate tensors for q, k and v. A tensor with all three is read as well.
static void test_slices(void)
{
    struct small_model model = {.config = default_model("attention", 12, 37)}, whole;
    WHOLE_OF(model.config, n_head) = 3, WHOLE_OF(model.config, n_kv_head) = 1;
    WHOLE_OF(model.config, attn_window) = 8;
    CHECK_OK(dt_model_config_check(&model.config));
    CHECK_OK(dt_model_list(&model.config, &model.params, NULL));
    model.weights = small_model_array(&model.params, 4);
    write_model(in_scratch("sliced"), &model);
    check_same_weights(in_scratch("sliced"), &model);
    struct dt_safetensors *file;
    const char *path = in_scratch("sliced/model.safetensors");
    CHECK_OK(dt_safetensors_open(path, &file));
    const struct dt_safetensor *v =
        dt_safetensors_find(file, "backbone.layers.0.mixer.v_proj.weight");
    const struct dt_param *all =
        dt_params_find(&model.params, "backbone.layers.0.mixer.in_proj.weight");
    float got;
    CHECK(v && v->shape[0] == 4 && v->shape[1] == 12, "v_proj");
    CHECK_OK(dt_safetensors_read_f32(file, v, 5, 1, &got));
    CHECK(got == model.weights[all->offset + 16 * 12 + 5], "%g", (double)got);
    CHECK(dt_safetensors_find(file, "backbone.layers.0.mixer.o_proj.weight") &&
              file->n_tensors == 7,
          "%d tensors", file->n_tensors);
    dt_safetensors_close(file);
    whole = model;
    whole.params.rows = malloc((size_t)model.params.n * sizeof *whole.params.rows);
    for (int i = 0; i < model.params.n; i++) {
        whole.params.rows[i] = model.params.rows[i];
        whole.params.rows[i].n_slices = 0;
    }
    CHECK_OK(dt_hf_write_weights(path, &whole.params, model.weights, NULL, NULL));
    check_same_weights(in_scratch("sliced"), &model);
    write_model(in_scratch("sliced"), &model);
    check_weights_refused(in_scratch("sliced"), &whole, "mixer.in_proj.weight is missing");
    free(whole.params.rows);
    free(model.weights);
    dt_params_free(&model.params);
}

// How a file differs from the table of the tied model.
struct variant {
    const char *skipped, *other; // a row that is left out; a row that is changed
    const char *name;            // the name of the changed tensor
    int64_t shape[2];            // its shape, if shape[0] > 0
    dt_dtype dtype;              // its type
    float poison;                // its element 3, unless 0
    const char *extra;           // the name of an additional tensor [1]
};

static int64_t bytes_of(const struct dt_safetensors_entry *entry)
{
    int64_t bytes = dt_dtype_size(entry->dtype);
    for (int i = 0; i < entry->n_dims; i++)
        bytes *= entry->shape[i];
    return bytes;
}

static void write_variant(const char *path, const struct variant *variant)
{
    struct dt_safetensors_entry entries[64];
    char *data[64];
    struct dt_safetensors_writer *writer;
    int n = 0;
    for (int i = 0; i < tied.params.n; i++) {
        const struct dt_param *param = &tied.params.rows[i];
        struct dt_safetensors_entry *entry = &entries[n];
        bool is_other = variant->other && strcmp(param->name, variant->other) == 0;
        if (variant->skipped && strcmp(param->name, variant->skipped) == 0)
            continue;
        *entry = (struct dt_safetensors_entry){.name = param->name, .n_dims = param->n_dims};
        memcpy(entry->shape, param->shape, sizeof param->shape);
        entry->dtype = is_other ? variant->dtype : DT_F32;
        if (is_other && variant->name)
            entry->name = variant->name;
        if (is_other && variant->shape[0] > 0) {
            entry->n_dims = 2;
            memcpy(entry->shape, variant->shape, sizeof variant->shape);
        }
        data[n] = calloc(1, (size_t)bytes_of(entry));
        memcpy(data[n], tied.weights + param->offset,
               (size_t)dt_min_i64(param->file_count * 4, bytes_of(entry)));
        if (is_other && variant->poison != 0)
            memcpy(data[n] + 12, &variant->poison, 4);
        n++;
    }
    if (variant->extra) {
        entries[n] = (struct dt_safetensors_entry){
            .name = variant->extra, .dtype = DT_F32, .n_dims = 1, .shape = {1}};
        data[n++] = calloc(1, sizeof(float));
    }
    CHECK_OK(dt_safetensors_create(path, entries, n, NULL, 0, &writer));
    for (int i = 0; i < n; i++) {
        CHECK_OK(dt_safetensors_write(writer, data[i], bytes_of(&entries[i])));
        free(data[i]);
    }
    CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
}

#define EMBEDDING "backbone.embeddings.weight"
#define NORM      "backbone.norm_f.weight"

static void test_variants(void)
{
    static const struct {
        struct variant variant;
        const char *part; // a part of the message; NULL: the file is accepted
    } cases[] = {
        {{0}, NULL},
        {{.skipped = NORM}, NORM " is missing"},
        {{.extra = "backbone.layers.0.mixer.in_proj.bias"}, "mixer.in_proj.bias is not a tensor"},
        {{.other = NORM, .shape = {3, 4}}, NORM " is [3, 4], the model's is [12]"},
        {{.other = EMBEDDING, .shape = {40, 12}},
         "is [40, 12], the model's is [37, 12]: the file's vocabulary is padded"},
        {{.other = NORM, .dtype = DT_I32}, NORM " is int32"},
        {{.other = NORM, .poison = NAN}, NORM " holds nan at element 3"},
        {{.other = NORM, .name = "backbone.norm_g.weight"}, NORM " is missing\n"},
        {{.other = NORM, .name = "backbone.norm_g.weight"}, "backbone.norm_g.weight is not"},
        // The name in the official repository.
        {{.other = EMBEDDING, .name = "backbone.embedding.weight"}, NULL},
        {{.extra = "backbone.embedding.weight"}, "are both present"},
        // This is not the shape of an embedding.
        {{.extra = "lm_head.weight"}, "lm_head.weight is [1], the model's is [37, 12]"},
    };
    write_model(in_scratch("model"), &tied);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_variant(in_scratch("model/model.safetensors"), &cases[i].variant);
        if (cases[i].part)
            check_weights_refused(in_scratch("model"), &tied, cases[i].part);
        else
            check_same_weights(in_scratch("model"), &tied);
    }
}

static void test_untied(void)
{
    write_model(in_scratch("model"), &untied);
    check_same_weights(in_scratch("model"), &untied);
    // A tied model accepts the directory of an untied one, and ignores its lm_head.
    float *weights;
    CHECK_OK(read_into_nan(in_scratch("model"), &tied, &weights));
    free(weights);
    write_model(in_scratch("model"), &tied);
    check_weights_refused(in_scratch("model"), &untied, "lm_head.weight is missing");
}

static void test_damaged_file(void)
{
    char path[DT_PATH];
    dt_path(path, "%s", in_scratch("model/model.safetensors"));
    write_model(in_scratch("model"), &tied);
    int64_t size = dt_file_size(path);
    for (int64_t cut = size - 1; cut >= 0; cut = cut > 600 ? cut / 2 : cut - 97) {
        CHECK_INT(truncate(path, cut), 0);
        check_weights_refused(in_scratch("model"), &tied, "model.safetensors");
    }
    put_text(path, "\xff\xff\xff\xff\xff\xff\xff\x7f{}");
    check_weights_refused(in_scratch("model"), &tied, "model.safetensors");
    unlink(path);
    check_weights_refused(in_scratch("model"), &tied, "has neither model.safetensors nor");
}

// Splits the table into two files, for rows with even and odd numbers, and returns the text of the
// index.
static void write_split(const struct small_model *model, char *index, size_t size)
{
    const struct dt_params *params = &model->params;
    size_t used = (size_t)snprintf(index, size, "{\"weight_map\": {");
    for (int half = 0; half < 2; half++) {
        struct dt_params part = {.rows = calloc((size_t)params->n, sizeof *part.rows)};
        char name[64];
        snprintf(name, sizeof name, "model-%05d-of-00002.safetensors", half + 1);
        for (int i = half; i < params->n; i += 2) {
            part.rows[part.n++] = params->rows[i];
            used += (size_t)snprintf(index + used, size - used, "%s\"%s\": \"%s\"",
                                     half + i > 0 ? ", " : "", params->rows[i].name, name);
        }
        CHECK_OK(
            dt_hf_write_weights(in_scratch("split/%s", name), &part, model->weights, NULL, NULL));
        free(part.rows);
    }
    snprintf(index + used, size - used, "}}");
}

static void check_index(const struct small_model *model, const char *text, const char *part)
{
    put_text(in_scratch("split/model.safetensors.index.json"), text);
    check_weights_refused(in_scratch("split"), model, part);
}

static void replace_text(char *text, size_t size, const char *from, const char *to)
{
    char *place = strstr(text, from), *rest = strdup(place + strlen(from));
    snprintf(place, size - (size_t)(place - text), "%s%s", to, rest);
    free(rest);
}

static void test_split(void)
{
    char good[4096], bad[4096];
    dt_make_dirs(in_scratch("split"));
    write_split(&untied, good, sizeof good);
    put_text(in_scratch("split/model.safetensors.index.json"), good);
    check_same_weights(in_scratch("split"), &untied);

    strcpy(bad, good);
    replace_text(bad, sizeof bad, "model-00002", "model-00003");
    check_index(&untied, bad, "model-00003-of-00002.safetensors");
    strcpy(bad, good);
    replace_text(bad, sizeof bad, "model-00002", "model-00001");
    check_index(&untied, bad, "should be in model-00001-of-00002.safetensors but is not");
    CHECK_OK(dt_hf_write_weights(in_scratch("split/model-00001-of-00002.safetensors"),
                                 &untied.params, untied.weights, NULL, NULL)); // the whole table
    check_index(&untied, good, "is in 2 files");
    check_index(&untied, "{\"weight_map\": []}", "weight_map is []");
    check_index(&untied, "{\"weight_map\": {\"a\": 3}}", "a is 3");
    check_index(&untied, "{\"weight_map\": {}}", "is missing");
    check_index(&untied, "{\"weight_map\": {", "not JSON");
}

static void write_in(const char *dir, const char *name, char *text)
{
    char path[DT_PATH];
    dt_path(path, "%s/%s", dir, name);
    CHECK_OK(dt_write_file_atomic(path, text, (int64_t)strlen(text)));
    free(text);
}

// Weights in bf16, in several files with an index, are read with rounding. A tensor larger than the
// size of a file has its own file. Too many files are refused.
static void test_formats(void)
{
    const struct dt_hf_format format = {.type = DT_BF16, .file_bytes = 1200},
                              tiny = {.file_bytes = 1};
    struct dt_params many = tied.params;
    float *weights;
    CHECK_OK(dt_make_dirs(in_scratch("bf16")));
    CHECK_OK(dt_hf_write(in_scratch("bf16"), &tied.params, tied.weights, &format));
    int files = 2;
    while (files < 9 && !dt_file_exists(in_scratch("bf16/model-00002-of-%05d.safetensors", files)))
        files++;
    CHECK(files < 9 && !dt_file_exists(in_scratch("bf16/model.safetensors")), "no second file");
    for (int k = 1; k <= files; k++)
        CHECK(dt_file_exists(in_scratch("bf16/model-%05d-of-%05d.safetensors", k, files)),
              "file %d of %d", k, files);
    char *index = get_text(in_scratch("bf16/model.safetensors.index.json")), total[64];
    int64_t bytes = 0; // bytes of data in all files, without headers
    for (int k = 1; k <= files; k++) {
        const char *path = in_scratch("bf16/model-%05d-of-%05d.safetensors", k, files);
        char *file = get_text(path);
        uint64_t header;
        memcpy(&header, file, sizeof header);
        bytes += dt_file_size(path) - (int64_t)(sizeof header + header);
        free(file);
    }
    snprintf(total, sizeof total, "\"total_size\":\t%lld\n", (long long)bytes);
    CHECK(strstr(index, total), "no %s in %s", total, index);
    free(index);
    for (int less = 0; less < 2; less++) { // files of just this size, then of one byte less
        struct dt_hf_format exact = format;
        exact.file_bytes = bytes - less;
        CHECK_OK(dt_make_dirs(in_scratch("exact-%d", less)));
        CHECK_OK(dt_hf_write(in_scratch("exact-%d", less), &tied.params, tied.weights, &exact));
        CHECK_INT(dt_file_exists(in_scratch("exact-%d/model.safetensors", less)), !less);
    }
    CHECK_OK(read_into_nan(in_scratch("bf16"), &tied, &weights));
    for (int64_t i = 0; i < tied.params.elements; i++)
        CHECK(weights[i] == dt_bf16_to_f32(dt_f32_to_bf16(tied.weights[i])), "element %lld",
              (long long)i);
    free(weights);
    many.n = 257;
    many.rows = malloc((size_t)many.n * sizeof *many.rows);
    for (int i = 0; i < many.n; i++)
        many.rows[i] = tied.params.rows[0];
    CHECK_FAILS(dt_hf_write(in_scratch("bf16"), &many, tied.weights, &tiny), DT_USER,
                "257 files of at most 1 bytes; 256 are the most");
    many.n--;
    CHECK_OK(dt_make_dirs(in_scratch("many")));
    CHECK_OK(dt_hf_write(in_scratch("many"), &many, tied.weights, &tiny));
    free(many.rows);
}

// Linear layers are written in int8, except an embedding that is also the output layer, because ids
// read it too.
static void test_int8(void)
{
    static int8_t data[4096];
    static float scale[128];
    static const char *const names[] = {"backbone.embeddings.weight",
                                        "backbone.layers.0.mixer.in_proj.weight"};
    for (int is_tied = 0; is_tied < 2; is_tied++) {
        const struct small_model *model = is_tied ? &tied : &untied;
        struct dt_int8 *int8 = calloc((size_t)model->params.n, sizeof *int8);
        const struct dt_hf_format format = {.type = DT_F32, .int8 = int8};
        struct dt_safetensors *file;
        for (int k = 0; k < 2; k++) {
            const struct dt_param *row = dt_params_find(&model->params, names[k]);
            int8[row - model->params.rows] =
                (struct dt_int8){row->shape[0], row->shape[1], data, scale};
        }
        CHECK_OK(dt_make_dirs(in_scratch("int8")));
        CHECK_OK(dt_hf_write(in_scratch("int8"), &model->params, model->weights, &format));
        CHECK_OK(dt_safetensors_open(in_scratch("int8/model.safetensors"), &file));
        for (int k = 0; k < 2; k++) {
            const struct dt_safetensor *tensor = dt_safetensors_find(file, names[k]);
            bool shared = is_tied && k == 0;
            CHECK(tensor && tensor->dtype == (shared ? DT_F32 : DT_I8), "%s, tied: %d", names[k],
                  is_tied);
        }
        dt_safetensors_close(file);
        free(int8);
    }
}

// Weights with the names of state-spaces/mamba are written and read.
static void test_official(void)
{
    const struct dt_hf_format format = {.official = true};
    struct small_model model = {.config = default_model("mamba2*2", 16, 37)};
    struct dt_model_config read = {0};
    struct dt_safetensors *file;
    char *text;
    WHOLE_OF(model.config, head_dim) = 8, WHOLE_OF(model.config, n_groups) = 2;
    CHECK_OK(dt_model_config_check(&model.config));
    CHECK_OK(dt_model_list(&model.config, &model.params, NULL));
    model.weights = small_model_array(&model.params, 5);
    CHECK_OK(dt_make_dirs(in_scratch("official")));
    CHECK_OK(dt_hf_official_text(&model.config, &text));
    CHECK(strstr(text, "\"d_model\":\t16") && strstr(text, "\"layer\":\t\"Mamba2\"") &&
              strstr(text, "\"ngroups\":\t2") && strstr(text, "\"headdim\":\t8") &&
              strstr(text, "\"d_state\":\t16") && strstr(text, "\"d_conv\":\t4"),
          "%s", text);
    write_in(in_scratch("official"), "config.json", text);
    CHECK_OK(dt_hf_write(in_scratch("official"), &model.params, model.weights, &format));
    check_same_weights(in_scratch("official"), &model);
    CHECK_OK(dt_safetensors_open(in_scratch("official/model.safetensors"), &file));
    CHECK(dt_safetensors_find(file, "backbone.embedding.weight") &&
              dt_safetensors_find(file, "lm_head.weight"),
          "names");
    dt_safetensors_close(file);
    CHECK_OK(dt_hf_read_config(in_scratch("official"), &read));
    struct dt_problems problems = {0};
    dt_model_config_compare(&problems, &read, &model.config);
    CHECK(problems.n == 0, "%s", problems.text);
    small_model_free(&model);
}

static void test_escaping_names(void)
{
    static const char *const names[] = {"../split/model-00001-of-00002.safetensors",
                                        "/etc/passwd",
                                        "..",
                                        "",
                                        ".hidden.safetensors",
                                        "sub/x.safetensors",
                                        "config.json",
                                        ".safetensors"};
    char index[256];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(index, sizeof index, "{\"weight_map\": {\"x\": \"%s\"}}", names[i]);
        check_index(&untied, index, "in the same directory");
    }
}

int main(void)
{
    make_scratch();
    tied = small_model_make(true);
    untied = small_model_make(false);
    test_round_trip(&tied);
    test_round_trip(&untied);
    RUN(test_file, test_slices, test_variants, test_untied, test_damaged_file, test_split,
        test_formats, test_int8, test_official, test_escaping_names);
    small_model_free(&tied);
    small_model_free(&untied);
    remove_scratch();
    return test_end();
}
