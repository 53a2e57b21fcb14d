// `dtrain bench`: options and choice of what is measured.
#include "bench/bench.h"

#include "cmd/cmd.h"
#include "cmd/options.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { OPS = 1, STEP = 2, READER = 4, MODEL = OPS | STEP, ALL = MODEL | READER };
enum kind { FLAG, WHOLE, REAL, WORD };

struct option {
    const char *name;
    enum kind kind;
    size_t offset;       // of the field in struct dt_bench_options
    double min, max;     // WHOLE and REAL
    const char *words;   // WORD: a list, the value is the place in it
    unsigned modes;      // what it belongs to
    const char *meaning; // for --help
};

// Published sizes [state-spaces/mamba]. What else is given stands over a model's.
static const struct model {
    int64_t d_model, n_layer, vocab, seq_len;
} models[] = {{768, 24, 50280, 2048}, {1024, 48, 50280, 2048}};

#define FIELD(name) offsetof(struct dt_bench_options, name)
static const struct option table[] = {
    {"--step", FLAG, FIELD(step), 0, 0, NULL, ALL, "time a whole training step"},
    {"--reader", FLAG, FIELD(reader), 0, 0, NULL, ALL,
     "time the shard reader against plain read(); FILE is a shard, by default one made for it"},
    {"--model", WORD, FIELD(model), 0, 0, "130m 370m", MODEL,
     "130m or 370m: width, layers and vocabulary of that Mamba, 2048 tokens a sequence"},
    {"--d-model", WHOLE, FIELD(d_model), 1, 1 << 16, NULL, MODEL, "width (256)"},
    {"--n-layer", WHOLE, FIELD(n_layer), 1, 1 << 12, NULL, MODEL, "layers (4)"},
    {"--seq-len", WHOLE, FIELD(seq_len), 1, 1 << 24, NULL, MODEL, "tokens of a sequence (512)"},
    {"--batch", WHOLE, FIELD(batch), 1, 1 << 16, NULL, MODEL, "sequences of a step (16)"},
    {"--micro-batch", WHOLE, FIELD(micro_batch), 0, 1 << 16, NULL, MODEL,
     "sequences of one pass; 0: all of them (0)"},
    {"--vocab", WHOLE, FIELD(vocab), 1, 1 << 24, NULL, MODEL, "vocabulary (256)"},
    {"--d-state", WHOLE, FIELD(d_state), 1, 256, NULL, MODEL, "states of a channel (16)"},
    {"--device", WORD, FIELD(device), 0, 0, "auto cuda cpu", MODEL,
     "auto, cuda or cpu (auto: cuda where there is a device)"},
    {"--precision", WORD, FIELD(precision), 0, 0, "auto bf16 fp32", MODEL,
     "auto, bf16 or fp32 (auto: the faster one on this machine)"},
    {"--recompute", WORD, FIELD(recompute), 0, 0, "none scan block", MODEL,
     "what backward makes again: none, scan or block (none)"},
    {"--cuda-graph", WORD, FIELD(cuda_graph), 0, 0, "auto true false", STEP,
     "auto, true or false: whether steps are captured into graphs (auto: where the device has "
     "them)"},
    {"--gemm", WORD, FIELD(gemm), 0, 0, "timed first", STEP,
     "GEMM algorithms of a GPU: timed, or the first deterministic one that cuBLASLt names (timed)"},
    {"--threads", WHOLE, FIELD(threads), 0, 4096, NULL, MODEL, "0: all cores (0)"},
    {"--seconds", REAL, FIELD(seconds), 1e-3, 3600, NULL, ALL,
     "to measure for: each op (0.2), the steps (5), the reading (3)"},
    {"--warm", FLAG, FIELD(warm), 0, 0, NULL, OPS,
     "leave an op's arrays in the caches between repeats"},
    {"--json", FLAG, FIELD(json), 0, 0, NULL, ALL, "a JSON line for each row"},
};
enum { N_OPTIONS = sizeof table / sizeof *table };

static const char usage[] =
    "dtrain bench [options]                 every op at the shapes of a model's training step\n"
    "dtrain bench --step [options]          a whole training step\n"
    "dtrain bench --reader [FILE] [options] the shard reader\n";

static const char hint[] = "dtrain bench --help lists the options";

static void print_help(void)
{
    fputs(usage, stdout);
    for (int i = 0; i < N_OPTIONS; i++)
        printf("  %-14s%s\n", table[i].name, table[i].meaning);
}

static dt_status parse_number(const struct option *o, const char *text, void *field)
{
    if (o->kind == WHOLE)
        return dt_option_whole(o->name, text, hint, (int64_t)o->min, (int64_t)o->max, field);
    return dt_option_number(o->name, text, hint, o->min, o->max, field);
}

