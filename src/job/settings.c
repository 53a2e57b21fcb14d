// The table of dtrain's configuration keys, and checks between keys. The keys of [model] come from
// src/model.
#include "job/settings.h"

#include "base/round.h"
#include "base/text.h"
#include "data/reader.h"

#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// 2^53: JSON readers keep integers exact up to here, and trainer.json has some of these.
#define MANY       0x1p53
#define INT32_LAST 2147483647.0

enum { START_LEAST_S = 60 }; // MPI needs this long with slow name servers and file systems

#define WHOLE(s, f, ...)  DT_CONFIG_WHOLE(struct dt_settings, s.f, #f, __VA_ARGS__)
#define REAL(s, f, ...)   DT_CONFIG_REAL(struct dt_settings, s.f, #f, __VA_ARGS__)
#define FLAG(s, f, ...)   DT_CONFIG_FLAG(struct dt_settings, s.f, #f, __VA_ARGS__)
#define TEXT(s, f, ...)   DT_CONFIG_WORDS(struct dt_settings, s.f, #f, __VA_ARGS__)
#define NEUTRAL           .neutral = true
#define PATH              .is_path = true
#define PATHS             .is_path_list = true
#define CHOICE(s, f, ...) DT_CONFIG_CHOICE(struct dt_settings, s.f, #f, __VA_ARGS__)

// clang-format off
static const struct dt_config_key run_keys[] = {
    TEXT(run, name, "dtrain", "name of the run", NEUTRAL),
    TEXT(run, dir, "", "folder of the run; empty: runs/<name>", PATH, NEUTRAL),
    WHOLE(run, seed, "1337", 0, MANY, "seed for initialisation and data order"),
    WHOLE(run, steps, "", 1, MANY, "total optimizer steps; this or run.epochs is required",
          .replaced_by = "run.epochs"),
    WHOLE(run, epochs, "", 1, INT32_LAST, "passes over the training data, instead of run.steps",
          .replaced_by = "run.steps"),
    WHOLE(run, patience, "0", 0, MANY,
          "stop after this many evaluations without a lower validation loss; 0: never", NEUTRAL),
    CHOICE(run, device, "auto", DT_DEVICE_WORDS, "where to train; auto: on GPUs if every rank has one",
         NEUTRAL),
    FLAG(run, share_device, "false", "allow several ranks on one GPU, for tests; comm.backend = auto is then MPI", NEUTRAL),
    FLAG(run, allow_unequal_nodes, "false",
         "allow nodes with different numbers of ranks, or other GPUs or CPUs than the rest", NEUTRAL),
    CHOICE(run, precision, "auto", DT_PRECISION_WORDS,
           "storage type; auto: that of the checkpoint, else the faster one"),
    TEXT(run, init_from, "", "start from these weights: a Hugging Face directory or a checkpoint", PATH),
    TEXT(run, resume, "auto", "auto: from the newest checkpoint | never | a checkpoint's folder", PATH, NEUTRAL),
    WHOLE(run, threads, "0", 0, 4096, "CPU threads per rank; 0: its share of the cores (of 8 or more, all but one)", NEUTRAL),
    CHOICE(run, cuda_graph, "auto", DT_TOGGLE_WORDS, "capture a step as a CUDA graph", NEUTRAL),
    {0},
};

