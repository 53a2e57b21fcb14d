// `dtrain bench`: parses the options and chooses what to measure.
#include "bench/bench.h"

#include "cmd/cmd.h"
#include "job/device.h"
#include "kernels/scan.h"

#define OPS   "ops"
#define STEP  "step"
#define PLAY  "play"
#define COMM  "comm"
#define MODEL OPS "|" STEP
#define BOTH  MODEL "|" PLAY

// Published sizes [state-spaces/mamba].
static const struct model {
    int64_t d_model, n_layer, vocab, seq_len;
} models[] = {{768, 24, 50280, 2048}, {1024, 48, 50280, 2048}};

#define OPTION(kind, field, named, ...)                                                            \
    .key = DT_CONFIG_##kind(struct dt_bench_options, field, named, __VA_ARGS__)

static const struct dt_option options[] = {
    {OPTION(FLAG, step, "step", "false", "time a whole training step")},
    {OPTION(FLAG, play, "play", "false",
            "time a playing step: one position of one stream, on one thread unless --threads says "
            "otherwise")},
    {OPTION(
        FLAG, reader, "reader", "false",
        "time the shard reader against plain read(); FILE is a shard, by default a temporary one")},
    {OPTION(FLAG, comm, "comm", "false",
            "time and check every collective over all ranks: start it with mpirun or srun, like a "
            "run"),
     .communicates = true},
    {OPTION(CHOICE, model, "model", "custom", "custom|130m|370m",
            "width, layers and vocabulary of the published Mamba of that size, 2048 tokens per "
            "sequence"),
     .modes = MODEL},
    {OPTION(WHOLE, d_model, "d-model", "256", 1, 1 << 16, "model width"), .modes = BOTH},
    {OPTION(WHOLE, n_layer, "n-layer", "4", 1, 1 << 12, "layers"), .modes = BOTH},
    {OPTION(TEXT, layers, "layers", "", "layer kinds, such as mamba*2 gru; instead of --n-layer"),
     .modes = BOTH},
    {OPTION(TEXT, heads, "heads", "",
            "as model.heads, such as buttons:bernoulli*8; default: a language model"),
     .modes = BOTH},
    {OPTION(WHOLE, frame_size, "frame-size", "64", 1, 1 << 20, "with --heads: numbers in a frame"),
     .modes = BOTH},
    {OPTION(WHOLE, seq_len, "seq-len", "512", 1, 1 << 24, "tokens per sequence"), .modes = BOTH},
    {OPTION(WHOLE, batch, "batch", "16", 1, 1 << 16, "sequences per step"), .modes = MODEL},
    {OPTION(WHOLE, micro_batch, "micro-batch", "0", 0, 1 << 16, "sequences per pass; 0: all"),
     .modes = MODEL},
    {OPTION(WHOLE, vocab, "vocab", "256", 1, 1 << 24, "vocabulary size"), .modes = BOTH},
    {OPTION(WHOLE, d_state, "d-state", "16", 1, DT_SCAN_STATES_MAX, "SSM state size"),
     .modes = BOTH},
    {OPTION(CHOICE, device, "device", "auto", DT_DEVICE_WORDS, "auto: cuda if there is a GPU"),
     .modes = MODEL "|" COMM},
    {OPTION(CHOICE, precision, "precision", "auto", DT_PRECISION_WORDS,
            "auto: the faster one on this machine"),
     .modes = BOTH},
    {OPTION(CHOICE, recompute, "recompute", "none", DT_RECOMPUTE_WORDS,
            "what the backward pass recomputes"),
     .modes = MODEL},
    {OPTION(CHOICE, cuda_graph, "cuda-graph", "auto", DT_TOGGLE_WORDS,
            "capture steps as CUDA graphs; auto: if the device supports them"),
     .modes = STEP},
    {OPTION(WHOLE, threads, "threads", "0", 0, 4096, "CPU threads; 0: all cores"), .modes = BOTH},
    {OPTION(REAL, seconds, "seconds", "auto", 1e-3, 3600,
            "seconds to measure; auto: 0.2 for each op, 5 for steps, 3 for reading, 0.1 for each "
            "size of a collective",
            .auto_word = "auto")},
    {OPTION(FLAG, int8, "int8", "false", "play linear layers in int8"), .modes = PLAY},
    {OPTION(FLAG, warm, "warm", "false",
            "run each op twice and time the second run: its arrays are in the caches"),
     .modes = OPS},
    {OPTION(TEXT, first, "first", "8", "smallest array of a collective in bytes, such as 64K"),
     .modes = COMM, .letter = 'b', .argument = "SIZE"},
    {OPTION(TEXT, last, "last", "1G", "largest array"), .modes = COMM, .letter = 'e',
     .argument = "SIZE"},
    {OPTION(WHOLE, factor, "factor", "2", 2, 1 << 20, "factor from one size to the next"),
     .modes = COMM, .letter = 'f'},
    {OPTION(CHOICE, collective, "collective", "all",
            "all|all-reduce|reduce-scatter|all-gather|broadcast|exchange", "which to measure"),
     .modes = COMM},
    {OPTION(CHOICE, type, "type", "fp32", "fp32|bf16|fp64|int64", "of the elements"),
     .modes = COMM},
    {OPTION(FLAG, pairs, "pairs", "false",
            "exchange an array of --last (4M unless given) between every two ranks instead, and "
            "name slow ranks"),
     .modes = COMM},
    {OPTION(WHOLE, max_memory, "max-memory", "0", 0, 1 << 24,
            "MiB that each rank may use for arrays; what needs more is skipped; 0: half of what is "
            "free"),
     .modes = COMM},
    {OPTION(FLAG, json, "json", "false", "print one JSON line per row")},
    {.key = {0}},
};

