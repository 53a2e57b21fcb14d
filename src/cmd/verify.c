// `dtrain verify`: reads every shard and checkpoint named by the arguments, or the shards of a
// configuration with its rules, and prints a line for each.
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "cmd/cmd.h"
#include "data/pack.h"
#include "data/reader.h"
#include "train/isolation.h"

#include <glob.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

struct options {
    bool isolation;
};

static const struct dt_option options[] = {
    {DT_OPTION(FLAG, isolation, "false",
               "CONFIG.ini: compute packed documents again after others were changed, and apart")},
    {.key = {0}},
};

struct tally {
    int64_t good, bad;
    dt_status worst;
};

static void count(struct tally *tally, const char *path, dt_status status)
{
    if (status == DT_OK) {
        tally->good++;
        return;
    }
    const char *message = dt_error_current()->message, *hint = dt_error_current()->hint;
    size_t length = strlen(path);
    bool named = strncmp(message, path, length) == 0 && strchr(": ", message[length]);
    printf("bad   %s%s%s%s%s%s\n", named ? "" : path, named ? "" : ": ", message,
           hint[0] ? " (" : "", hint, hint[0] ? ")" : "");
    dt_error_clear();
    tally->bad++;
    if (status > tally->worst)
        tally->worst = status;
}

// `rules` and `key` are from the configuration that names the shard; NULL and "": no configuration.
// `before`: episodes of earlier shards.
static void verify_shard(struct tally *tally, const char *path, const struct dt_scan_rules *rules,
                         const char *key, int64_t before)
{
    struct dt_shard shard = {.before = before};
    char types[DT_SHARD_TYPES];
    dt_status status = dt_verify_shard(path, rules, dt_log_is_terminal(), &shard);
    count(tally, path, status);
    if (status != DT_OK)
        return;
    printf("good  %s: %" PRId64 " %s, %s", path, shard.count, shard.kind->unit,
           dt_shard_types(&shard, types));
    if (shard.episodes > 0)
        printf(" (%s), values per frame: %" PRId64 ", episodes: %" PRId64 ", targets: %" PRId64,
               shard.kind->name, shard.layout.frame_width, shard.episodes,
               shard.layout.target_width);
    if (shard.unlabeled > 0)
        printf(", frames with a target missing: %" PRId64, shard.unlabeled);
    if (shard.vocab_size > 0)
        printf(", vocabulary %" PRId64, shard.vocab_size);
    printf("%s%s%s\n", shard.hash_block > 0 ? ", checksums match" : ", no checksums",
           key[0] ? ", " : "", key);
}

static dt_status visit(void *context, FTS *tree, FTSENT *entry)
{
    struct tally *tally = context;
    const char *path = entry->fts_path, *dot = strrchr(entry->fts_name, '.');
    bool is_file = entry->fts_info == FTS_F || entry->fts_info == FTS_SL;
    char manifest[DT_PATH];
    bool fits = dt_path(manifest, "%s/MANIFEST", path) == DT_OK;
    if (!fits)
        dt_error_clear(); // a path that is too long has no files
    if (entry->fts_info == FTS_D && fits && dt_file_exists(manifest)) {
        dt_status status = dt_checkpoint_verify(path);
        if (status == DT_OK)
            printf("good  %s: checkpoint\n", path);
        count(tally, path, status);
        fts_set(tree, entry, FTS_SKIP);
    } else if (is_file && entry->fts_name[0] != '.' && dot &&
               (strcmp(dot, ".h5") == 0 || strcmp(dot, ".hdf5") == 0)) {
        verify_shard(tally, path, NULL, "", 0);
    } else if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR) {
        errno = entry->fts_errno;
        count(tally, path, DT_FAIL_ERRNO("read", path));
    }
    return DT_OK;
}

static dt_status verify_path(struct tally *tally, const char *path)
{
    int64_t before = tally->good + tally->bad;
    if (dt_is_dir(path))
        DT_TRY(dt_walk_tree(path, FTS_COMFOLLOW, "read", visit, tally));
    else
        verify_shard(tally, path, NULL, "", 0);
    if (tally->good + tally->bad == before)
        return DT_FAIL(DT_USER, "name a shard, a checkpoint, or a folder that contains some",
                       "no shards or checkpoints in %s", path);
    return DT_OK;
}

static bool is_config(const char *word)
{
    const char *dot = strrchr(word, '.');
    return dot && strcmp(dot, ".ini") == 0;
}

