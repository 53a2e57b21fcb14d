// Tests libdtrain_step through its public header. A step computes what the training forward pass
// computes at the next position, for every kind of block. States are saved and restored bit by bit.
// Streams do not affect each other.
#include "base/safetensors.h"
#include "model/kinds.h"

#include "step_calls.h"

enum { T = 77, M = 9 };

// Returns the largest difference of n numbers relative to the largest of them.
static double difference(const float *got, const float *want, int64_t n)
{
    double most = 0, size = 1e-30;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)got[i] - (double)want[i]);
        most = d > most || d != d ? d : most;
        size = fmax(size, fabs((double)want[i]));
    }
    return most / size;
}

// Input of the training forward pass for T positions.
struct sequence {
    int32_t ids[T * 4];
    float frames[T * 64], targets[T * 64];
    dt_bf16 narrow[T * 64];
};

// Sets position t as the loader would: frames are normalised. `drawn` is what heads read that
// depend on earlier heads.
static void add_position(const struct model_folder *folder, const struct dtrain_step_info *info,
                         int t, const float *drawn, struct sequence *s)
{
    struct feed feed = feed_at(info, 1, t);
    int64_t F = info->frame_size, width = info->vocab_size > 0 ? 1 : info->n_ids;
    const struct dt_param *mean = dt_params_find(&folder->params, "stem.mean"),
                          *deviation = dt_params_find(&folder->params, "stem.deviation");
    for (int64_t i = 0; i < width; i++)
        s->ids[t * width + i] = feed.ids[i];
    for (int64_t i = 0; i < F; i++) {
        s->frames[t * F + i] = (feed.frame[i] - folder->weights[mean->offset + i]) /
                               folder->weights[deviation->offset + i];
        s->narrow[t * F + i] = dt_f32_to_bf16(s->frames[t * F + i]);
    }
    memcpy(s->targets + t * info->n_targets, drawn, (size_t)info->n_targets * sizeof *drawn);
}

// Computes the outputs of a training model at the last of n positions.
static void forward(struct dt_model *model, const struct sequence *s, int64_t n, float *outputs)
{
    struct dt_pass pass = {.input = {.sequences = 1, .length = n}};
    const struct dt_array_list *arrays = dt_model_arrays(model);
    for (int i = 0; i < arrays->n; i++) {
        const struct dt_array_spec *spec = &arrays->arrays[i];
        const void **to = &pass.input.arrays[i];
        if (strcmp(spec->name, "input_ids") == 0 || strcmp(spec->name, "ids") == 0)
            *to = s->ids;
        if (strcmp(spec->name, "frames") == 0)
            *to = spec->type == DT_BF16 ? (const void *)s->narrow : s->frames;
        if (strcmp(spec->name, "targets") == 0)
            *to = s->targets;
    }
    CHECK_OK(dt_model_forward(model, &pass));
    for (int k = 0; k < dt_model_outputs(model)->n; k++) {
        struct dt_view view;
        CHECK_OK(dt_model_output(model, &pass, k, &view));
        memcpy(outputs, view.data, (size_t)view.cols * sizeof *outputs);
        outputs += view.cols;
    }
}

// fp32: sums have another order. bf16: activations are rounded to 8 bits at other places of the
// sums. int8: products are exact where training rounds them, and a rounding can move a value on the
// border of two integers by 1/127 of the largest value in its row.
static void step_equals_pass(const struct dt_model_config *config, const char *name,
                             int32_t weights, double tolerance)
{
    struct model_folder folder = {.config = *config};
    struct sequence *sequence = calloc(1, sizeof *sequence);
    struct dt_backend cpu;
    struct dt_model *model;
    struct dtrain_step_info info;
    float *got, *want;
    double worst = 0;
    write_model(&folder, name);
    folder.config.quantize =
        // Trained with int8 weights.
        weights == DTRAIN_STEP_INT8 ? DT_QUANTIZE_INT8 : DT_QUANTIZE_NONE;
    folder.config.storage = weights == DTRAIN_STEP_BF16 ? DT_BF16 : DT_F32;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &cpu));
    CHECK_OK(dt_model_create(
        &cpu, &folder.config,
        &(struct dt_model_shape){.sequences = 1, .length = T, .training = true}, &model));
    memcpy(dt_model_weights(model), folder.weights,
           (size_t)folder.params.elements * sizeof *folder.weights);
    CHECK_OK(dt_model_refresh(model, NULL));
    dtrain_step *handle = open_step(folder.path, weights, 1);
    FINE(dtrain_step_describe(handle, &info));
    got = malloc((size_t)info.n_values * sizeof *got);
    want = malloc((size_t)info.n_values * sizeof *want);
    for (int t = 0; t < T; t++) {
        struct feed feed = feed_at(&info, 1, t);
        float drawn[64];
        FINE(dtrain_step_sample(handle, 0, feed.frame, feed.ids, t % 2, drawn, got));
        add_position(&folder, &info, t, drawn, sequence);
        forward(model, sequence, t + 1, want);
        worst = fmax(worst, difference(got, want, info.n_values));
    }
    CHECK(worst <= tolerance, "%s: a step is %.2g from the pass, allowed %.2g", name, worst,
          tolerance);
    free(got);
    free(want);
    free(sequence);
    dtrain_step_close(handle);
    dt_model_destroy(model);
    dt_backend_close(&cpu);
    free_model(&folder);
}

