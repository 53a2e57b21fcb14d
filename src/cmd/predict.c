// `dtrain predict`: writes what a trained model predicts for every row of a data set, on all ranks.
#include "train/predict.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "cmd/cmd.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct options {
    const char *output, *data; // NULL: not given
    int64_t seed;
    double temperature;
    bool check, draw, ema, force, hidden;
};

static const struct dt_option options[] = {
    {DT_OPTION(TEXT, output, "", "the HDF5 file to create", .required = true), .letter = 'o',
     .argument = "FILE"},
    {DT_OPTION(TEXT, data, "",
               "what to predict, all episodes of it (default: data.val, or those held out)"),
     .argument = "GLOB"},
    {DT_OPTION(FLAG, check, "false", "print the plan; predict nothing")},
    {DT_OPTION(FLAG, draw, "false",
               "also draw values of each head; heads that are conditioned on others see these, not "
               "those of the data")},
    {DT_OPTION(REAL, temperature, "1", 0, 100,
               "of --draw; 0: the most likely values; 1: the model's own distribution")},
    {DT_OPTION(WHOLE, seed, "1337", 0, 0x1p63, "of --draw: random seed")},
    {DT_OPTION(FLAG, hidden, "false", "also write what the heads read: the last hidden state")},
    {DT_OPTION(FLAG, ema, "false", "use the moving average of the weights (optim.ema)")},
    {DT_OPTION(FLAG, force, "false", "replace a file that exists")},
    {.key = {0}},
};

enum { WORDS_MORE = 5 };

// The words of a job: a run's folder, or a checkpoint in one, stands for the configuration that the
// run was started with. Texts are in `buffers`.
static dt_status expand(const struct dt_call *call, char buffers[WORDS_MORE][DT_PATH],
                        const char **words, int *n)
{
    const struct options *o = call->options;
    const char *run = call->words[0], *checkpoint = NULL;
    char *file = buffers[0];
    *n = 0;
    words[(*n)++] = run;
    if (dt_is_dir(run)) {
        DT_TRY(dt_path(file, "%s/MANIFEST", run));
        checkpoint = dt_file_exists(file) ? run : NULL;
        DT_TRY(dt_path(buffers[1], checkpoint ? "run.dir=%s/../.." : "run.dir=%s", run));
        run = buffers[1] + strlen("run.dir=");
        DT_TRY(dt_path(file, "%s/config.resolved.ini", run));
        if (!dt_file_exists(file))
            return DT_FAIL(DT_USER,
                           "give the folder of a run, a checkpoint in it, or a configuration",
                           "there is no %s", file);
        DT_TRY(dt_path(buffers[2], "run.resume=%s", checkpoint ? checkpoint : "auto"));
        words[0] = file;
        words[(*n)++] = buffers[1];
        words[(*n)++] = buffers[2];
    }
    if (o->data) {
        DT_TRY(dt_path(buffers[3], "data.val=%s", o->data));
        words[(*n)++] = buffers[3];
        words[(*n)++] = "data.val_mask=all";
        words[(*n)++] = "data.val_fraction=0";
    }
    for (int i = 1; i < call->n_words; i++)
        words[(*n)++] = call->words[i];
    return DT_OK;
}

static const char *bytes_text(int64_t bytes, char text[32])
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    int unit = 0;
    for (; value >= 1024 && unit < 4; unit++)
        value /= 1024;
    snprintf(text, 32, "%.*f %s", unit > 0, value, units[unit]);
    return text;
}

