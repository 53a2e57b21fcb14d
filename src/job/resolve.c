// Which checkpoint a job resumes from, and what its model is. Rank 0 only.
#include "job/job.h"

#include "base/log.h"
#include "base/round.h"
#include "kernels/attention.h"
#include "model/hf.h"

#include <string.h>

bool dt_job_resume_is_named(const struct dt_job *job)
{
    const char *resume = job->settings.run.resume;
    return strcmp(resume, "auto") != 0 && strcmp(resume, "never") != 0;
}

dt_status dt_job_resolve_resume(struct dt_job *job, enum dt_purpose purpose)
{
    const char *resume = job->settings.run.resume;
    char checkpoints[DT_PATH], newest[DT_PATH] = "";
    DT_TRY(dt_path(checkpoints, "%s/checkpoints", job->run_path));
    if (dt_job_resume_is_named(job)) {
        DT_TRY(dt_checkpoint_verify(resume));
        return dt_path(job->resume, "%s", resume);
    }
    if (dt_is_dir(checkpoints))
        DT_TRY(dt_checkpoint_newest(checkpoints, newest));
    if (strcmp(resume, "never") == 0 && newest[0] && purpose == DT_PURPOSE_TRAIN)
        return dt_config_reject(
            job->config, "run.resume",
            "choose another run.name or run.dir, remove the folder, or set resume = auto",
            "never, but %s already contains a checkpoint", checkpoints);
    if (strcmp(resume, "auto") == 0)
        memcpy(job->resume, newest, sizeof newest);
    return DT_OK;
}

dt_status dt_job_name_origin(const struct dt_job *job, dt_status status)
{
    struct dt_error error;
    char name[DT_CONFIG_NAME];
    if (status == DT_OK)
        return DT_OK;
    dt_error_take(&error);
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++) {
        int length = snprintf(name, sizeof name, "model.%s", key->name);
        if (strncmp(error.message, name, (size_t)length) == 0 &&
            strchr(": ", error.message[length]) && dt_config_is_set(job->config, name))
            return DT_FAIL(error.code, error.hint[0] ? error.hint : NULL, "%s: %s",
                           dt_config_origin(job->config, name), error.message);
    }
    return dt_error_restore(&error);
}

// The model in `dir` decides its architecture; keys of [model] that are set must agree with it.
static dt_status merge_model(struct dt_job *job, const char *dir)
{
    struct dt_model_config configured = job->model, found = job->model;
    char name[DT_CONFIG_NAME], is[DT_CONFIG_STRING_MAX], was[DT_CONFIG_STRING_MAX];
    DT_TRY(dt_hf_read_config(dir, &found));
    if (configured.layers[0])
        DT_TRY(dt_job_name_origin(job, dt_model_config_normalize(&configured)));
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++) {
        if (!key->json)
            continue;
        snprintf(name, sizeof name, "model.%s", key->name);
        const char *text = dt_config_value_text(key, &configured, was);
        const char *found_text = dt_config_value_text(key, &found, is);
        bool is_open = !text[0] || (key->auto_word && strcmp(text, key->auto_word) == 0);
        bool same = dt_config_equal(key, &configured, &found);
        if (dt_config_is_set(job->config, name) && !is_open && !same)
            return dt_config_reject(job->config, name, "remove the key: the directory sets it",
                                    "%s, but the model in %s has %s", text, dir, found_text);
        DT_TRY(dt_config_note(job->config, name,
                              same ? dt_config_text(job->config, name) : found_text, dir));
    }
    job->model = found;
    return DT_OK;
}

// A resumed run keeps its storage type, on whatever machine, unless run.precision names another.
static dt_status keep_storage(struct dt_job *job)
{
    int saved;
    if (!job->resume[0])
        return DT_OK;
    DT_TRY(dt_checkpoint_storage(job->resume, &saved));
    if (saved < 0 || saved == (int)job->model.storage)
        return DT_OK;
    const char *here = dt_dtype_name(job->model.storage);
    const char *there = dt_dtype_name((enum dt_dtype)saved);
    if (job->settings.run.precision == DT_PRECISION_AUTO) {
        dt_info("run.precision = auto keeps %s, as in %s; a new run here would use %s", there,
                job->resume, here);
        job->model.storage = (enum dt_dtype)saved;
    } else {
        dt_info("run.precision = %s: %s was trained in %s", here, job->resume, there);
    }
    return DT_OK;
}

dt_status dt_job_resolve_model(struct dt_job *job)
{
    const char *dir = job->resume[0] ? job->resume : job->settings.run.init_from;
    enum dt_dtype storage = job->model.storage;
    job->model = job->settings.model;
    job->model.storage = storage;
    if (dir[0] && !job->resume[0]) // what is resumed was verified when it was found
        DT_TRY(dt_checkpoint_verify_weights(dir));
    if (dir[0])
        DT_TRY(merge_model(job, dir));
    else if (job->model.attn_window == 0 && strstr(job->model.layers, "attention"))
        // a saved model that has attention has a number: the size of its state
        job->model.attn_window = dt_min_i64(job->settings.data.seq_len, DT_ATTENTION_WINDOW_MAX);
    DT_TRY(keep_storage(job));
    // Checked when the data is known.
    return dt_job_name_origin(job, dt_model_config_normalize(&job->model));
}