// Three streams with different inputs, stepped one by one in turn and all at once, give what each
// gives alone.
static void streams_are_alone(const char *path, int32_t weights)
{
    enum { S = 11 }; // more streams than are run together
    struct dtrain_step_info info;
    dtrain_step *alone = open_step(path, weights, 1), *turns = open_step(path, weights, S),
                *together = open_step(path, weights, S);
    FINE(dtrain_step_describe(alone, &info));
    size_t bytes = (size_t)info.n_values * sizeof(float),
           targets = (size_t)info.n_targets * sizeof(float);
    float *want = malloc(S * M * bytes), *got = malloc(S * bytes);
    size_t size = (size_t)info.state_bytes;
    char *block = malloc(size);
    float *frames = malloc(S * sizeof((struct feed *)0)->frame);
    int32_t last[S * 4], width = info.vocab_size > 0 ? 1 : info.n_ids; // ids of the last position
    float *likely = malloc(S * M * targets), *drawn = malloc(S * targets); // at temperature 0
    for (int32_t s = 0; s < S; s++) {
        FINE(dtrain_step_reset(alone, 0));
        for (int t = 0; t < M; t++) {
            struct feed feed = feed_at(&info, (uint32_t)s, t);
            int64_t at = t * S + s;
            FINE(dtrain_step_sample(alone, 0, feed.frame, feed.ids, 0, likely + at * info.n_targets,
                                    want + at * info.n_values));
        }
    }
    for (int t = 0; t < M; t++) {
        for (int32_t s = 0; s < S; s++) {
            struct feed feed = feed_at(&info, (uint32_t)s, t);
            step(turns, &info, s, (uint32_t)s, t, got + s * info.n_values);
            memcpy(frames + s * info.frame_size, feed.frame,
                   (size_t)info.frame_size * sizeof *frames);
            memcpy(last + s * width, feed.ids, (size_t)width * sizeof *last);
        }
        CHECK(memcmp(got, want + (int64_t)t * S * info.n_values, S * bytes) == 0,
              "streams in turn differ from streams alone at position %d", t);
        // Some streams take a step and are restored, so that the states of neighbouring streams are
        // in different places.
        for (int32_t s = t % 3; s < S; s += 3) {
            FINE(dtrain_step_save(together, s, block, size));
            step(together, &info, s, 99, t, NULL);
            FINE(dtrain_step_restore(together, s, block, size));
        }
        FINE(dtrain_step_batch(together, 0, S, frames, last, 0, drawn, got));
        CHECK(memcmp(got, want + (int64_t)t * S * info.n_values, S * bytes) == 0,
              "streams at once differ from streams alone at position %d", t);
        CHECK(memcmp(drawn, likely + (int64_t)t * S * info.n_targets, S * targets) == 0,
              "what is drawn of streams at once differs at position %d", t);
    }
    // Each stream has its own random numbers.
    for (int32_t s = 0; s < S; s++)
        FINE(dtrain_step_sample(turns, s, frames + s * info.frame_size, last + s * width, 2,
                                likely + s * info.n_targets, NULL));
    FINE(dtrain_step_batch(together, 0, S, frames, last, 2, drawn, NULL));
    CHECK(memcmp(drawn, likely, S * targets) == 0, "streams at once draw others' numbers");
    free(want);
    free(got);
    free(likely);
    free(drawn);
    free(block);
    free(frames);
    dtrain_step_close(alone);
    dtrain_step_close(turns);
    dtrain_step_close(together);
}