static void print_plan(const struct dt_predict_plan *plan)
{
    const struct dt_job *job = plan->job;
    const char *unit = dt_model_unit(&job->model);
    bool tokens = plan->outputs.perplexity;
    int64_t bytes = 0;
    char text[32];
    printf("model: %s\n", plan->source);
    printf("data: %s (%s), %s of %s\n", DT_COUNT(job->val->n_shards, "files"), job->val->kind->name,
           DT_COUNT(plan->n_segments, tokens ? "sequences" : "episodes"),
           DT_COUNT(plan->rows, unit));
    bool both = job->model.direction == DT_DIRECTION_BOTH;
    bool carries = !both && dt_model_state_bytes(&job->model, 1, &bytes) == DT_OK && bytes > 0;
    if (carries)
        printf(
            "context: the recurrent state is zero at the start of each, and carried through it\n");
    else if (both)
        printf("context: each window by itself, read both ways (model.direction)\n");
    else
        printf("context: none: the model has no recurrent state\n");
    if (carries && !job->settings.data.carry_state)
        printf("  (in training it was zero at the start of each window of %s)\n",
               dt_config_find(job->config, "data.seq_len")->text);
    printf("passes: %lld side by side, %s at a time, in %s, on %s\n", (long long)plan->streams,
           DT_COUNT(plan->length, unit), DT_COUNT(plan->n_groups, "groups"),
           DT_COUNT(job->comm->info.size, "ranks"));
    printf("output: %s, %s, %s\n", plan->options.output, DT_COUNT(plan->file.n, "arrays"),
           bytes_text(dt_predict_bytes(plan), text));
    for (int64_t i = 0; i < plan->n_columns && i < plan->file.n; i++) {
        const struct dt_prediction_array *array = &plan->file.arrays[i];
        if (array->width > 0)
            printf("  %s [%lld, %lld]\n", array->path, (long long)array->rows,
                   (long long)array->width);
        else
            printf("  %s [%lld]\n", array->path, (long long)array->rows);
    }
    if (plan->file.n > plan->n_columns)
        printf("  …\n");
}

static dt_status predict(struct dt_job *job, const struct options *o)
{
    struct dt_predict_plan plan;
    const struct dt_predict_options chosen = {.output = o->output,
                                              .force = o->force,
                                              .ema = o->ema,
                                              .hidden = o->hidden,
                                              .draw = o->draw,
                                              .temperature = o->temperature,
                                              .seed = o->seed};
    dt_status status = dt_predict_prepare(job, &chosen, &plan);
    if (status == DT_OK && job->comm->info.rank == 0)
        print_plan(&plan);
    if (status == DT_OK && !o->check)
        status = dt_predict(&plan);
    dt_predict_free(&plan);
    return status;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    char buffers[WORDS_MORE][DT_PATH];
    const char **words;
    int n;
    struct dt_job job = {0};
    DT_TRY(DT_NEW(&words, call->n_words + WORDS_MORE, "the command line"));
    dt_status status = dt_agree(comm, expand(call, buffers, words, &n));
    if (status == DT_OK) {
        status = dt_job_open(comm, DT_PURPOSE_WHOLE, (char *const *)words, n, &job);
        if (status == DT_OK)
            status = predict(&job, call->options);
        dt_job_close(&job);
    }
    free(words);
    return status;
}

const struct dt_command dt_cmd_predict = {
    .name = "predict",
    .usage = "CONFIG|RUN [section.key=value …] -o FILE [options]",
    .help = "write predictions for every row of a data set",
    .about =
        "Predicts each episode of data.val as a whole, with the checkpoint that training would "
        "resume from, or else run.init_from, and writes an HDF5 file that mirrors the groups of "
        "the "
        "data: PATH/HEAD/logits (values of heads that predict numbers), PATH/HEAD/probabilities "
        "and, with "
        "--draw, "
        "PATH/HEAD/drawn, a row for each frame. Of a language model /log_probabilities has, for "
        "each token, the logarithm of its probability after those before it. Several files of data "
        "have a group each, of the file's name. RUN is a run's folder, or a checkpoint in one.\n"
        "The work is shared by all ranks, with the same bits on any number of them. FILE.part "
        "grows "
        "until it is complete; the same command continues where it was interrupted.",
    .min_words = 1,
    .max_words = INT_MAX,
    .configured = true,
    .communicates = true,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
