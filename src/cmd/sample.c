// `dtrain sample`: inference with a language model. Generates text token by token from the model's
// recurrent state (play/player.h); each token costs one step.
#include "cmd/cmd.h"

#include "base/file.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "job/device.h"
#include "model/hf.h"
#include "play/player.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256 }; // vocabulary of byte models, whose tokens are text

struct options {
    const char *prompt, *stop, *stop_tokens;
    int64_t tokens, seed, top_k;
    double temperature, top_p, min_p, repetition_penalty;
    int device; // enum dt_device_choice
    bool ema;
};

#define NAMED(kind, ...) .key = DT_CONFIG_##kind(struct options, __VA_ARGS__)
static const struct dt_option options[] = {
    {DT_OPTION(TEXT, prompt, "\n",
               "start of the text (default: a newline); token ids separated by spaces unless the "
               "vocabulary is bytes"),
     .argument = "TEXT"},
    {DT_OPTION(WHOLE, tokens, "400", 1, 1e9, "tokens to generate")},
    {DT_OPTION(REAL, temperature, "0.8", 0, 100,
               "0: always the most likely token; 1: the model's own distribution")},
    {NAMED(WHOLE, top_k, "top-k", "0", 0, 0x1p31,
           "draw from the so many most likely tokens; 0: all")},
    {NAMED(REAL, top_p, "top-p", "1", 1e-9, 1,
           "draw from the most likely tokens that have this probability together")},
    {NAMED(REAL, min_p, "min-p", "0", 0, 1,
           "draw from tokens with this part of the most likely one's probability")},
    {NAMED(REAL, repetition_penalty, "repetition-penalty", "1", 0.01, 100,
           "above 1: tokens of the text so far become less likely")},
    {DT_OPTION(TEXT, stop, "", "end before this text (or these ids)"), .argument = "TEXT"},
    {NAMED(TEXT, stop_tokens, "stop-tokens", "", "end before any of these token ids"),
     .argument = "IDS"},
    {DT_OPTION(WHOLE, seed, "1337", 0, 0x1p53, "random seed; of each further prompt one more")},
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

// Parses the text of an option into tokens: bytes, or ids separated by blanks. Caller frees; NULL:
// none.
static dt_status read_tokens(const char *what, const char *text, int64_t vocab, bool bytes,
                             int32_t **tokens, int64_t *n)
{
    size_t length = strlen(text ? text : "");
    *n = 0;
    DT_TRY(DT_NEW(tokens, length + 1, "%s of %zu bytes", what, length));
    for (size_t i = 0; i < length && bytes; i++)
        (*tokens)[(*n)++] = (unsigned char)text[i];
    for (const char *at = bytes || !text ? "" : text; *at;) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || id < 0 || id >= vocab)
            return DT_FAIL(DT_USER, "give token ids separated by spaces",
                           "%s: \"%s\" does not begin with a token id below %lld", what, at,
                           (long long)vocab);
        (*tokens)[(*n)++] = (int32_t)id;
        at = end + strspn(end, " ");
    }
    return DT_OK;
}

// A prompt and its continuation.
struct text {
    int32_t *tokens; // with room for all
    int64_t prompt, n, shown;
    bool ended;
    unsigned char *seen; // [vocab], part of the array of all texts
};

struct generation {
    const struct options *o;
    struct dt_player *player;
    int64_t vocab, n; // texts
    struct text *texts;
    unsigned char *seen; // [n, vocab]
    int32_t *ids;        // [n], of one step
    float *drawn;        // [n]
    int32_t *stop, *stop_tokens;
    int64_t n_stop, n_stop_tokens;
};

// Prints the text that a stop text can no longer cut off.
static void show(const struct generation *g, struct text *text)
{
    int64_t safe = text->ended ? text->n : text->n - (g->n_stop > 0 ? g->n_stop - 1 : 0);
    for (; text->shown < safe; text->shown++) {
        if (g->vocab == BYTES)
            putchar(text->tokens[text->shown]);
        else
            printf("%d ", text->tokens[text->shown]);
    }
    fflush(stdout);
}