static dt_status parse_word(const struct option *o, const char *text, int64_t *field)
{
    const char *word = o->words;
    size_t length = strlen(text);
    for (int64_t i = 0; *word; i++) {
        size_t n = strcspn(word, " ");
        if (n == length && strncmp(word, text, n) == 0) {
            *field = i;
            return DT_OK;
        }
        word += n + (word[n] == ' ');
    }
    return DT_FAIL(DT_USER, hint, "%s %s: must be one of %s", o->name, text, o->words);
}

// The option that `word` names, up to an equals sign; its value behind that, or NULL.
static const struct option *find_option(const char *word, const char **value)
{
    size_t length = strcspn(word, "=");
    *value = word[length] ? word + length + 1 : NULL;
    for (int i = 0; i < N_OPTIONS; i++)
        if (strlen(table[i].name) == length && strncmp(table[i].name, word, length) == 0)
            return &table[i];
    return NULL;
}

// Takes the option at argv[*at] with its value, and leaves *at behind it.
static dt_status parse_option(int argc, char **argv, int *at, struct dt_bench_options *options,
                              unsigned *given)
{
    const char *word = argv[*at], *value;
    const struct option *o = find_option(word, &value);
    if (!o)
        return DT_FAIL(DT_USER, hint, "unknown option %s", word);
    void *field = (char *)options + o->offset;
    *given |= 1u << (o - table);
    *at += 1;
    if (o->kind == FLAG) {
        *(bool *)field = true;
        return value ? DT_FAIL(DT_USER, hint, "%s: %s takes no value", word, o->name) : DT_OK;
    }
    if (!value && *at == argc)
        return DT_FAIL(DT_USER, hint, "%s needs a value", o->name);
    if (!value)
        value = argv[(*at)++];
    return o->kind == WORD ? parse_word(o, value, field) : parse_number(o, value, field);
}

static dt_status check(const struct dt_bench_options *options, unsigned given)
{
    unsigned mode = options->step ? STEP : options->reader ? READER : OPS;
    const char *name = options->step ? " --step" : options->reader ? " --reader" : "";
    if (options->step && options->reader)
        return DT_FAIL(DT_USER, hint, "--step and --reader are two benchmarks: give one of them");
    if (options->file && !options->reader)
        return DT_FAIL(DT_USER, hint, "%s: only --reader takes a file", options->file);
    for (int i = 0; i < N_OPTIONS; i++)
        if ((given & 1u << i) && !(table[i].modes & mode))
            return DT_FAIL(DT_USER, hint, "%s does not belong to dtrain bench%s", table[i].name,
                           name);
    if (options->micro_batch > 0 && options->batch % options->micro_batch != 0)
        return DT_FAIL(DT_USER, "give a divisor of the batch",
                       "--micro-batch %lld does not divide --batch %lld",
                       (long long)options->micro_batch, (long long)options->batch);
    return DT_OK;
}

static bool was_given(unsigned given, const char *name)
{
    int i = 0;
    while (strcmp(table[i].name, name) != 0)
        i++;
    return given & 1u << i;
}

static void take_model(struct dt_bench_options *options, unsigned given)
{
    const struct model *model = &models[options->model];
    if (!was_given(given, "--d-model"))
        options->d_model = model->d_model;
    if (!was_given(given, "--n-layer"))
        options->n_layer = model->n_layer;
    if (!was_given(given, "--vocab"))
        options->vocab = model->vocab;
    if (!was_given(given, "--seq-len"))
        options->seq_len = model->seq_len;
}

static dt_status parse(int argc, char **argv, struct dt_bench_options *options)
{
    unsigned given = 0; // a bit for each row of the table
    *options = (struct dt_bench_options){.d_model = 256,
                                         .n_layer = 4,
                                         .vocab = 256,
                                         .d_state = 16,
                                         .seq_len = 512,
                                         .batch = 16,
                                         .device = DT_DEVICE_AUTO,
                                         .precision = DT_PRECISION_AUTO,
                                         .recompute = DT_RECOMPUTE_NONE,
                                         .cuda_graph = DT_TOGGLE_AUTO,
                                         .gemm = DT_BENCH_GEMM_TIMED};
    for (int at = 1; at < argc;) {
        if (argv[at][0] == '-')
            DT_TRY(parse_option(argc, argv, &at, options, &given));
        else if (options->file)
            return DT_FAIL(DT_USER, hint, "%s: one file was given already", argv[at]);
        else
            options->file = argv[at++];
    }
    if (was_given(given, "--model"))
        take_model(options, given);
    return check(options, given);
}

dt_status dt_cmd_bench(struct dt_comm *comm, int argc, char **argv)
{
    (void)comm;
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0) {
            print_help();
            return DT_OK;
        }
    struct dt_bench_options options;
    DT_TRY(parse(argc, argv, &options));
    if (options.step)
        return dt_bench_step(&options);
    return options.reader ? dt_bench_reader(&options) : dt_bench_ops(&options);
}