static void verify_dataset(struct tally *tally, const struct dt_dataset *dataset, const char *key)
{
    for (int64_t i = 0; dataset && !dataset->kind->source && i < dataset->n_shards; i++)
        verify_shard(tally, dataset->shards[i].path, &dataset->rules, key,
                     dataset->shards[i].before);
}

// Verifies the shards of a configuration, and that there is something to learn.
static dt_status verify_config(struct tally *tally, const struct dt_call *call)
{
    struct dt_comm *comm;
    struct dt_job job;
    DT_TRY(dt_comm_open(DT_COMM_KIND_SELF, &comm));
    dt_status status = dt_job_open(comm, DT_PURPOSE_ORDER, call->words, call->n_words, &job);
    if (status == DT_OK) {
        verify_dataset(tally, job.train, "data.train");
        verify_dataset(tally, job.val,
                       job.settings.data.val_fraction > 0 ? "held out" : "data.val");
    }
    if (status == DT_OK && tally->bad == 0)
        status = dt_job_check_data(&job, false);
    dt_job_close(&job);
    dt_comm_close(comm);
    return status;
}

static dt_status verify_isolation(const struct dt_call *call)
{
    struct dt_comm *comm;
    struct dt_job job;
    struct dt_isolation found;
    DT_TRY(dt_comm_open(DT_COMM_KIND_SELF, &comm));
    dt_status status = dt_job_open(comm, DT_PURPOSE_EVAL, call->words, call->n_words, &job);
    if (status == DT_OK)
        status = dt_isolation_check(&job, &found);
    if (status == DT_OK)
        printf("good  %" PRId64 " documents in %" PRId64 " windows of data.train, %" PRId64
               " tokens, %s: the losses differ by at most %.1e after all other documents were "
               "changed (allowed %.0e), and %.1e apart (allowed %.0e)\n",
               found.documents, found.windows, found.tokens, dt_dtype_name(job.model.storage),
               found.changed.largest, found.changed.allowed, found.apart.largest,
               found.apart.allowed);
    dt_job_close(&job);
    dt_comm_close(comm);
    return status;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    struct tally tally = {0};
    bool configured = is_config(call->words[0]);
    (void)comm;
    if (((const struct options *)call->options)->isolation)
        return configured
                   ? verify_isolation(call)
                   : DT_FAIL(DT_USER, "name a file that ends in .ini",
                             "verify --isolation needs a configuration, not %s", call->words[0]);
    if (configured)
        DT_TRY(verify_config(&tally, call));
    for (int i = 0; i < call->n_words && !configured; i++) {
        const char *word = call->words[i];
        glob_t found = {0};
        dt_status status = DT_OK;
        if (dt_file_exists(word)) // an existing name is not a pattern
            status = verify_path(&tally, word);
        else if (glob(word, GLOB_TILDE, NULL, &found) != 0)
            status = DT_FAIL(DT_USER, "check the path", "nothing matches %s", word);
        for (size_t k = 0; k < found.gl_pathc && status == DT_OK; k++)
            status = verify_path(&tally, found.gl_pathv[k]);
        globfree(&found);
        if (status != DT_OK)
            count(&tally, word, status);
    }
    if (tally.bad == 0)
        return DT_OK;
    return DT_FAIL(tally.worst, "see the lines above", "%" PRId64 " of %" PRId64 " failed",
                   tally.bad, tally.good + tally.bad);
}

const struct dt_command dt_cmd_verify = {
    .name = "verify",
    .usage = "PATH… | [--isolation] CONFIG.ini [section.key=value …]",
    .help = "check shards and checkpoints, or that packed documents do not leak",
    .about =
        "Reads shards and checkpoints completely and reports for each whether it is good. PATH is "
        "a shard, a checkpoint (a folder with MANIFEST), a glob, or a folder: all *.h5, *.hdf5 "
        "and checkpoints in it. With a configuration, whose name ends in .ini, it checks what "
        "data.train and data.val name, by the rules there: datasets of any layout, ids, classes "
        "and weights. The exit code is 2 if one is bad, 3 if the machine failed.\n"
        "--isolation runs the model of the configuration (the checkpoint that training would "
        "resume from, run.init_from, or initial weights) on windows of data.train in which "
        "documents start, and shows that they do not see each other: it changes the tokens of all "
        "other documents, and computes each document apart; the loss of each token must stay the "
        "same but for rounding, which run.precision=fp32 shows more sharply than bf16. It ends "
        "with exit code "
        "3 and names the first position that depends on another document.",
    .min_words = 1,
    .max_words = INT_MAX,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