// Adds a drawn token, or ends the text before it or before a stop text.
static void add_token(const struct generation *g, struct text *text, int32_t token)
{
    for (int64_t i = 0; i < g->n_stop_tokens; i++)
        text->ended |= token == g->stop_tokens[i];
    if (text->ended)
        return;
    text->tokens[text->n++] = token;
    text->seen[token] = 1;
    if (g->n_stop > 0 && text->n - text->prompt >= g->n_stop &&
        memcmp(text->tokens + text->n - g->n_stop, g->stop, (size_t)g->n_stop * sizeof token) ==
            0) {
        text->n -= g->n_stop;
        text->ended = true;
    }
    text->ended |= text->n - text->prompt == g->o->tokens;
}

static dt_status draw(const struct generation *g, struct dt_play *play, const struct text *text)
{
    const struct options *o = g->o;
    const struct dt_choice choice = {.temperature = o->temperature,
                                     .top_k = o->top_k,
                                     .top_p = o->top_p,
                                     .min_p = o->min_p,
                                     .repetition_penalty = o->repetition_penalty};
    play->choice = &choice;
    play->seen = g->seen + play->first * g->vocab;
    play->drawn = g->drawn + play->first;
    DT_TRY_NOTE(dt_player_step(g->player, play), "generating the token at position %lld",
                (long long)text->n);
    return DT_OK;
}

// Draws the next token of unfinished texts from `first` on; returns the text after them.
static dt_status step(const struct generation *g, int64_t first, int64_t *next)
{
    int64_t end = first;
    for (; end < g->n && !g->texts[end].ended; end++)
        g->ids[end] = g->texts[end].tokens[g->texts[end].n - 1];
    *next = end + 1;
    if (end == first)
        return DT_OK;
    DT_TRY(draw(
        g, &(struct dt_play){.first = first, .n = end - first, .length = 1, .ids = g->ids + first},
        &g->texts[first]));
    for (int64_t i = first; i < end; i++)
        add_token(g, &g->texts[i], (int32_t)g->drawn[i]);
    return DT_OK;
}

// A single text is printed as it is generated; several texts when all are complete.
static dt_status generate(const struct generation *g)
{
    bool busy = true;
    for (int64_t i = 0; i < g->n; i++) {
        struct text *text = &g->texts[i];
        if (g->n == 1) {
            text->shown = 0;
            show(g, &(struct text){.tokens = text->tokens, .n = text->n, .ended = true});
            text->shown = text->n;
        }
        DT_TRY(draw(g,
                    &(struct dt_play){.first = i, .n = 1, .length = text->n, .ids = text->tokens},
                    text));
        add_token(g, text, (int32_t)g->drawn[i]);
    }
    while (busy) {
        if (g->n == 1)
            show(g, g->texts);
        busy = false;
        for (int64_t i = 0; i < g->n; i++)
            busy |= !g->texts[i].ended;
        for (int64_t first = 0; first < g->n;)
            DT_TRY(step(g, first, &first));
    }
    for (int64_t i = 0; i < g->n; i++) {
        if (g->n > 1)
            printf("== %lld ==\n", (long long)(i + 1));
        show(g, &g->texts[i]);
        putchar('\n');
    }
    return DT_OK;
}

