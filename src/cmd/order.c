// `dtrain order`: prints the data order, a line "step slot file offset" for each trained window.
// Rank 0 prints; all ranks open the job.
#include "data/order.h"
#include "base/text.h"
#include "cmd/cmd.h"
#include "data/shard_cache.h"
#include "job/job.h"

#include <limits.h>
#include <stdio.h>

struct options {
    const char *steps;
};

static const struct dt_option options[] = {
    {DT_OPTION(TEXT, steps, "", "steps to list, counted from 1, both ends included",
               .required = true),
     .argument = "A:B"},
    {.key = {0}},
};

static dt_status print_order(const struct dt_job *job, int64_t first, int64_t last)
{
    const struct dt_settings *s = &job->settings;
    struct dt_order_config config = {.dataset = job->train,
                                     .seed = (uint64_t)s->run.seed,
                                     .batch = s->data.batch,
                                     .block = job->settings.data.block,
                                     .shuffle = s->data.shuffle};
    struct dt_order *order;
    struct dt_trainer_state state;
    struct dt_skips skips = {0}; // batches left out by optim.rollback so far
    if (job->resume[0]) {
        DT_TRY(dt_checkpoint_state(job->resume, &state));
        DT_TRY(dt_skips_parse(state.left_out, &skips));
    }
    DT_TRY(dt_order_create(&config, &order));
    dt_status status = DT_OK;
    for (int64_t step = first; step <= last; step++)
        for (int64_t slot = 0; slot < s->data.batch; slot++) {
            struct dt_position at;
            struct dt_reader *reader;
            char place[1024];
            int64_t batch = dt_skips_batch(&skips, step - 1);
            DT_TRY_GOTO(status, out, dt_order_at(order, batch, slot, &at));
            const struct dt_shard *shard = &job->train->shards[at.shard];
            // In the kind's units (tokens, rows of pairs) or in its own words: episode and row.
            snprintf(place, sizeof place, "%lld", (long long)(at.window * shard->stride));
            if (shard->kind->place) {
                DT_TRY_GOTO(status, out,
                            dt_shard_cache_get(job->train_shards, at.shard, false, &reader));
                shard->kind->place(reader, at.window, place, sizeof place);
            }
            printf("%lld %lld %s %s\n", (long long)step, (long long)slot, shard->path, place);
        }
out:
    dt_order_free(order);
    return status;
}

static dt_status run(struct dt_comm *comm, const struct dt_call *call)
{
    const struct options *o = call->options;
    int64_t first, last;
    struct dt_job job;
    if (!dt_parse_steps(o->steps, &first, &last))
        return DT_FAIL(DT_USER, "for example --steps 1:10", "--steps: '%s' is not a range of steps",
                       o->steps);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    dt_status status = dt_job_open(comm, DT_PURPOSE_ORDER, call->words, call->n_words, &job);
    if (status == DT_OK && comm->info.rank == 0)
        status = print_order(&job, first, last);
    if (fflush(stdout) != 0 && status == DT_OK)
        status = DT_FAIL(DT_MACHINE, NULL, "cannot write the order to standard output");
    dt_job_close(&job);
    return status;
}

const struct dt_command dt_cmd_order = {
    .name = "order",
    .usage = "CONFIG [section.key=value …] --steps A:B",
    .help = "print which window is trained at which step",
    .about = "Prints a line for each window of the steps: step, slot, file, offset. Offsets are in "
             "tokens, in rows for shards of pairs, in frames of a shard for episodes, or "
             "EPISODE:FRAME where each has datasets of its own. Batches that optim.rollback "
             "has skipped are not listed.",
    .min_words = 1,
    .max_words = INT_MAX,
    .configured = true,
    .communicates = true,
    .options = options,
    .options_size = sizeof(struct options),
    .run = run,
};
