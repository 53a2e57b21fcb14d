// `dtrain pack`: passes its arguments to dt_pack, and prints the summary.
#include "data/pack.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/tokenizer.h"
#include "cmd/cmd.h"

#include <inttypes.h>
#include <limits.h>

struct options {
    const char *output, *tokenizer, *bed;
    int format; // enum dt_pack_format
    int soft_masked;
    int64_t shard_mb, vocab, seed, rows, length, items, max_n;
    double val;
    bool force;
};

static const struct dt_option options[] = {
    {DT_OPTION(TEXT, output, "", "folder for the shards; created if missing", .required = true),
     .letter = 'o', .argument = "DIR"},
    {DT_OPTION(
        CHOICE, format, "text", "text|u8|u16|u32|fasta",
        "text: bytes as tokens, one document per file; u8, u16, u32: raw little-endian tokens; "
        "fasta: DNA (also .gz), a letter as a token, one document per sequence")},
    {.key = DT_CONFIG_WHOLE(struct options, shard_mb, "shard-mb", "64", 1, 0x1p40,
                            "largest shard, in 2^20 bytes of tokens")},
    {DT_OPTION(REAL, val, "0.05", 0, 0.9999999,
               "validation fraction: of the text files, sequences or intervals, or the tail of the "
               "tokens if there is only one or the tokens are raw; 0: none"),
     .argument = "FRACTION"},
    {DT_OPTION(WHOLE, vocab, "auto", 1, 0x1p32,
               "vocabulary size, greater than every token; auto: 256 for text and u8, 12 "
               "for fasta, else the largest token + 1",
               .auto_word = "auto")},
    {DT_OPTION(TEXT, tokenizer, "",
               "folder of the tokenizer that made the tokens: training refuses another"),
     .argument = "DIR"},
    {DT_OPTION(WHOLE, seed, "1337", 0, 0x1p63,
               "seed for choosing validation files, and of a task's rows")},
    {DT_OPTION(WHOLE, rows, "100000", 1, 0x1p40, "TASK: rows, validation included")},
    {DT_OPTION(WHOLE, length, "auto", 1, 0x1p31, "TASK: tokens of a row; auto: as published",
               .auto_word = "auto")},
    {DT_OPTION(WHOLE, items, "auto", 1, 0x1p31,
               "TASK: tokens to copy, or pairs to recall, in a row; auto: as published",
               .auto_word = "auto")},
    {DT_OPTION(TEXT, bed, "",
               "fasta: intervals to pack (NAME FIRST END), and the side of each where the fourth "
               "column says train, valid or test (left out)"),
     .argument = "FILE"},
    {.key = DT_CONFIG_WHOLE(struct options, max_n, "max-n", "100", 0, 0x1p40,
                            "fasta: longer runs of N are left out, and end a document")},
    {.key = DT_CONFIG_CHOICE(struct options, soft_masked, "soft-masked", "keep", "keep|n",
                             "fasta: lower-case letters are read as upper-case ones, or as N")},
    {DT_OPTION(FLAG, force, "false", "replace the shards in DIR")},
    {.key = {0}},
};

static void print_side(const char *name, const char *unit, int64_t n, int64_t shards,
                       const char *output)
{
    if (shards > 0)
        printf("%-5s  %s in %s: %s/%s-*.h5\n", name, DT_COUNT(n, unit), DT_COUNT(shards, "shards"),
               output, name);
}

static int64_t chosen(int64_t option, int64_t published)
{
    return option > 0 ? option : published;
}

// Options that do not apply to what is packed are errors.
static dt_status configure_task(const struct dt_call *call, struct dt_pack_config *config)
{
    const struct options *o = call->options;
    const struct dt_task *task = call->n_words == 1 ? dt_task_find(call->words[0]) : NULL;
    bool fasta = !task && config->format == DT_PACK_FASTA;
    const char *what = task ? task->name : fasta ? "--format fasta" : "files";
    const struct {
        const char *name;
        bool applies;
    } demands[] = {
        {"rows", task != NULL},   {"length", task != NULL}, {"items", task != NULL},
        {"format", task == NULL}, {"vocab", !fasta},        {"bed", fasta},
        {"max-n", fasta},         {"soft-masked", fasta},
    };
    for (size_t i = 0; i < sizeof demands / sizeof *demands; i++)
        if (!demands[i].applies && dt_call_given(call, demands[i].name))
            return DT_FAIL(DT_USER, "leave it out", "pack: --%s does not apply to %s",
                           demands[i].name, what);
    if (!task)
        return DT_OK;
    config->task = task;
    config->rows = o->rows;
    config->shape = (struct dt_task_shape){.length = chosen(o->length, task->published.length),
                                           .vocab = chosen(o->vocab, task->published.vocab),
                                           .items = chosen(o->items, task->published.items)};
    return DT_OK;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    const struct options *o = call->options;
    struct dt_pack_config config = {
        .output = o->output,
        .inputs = (const char *const *)call->words,
        .n_inputs = call->n_words,
        .format = (enum dt_pack_format)o->format,
        .shard_bytes = o->shard_mb << 20,
        .val_fraction = o->val,
        .vocab_size = o->vocab,
        .seed = (uint64_t)o->seed,
        .force = o->force,
        .bed = o->bed,
        .max_n = o->max_n,
        .mask = o->soft_masked,
        .progress = dt_log_is_terminal(),
    };
    struct dt_pack_result result;
    (void)comm;
    DT_TRY(configure_task(call, &config));
    if (o->tokenizer) {
        struct dt_tokenizer tokenizer;
        DT_TRY(dt_tokenizer_read(o->tokenizer, &tokenizer));
        config.tokenizer = tokenizer.hash;
        dt_tokenizer_free(&tokenizer);
    }
    DT_TRY(dt_pack(&config, &result));
    if (config.task)
        printf("packed %s: rows of %s, vocabulary %" PRId64 "\n", config.task->name,
               DT_COUNT(config.shape.length, "tokens"), result.vocab_size);
    else
        printf("packed %s, vocabulary %" PRId64 "\n", DT_COUNT(result.files, "files"),
               result.vocab_size);
    const char *unit = config.task ? "rows" : "tokens";
    print_side("train", unit, result.train_tokens, result.train_shards, config.output);
    print_side("val", unit, result.val_tokens, result.val_shards, config.output);
    return DT_OK;
}

const struct dt_command dt_cmd_pack = {
    .name = "pack",
    .usage = "-o DIR [options] INPUT… | TASK",
    .help = "pack text, raw tokens, DNA or a synthetic task into HDF5 shards",
    .about =
        "Writes HDF5 shards (DIR/train-00000.h5 …, DIR/val-00000.h5 …) from files, or from all "
        "files in folders. Within folders, hidden files are skipped and, with --format text, "
        "binary files too. TASK makes rows of pairs (input_ids and labels) of a synthetic task of "
        "the papers: induction, selective-copy, mqar, latch or parity (a file of that name: "
        "./mqar).",
    .min_words = 1,
    .max_words = INT_MAX,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