static struct dt_config_key data_keys[] = {
    TEXT(data, train, "", "shards to train on: globs of HDF5 files, separated by commas, or synthetic:random, synthetic:frames; "
         "a mixture: sources separated by spaces, each with its weight, web/*.h5:0.7 code/*.h5:0.3, or with epochs, code/*.h5:2e",
         .required = true, PATHS, NEUTRAL),
    WHOLE(data, mixture_from, "0", 0, MANY, "on resume, other weights of a mixture count after this many steps; 0: they must not change"),
    TEXT(data, val, "", "shards to evaluate on: globs of HDF5 files, separated by commas, or a mixture", PATHS, NEUTRAL),
    TEXT(data, tokenizer, "", "folder of the shards' tokenizer (tokenizer.json, …), copied into every checkpoint; "
         "empty: that of run.init_from, if it has one", PATH),
    REAL(data, val_fraction, "0", 0, 0.5, "hold this share of the episodes of data.train out, drawn by run.seed, to evaluate on; data.val is then empty"),
    CHOICE(data, format, "auto", "", "layout of the shards; auto: recognised by their datasets"),
    TEXT(data, episodes, "", "names of the groups that are episodes: subject_*/trial_* (* and ? within a name); "
         "empty: as the layout has them, or the file is one"),
    WHOLE(data, time_axis, "0", 0, 1, "dimension of the datasets that is time; 1: channels x time"),
    TEXT(data, inputs, "", "datasets of the frames, separated by spaces: PATH, PATH[i:j] (columns), PATH/@ATTRIBUTE, "
         "PATH:id*N (integers below N, embedded; :id*N=TABLE shares a table), each also with @SHIFT or @FROM:TO (of row t + SHIFT; "
         ":valid adds whether it exists); empty: all observations"),
    TEXT(data, targets, "", "datasets of the targets, in the order of model.heads, also PATH@SHIFT and PATH@FROM:TO; empty: "
         "actions, or /targets/NAME for each head"),
    TEXT(data, weights, "", "datasets of the weights of frames, separated by spaces: PATH (of all heads), PATH:HEAD (of one); "
         "empty: all are 1"),
    TEXT(data, mask, "auto", "robomimic: list in /mask of the episodes to train on; auto: train if it "
         "exists; all: every episode"),
    TEXT(data, val_mask, "auto", "robomimic: the list for data.val; auto: valid if it exists", NEUTRAL),
    FLAG(data, normalize, "true", "frames: subtract each column's mean, divide by its standard deviation"),
    WHOLE(data, seq_len, "", 1, INT32_LAST, "tokens or frames per sequence", .required = true),
    WHOLE(data, stride, "auto", 1, INT32_LAST, "frames between the starts of windows; auto: seq_len",
          .auto_word = "auto", .auto_value = 0),
    WHOLE(data, batch, "", 1, INT32_LAST, "sequences per step, over all ranks", .required = true),
    WHOLE(data, micro_batch, "0", 0, INT32_LAST, "sequences per pass; 0: a rank's whole share", NEUTRAL),
    FLAG(data, shuffle, "true", "permute blocks of windows, and the windows within each"),
    WHOLE(data, block, "auto", 1, INT32_LAST,
          "neighbouring windows that are shuffled and read together; auto: that of the checkpoint, else 1",
          .auto_word = "auto", .auto_value = 0),
    WHOLE(data, prefetch, "2", 1, 64, "batches read ahead", NEUTRAL),
    FLAG(data, carry_state, "false", "carry recurrent state from each window to the next of its sequence; needs shuffle = false"),
    WHOLE(data, reset_token, "-1", -1, INT32_LAST, "token that starts a document; -1: none"),
    FLAG(data, reset_after, "false", "a document starts after the reset token, not at it"),
    FLAG(data, reverse_complement, "false",
         "DNA (dtrain pack --format fasta): half of the windows, chosen at random in each epoch, are the other strand's"),
    FLAG(data, verify, "true", "check the shards' checksums while reading", NEUTRAL),
    FLAG(data, allow_changed, "false", "resume although shards differ from those of the checkpoint, as after a repair",
         NEUTRAL),
    {0},
};