// Runs M steps after a save, again after a restore, and in another stream of another handle.
static void states_are_restored(const char *path, int32_t weights)
{
    struct dtrain_step_info info;
    dtrain_step *a = open_step(path, weights, 1), *b = open_step(path, weights, 3);
    FINE(dtrain_step_describe(a, &info));
    size_t bytes = (size_t)info.n_values * sizeof(float), size = (size_t)info.state_bytes;
    float *want = malloc(M * bytes), *got = malloc(bytes), drawn[2][M][32];
    char *block = malloc(size);
    for (int t = 0; t < M; t++)
        step(a, &info, 0, 5, t, NULL);
    FINE(dtrain_step_save(a, 0, block, size));
    for (int pass = 0; pass < 3; pass++) {
        dtrain_step *handle = pass < 2 ? a : b;
        int32_t stream = pass < 2 ? 0 : 2;
        if (pass > 0)
            FINE(dtrain_step_restore(handle, stream, block, size));
        for (int t = 0; t < M; t++) {
            struct feed feed = feed_at(&info, 5, M + t);
            float *out = pass == 0 ? want + t * info.n_values : got;
            FINE(dtrain_step_sample(handle, stream, feed.frame, feed.ids, 1, drawn[pass > 0][t],
                                    out));
            CHECK(memcmp(out, want + t * info.n_values, bytes) == 0, "pass %d, step %d", pass, t);
            CHECK(memcmp(drawn[pass > 0][t], drawn[0][t], (size_t)info.n_targets * 4) == 0,
                  "drawn again, %d", t);
        }
    }
    free(want);
    free(got);
    free(block);
    dtrain_step_close(a);
    dtrain_step_close(b);
}

static int32_t token_at(int64_t t)
{
    return (int32_t)((uint64_t)t * t % 36 + (uint64_t)(t / 36) % 2);
}

// Runs the training forward pass in windows with carried state, and returns the outputs at the end
// of `steps` positions.
static void carried(const struct model_folder *folder, enum dt_dtype storage, int64_t steps,
                    float *outputs)
{
    enum { WINDOW = 500 };
    struct dt_model_config config = folder->config;
    struct dt_model_state *state[2];
    struct dt_backend cpu;
    struct dt_model *model;
    struct dt_view view;
    int32_t ids[WINDOW];
    int tokens;
    config.storage = storage;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &cpu));
    CHECK_OK(dt_model_create(&cpu, &config,
                             &(struct dt_model_shape){.sequences = 1, .length = WINDOW}, &model));
    memcpy(dt_model_weights(model), folder->weights,
           (size_t)folder->params.elements * sizeof *folder->weights);
    CHECK_OK(dt_model_refresh(model, NULL));
    CHECK_OK(dt_model_token_array(model, &tokens));
    for (int i = 0; i < 2; i++)
        CHECK_OK(dt_model_state_create(model, 1, &state[i]));
    struct dt_pass pass = {.input = {.sequences = 1, .length = WINDOW}};
    pass.input.arrays[tokens] = ids;
    for (int64_t t = 0; t < steps; t += WINDOW) {
        for (int64_t i = 0; i < WINDOW; i++)
            ids[i] = token_at(t + i);
        pass.before = state[t / WINDOW % 2];
        pass.after = state[(t / WINDOW + 1) % 2];
        CHECK_OK(dt_model_forward(model, &pass));
    }
    CHECK_OK(dt_model_output(model, &pass, 0, &view));
    memcpy(outputs, view.data, (size_t)view.cols * sizeof *outputs);
    for (int i = 0; i < 2; i++)
        dt_model_state_destroy(model, state[i]);
    dt_model_destroy(model);
    dt_backend_close(&cpu);
}

