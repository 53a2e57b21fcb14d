// Tests dtrain's table of keys: its defaults, its choices against the enums, what is not
// implemented yet, the checks between keys, and that a resolved configuration reads back to the
// same settings.
#include "default_model.h"
#include "job/settings.h"
#include "test.h"

#include <stddef.h>
#include <stdlib.h>

// Keys that every run must have.
static const char base_text[] = "[run]\n"
                                "steps = 100\n"
                                "[model]\n"
                                "d_model = 48\n"
                                "n_layer = 2\n"
                                "vocab_size = 259\n"
                                "[data]\n"
                                "train = shards/*.h5\n"
                                "seq_len = 77\n"
                                "batch = 12\n"
                                "[optim]\n"
                                "lr = 3e-3\n";

enum { WORDS = 8 };
struct words {
    const char *word[WORDS]; // NULL after the last
};

// The settings that were read last.
static struct dt_settings s;
static struct dt_config *config;

static dt_status parse(const char *text, const struct words *words)
{
    int n = 0;
    while (words && n < WORDS && words->word[n])
        n++;
    dt_error_clear();
    dt_config_free(config);
    return dt_config_parse(&dt_settings_table, NULL, "c.ini", text, (int64_t)strlen(text), NULL,
                           words ? words->word : NULL, n, &s, &config);
}

static dt_status check_settings(void)
{
    struct dt_problems problems = {0};
    dt_settings_check(&problems, &s, config);
    return dt_problems_raise(&problems, NULL);
}

static dt_status parse_and_check(const struct words *words)
{
    dt_status status = parse(base_text, words);
    return status == DT_OK ? check_settings() : status;
}

// dtrain expands ~ itself, since no shell does in section.key=value.
static void test_home_folders(void)
{
    const struct words words = {{"run.dir=~/runs/a~b", "run.resume=~", "run.init_from=./~/w,~",
                                 "data.train=~/a*.h5,b~.h5, ~/c.h5", "data.val=~root/v.h5",
                                 "run.name=~", "log.limits=~/limits"}};
    setenv("HOME", "/usr", 1);
    CHECK_OK(parse(base_text, &words));
    CHECK_STR(s.run.dir, "/usr/runs/a~b");
    CHECK_STR(s.run.resume, "/usr");
    CHECK_STR(s.run.init_from, "./~/w,~"); // this is one path
    CHECK_STR(s.data.train, "/usr/a*.h5,b~.h5, /usr/c.h5");
    CHECK(s.data.val[0] == '/', "data.val is %s", s.data.val);
    CHECK_STR(s.run.name, "~"); // a name is no path
    CHECK_STR(s.log.limits, "/usr/limits");
    CHECK_STR(dt_config_find(config, "run.dir")->text, "/usr/runs/a~b");
    const struct words nobody = {{"data.train=a.h5,~no-such-user/b.h5"}};
    CHECK_FAILS(parse(base_text, &nobody), DT_USER,
                "data.train: there is no home folder '~no-such-user'");
    char path[1100] = "run.dir=~/";
    memset(path + strlen(path), 'x', 1020);
    const struct words huge = {{path}};
    CHECK_FAILS(parse(base_text, &huge), DT_USER, "run.dir: the text is too long");
}

