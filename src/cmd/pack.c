// `dtrain pack`: arguments of dt_pack, and its summary.
#include "data/pack.h"
#include "base/log.h"
#include "cmd/cmd.h"
#include "cmd/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char help[] =
    "usage: dtrain pack [options] -o OUTDIR INPUT...\n"
    "\n"
    "Writes HDF5 shards (OUTDIR/train-00000.h5 ..., val-00000.h5 ...) from files, or from all\n"
    "files in folders. Hidden files, and binary files where text is wanted, are passed over in\n"
    "folders.\n"
    "\n"
    "  -o, --output OUTDIR   where to write; made if it is not there\n"
    "      --format FORMAT   text: bytes as tokens, a document a file (default);\n"
    "                        u8, u16, u32: raw little-endian tokens\n"
    "      --shard-mb N      megabytes (2^20) of tokens in a shard, at most (64)\n"
    "      --val FRACTION    for validation: of the text files, or the tail of the tokens where\n"
    "                        there is but one or they are raw (0.05; 0: none)\n"
    "      --vocab N         vocabulary; every token must be below (256 for text and u8, else\n"
    "                        the largest token + 1)\n"
    "      --seed N          of the choice of validation files (1337)\n"
    "      --force           replace the shards in OUTDIR\n"
    "      --help            this text\n";

static const char hint[] = "dtrain pack --help";

enum { OPT_FORMAT = 256, OPT_SHARD_MB, OPT_VAL, OPT_VOCAB, OPT_SEED, OPT_FORCE, OPT_HELP };

static const struct option options[] = {
    {"output", required_argument, NULL, 'o'},
    {"format", required_argument, NULL, OPT_FORMAT},
    {"shard-mb", required_argument, NULL, OPT_SHARD_MB},
    {"val", required_argument, NULL, OPT_VAL},
    {"vocab", required_argument, NULL, OPT_VOCAB},
    {"seed", required_argument, NULL, OPT_SEED},
    {"force", no_argument, NULL, OPT_FORCE},
    {"help", no_argument, NULL, OPT_HELP},
    {NULL, 0, NULL, 0},
};

static dt_status parse_format(const char *text, enum dt_pack_format *format)
{
    static const char *const names[] = {"text", "u8", "u16", "u32"};
    for (int i = 0; i < 4; i++)
        if (strcmp(text, names[i]) == 0) {
            *format = (enum dt_pack_format)i;
            return DT_OK;
        }
    return DT_FAIL(DT_USER, "give text, u8, u16 or u32", "--format %s is not known", text);
}

static dt_status parse_option(int option, const char *word, struct dt_pack_config *config)
{
    int64_t seed = 0;
    switch (option) {
    case 'o':
        config->output = optarg;
        return DT_OK;
    case OPT_FORMAT:
        return parse_format(optarg, &config->format);
    case OPT_SHARD_MB:
        DT_TRY(
            dt_option_whole("--shard-mb", optarg, hint, 1, INT64_C(1) << 40, &config->shard_bytes));
        config->shard_bytes <<= 20;
        return DT_OK;
    case OPT_VAL:
        return dt_option_number("--val", optarg, hint, 0, 0.999999, &config->val_fraction);
    case OPT_VOCAB:
        return dt_option_whole("--vocab", optarg, hint, 1, INT64_C(1) << 32, &config->vocab_size);
    case OPT_SEED:
        DT_TRY(dt_option_whole("--seed", optarg, hint, 0, INT64_MAX, &seed));
        config->seed = (uint64_t)seed;
        return DT_OK;
    case OPT_FORCE:
        config->force = true;
        return DT_OK;
    case ':':
        return DT_FAIL(DT_USER, hint, "%s wants a value", word);
    default:
        return DT_FAIL(DT_USER, hint, "%s is no option of dtrain pack", word);
    }
}

// *helped: the help was asked for and printed.
static dt_status parse(int argc, char **argv, struct dt_pack_config *config, bool *helped)
{
    int option;
    optind = 0; // starts over, whatever was parsed before
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":o:", options, NULL)) != -1) {
        *helped = option == OPT_HELP;
        if (*helped) {
            fputs(help, stdout);
            return DT_OK;
        }
        DT_TRY(parse_option(option, argv[optind - 1], config));
    }
    config->inputs = (const char *const *)argv + optind;
    config->n_inputs = argc - optind;
    if (!config->output)
        return DT_FAIL(DT_USER, "dtrain pack -o OUTDIR INPUT...", "no output folder is given");
    if (config->n_inputs == 0)
        return DT_FAIL(DT_USER, "dtrain pack -o OUTDIR INPUT...", "no input is given");
    return DT_OK;
}

static void print_side(const char *name, int64_t tokens, int64_t shards, const char *output)
{
    if (shards > 0)
        printf("%-5s  %" PRId64 " tokens in %" PRId64 " shard%s: %s/%s-*.h5\n", name, tokens,
               shards, shards > 1 ? "s" : "", output, name);
}

dt_status dt_cmd_pack(struct dt_comm *comm, int argc, char **argv)
{
    struct dt_pack_config config = {
        .shard_bytes = INT64_C(64) << 20,
        .val_fraction = 0.05,
        .seed = 1337,
        .progress = dt_log_is_terminal(),
    };
    struct dt_pack_result result;
    bool helped = false;
    (void)comm;
    DT_TRY(parse(argc, argv, &config, &helped));
    if (helped)
        return DT_OK;
    DT_TRY(dt_pack(&config, &result));
    printf("packed %" PRId64 " file%s, vocabulary %" PRId64 "\n", result.files,
           result.files > 1 ? "s" : "", result.vocab_size);
    print_side("train", result.train_tokens, result.train_shards, config.output);
    print_side("val", result.val_tokens, result.val_shards, config.output);
    return DT_OK;
}