static const char hint[] = "dtrain bench --help lists the options";

static dt_status check(const struct dt_call *call, const struct dt_bench_options *o)
{
    const char *mode = o->step     ? STEP
                       : o->play   ? PLAY
                       : o->reader ? "reader"
                       : o->comm   ? COMM
                                   : OPS;
    int named = o->step + o->play + o->reader + o->comm;
    if (named > 1)
        return DT_FAIL(
            DT_USER, hint,
            "--step, --play, --reader and --comm are separate benchmarks: give one of them");
    if (o->file && !o->reader)
        return DT_FAIL(DT_USER, hint, "%s: only --reader reads a file", o->file);
    for (const struct dt_option *row = options; row->key.name; row++)
        if (dt_call_given(call, row->key.name) && row->modes &&
            !dt_config_is_choice(row->modes, mode, NULL))
            return DT_FAIL(DT_USER, hint, "--%s does not apply to dtrain bench%s%s", row->key.name,
                           named ? " --" : "", named ? mode : "");
    if (o->micro_batch > 0 && o->batch % o->micro_batch != 0)
        return DT_FAIL(DT_USER, "give a divisor of the batch",
                       "--micro-batch %lld does not divide --batch %lld", (long long)o->micro_batch,
                       (long long)o->batch);
    return dt_device_check_threads("--threads", o->threads);
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    struct dt_bench_options o = *(const struct dt_bench_options *)call->options;
    o.file = call->n_words > 0 ? call->words[0] : NULL;
    if (o.model > 0) { // given sizes override the model's
        const struct model *model = &models[o.model - 1];
        o.d_model = dt_call_given(call, "d-model") ? o.d_model : model->d_model;
        o.n_layer = dt_call_given(call, "n-layer") ? o.n_layer : model->n_layer;
        o.vocab = dt_call_given(call, "vocab") ? o.vocab : model->vocab;
        o.seq_len = dt_call_given(call, "seq-len") ? o.seq_len : model->seq_len;
    }
    DT_TRY(check(call, &o));
    if (o.step)
        return dt_bench_step(&o);
    if (o.play)
        return dt_bench_play(&o);
    if (o.pairs && !dt_call_given(call, "last"))
        o.last = "4M";
    if (o.comm)
        return dt_bench_comm(comm, &o);
    return o.reader ? dt_bench_reader(&o) : dt_bench_ops(&o);
}

const struct dt_command dt_cmd_bench = {
    .name = "bench",
    .usage = "[--step | --play | --reader [FILE] | --comm] [options]",
    .help = "time every op, a training step, a playing step, the shard reader, or collectives",
    .about =
        "Without --step, --play, --reader and --comm: every op at the shapes of a model's training "
        "step, compared with the machine's limits.",
    .max_words = 1,
    .options = options,
    .options_size = sizeof(struct dt_bench_options),
    .run = run,
};
