// `dtrain sample`: generates text with a trained model, token by token from its recurrent state:
// each token costs one step.
#include "cmd/cmd.h"

#include "base/file.h"
#include "base/rng.h"
#include "checkpoint/snapshot.h"
#include "job/device.h"
#include "model/hf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256 }; // vocabulary of byte models: tokens are printed as text

struct options {
    const char *prompt;
    int64_t tokens, seed;
    double temperature;
    int device; // enum dt_device_choice
};
#define OPTION(kind, field, ...) .key = DT_CONFIG_##kind(struct options, field, #field, __VA_ARGS__)

static const struct dt_option options[] = {
    {OPTION(TEXT, prompt, "\n",
            "start of the text (default: a newline); token ids separated by spaces unless the "
            "vocabulary is bytes"),
     .argument = "TEXT"},
    {OPTION(WHOLE, tokens, "400", 1, 1e9, "tokens to generate")},
    {OPTION(REAL, temperature, "0.8", 0, 100,
            "0: always the most likely token; 1: the model's own distribution")},
    {OPTION(WHOLE, seed, "1337", 0, 0x1p63, "random seed")},
    {OPTION(CHOICE, device, "auto", DT_DEVICE_WORDS, "as run.device")},
    {.key = {0}},
};

// Of a run's folder: its newest checkpoint.
static dt_status find_model(const char *path, char *dir)
{
    char checkpoints[DT_PATH];
    DT_TRY(dt_path(checkpoints, "%s/checkpoints", path));
    if (!dt_is_dir(checkpoints)) {
        DT_TRY(dt_checkpoint_verify_weights(path));
        return dt_path(dir, "%s", path);
    }
    DT_TRY(dt_checkpoint_newest(checkpoints, dir));
    return dir[0] ? DT_OK : DT_FAIL(DT_USER, "train first", "no checkpoint in %s", checkpoints);
}

// The prompt as tokens, malloc'ed: bytes, or ids separated by blanks.
static dt_status read_prompt(const char *text, int64_t vocab, int32_t **tokens, int64_t *n)
{
    size_t length = strlen(text);
    *tokens = malloc((length + 1) * sizeof **tokens);
    *n = 0;
    if (!*tokens)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a prompt of %zu bytes", length);
    if (vocab == BYTES || (length == 1 && text[0] == '\n')) {
        for (size_t i = 0; i < length; i++)
            (*tokens)[(*n)++] = vocab == BYTES ? (unsigned char)text[i] : 0;
        return *n > 0 ? DT_OK : DT_FAIL(DT_USER, "give at least one token", "--prompt is empty");
    }
    for (const char *at = text; *at;) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || id < 0 || id >= vocab)
            return DT_FAIL(DT_USER, "give token ids separated by spaces",
                           "--prompt: \"%s\" does not begin with a token id below %lld", at,
                           (long long)vocab);
        (*tokens)[(*n)++] = (int32_t)id;
        at = end + strspn(end, " ");
    }
    return *n > 0 ? DT_OK : DT_FAIL(DT_USER, "give at least one token", "--prompt is empty");
}