// Errors of single steps must fade as inputs do, however many steps follow.
static void no_drift(const char *kind, int64_t steps)
{
    struct model_folder folder = {.config = small_config(kind, "")};
    float got[37], want[37];
    char name[64];
    snprintf(name, sizeof name, "drift of %s", kind);
    write_model(&folder, name);
    for (int32_t weights = DTRAIN_STEP_FP32; weights <= DTRAIN_STEP_BF16; weights++) {
        dtrain_step *handle = open_step(folder.path, weights, 1);
        for (int64_t t = 0; t < steps; t++) {
            int32_t token = token_at(t);
            int code = dtrain_step_step(handle, 0, NULL, &token, got);
            if (code)
                CHECK_INT(code, DTRAIN_STEP_OK);
        }
        carried(&folder, weights == DTRAIN_STEP_BF16 ? DT_BF16 : DT_F32, steps, want);
        double off = difference(got, want, 37);
        CHECK(off <= 2e-2, "%s, weights %d: %lld steps are %.2g from the pass", kind, weights,
              (long long)steps, off);
        dtrain_step_close(handle);
    }
    free_model(&folder);
}

static void every_promise(const struct dt_model_config *config, const char *name)
{
    step_equals_pass(config, name, DTRAIN_STEP_FP32, 1e-5);
    step_equals_pass(config, name, DTRAIN_STEP_BF16, 2e-2);
    step_equals_pass(config, name, DTRAIN_STEP_INT8, 2e-2);
    for (int32_t weights = DTRAIN_STEP_FP32; weights <= DTRAIN_STEP_INT8; weights++) {
        streams_are_alone(in_scratch("%s", name), weights);
        states_are_restored(in_scratch("%s", name), weights);
    }
}

// Returns the bytes of a model's weights during inference.
static double weight_bytes(enum dt_dtype storage, bool int8)
{
    struct dt_model_config config = small_config("mamba attention mamba2 mlp", policy);
    const struct dt_model_shape shape = {.sequences = 1, .length = 1, .int8 = int8, .play = true};
    struct dt_memory_plan plan = {0};
    struct dt_backend cpu;
    double bytes = 0;
    config.d_model = 256, WHOLE_OF(config, head_dim) = 64, config.storage = storage;
    CHECK_OK(dt_backend_open("cpu", 0, 1, &cpu));
    CHECK_OK(dt_model_plan(&cpu, &config, &shape, &plan, NULL));
    for (int i = 0; i < plan.n; i++)
        bytes += strstr(plan.rows[i].what, "weights") ? (double)plan.rows[i].bytes : 0;
    dt_backend_close(&cpu);
    return bytes;
}

// A model holds its weights only in the type in which they are read. About 0.98 of this model's
// weights are in linear layers.
static void test_memory(void)
{
    double whole = weight_bytes(DT_F32, false);
    CHECK(weight_bytes(DT_F32, true) < 0.28 * whole, "int8: %.0f bytes, fp32 %.0f",
          weight_bytes(DT_F32, true), whole);
    CHECK(weight_bytes(DT_BF16, false) < 0.52 * whole, "bf16: %.0f bytes, fp32 %.0f",
          weight_bytes(DT_BF16, false), whole);
}

// Rewrites the model's file with all tensors in bf16, or all but the last.
static void narrow(const char *path, bool all)
{
    enum { MOST = 64 };
    struct dt_safetensors_entry entries[MOST];
    struct dt_safetensors_writer *writer;
    struct dt_safetensors *file;
    CHECK_OK(dt_safetensors_open(path, &file));
    CHECK(file->n_tensors <= MOST, "%d tensors", file->n_tensors);
    for (int i = 0; i < file->n_tensors; i++) {
        const struct dt_safetensor *t = &file->tensors[i];
        bool wide = !all && i == file->n_tensors - 1;
        entries[i] =
            (struct dt_safetensors_entry){t->name, wide ? DT_F32 : DT_BF16, t->n_dims, {0}};
        memcpy(entries[i].shape, t->shape, sizeof t->shape);
    }
    CHECK_OK(
        dt_safetensors_create(in_scratch("narrow"), entries, file->n_tensors, NULL, 0, &writer));
    for (int i = 0; i < file->n_tensors; i++) {
        int64_t n = file->tensors[i].count;
        float *values = malloc((size_t)n * sizeof *values);
        dt_bf16 *halves = malloc((size_t)n * sizeof *halves);
        CHECK_OK(dt_safetensors_read_f32(file, &file->tensors[i], 0, n, values));
        for (int64_t k = 0; k < n; k++)
            halves[k] = dt_f32_to_bf16(values[k]);
        bool wide = entries[i].dtype == DT_F32;
        CHECK_OK(dt_safetensors_write(writer, wide ? (void *)values : halves, n * (wide ? 4 : 2)));
        free(values);
        free(halves);
    }
    CHECK_OK(dt_safetensors_finish(writer, NULL, NULL));
    CHECK_INT(rename(in_scratch("narrow"), path), 0);
    dt_safetensors_close(file);
}