static const struct dt_config_key optim_keys[] = {
    CHOICE(optim, name, "adamw", DT_OPTIMIZER_WORDS,
           "muon: Muon for the weights of linear layers in blocks, AdamW for the rest"),
    REAL(optim, lr, "", 0, 1000, "peak learning rate", .above_min = true, .required = true),
    REAL(optim, min_lr, "auto", 0, 1000, "learning rate at the end; auto: 0.1 lr",
         .auto_word = "auto", .auto_value = -1),
    TEXT(optim, lr_groups, "", "other rates: PATTERN:VALUE …, VALUE a rate or a factor of lr such as 0.1x; a line lr[PATTERN] = VALUE adds one",
         .entries = "lr"),
    CHOICE(optim, schedule, "cosine", DT_SCHEDULE_WORDS, "learning rate after warm-up"),
    WHOLE(optim, warmup_steps, "0", 0, MANY, "steps of linear warm-up", .below = "run.steps"),
    WHOLE(optim, decay_steps, "auto", 0, MANY, "wsd: steps of decay at the end; auto: 0.2 steps",
          .auto_word = "auto", .auto_value = -1),
    WHOLE(optim, restart_steps, "0", 0, MANY, "cosine_restarts: steps of the first period after warm-up"),
    WHOLE(optim, restart_mult, "1", 1, 1024,
          "cosine_restarts: each period is this many times as long as the one before"),
    // Limits so that in fp32 these stay below 1 and above 0.
    REAL(optim, beta1, "0.9", 0, 0.9999999, "AdamW: decay of the first moment"),
    REAL(optim, beta2, "0.95", 0, 0.9999999, "AdamW: decay of the second moment"),
    REAL(optim, eps, "1e-8", 1e-30, 1, "AdamW: epsilon"),
    REAL(optim, momentum, "0.95", 0, 0.9999999, "Muon: decay of the momentum, with Nesterov's look-ahead"),
    REAL(optim, weight_decay, "0.1", 0, 1000, "decoupled weight decay, of matrices and conv1d (not of vectors and A_log)"),
    REAL(optim, grad_clip, "1.0", 0, 1e9, "largest norm of the gradient; 0: off"),
    REAL(optim, ema, "0", 0, 0.9999999,
         "decay of a moving average of the weights, validated and saved as well; 0: off"),
    WHOLE(optim, max_skipped, "10", 1, MANY, "stop after this many skipped steps in a row (not finite, or left out by optim.rollback)", NEUTRAL),
    CHOICE(optim, shard, "false", DT_SHARD_WORDS,
           "what is spread over the ranks, for less memory on each: the optimizer states (true is the same), the gradients as well, or also the weights",
           NEUTRAL),
    WHOLE(optim, rollback, "0", 0, MANY,
          "after this many skipped or spiking steps in a row return to the checkpoint before them and skip their batches; 0: off"),
    REAL(optim, spike, "6", 1, 1000,
         "rollback: a loss this many standard deviations above the recent ones is a spike"),
    {0},
};

static const struct dt_config_key comm_keys[] = {
    CHOICE(comm, backend, "auto", "auto|self|mpi|nccl",
           "how ranks communicate; auto: NCCL between GPUs, else MPI", NEUTRAL),
    REAL(comm, bucket_mb, "auto", 0.001, 65536,
         "size of a bucket of gradients, in MB; each is sent when full; auto: 25, between GPUs more for large models and many ranks",
         .auto_word = "auto", .auto_value = 0, NEUTRAL),
    CHOICE(comm, dtype, "fp32", "fp32|bf16", "type in which gradients are sent"),
    CHOICE(comm, reduce, "fast", "fast|reproducible",
           "reproducible: the same bits on 1, 2, 4, … ranks, for a given data.micro_batch", NEUTRAL),
    REAL(comm, timeout_s, "600", 1, 1e6, "seconds until a stalled rank ends the job", NEUTRAL),
    REAL(comm, start_timeout_s, "auto", 1, 1e6,
         "seconds until ranks that do not meet at the start end the job; auto: timeout_s, 60 at least",
         .auto_word = "auto", .auto_value = 0, NEUTRAL),
    CHOICE(comm, selftest, "auto", DT_TOGGLE_WORDS,
           "check collectives on known values at the start; auto: between hosts or GPUs", NEUTRAL),
    WHOLE(comm, context, "1", 1, 65536,
          "ranks that share each window, a segment in turn (model.segment); 1: each rank has its own windows", NEUTRAL),
    WHOLE(comm, verify_replicas, "0", 0, MANY, "compare the ranks' weights every N steps; 0: off", NEUTRAL),
    {0},
};

