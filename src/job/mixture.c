// Decides a job's mixture from the weights of data.train and, when resuming, from those of the
// checkpoint. Called on rank 0.
#include "job/job.h"

#include "base/text.h"

#include <string.h>

static void list_shards(const int64_t *shards, int n, char *text, size_t size)
{
    snprintf(text, size, "%s", n == 0 ? "it is one source" : "");
    for (int i = 0; i < n; i++)
        dt_append(text, size, "%s%lld",
                  i ? " + " : "shards of its sources: ", (long long)shards[i]);
}

static void shards_of(const struct dt_dataset *dataset, int64_t *shards)
{
    for (int i = 0; i < dataset->n_sources; i++)
        shards[i] = dataset->sources[i].n_shards;
}

// Checks that the saved mixture has the same sources.
static dt_status compare_sources(const struct dt_job *job, const struct dt_mixture *saved,
                                 const int64_t *saved_shards)
{
    int64_t shards[DT_SOURCES_MAX];
    int n = job->train->mixture.n;
    char is[512], was[512];
    shards_of(job->train, shards);
    if (n == saved->n && memcmp(shards, saved_shards, (size_t)n * sizeof *shards) == 0)
        return DT_OK;
    list_shards(shards, n, is, sizeof is);
    list_shards(saved_shards, saved->n, was, sizeof was);
    return dt_config_reject(job->config, "data.train",
                            "give the sources of the checkpoint, or start a new run with "
                            "run.init_from",
                            "%s; in the checkpoint %s", is, was);
}

dt_status dt_job_resolve_mixture(struct dt_job *job)
{
    const struct dt_settings *s = &job->settings;
    struct dt_dataset *train = job->train;
    struct dt_mixture saved;
    struct dt_trainer_state state;
    struct dt_skips skips;
    int64_t shards[DT_SOURCES_MAX];
    DT_TRY(dt_mixture_resolve(train->sources, train->n_sources, s->data.batch, &train->mixture));
    if (s->data.mixture_from > 0 && (train->mixture.n == 0 || !job->resume[0]))
        return dt_config_reject(job->config, "data.mixture_from", "remove the key",
                                "%lld changes the weights of a mixture that is resumed: %s",
                                (long long)s->data.mixture_from,
                                train->mixture.n == 0 ? "data.train has a single source"
                                                      : "there is no checkpoint to resume from");
    if (!job->resume[0])
        return DT_OK;
    DT_TRY(dt_checkpoint_state(job->resume, &state));
    DT_TRY_NOTE(dt_mixture_read(state.order.mixture, &saved, shards), "reading mixture of %s",
                job->resume);
    DT_TRY(compare_sources(job, &saved, shards));
    DT_TRY(dt_skips_parse(state.left_out, &skips));
    return saved.n == 0 ? DT_OK
                        : dt_mixture_continue(&saved, s->data.mixture_from,
                                              dt_skips_batch(&skips, state.step), &train->mixture);
}

dt_status dt_job_mixture_text(const struct dt_job *job, char text[DT_MIXTURE_TEXT])
{
    int64_t shards[DT_SOURCES_MAX];
    shards_of(job->train, shards);
    return dt_mixture_text(&job->train->mixture, shards, text);
}