// Weights stay in bf16 if all tensors of the file are bf16.
static void test_as_stored(void)
{
    struct model_folder folder = {.config = small_config("mamba", "")};
    char path[DT_PATH];
    for (int all = 0; all < 2; all++) {
        struct dtrain_step_info info;
        write_model(&folder, "stored");
        CHECK_OK(dt_path(path, "%s/model.safetensors", folder.path));
        narrow(path, all);
        dtrain_step *handle = open_step(folder.path, DTRAIN_STEP_AS_STORED, 1);
        FINE(dtrain_step_describe(handle, &info));
        CHECK_INT(info.weights, all ? DTRAIN_STEP_BF16 : DTRAIN_STEP_FP32);
        dtrain_step_close(handle);
        free_model(&folder);
    }
}

// No options and options that are all 0 are the defaults; the handle describes itself.
static void test_defaults(void)
{
    struct model_folder folder = {.config = small_config("mamba gru", "")};
    const struct dtrain_step_options zeros = {0}, two = {.threads = 2, .streams = 2};
    const struct dtrain_step_options *const options[] = {NULL, &zeros, &two};
    int64_t parameters = 0;
    int before = thread_count();
    write_model(&folder, "defaults");
    for (int i = 0; i < folder.params.n; i++)
        parameters += folder.params.rows[i].file_count;
    for (int i = 0; i < 3; i++) {
        struct dtrain_step_info info;
        dtrain_step *handle = NULL;
        float outputs[37];
        FINE(dtrain_step_open(folder.path, options[i], &handle));
        FINE(dtrain_step_describe(handle, &info));
        CHECK_INT(info.streams, i < 2 ? 1 : 2);
        CHECK_INT(info.threads, i < 2 ? 1 : 2);
        CHECK_INT(info.weights, DTRAIN_STEP_FP32);
        CHECK_INT(info.parameters, parameters);
        step(handle, &info, 0, 1, 0, outputs);
        if (i < 2)
            check_threads(before);
        dtrain_step_close(handle);
    }
    free_model(&folder);
}

int main(int argc, char **argv)
{
    int64_t steps = argc > 1 ? atoll(argv[1]) : 20000;
    make_scratch();
    test_defaults();
    test_as_stored();
    for (int i = 0; dt_block_kinds[i]; i++)
        no_drift(dt_block_kinds[i]->name, steps);
    for (int i = 0; argc == 1 && dt_block_kinds[i]; i++) {
        char layers[64], mixed[64], name[64];
        struct dt_model_config config;
        snprintf(layers, sizeof layers, "%s*2", dt_block_kinds[i]->name);
        snprintf(mixed, sizeof mixed, "mamba %s mamba", dt_block_kinds[i]->name);
        config = small_config(layers, "");
        every_promise(&config, layers);
        config = small_config(mixed, policy);
        every_promise(&config, mixed);
        FLAG_OF(config, autoregressive) = true;
        snprintf(name, sizeof name, "autoregressive %s", dt_block_kinds[i]->name);
        every_promise(&config, name);
    }
    struct dt_model_config ids = small_config("mamba gru", policy);
    ids.frame_size = 0;
    struct dt_model_config numbers =
        small_config("mamba", "g:gmm(3)*2 b:categorical*3 q:quantile(0.1,0.6)*2 "
                              "m:gmm(2,-1,1) r:regression(-1,1)*2 h:huber");
    FLAG_OF(numbers, autoregressive) = true;
    struct dt_model_config pools = small_config(
        "mamba gru", "a:categorical*5/mean b:bernoulli*3 c:bernoulli*2/last d:huber*3/max "
                     "e:categorical*2/mean");
    struct dt_model_config norms = small_config("mamba*2", "");
    REAL_OF(norms, mixer_rms_eps) = 1e-6;
    if (argc == 1) {
        every_promise(&norms, "norms of dt, B and C");
        every_promise(&ids, "ids alone");
        every_promise(&numbers, "mixtures and quantiles");
        every_promise(&pools, "pools");
    }
    test_memory();
    remove_scratch();
    return test_end();
}