// Prompts are the words after RUN, or --prompt.
static dt_status read_texts(struct generation *g, const struct dt_call *call, int64_t *longest)
{
    bool bytes = g->vocab == BYTES;
    DT_TRY(DT_NEW(&g->texts, g->n, "%lld prompts", (long long)g->n));
    DT_TRY(DT_NEW(&g->seen, g->n * g->vocab, "the tokens of the texts so far"));
    DT_TRY(DT_NEW(&g->ids, g->n, "the tokens of a step"));
    DT_TRY(DT_NEW(&g->drawn, g->n, "the tokens of a step"));
    DT_TRY(read_tokens("--stop", g->o->stop, g->vocab, bytes, &g->stop, &g->n_stop));
    DT_TRY(read_tokens("--stop-tokens", g->o->stop_tokens, g->vocab, false, &g->stop_tokens,
                       &g->n_stop_tokens));
    for (int64_t i = 0; i < g->n; i++) {
        struct text *text = &g->texts[i];
        const char *prompt = call->n_words > 1 ? call->words[1 + i] : g->o->prompt;
        int32_t *tokens = NULL;
        bool newline = !bytes && strcmp(prompt, "\n") == 0; // token 0
        dt_status status = read_tokens("--prompt", newline ? "0" : prompt, g->vocab, bytes, &tokens,
                                       &text->prompt);
        if (status == DT_OK && text->prompt == 0)
            status = DT_FAIL(DT_USER, "give at least one token", "--prompt is empty");
        if (status == DT_OK)
            status = DT_NEW(&text->tokens, text->prompt + g->o->tokens, "a text of %lld tokens",
                            (long long)(text->prompt + g->o->tokens));
        for (; status == DT_OK && text->n < text->prompt; text->n++)
            text->tokens[text->n] = tokens[text->n];
        free(tokens);
        DT_TRY(status);
        text->seen = g->seen + i * g->vocab;
        for (int64_t k = 0; k < text->n; k++)
            text->seen[text->tokens[k]] = 1;
        *longest = text->n > *longest ? text->n : *longest;
    }
    return DT_OK;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    (void)comm;
    const struct options *o = call->options;
    char dir[DT_PATH];
    struct dt_model_config config = {.pad_vocab_multiple = 8};
    struct dt_backend backend = {0};
    struct generation g = {.o = o, .n = call->n_words > 1 ? call->n_words - 1 : 1};
    struct dt_player_config settings = {.streams = g.n, .ema = o->ema};
    dt_status status;
    if (call->n_words > 1 && dt_call_given(call, "prompt"))
        return DT_FAIL(DT_USER, "give the prompts as words after RUN",
                       "--prompt and prompts as words are both given");
    DT_TRY(dt_cmd_find_model(call->words[0], dir));
    DT_TRY(dt_hf_read_config(dir, &config));
    if (!dt_model_reads_tokens(&config))
        return DT_FAIL(DT_USER, "the library libdtrain_step plays it",
                       "the model in %s reads %s, not tokens", dir, dt_model_unit(&config));
    g.vocab = config.vocab_size;
    DT_TRY_GOTO(status, out, read_texts(&g, call, &settings.length));
    DT_TRY_GOTO(status, out, dt_device_open_alone(o->device, 0, &backend));
    DT_TRY_GOTO(status, out, dt_player_open(&backend, dir, &settings, &g.player));
    for (int64_t i = 0; i < g.n; i++)
        DT_TRY_GOTO(status, out, dt_player_seed(g.player, i, (uint64_t)(o->seed + i)));
    status = generate(&g);
out:
    dt_player_close(g.player);
    if (backend.table)
        dt_backend_close(&backend);
    for (int64_t i = 0; g.texts && i < g.n; i++)
        free(g.texts[i].tokens);
    void *arrays[] = {g.texts, g.seen, g.ids, g.drawn, g.stop, g.stop_tokens};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        free(arrays[i]);
    return status;
}

const struct dt_command dt_cmd_sample = {
    .name = "sample",
    .usage = "RUN [PROMPT …] [options]",
    .help = "generate text with a trained model",
    .about = "RUN is a run's folder (its newest checkpoint), a checkpoint, or a Hugging Face "
             "directory. Several prompts run together. The penalty, the temperature, top_k, top_p "
             "and min_p act in this order, as in transformers.",
    .min_words = 1,
    .max_words = INT_MAX,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