static void test_defaults(void)
{
    CHECK_OK(parse(base_text, NULL));
    CHECK(config, "%s", dt_error_current()->message);
    CHECK_OK(check_settings());
    CHECK_STR(s.run.name, "dtrain");
    CHECK_STR(s.run.dir, "");
    CHECK_STR(s.run.init_from, "");
    CHECK_STR(s.run.resume, "auto");
    CHECK_INT(s.run.seed, 1337);
    CHECK_INT(s.run.steps, 100);
    CHECK_INT(s.run.epochs, 0);
    CHECK_INT(s.run.threads, 0);
    CHECK_INT(s.run.device, DT_DEVICE_AUTO);
    CHECK_INT(s.run.precision, DT_PRECISION_AUTO);
    CHECK_INT(s.run.cuda_graph, DT_TOGGLE_AUTO);
    CHECK_INT(s.run.share_device, false);
    CHECK_INT(WHOLE_OF(s.model, d_state), 16);
    CHECK_INT(WHOLE_OF(s.model, d_conv), 4);
    CHECK_INT(WHOLE_OF(s.model, expand), 2);
    CHECK_INT(WHOLE_OF(s.model, dt_rank), 0);
    CHECK(s.model.norm_eps == 1e-5, "norm_eps");
    CHECK_INT(s.model.tie_embeddings, true);
    CHECK_INT(s.model.pad_vocab_multiple, 8);
    CHECK_INT(s.model.recompute, 0);
    CHECK_STR(s.data.val, "");
    CHECK_INT(s.data.micro_batch, 0);
    CHECK_INT(s.data.block, 0);
    CHECK_INT(s.data.prefetch, 2);
    CHECK_INT(s.data.reset_token, -1);
    CHECK(s.data.shuffle && s.data.verify && !s.data.carry_state && !s.data.reset_after, "data");
    CHECK(s.optim.lr == 3e-3 && s.optim.min_lr < 0, "lr");
    CHECK_INT(s.optim.schedule, DT_SCHEDULE_COSINE);
    CHECK_INT(s.optim.warmup_steps, 0);
    CHECK_INT(s.optim.decay_steps, -1);
    CHECK(s.optim.beta1 == 0.9 && s.optim.beta2 == 0.95 && s.optim.eps == 1e-8, "adam");
    CHECK(s.optim.weight_decay == 0.1 && s.optim.grad_clip == 1, "decay and clip");
    CHECK_INT(s.optim.max_skipped, 10);
    CHECK_INT(s.optim.rollback, 0);
    CHECK_INT(s.optim.shard, false);
    CHECK_INT(s.comm.backend, DT_COMM_AUTO);
    CHECK_INT(s.comm.dtype, DT_WIRE_FP32);
    CHECK_INT(s.comm.reduce, DT_REDUCE_FAST);
    CHECK(s.comm.bucket_mb == 0 && s.comm.timeout_s == 600, "comm");
    CHECK_INT(s.comm.verify_replicas, 0);
    CHECK_INT(s.checkpoint.every, 0);
    CHECK(s.checkpoint.minutes == 30, "minutes");
    CHECK_INT(s.checkpoint.keep, 3);
    CHECK_INT(s.comm.context, 1);
    CHECK_INT(s.checkpoint.on_signal, true);
    CHECK_INT(s.log.every, 10);
    CHECK_INT(s.log.eval_every, 0);
    CHECK_INT(s.log.eval_batches, 0);
    CHECK_INT(s.log.tensorboard, true);
    CHECK_INT(s.log.console, DT_CONSOLE_AUTO);
    CHECK_STR(s.log.trace_steps, "");
    CHECK_STR(s.log.limits, "");
    CHECK_INT(s.log.profile, true);
}

// Keys that may change between a run and its resumption without a message.
static void test_neutral(void)
{
    static const char neutral[] =
        " run.name run.dir run.patience run.device run.share_device run.allow_unequal_nodes "
        "run.resume run.threads run.cuda_graph model.recompute model.segment "
        "model.pad_vocab_multiple "
        "data.train data.val data.val_mask data.micro_batch data.prefetch data.verify "
        "data.allow_changed optim.max_skipped optim.shard comm.backend comm.bucket_mb comm.reduce "
        "comm.timeout_s comm.start_timeout_s comm.selftest comm.context comm.verify_replicas ";
    for (struct dt_config_row row = {0}; dt_config_next(&dt_settings_table, &row);) {
        char name[DT_CONFIG_NAME + 2];
        snprintf(name, sizeof name, " %s ", row.name);
        bool want = strstr(neutral, name) || strncmp(row.name, "checkpoint.", 11) == 0 ||
                    strncmp(row.name, "log.", 4) == 0;
        CHECK((row.key->neutral || row.section->neutral) == want, "%s", row.name);
    }
}