static const struct dt_config_key checkpoint_keys[] = {
    WHOLE(checkpoint, every, "0", 0, MANY, "a checkpoint every N steps; 0: off"),
    REAL(checkpoint, minutes, "30", 0, 1e6, "a checkpoint every N minutes; 0: off"),
    WHOLE(checkpoint, keep, "3", 0, MANY, "how many of the newest checkpoints to keep; 0: all"),
    FLAG(checkpoint, best, "false",
         "save at each evaluation with the lowest validation loss so far, and keep that checkpoint"),
    FLAG(checkpoint, on_signal, "true", "on SIGUSR1, SIGHUP, SIGTERM, Ctrl-C: save, then stop"),
    {0},
};

static const struct dt_config_key log_keys[] = {
    WHOLE(log, every, "10", 1, MANY, "steps between plain console lines, and between points of TensorBoard's curves"),
    WHOLE(log, eval_every, "0", 0, MANY, "evaluate data.val every N steps, and at the end; 0: only at the end"),
    WHOLE(log, eval_batches, "0", 0, MANY, "batches per evaluation; 0: all of data.val"),
    FLAG(log, tensorboard, "true", "write curves for TensorBoard into the run's folder"),
    CHOICE(log, console, "auto", "auto|progress|plain", "one live line, or plain lines"),
    FLAG(log, profile, "true", "write profile.txt and profile.json, tables of where the time went, at the end and on SIGUSR2"),
    TEXT(log, limits, "", "output of dtrain bench --json on this machine: profile.txt then compares each op with the machine's limits", PATH),
    TEXT(log, trace_steps, "", "steps to trace for ui.perfetto.dev, such as 10:12"),
    {0},
};
// clang-format on

// The choices of data.format are the names of the readers.
static const struct dt_config_key *data_keys_list(void)
{
    for (struct dt_config_key *key = data_keys; key->name; key++)
        if (strcmp(key->name, "format") == 0)
            key->choices = dt_reader_formats();
    return data_keys;
}

static const struct dt_config_section sections[] = {
    {.name = "run", .keys = run_keys},
    {.name = "model", .list = dt_model_keys, .offset = offsetof(struct dt_settings, model)},
    {.name = "data", .list = data_keys_list},
    {.name = "optim", .keys = optim_keys},
    {.name = "comm", .keys = comm_keys},
    {.name = "checkpoint", .keys = checkpoint_keys, .neutral = true},
    {.name = "log", .keys = log_keys, .neutral = true},
    {0},
};

const struct dt_config_table dt_settings_table = {
    .sections = sections,
    .settings_size = sizeof(struct dt_settings),
    .env_prefix = "DTRAIN_",
};

void dt_settings_defaults(struct dt_settings *settings)
{
    *settings = (struct dt_settings){0}; // some fields of the model have no key
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);)
        dt_config_set_default(row.key, (char *)settings + row.section->offset);
}

struct dt_comm_limits dt_settings_limits(const char *path, char *const *overrides, int n_overrides)
{
    struct dt_settings settings;
    struct dt_config *config = NULL;
    if (!path || dt_config_load(&dt_settings_table, NULL, path, (const char *const *)overrides,
                                n_overrides, &settings, &config) != DT_OK) {
        dt_error_clear();
        dt_settings_defaults(&settings);
    }
    dt_config_free(config);
    double start_s = settings.comm.start_timeout_s;
    return (struct dt_comm_limits){
        .wait_s = settings.comm.timeout_s,
        .start_s = start_s > 0 ? start_s : fmax(settings.comm.timeout_s, START_LEAST_S),
    };
}

struct check {
    const struct dt_settings *settings;
    const struct dt_config *config; // NULL: messages without origins
    struct dt_problems *problems;
};

static const char *origin(const struct check *check, const char *key)
{
    return check->config ? dt_config_find(check->config, key)->origin : "the configuration";
}

