// Reads the tokenizer of a job and compares it with the shards'. Called on rank 0.
#include "job/job.h"

#include <inttypes.h>

// Checks the tokenizers of shards; shards without the attribute pass. *known: the required hash,
// from `from`; 0: not known yet.
static dt_status check_shards(const struct dt_dataset *dataset, uint64_t *known, const char **from)
{
    for (int64_t i = 0; dataset && i < dataset->n_shards; i++) {
        const struct dt_shard *shard = &dataset->shards[i];
        if (shard->tokenizer != 0 && *known != 0 && shard->tokenizer != *known)
            return DT_FAIL(
                DT_USER,
                "set data.tokenizer to the folder that was written beside the shards, "
                "or make the shards again with this tokenizer",
                "%s has tokens of another tokenizer (xxh64 of tokenizer.json: %016" PRIx64
                ") than %s (%016" PRIx64 ")",
                shard->path, shard->tokenizer, *from, *known);
        if (shard->tokenizer != 0 && *known == 0) {
            *known = shard->tokenizer;
            *from = shard->path;
        }
    }
    return DT_OK;
}

dt_status dt_job_load_tokenizer(struct dt_job *job)
{
    const char *named = job->settings.data.tokenizer, *from = named;
    const char *source = job->resume[0] ? job->resume : job->settings.run.init_from;
    struct dt_tokenizer *tokenizer = &job->tokenizer;
    if (!named[0] && source[0] && dt_tokenizer_exists(source))
        from = source;
    if (from[0])
        DT_TRY_NOTE(dt_tokenizer_read(from, tokenizer), "reading the tokenizer %s", from);
    uint64_t known = tokenizer->hash;
    DT_TRY(check_shards(job->train, &known, &from));
    DT_TRY(check_shards(job->val, &known, &from));
    if (!named[0])
        return DT_OK;
    int64_t most = tokenizer->bos > tokenizer->eos ? tokenizer->bos : tokenizer->eos;
    most = tokenizer->pad > most ? tokenizer->pad : most;
    if (most >= job->model.vocab_size)
        return dt_config_reject(job->config, "data.tokenizer", "raise model.vocab_size",
                                "its special token %lld is outside the model's vocabulary of %lld",
                                (long long)most, (long long)job->model.vocab_size);
    job->model.bos_token = tokenizer->bos;
    job->model.eos_token = tokenizer->eos;
    job->model.pad_token = tokenizer->pad;
    return DT_OK;
}