static void test_choices(void)
{
#define CHOICE(key, field, value)                                                                  \
    {                                                                                              \
        key, offsetof(struct dt_settings, field), value                                            \
    }
    static const struct {
        const char *word;
        size_t offset;
        int value;
    } list[] = {
        CHOICE("run.device=cpu", run.device, DT_DEVICE_CPU),
        CHOICE("run.device=cuda", run.device, DT_DEVICE_CUDA),
        CHOICE("run.precision=bf16", run.precision, DT_PRECISION_BF16),
        CHOICE("run.precision=fp32", run.precision, DT_PRECISION_FP32),
        CHOICE("run.cuda_graph=true", run.cuda_graph, DT_TOGGLE_TRUE),
        CHOICE("run.cuda_graph=false", run.cuda_graph, DT_TOGGLE_FALSE),
        CHOICE("model.recompute=scan", model.recompute, 1),  // DT_RECOMPUTE_SCAN
        CHOICE("model.recompute=block", model.recompute, 2), // DT_RECOMPUTE_BLOCK
        CHOICE("optim.schedule=linear", optim.schedule, DT_SCHEDULE_LINEAR),
        CHOICE("optim.schedule=constant", optim.schedule, DT_SCHEDULE_CONSTANT),
        CHOICE("optim.schedule=wsd", optim.schedule, DT_SCHEDULE_WSD),
        CHOICE("comm.backend=self", comm.backend, DT_COMM_SELF),
        CHOICE("comm.backend=mpi", comm.backend, DT_COMM_MPI),
        CHOICE("comm.dtype=bf16", comm.dtype, DT_WIRE_BF16),
        CHOICE("comm.backend=nccl", comm.backend, DT_COMM_NCCL),
        CHOICE("log.console=progress", log.console, DT_CONSOLE_PROGRESS),
        CHOICE("log.console=plain", log.console, DT_CONSOLE_PLAIN),
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        int value = -1;
        CHECK_OK(parse(base_text, &(struct words){{list[i].word}}));
        memcpy(&value, (const char *)&s + list[i].offset, sizeof value);
        CHECK(value == list[i].value, "%s is stored as %d", list[i].word, value);
    }
}