static int64_t argmax(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

// Draws from softmax(logits / temperature).
static int32_t draw(const float *logits, int64_t n, double temperature, struct dt_philox *rng)
{
    int64_t best = argmax(logits, n), i = 0;
    if (temperature == 0)
        return (int32_t)best;
    double total = 0, at = dt_philox_uniform(rng);
    for (int64_t j = 0; j < n; j++)
        total += exp((logits[j] - logits[best]) / temperature);
    at *= total;
    for (; i < n - 1; i++) {
        at -= exp((logits[i] - logits[best]) / temperature);
        if (at < 0)
            break;
    }
    return (int32_t)i;
}

static void print_token(int32_t token, int64_t vocab)
{
    if (vocab == BYTES)
        putchar(token);
    else
        printf("%d ", token);
    fflush(stdout);
}

// One pass over `n` tokens; the next token's logits come to host memory `logits`.
static dt_status run_tokens(const struct dt_backend *backend, struct dt_model *model,
                            int32_t *device_ids, const int32_t *ids, int64_t n,
                            const struct dt_model_state *before, struct dt_model_state *after,
                            float *logits)
{
    struct dt_pass pass = {
        .input = {.sequences = 1, .length = n}, .before = before, .after = after};
    struct dt_view last;
    int tokens;
    DT_TRY(dt_model_token_array(model, &tokens));
    pass.input.arrays[tokens] = device_ids;
    DT_TRY(dt_to_device(backend, device_ids, ids, n * 4, NULL));
    DT_TRY(dt_model_forward(model, &pass));
    DT_TRY(dt_model_output(model, &pass, 0, &last));
    DT_TRY(dt_to_host(backend, logits, last.data, dt_model_config(model)->vocab_size * 4, NULL));
    return dt_stream_sync(backend, NULL);
}

struct writer {
    const struct options *options;
    char dir[DT_PATH];
    struct dt_backend backend;
    struct dt_model *model;
    struct dt_model_state *state[2]; // read one, write the other
    int32_t *prompt, *device_ids;
    int64_t prompt_length;
    float *logits;
};

static dt_status load_weights(const struct writer *w)
{
    struct dt_snapshot snapshot;
    dt_status status = dt_snapshot_create(&w->backend, w->model, NULL, true, &snapshot);
    const struct dt_checkpoint_arrays *host = &snapshot.host;
    if (status == DT_OK)
        status = dt_hf_read_weights(w->dir, false, host->params, host->model->tie_embeddings,
                                    host->weights);
    if (status == DT_OK)
        status = dt_snapshot_share_weights(&snapshot, NULL);
    dt_snapshot_destroy(&snapshot);
    return status;
}

static dt_status writer_open(struct writer *w)
{
    struct dt_model_config config = {.pad_vocab_multiple = 8};
    DT_TRY(dt_hf_read_config(w->dir, &config));
    DT_TRY(read_prompt(w->options->prompt, config.vocab_size, &w->prompt, &w->prompt_length));
    DT_TRY(dt_device_open_alone(w->options->device, 0, &w->backend));
    config.storage =
        DT_F32; // a step is bound by reading weights, and bf16 GEMM of one row gains nothing
    struct dt_model_shape shape = {.sequences = 1, .length = w->prompt_length};
    DT_TRY(dt_model_create(&w->backend, &config, &shape, &w->model));
    DT_TRY(load_weights(w));
    for (int i = 0; i < 2; i++)
        DT_TRY(dt_model_state_create(w->model, 1, &w->state[i]));
    DT_TRY(
        w->backend.table->alloc(w->backend.device, w->prompt_length * 4, (void **)&w->device_ids));
    w->logits = malloc((size_t)config.vocab_size * sizeof *w->logits);
    return w->logits ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the logits");
}

static dt_status writer_run(struct writer *w)
{
    int64_t vocab = dt_model_config(w->model)->vocab_size;
    struct dt_philox rng = dt_philox_init((uint64_t)w->options->seed, 0, 0);
    DT_TRY(run_tokens(&w->backend, w->model, w->device_ids, w->prompt, w->prompt_length,
                      w->state[0], w->state[1], w->logits));
    for (int64_t i = 0; i < w->prompt_length; i++)
        print_token(w->prompt[i], vocab);
    for (int64_t i = 0; i < w->options->tokens; i++) {
        int32_t token = draw(w->logits, vocab, w->options->temperature, &rng);
        const struct dt_model_state *before = w->state[(i + 1) % 2];
        print_token(token, vocab);
        DT_TRY(run_tokens(&w->backend, w->model, w->device_ids, &token, 1, before, w->state[i % 2],
                          w->logits));
    }
    putchar('\n');
    return DT_OK;
}

static void writer_close(struct writer *w)
{
    if (w->device_ids)
        w->backend.table->free(w->backend.device, w->device_ids);
    for (int i = 0; i < 2; i++)
        if (w->state[i])
            dt_model_state_destroy(w->model, w->state[i]);
    dt_model_destroy(w->model);
    if (w->backend.table)
        dt_backend_close(&w->backend);
    free(w->prompt);
    free(w->logits);
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    (void)comm;
    struct writer w = {.options = call->options};
    DT_TRY(find_model(call->words[0], w.dir));
    dt_status status = writer_open(&w);
    if (status == DT_OK)
        status = writer_run(&w);
    writer_close(&w);
    return status;
}

const struct dt_command dt_cmd_sample = {
    .name = "sample",
    .usage = "RUN [--prompt TEXT] [options]",
    .help = "generate text with a trained model",
    .about = "RUN is a run's folder (its newest checkpoint), a checkpoint, or a Hugging Face "
             "directory.",
    .min_words = 1,
    .max_words = 1,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
