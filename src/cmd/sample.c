// `dtrain sample`: inference with a language model. It generates text token by token from the
// model's recurrent state (play/player.h): each token costs one step.
#include "cmd/cmd.h"

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "job/device.h"
#include "model/hf.h"
#include "play/player.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256 }; // vocabulary of byte models, whose tokens are printed as text

struct options {
    const char *prompt;
    int64_t tokens, seed;
    double temperature;
    int device; // enum dt_device_choice
    bool ema;
};

static const struct dt_option options[] = {
    {DT_OPTION(TEXT, prompt, "\n",
               "start of the text (default: a newline); token ids separated by spaces unless the "
               "vocabulary is bytes"),
     .argument = "TEXT"},
    {DT_OPTION(WHOLE, tokens, "400", 1, 1e9, "tokens to generate")},
    {DT_OPTION(REAL, temperature, "0.8", 0, 100,
               "0: always the most likely token; 1: the model's own distribution")},
    {DT_OPTION(WHOLE, seed, "1337", 0, 0x1p63, "random seed")},
    {DT_OPTION(FLAG, ema, "false", "use the moving average of the weights (optim.ema)")},
    {DT_OPTION(CHOICE, device, "auto", DT_DEVICE_WORDS, "as run.device")},
    {.key = {0}},
};

dt_status dt_cmd_find_model(const char *path, char dir[DT_PATH])
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
    *n = 0;
    DT_TRY(DT_NEW(tokens, length + 1, "a prompt of %zu bytes", length));
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

static void print_token(int32_t token, int64_t vocab)
{
    if (vocab == BYTES)
        putchar(token);
    else
        printf("%d ", token);
    fflush(stdout);
}

// Prints the prompt, then token by token what the model makes of it.
static dt_status generate(struct dt_player *player, const struct options *o, const int32_t *prompt,
                          int64_t length, int64_t vocab)
{
    int32_t token;
    float drawn;
    struct dt_play play = {
        .n = 1, .length = length, .ids = prompt, .temperature = o->temperature, .drawn = &drawn};
    for (int64_t i = 0; i < length; i++)
        print_token(prompt[i], vocab);
    for (int64_t i = 0; i < o->tokens; i++) {
        DT_TRY_NOTE(dt_player_step(player, &play), "generating the token at position %lld",
                    (long long)(length + i));
        token = (int32_t)drawn;
        print_token(token, vocab);
        play.length = 1;
        play.ids = &token;
    }
    putchar('\n');
    return DT_OK;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    (void)comm;
    const struct options *o = call->options;
    char dir[DT_PATH];
    struct dt_model_config config = {.pad_vocab_multiple = 8};
    struct dt_backend backend = {0};
    struct dt_player_config settings = {.streams = 1, .ema = o->ema};
    struct dt_player *player = NULL;
    int32_t *prompt = NULL;
    dt_status status;
    DT_TRY(dt_cmd_find_model(call->words[0], dir));
    DT_TRY(dt_hf_read_config(dir, &config));
    if (!dt_model_reads_tokens(&config))
        return DT_FAIL(DT_USER, "the library libdtrain_step plays it",
                       "the model in %s reads %s, not tokens", dir, dt_model_unit(&config));
    DT_TRY_GOTO(status, out, read_prompt(o->prompt, config.vocab_size, &prompt, &settings.length));
    DT_TRY_GOTO(status, out, dt_device_open_alone(o->device, 0, &backend));
    DT_TRY_GOTO(status, out, dt_player_open(&backend, dir, &settings, &player));
    DT_TRY_GOTO(status, out, dt_player_seed(player, 0, (uint64_t)o->seed));
    status = generate(player, o, prompt, settings.length, config.vocab_size);
out:
    dt_player_close(player);
    if (backend.table)
        dt_backend_close(&backend);
    free(prompt);
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