static void test_between_keys(void)
{
    static const struct {
        struct words words;
        const char *said;
    } list[] = {
        {{{"data.carry_state=true"}}, "data.carry_state: true needs windows in file order"},
        {{{"data.carry_state=true", "data.shuffle=false", "data.stride=3"}},
         "data.carry_state: true needs windows that follow each other"},
        {{{"data.carry_state=true", "data.shuffle=false", "data.reverse_complement=true"}},
         "data.reverse_complement: true reads windows of the other strand"},
        {{{"data.val_fraction=0.1", "data.val_mask=expert"}}, "data.val_fraction: it holds"},
        {{{"data.val_fraction=0.1", "data.val=v.h5"}}, "data.val_fraction: it is a share"},
        {{{"optim.rollback=11"}}, "optim.rollback: 11, but optim.max_skipped = 10 would end"},
        {{{"optim.rollback=3", "checkpoint.minutes=0"}}, "optim.rollback: needs checkpoints"},
        {{{"optim.rollback=3", "data.carry_state=true", "data.shuffle=false"}},
         "optim.rollback: skips batches"},
        {{{"run.patience=3"}}, "run.patience: needs evaluations: set log.eval_every"},
        {{{"checkpoint.best=true"}}, "checkpoint.best: needs evaluations: set log.eval_every"},
        {{{"optim.ema=1"}}, "optim.ema: 1 is out of range"},
        {{{"optim.schedule=cosine_restarts"}}, "optim.restart_steps: required with schedule"},
        {{{"optim.restart_steps=5"}}, "optim.restart_steps: needs schedule = cosine_restarts"},
        {{{"optim.schedule=cosine_restarts", "optim.restart_steps=1001"}},
         "optim.restart_steps: 1001 and optim.warmup_steps = 0 (default) are more than run.steps"},
        {{{"optim.schedule=cosine_restarts", "optim.restart_steps=91", "optim.warmup_steps=10"}},
         "optim.restart_steps: 91 and optim.warmup_steps"},
        {{{"run.epochs=2", "run.steps=3"}}, "command line: run.steps: give this or run.epochs"},
        {{{"run.name="}}, "command line: run.name: '' cannot name a folder"},
        {{{"run.name=.."}}, "run.name: '..' cannot name a folder"},
        {{{"run.name=a/b"}}, "run.name: 'a/b' cannot name a folder"},
        {{{"run.resume="}}, "run.resume: missing value"},
        {{{"comm.backend=nccl", "run.share_device=true"}}, "comm.backend: NCCL does not support"},
        {{{"comm.backend=nccl", "run.device=cpu"}}, "comm.backend: nccl needs GPUs, but"},
        {{{"run.cuda_graph=true", "run.device=cpu"}}, "run.cuda_graph: true needs a GPU, but"},
        {{{"data.micro_batch=5"}}, "data.micro_batch: 5 does not divide data.batch = 12"},
        {{{"data.micro_batch=1000000007", "data.batch=2147483647"}}, "are 1 and 2147483647"},
        {{{"comm.reduce=reproducible"}}, "data.micro_batch: required with comm.reduce ="},
        {{{"comm.reduce=reproducible", "data.micro_batch=2"}}, "data.micro_batch: 2 cuts"},
        {{{"comm.reduce=reproducible", "data.micro_batch=5"}}, "5 does not divide data.batch"},
        {{{"comm.reduce=reproducible", "data.micro_batch=3", "comm.dtype=bf16"}},
         "comm.dtype: bf16 rounds what ranks send"},
        {{{"data.micro_batch=24"}}, "data.micro_batch: 24 is more than data.batch = 12"},
        {{{"data.reset_token=259"}}, "data.reset_token: 259 is not below model.vocab_size = 259"},
        {{{"data.reset_after=true"}}, "data.reset_after: true needs data.reset_token"},
        {{{"log.eval_every=5"}}, "log.eval_every: evaluation needs data.val"},
        {{{"run.steps=9007199254740992", "data.batch=2048", "data.seq_len=1048576"}},
         "exceeds 2^63 tokens"},
        {{{"data.batch=1048577", "data.seq_len=1048576"}},
         "data.batch: batch times data.seq_len exceeds 2^40 tokens per step"},
        {{{"data.batch=2147483647", "data.seq_len=2147483647"}}, "exceeds 2^40 tokens per step"},
        {{{"log.trace_steps=5"}}, "log.trace_steps: '5' is not a range of steps"},
        {{{"log.trace_steps=0:5"}}, "log.trace_steps: '0:5' is not a range of steps"},
        {{{"log.trace_steps=5:4"}}, "log.trace_steps: '5:4' is not a range of steps"},
        {{{"log.trace_steps=1:99999999999999999999"}}, "is not a range of steps"},
        {{{"log.trace_steps=101:102"}}, "log.trace_steps: 101 is after the last step, run.steps"},
        {{{"optim.min_lr=4e-3"}}, "command line: optim.min_lr: 0.004 is above optim.lr = 0.003"},
        {{{"optim.warmup_steps=100"}}, "optim.warmup_steps: 100 is not below run.steps = 100"},
        {{{"optim.schedule=wsd", "optim.decay_steps=91", "optim.warmup_steps=10"}},
         "optim.decay_steps: 91 and optim.warmup_steps = 10"},
        {{{"optim.schedule=wsd", "optim.warmup_steps=81"}}, "optim.decay_steps: 20 and"},
        {{{"optim.schedule=wsd", "run.steps=3", "optim.warmup_steps=2", "optim.decay_steps=2"}},
         "optim.decay_steps: 2 and"},
        // fp32 rounds these to 1 and to 0. Bias correction or the step would then divide by zero.
        {{{"optim.beta1=0.99999999"}}, "optim.beta1: 0.99999999 is out of range"},
        {{{"optim.beta2=1.0"}}, "optim.beta2: 1.0 is out of range"},
        {{{"optim.eps=1e-50"}}, "optim.eps: 1e-50 is out of range"},
        {{{"model.norm_eps=1e-50"}}, "model.norm_eps: 1e-50 is out of range"},
        {{{"comm.bucket_mb=1e-9"}}, "comm.bucket_mb: 1e-9 is out of range"},
        {{{"run.seed=9007199254740993"}}, "run.seed: 9007199254740993 is out of range"},
        {{{"model.d_conv=9"}}, "model.d_conv: 9 is out of range"},
    };
    static const struct words fine[] = {
        {{"data.micro_batch=12"}},
        {{"data.micro_batch=1"}},
        {{"data.micro_batch=3", "comm.reduce=reproducible"}},
        {{"data.micro_batch=12", "comm.reduce=reproducible"}},
        {{"data.reset_token=258", "data.reset_after=true"}},
        {{"log.eval_every=5", "data.val=v.h5"}},
        {{"log.eval_every=5", "data.val_fraction=0.5"}},
        {{"log.trace_steps=100:100"}},
        {{"optim.min_lr=3e-3", "optim.warmup_steps=99"}},
        {{"optim.schedule=wsd", "optim.decay_steps=90", "optim.warmup_steps=10"}},
        {{"optim.beta1=0", "optim.beta2=0.9999", "optim.grad_clip=0", "optim.weight_decay=0"}},
        {{"optim.schedule=wsd", "run.steps=3", "optim.warmup_steps=2"}}, // auto: 0.6, so one step
        {{"run.seed=9007199254740992"}},
        {{"optim.rollback=10"}},
        {{"optim.schedule=cosine_restarts", "optim.restart_steps=90", "optim.warmup_steps=10"}},
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        dt_status status = parse_and_check(&list[i].words);
        const char *message = dt_error_current()->message;
        CHECK(status == DT_USER, "%s gave %d", list[i].words.word[0], status);
        CHECK(strstr(message, list[i].said), "%s gave: %s", list[i].words.word[0], message);
        CHECK(!strchr(message, '\n'), "one fault, but: %s", message);
    }
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++)
        CHECK(parse_and_check(&fine[i]) == DT_OK, "%s: %s", fine[i].word[0],
              dt_error_current()->message);
}