// `keys`: the key to change, then the others that the check reads. If one of them is missing or
// invalid, that is already reported, and this check is skipped.
__attribute__((format(printf, 3, 4))) static void reject(struct check *check, const char *keys,
                                                         const char *format, ...)
{
    char list[256], message[DT_PROBLEM_LINE / 2], *rest = list;
    va_list args;
    snprintf(list, sizeof list, "%s", keys);
    for (char *key; check->config && (key = strsep(&rest, " "));)
        if (dt_config_find(check->config, key)->refused)
            return;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    snprintf(list, sizeof list, "%.*s", (int)strcspn(keys, " "), keys);
    dt_config_problem(check->problems, check->config, list, "%s", message);
}

static void check_run(struct check *check)
{
    const struct dt_settings *s = check->settings;
    const char *name = s->run.name;
    if (s->run.steps == 0 && s->run.epochs == 0)
        reject(check, "run.steps run.epochs", "this or run.epochs is required: how long to train");
    if (s->run.steps > 0 && s->run.epochs > 0)
        reject(check, "run.steps run.epochs", "give this or run.epochs, not both (run.epochs: %s)",
               origin(check, "run.epochs"));
    if (name[0] == 0 || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        reject(check, "run.name", "'%.64s' cannot name a folder (allowed: any text without '/')",
               name);
    if (s->run.resume[0] == 0)
        reject(check, "run.resume", "missing value (allowed: auto | never | a folder)");
}

// The most tokens per step, so that products fit into 64 bits.
static const int64_t STEP_TOKENS_MAX = INT64_C(1) << 40;

// The divisors of n next below and above x, 1 <= x <= n.
static void nearest_divisors(int64_t n, int64_t x, int64_t *below, int64_t *above)
{
    *below = 1;
    *above = n;
    for (int64_t d = 1; d * d <= n; d++) {
        int64_t pair[2] = {d, n / d};
        for (int i = 0; i < 2 && n % d == 0; i++) {
            if (pair[i] <= x && pair[i] > *below)
                *below = pair[i];
            if (pair[i] >= x && pair[i] < *above)
                *above = pair[i];
        }
    }
}

// Checks that the batch can be split over `ranks`, and each share into micro-batches.
static void check_batch(struct check *check, int64_t ranks)
{
    int64_t batch = check->settings->data.batch, micro = check->settings->data.micro_batch;
    int64_t share = batch / ranks, below = share > 0 ? share : 1, above = share + 1;
    char what[512];
    snprintf(what, sizeof what, "data.batch = %lld (%s)", (long long)batch,
             origin(check, "data.batch"));
    if (ranks > 1)
        snprintf(what, sizeof what, "the %lld sequences of a rank (data.batch = %lld, %lld ranks)",
                 (long long)share, (long long)batch, (long long)ranks);
    if (batch % ranks != 0) {
        reject(check, "data.batch",
               "%lld sequences cannot be split equally over %lld ranks; the nearest that can are "
               "%lld and %lld",
               (long long)batch, (long long)ranks, (long long)(below * ranks),
               (long long)(above * ranks));
    } else if (micro > share) {
        reject(check, "data.micro_batch data.batch", "%lld is more than %s", (long long)micro,
               what);
    } else if (micro > 0 && share % micro != 0) {
        nearest_divisors(share, micro, &below, &above);
        reject(check, "data.micro_batch data.batch",
               "%lld does not divide %s; the nearest that do are %lld and %lld", (long long)micro,
               what, (long long)below, (long long)above);
    }
}

// comm.reduce = reproducible sums the micro-batches of a step by one binary tree over all ranks.
static void check_tree(struct check *check)
{
    const struct dt_settings *s = check->settings;
    int64_t batch = s->data.batch, micro = s->data.micro_batch, least = batch;
    char allowed[256] = "";
    if (s->comm.reduce != DT_REDUCE_REPRODUCIBLE)
        return;
    if (s->comm.dtype == DT_WIRE_BF16)
        reject(check, "comm.dtype comm.reduce",
               "bf16 rounds what ranks send, and not what a rank adds by itself: comm.reduce = "
               "reproducible (%s) needs fp32",
               origin(check, "comm.reduce"));
    while (least % 2 == 0 && least > 0)
        least /= 2;
    for (int64_t fits = least; fits <= batch && fits > 0; fits *= 2)
        dt_append(allowed, sizeof allowed, "%s%lld", fits > least ? ", " : "", (long long)fits);
    if (!dt_is_power_of_two(s->comm.context))
        reject(check, "comm.context comm.reduce",
               "%lld ranks share each window, and comm.reduce = reproducible (%s) needs a power of "
               "two of them",
               (long long)s->comm.context, origin(check, "comm.reduce"));
    if (s->comm.context > 1 && s->model.direction == DT_DIRECTION_BOTH)
        reject(check, "comm.context model.direction comm.reduce",
               "%lld ranks share each window, which model.direction = both reads from both ends, "
               "and comm.reduce = reproducible (%s) needs windows that are read from one end",
               (long long)s->comm.context, origin(check, "comm.reduce"));
    if (s->model.segment < 0)
        reject(check, "model.segment comm.reduce",
               "auto follows the memory, and comm.reduce = reproducible (%s), whose bits depend on "
               "it, needs a number",
               origin(check, "comm.reduce"));
    if (micro == 0)
        reject(check, "data.micro_batch data.batch comm.reduce",
               "required with comm.reduce = reproducible (%s), whose bits depend on it; allowed "
               "for data.batch = %lld (%s): %s",
               origin(check, "comm.reduce"), (long long)batch, origin(check, "data.batch"),
               allowed);
    else if (batch % micro == 0 && !dt_is_power_of_two(batch / micro))
        reject(check, "data.micro_batch data.batch comm.reduce",
               "%lld cuts data.batch = %lld (%s) into %lld micro-batches, and comm.reduce = "
               "reproducible (%s) needs a power of two of them; allowed: %s",
               (long long)micro, (long long)batch, origin(check, "data.batch"),
               (long long)(batch / micro), origin(check, "comm.reduce"), allowed);
}

static void check_data(struct check *check)
{
    const struct dt_settings *s = check->settings;
    int64_t tokens;
    check_batch(check, 1);
    check_tree(check);
    if (s->model.vocab_size > 0 && s->data.reset_token >= s->model.vocab_size)
        reject(check, "data.reset_token model.vocab_size",
               "%lld is not below model.vocab_size = %lld (%s)", (long long)s->data.reset_token,
               (long long)s->model.vocab_size, origin(check, "model.vocab_size"));
    if (s->data.carry_state && s->data.shuffle)
        reject(check, "data.carry_state data.shuffle",
               "true needs windows in file order: set data.shuffle = false (it is true: %s)",
               origin(check, "data.shuffle"));
    if (s->data.carry_state && s->data.stride > 0 && s->data.stride != s->data.seq_len)
        reject(check, "data.carry_state data.stride data.seq_len",
               "true needs windows that follow each other: leave data.stride (%lld: %s) at auto",
               (long long)s->data.stride, origin(check, "data.stride"));
    if (s->comm.context > 1 && s->data.carry_state)
        reject(check, "comm.context data.carry_state",
               "%lld ranks share a window, and no rank has its last state: set data.carry_state = "
               "false",
               (long long)s->comm.context);
    if (s->data.carry_state && s->data.reverse_complement)
        reject(check, "data.reverse_complement data.carry_state",
               "true reads windows of the other strand, which no state continues");
    if (s->data.reset_after && s->data.reset_token < 0)
        reject(check, "data.reset_after data.reset_token",
               "true needs data.reset_token, which is -1: none");
    if (s->data.val_fraction > 0 && s->data.val[0] && strcmp(s->data.val, s->data.train) != 0)
        reject(check, "data.val_fraction data.val",
               "it is a share of data.train: leave data.val (%s) empty", origin(check, "data.val"));
    if (s->data.val_fraction > 0 && strcmp(s->data.val_mask, "auto") != 0)
        reject(check, "data.val_fraction data.val_mask",
               "it holds episodes of data.train out: leave data.val_mask (%s) at auto",
               origin(check, "data.val_mask"));
    if (s->log.eval_every > 0 && s->data.val[0] == 0 && s->data.val_fraction == 0)
        reject(check, "log.eval_every data.val", "evaluation needs data.val or data.val_fraction");
    if (s->run.patience > 0 && s->log.eval_every == 0)
        reject(check, "run.patience log.eval_every",
               "needs evaluations: set log.eval_every and data.val");
    if (s->checkpoint.best && s->log.eval_every == 0)
        reject(check, "checkpoint.best log.eval_every",
               "needs evaluations: set log.eval_every and data.val");
    if (__builtin_mul_overflow(s->data.batch, s->data.seq_len, &tokens) || tokens > STEP_TOKENS_MAX)
        reject(check, "data.batch data.seq_len",
               "batch times data.seq_len exceeds 2^40 tokens per step");
    else if (__builtin_mul_overflow(tokens, s->run.steps, &tokens))
        reject(check, "run.steps data.batch data.seq_len",
               "steps times data.batch times data.seq_len exceeds 2^63 tokens");
}

static void check_schedule(struct check *check, int64_t steps)
{
    const struct dt_settings *s = check->settings;
    int64_t warmup = s->optim.warmup_steps;
    int64_t decay = dt_settings_decay_steps(s, steps);
    const char *key = s->run.steps > 0 ? "run.steps" : "run.epochs";
    const char *what = s->run.steps > 0 ? "run.steps =" : "the steps of run.epochs,";
    if (warmup >= steps)
        reject(check, "optim.warmup_steps run.steps", "%lld is not below %s %lld (%s)",
               (long long)warmup, what, (long long)steps, origin(check, key));
    else if (s->optim.schedule == DT_SCHEDULE_RESTARTS && s->optim.restart_steps > steps - warmup)
        reject(check, "optim.restart_steps optim.warmup_steps optim.schedule run.steps",
               "%lld and optim.warmup_steps = %lld (%s) are more than %s %lld (%s)",
               (long long)s->optim.restart_steps, (long long)warmup,
               origin(check, "optim.warmup_steps"), what, (long long)steps, origin(check, key));
    else if (s->optim.schedule == DT_SCHEDULE_WSD && decay > steps - warmup)
        reject(check, "optim.decay_steps optim.warmup_steps optim.schedule run.steps",
               "%lld and optim.warmup_steps = %lld (%s) are more than %s %lld (%s)",
               (long long)decay, (long long)warmup, origin(check, "optim.warmup_steps"), what,
               (long long)steps, origin(check, key));
}

static void check_device(struct check *check)
{
    const struct dt_settings *s = check->settings;
    bool nccl = s->comm.backend == DT_COMM_NCCL;
    const char *shared = getenv("NCCL_MULTI_RANK_GPU_ENABLE"); // NCCL 2.30 and newer
    if (nccl && s->run.share_device && !(shared && atoi(shared)))
        reject(check, "comm.backend run.share_device",
               "NCCL does not support ranks that share a GPU (run.share_device: %s): use mpi, or "
               "NCCL 2.30 with NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment",
               origin(check, "run.share_device"));
    if (s->run.device != DT_DEVICE_CPU)
        return;
    if (nccl)
        reject(check, "comm.backend run.device", "nccl needs GPUs, but run.device = cpu (%s)",
               origin(check, "run.device"));
    if (s->run.cuda_graph == DT_TOGGLE_TRUE)
        reject(check, "run.cuda_graph run.device", "true needs a GPU, but run.device = cpu (%s)",
               origin(check, "run.device"));
}

static void check_optim(struct check *check)
{
    const struct dt_settings *s = check->settings;
    if (s->optim.min_lr > s->optim.lr)
        reject(check, "optim.min_lr optim.lr", "%g is above optim.lr = %g (%s)", s->optim.min_lr,
               s->optim.lr, origin(check, "optim.lr"));
    bool restarts = s->optim.schedule == DT_SCHEDULE_RESTARTS;
    if (restarts != (s->optim.restart_steps > 0))
        reject(check, "optim.restart_steps optim.schedule", "%s schedule = cosine_restarts",
               restarts ? "required with" : "needs");
    if (s->run.steps > 0) // with epochs the steps depend on the data
        check_schedule(check, s->run.steps);
    if (s->optim.rollback == 0)
        return;
    if (s->optim.rollback > s->optim.max_skipped)
        reject(check, "optim.rollback optim.max_skipped",
               "%lld, but optim.max_skipped = %lld would end the run first",
               (long long)s->optim.rollback, (long long)s->optim.max_skipped);
    if (s->checkpoint.every == 0 && s->checkpoint.minutes == 0)
        reject(check, "optim.rollback checkpoint.every checkpoint.minutes",
               "needs checkpoints to return to: set checkpoint.every");
    if (s->data.carry_state)
        reject(check, "optim.rollback data.carry_state",
               "skips batches, but with data.carry_state each continues the one before");
}

static void check_log(struct check *check)
{
    const struct dt_settings *s = check->settings;
    int64_t first, last;
    if (!s->log.trace_steps[0])
        return;
    if (!dt_parse_steps(s->log.trace_steps, &first, &last))
        reject(check, "log.trace_steps",
               "'%.64s' is not a range of steps (allowed: A:B with 1 <= A <= B)",
               s->log.trace_steps);
    else if (s->run.steps > 0 && first > s->run.steps)
        reject(check, "log.trace_steps run.steps",
               "%lld is after the last step, run.steps = %lld (%s)", (long long)first,
               (long long)s->run.steps, origin(check, "run.steps"));
}

void dt_settings_check(struct dt_problems *problems, const void *settings,
                       const struct dt_config *config)
{
    struct check check = {.settings = settings, .config = config, .problems = problems};
    check_run(&check);
    check_device(&check);
    check_data(&check);
    check_optim(&check);
    check_log(&check);
}

dt_status dt_settings_check_batch(const struct dt_settings *settings,
                                  const struct dt_config *config, int64_t ranks)
{
    const struct dt_settings *s = settings;
    struct dt_problems problems = {0};
    struct check check = {.settings = settings, .config = config, .problems = &problems};
    int64_t leaves = s->data.micro_batch > 0 ? s->data.batch / s->data.micro_batch : 0, below = 1;
    char above[32] = "";
    while (2 * below <= ranks && 2 * below <= leaves)
        below *= 2;
    if (2 * below <= leaves)
        snprintf(above, sizeof above, " or %lld", (long long)(2 * below));
    // First the tree of comm.reduce = reproducible, then the batch.
    if (s->comm.reduce != DT_REDUCE_REPRODUCIBLE || (dt_is_power_of_two(ranks) && ranks <= leaves))
        check_batch(&check, ranks);
    else if (ranks > leaves)
        reject(&check, "comm.reduce",
               "reproducible: %lld ranks cannot share the %lld micro-batches of a step (data.batch "
               "= %lld, data.micro_batch = %lld: %s); start at most %lld ranks, or %s",
               (long long)ranks, (long long)leaves, (long long)s->data.batch,
               (long long)s->data.micro_batch, origin(&check, "data.micro_batch"),
               (long long)leaves,
               s->data.micro_batch > 1 ? "lower data.micro_batch" : "increase data.batch");
    else
        reject(&check, "comm.reduce",
               "reproducible needs a power of two of ranks, not %lld: start %lld%s",
               (long long)ranks, (long long)below, above);
    return dt_problems_raise(&problems, NULL);
}

dt_status dt_settings_check_steps(const struct dt_settings *settings,
                                  const struct dt_config *config, int64_t steps)
{
    struct dt_problems problems = {0};
    struct check check = {.settings = settings, .config = config, .problems = &problems};
    check_schedule(&check, steps);
    return dt_problems_raise(&problems, NULL);
}