// How a job of so many ranks can share the batch.
static void test_ranks(void)
{
    static const struct {
        struct words words;
        int64_t ranks;
        const char *said; // NULL: it can
    } cases[] = {
        {{{"data.batch=12"}}, 4, NULL},
        {{{"data.batch=12"}}, 5, "the nearest that can are 10 and 15"},
        {{{"data.batch=12", "data.micro_batch=3", "comm.reduce=reproducible"}}, 1, NULL},
        {{{"data.batch=12", "data.micro_batch=3", "comm.reduce=reproducible"}}, 4, NULL},
        {{{"data.batch=12", "data.micro_batch=3", "comm.reduce=reproducible"}},
         3,
         "comm.reduce: reproducible needs a power of two of ranks, not 3: start 2 or 4"},
        {{{"data.batch=12", "data.micro_batch=3", "comm.reduce=reproducible"}},
         8,
         "comm.reduce: reproducible: 8 ranks cannot share the 4 micro-batches of a step "
         "(data.batch "
         "= 12, data.micro_batch = 3: command line); start at most 4 ranks"},
        {{{"data.batch=12", "data.micro_batch=3", "comm.reduce=reproducible"}},
         6,
         "start at most 4"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        CHECK_OK(parse(base_text, &cases[i].words));
        dt_status status = dt_settings_check_batch(&s, config, cases[i].ranks);
        CHECK_INT(status, cases[i].said ? DT_USER : DT_OK);
        if (cases[i].said)
            CHECK_SAYS(cases[i].said);
    }
    dt_error_clear();
}

static void test_required(void)
{
    static const char bare[] = "[data]\ntrain = t.h5\nseq_len = 8\nbatch = 2\n[optim]\nlr = 1\n";
    CHECK_INT(parse("", NULL), DT_USER);
    for (int i = 0; i < 4; i++) {
        static const char *const names[] = {"data.train", "data.seq_len", "data.batch", "optim.lr"};
        char want[64];
        snprintf(want, sizeof want, "c.ini: %s is required", names[i]);
        CHECK_SAYS(want);
    }
    CHECK_OK(parse(bare, NULL));
    CHECK_INT(check_settings(), DT_USER);
    CHECK_STR(dt_error_current()->message,
              "c.ini: run.steps: this or run.epochs is required: how long to train");
    struct dt_problems problems = {0};
    dt_settings_check(&problems, &s, NULL); // a rank other than 0 has no origins of keys
    CHECK_INT(dt_problems_raise(&problems, NULL), DT_USER);
    CHECK_OK(parse(bare, &(struct words){{"run.epochs=1", "run.init_from=m"}}));
    CHECK_OK(check_settings());
}

// Contradictions between keys are reported together with wrong keys, unless one of the keys is
// wrong itself.
static void test_all_at_once(void)
{
    static const char *const words[] = {"data.train=t.h5",       "data.batch=12",
                                        "data.micro_batch=5",    "run.steps=10",
                                        "run.device=cpu",        "run.cuda_graph=true",
                                        "run.epochs=2",          "optim.lr=x",
                                        "optim.min_lr=2",        "optim.schedule=wsd",
                                        "optim.warmup_steps=-1", "optim.decay_steps=11",
                                        "log.trace_steps=5:4",   "data.stride=3",
                                        "data.carry_state=true", "data.shuffle=maybe"};
    static const char *const said[] = {"optim.lr: 'x' is not a plain decimal number",
                                       "optim.warmup_steps: -1 is out of range",
                                       "data.shuffle: 'maybe' is neither true nor false",
                                       "data.seq_len is required",
                                       "run.steps: give this or run.epochs, not both",
                                       "run.cuda_graph: true needs a GPU",
                                       "data.micro_batch: 5 does not divide data.batch = 12",
                                       "log.trace_steps: '5:4' is not a range"};
    static const char *const unsaid[] = {"min_lr", "decay_steps", "carry_state", "exceeds"};
    enum { SAID = sizeof said / sizeof *said, UNSAID = sizeof unsaid / sizeof *unsaid };
    dt_config_free(config);
    CHECK_INT(dt_config_load(&dt_settings_table, dt_settings_check, NULL, words,
                             sizeof words / sizeof *words, &s, &config),
              DT_USER);
    const char *message = dt_error_current()->message;
    int lines = 1;
    for (const char *p = message; (p = strchr(p, '\n')); p++)
        lines++;
    CHECK(lines == SAID, "%d lines: %s", lines, message);
    for (int i = 0; i < SAID; i++)
        CHECK(strstr(message, said[i]), "no '%s' in: %s", said[i], message);
    for (int i = 0; i < UNSAID; i++)
        CHECK(!strstr(message, unsaid[i]), "'%s' in: %s", unsaid[i], message);
    dt_error_clear();
}

// With run.epochs the number of steps is known when the data are.
static void test_steps_of_epochs(void)
{
    static const char bare[] = "[data]\ntrain = t.h5\nseq_len = 8\nbatch = 2\n[optim]\nlr = 1\n";
    static const struct words wsd = {.word = {"run.epochs=2", "run.init_from=m",
                                              "optim.schedule=wsd", "optim.warmup_steps=5",
                                              "optim.decay_steps=6"}};
    CHECK_OK(parse(bare, &wsd));
    CHECK_OK(check_settings());
    CHECK_OK(dt_settings_check_steps(&s, config, 11));
    CHECK_FAILS(dt_settings_check_steps(&s, config, 10), DT_USER,
                "optim.decay_steps: 6 and optim.warmup_steps = 5");
    CHECK_FAILS(dt_settings_check_steps(&s, config, 5), DT_USER,
                "optim.warmup_steps: 5 is not below the steps of run.epochs, 5");
}

static void test_echo(void)
{
    static const struct words odd = {
        .word = {"run.name=a #b \"c\"", "optim.lr=0.0003333333333333333", "optim.min_lr=1e-300",
                 "model.dt_rank=7", "data.reset_token=0", "run.seed=9007199254740991",
                 "optim.schedule=linear", "data.shuffle=false"}};
    static struct dt_settings first;
    char *text = NULL;
    size_t size;
    CHECK_OK(parse(base_text, &odd));
    first = s;
    CHECK_OK(dt_config_echo_text(config, &text, &size));
    CHECK_OK(parse(text, NULL));
    CHECK(memcmp(&first, &s, sizeof first) == 0, "other settings came back from:\n%s", text);
    CHECK_OK(check_settings());
    free(text);
}

// The start of MPI has at least a minute, however short the time-out of a stalled rank is.
static void test_limits(void)
{
    static const struct {
        char *word;
        struct dt_comm_limits limits;
    } cases[] = {{"comm.timeout_s=600", {600, 600}},
                 {"comm.timeout_s=3", {3, 60}},
                 {"comm.timeout_s=99", {99, 99}},
                 {"comm.start_timeout_s=2", {600, 2}},
                 {"comm.start_timeout_s=none", {600, 600}}};
    FILE *file = fopen("limits.ini", "w");
    CHECK(file && fputs(base_text, file) >= 0 && fclose(file) == 0, "limits.ini");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dt_comm_limits limits = dt_settings_limits("limits.ini", &cases[i].word, 1);
        CHECK(limits.wait_s == cases[i].limits.wait_s && limits.start_s == cases[i].limits.start_s,
              "%s: %g and %g", cases[i].word, limits.wait_s, limits.start_s);
    }
    remove("limits.ini");
}

int main(void)
{
    RUN(test_home_folders, test_limits, test_defaults, test_neutral, test_choices,
        test_between_keys, test_ranks, test_required, test_all_at_once, test_steps_of_epochs,
        test_echo);
    dt_config_free(config);
    return test_end();
}
