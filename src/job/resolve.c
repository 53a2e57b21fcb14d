// Decides which checkpoint a job resumes from, and its model. Called on rank 0.
#include "job/job.h"

#include "base/log.h"
#include "base/text.h"
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

dt_status dt_job_name_origin(const struct dt_config *config, dt_status status)
{
    struct dt_error error;
    char name[DT_CONFIG_NAME];
    if (status == DT_OK)
        return DT_OK;
    dt_error_take(&error);
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        int length = snprintf(name, sizeof name, "model.%s", key->name);
        if (strncmp(error.message, name, (size_t)length) == 0 &&
            strchr(": ", error.message[length]) && dt_config_is_set(config, name))
            return DT_FAIL(error.code, error.hint[0] ? error.hint : NULL, "%s: %s",
                           dt_config_find(config, name)->origin, error.message);
    }
    return dt_error_restore(&error);
}

// Takes the architecture from the model in `dir`; keys of [model] that are set must agree with it.
static dt_status merge_model(struct dt_job *job, const char *dir)
{
    struct dt_model_config configured = job->model, found = job->model;
    char name[DT_CONFIG_NAME], is[DT_CONFIG_STRING_MAX], was[DT_CONFIG_STRING_MAX];
    DT_TRY(dt_hf_read_config(dir, &found));
    if (configured.layers[0])
        DT_TRY(dt_job_name_origin(job->config, dt_model_config_normalize(&configured)));
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        if (!key->json || !dt_model_has_field(&found, key))
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
                              same ? dt_config_find(job->config, name)->text : found_text, dir));
    }
    job->model = found;
    return DT_OK;
}

void dt_job_require_model(struct dt_problems *problems, const void *settings,
                          const struct dt_config *config)
{
    const struct dt_settings *s = settings;
    struct dt_model_config named = s->model;
    char name[DT_CONFIG_NAME], kinds[DT_CONFIG_ALLOWED];
    if (s->run.init_from[0])
        return;
    bool known = dt_job_name_origin(config, dt_model_config_normalize(&named)) == DT_OK;
    if (!known)
        dt_problems_add(problems, "%s", dt_error_current()->message);
    dt_error_clear();
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        bool is_read = known ? dt_model_has_field(&s->model, key)
                             : !dt_model_field_kinds(key, kinds)[0]; // read by every model
        bool is_count = strcmp(key->name, "n_layer") == 0;
        snprintf(name, sizeof name, "model.%s", key->name);
        if (dt_config_in_range(key, &s->model) || dt_config_is_set(config, name) || !is_read ||
            (is_count && s->model.layers[0]))
            continue;
        dt_config_problem(problems, config, name, "%srequired unless run.init_from gives it",
                          is_count ? "this or model.layers is " : "");
    }
}

// Keys that no part of the model reads are not echoed. Setting one on the command line is a
// mistake; a file may serve several models.
static dt_status report_unused(struct dt_job *job)
{
    struct dt_settings standard;
    struct dt_problems problems = {0};
    const struct dt_model_config *model = &job->model, *given = &job->settings.model;
    char name[DT_CONFIG_NAME], kinds[DT_CONFIG_ALLOWED], unused[DT_PROBLEM_LINE] = "";
    dt_settings_defaults(&standard);
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        if (dt_model_has_field(model, key))
            continue;
        snprintf(name, sizeof name, "model.%s", key->name);
        dt_config_find(job->config, name)->hidden = true;
        if (dt_config_equal(key, given, &standard.model))
            continue;
        dt_model_field_kinds(key, kinds);
        if (dt_config_find(job->config, name)->source == DT_SOURCE_COMMAND)
            dt_config_problem(&problems, job->config, name,
                              "read by %s only, and the model is %s, %s, %s", kinds, model->stem,
                              model->layers, model->heads);
        else
            dt_append(unused, sizeof unused, "%s%s (%s; read by %s)", unused[0] ? ", " : "", name,
                      dt_config_find(job->config, name)->origin, kinds);
    }
    if (unused[0] && problems.n == 0)
        dt_warn("the model (%s, %s, %s) does not read %s", model->stem, model->layers, model->heads,
                unused);
    return dt_problems_raise(&problems, "remove the key, or use a kind that reads it");
}

// A resumed run keeps its storage type, on any machine, unless run.precision names another, and its
// order; if data.block names another block, loading the checkpoint refuses it.
static dt_status keep_saved(struct dt_job *job)
{
    struct dt_trainer_state saved = {.storage = -1, .order.block = DT_NEW_BLOCK};
    char text[24];
    if (job->resume[0])
        DT_TRY(dt_checkpoint_state(job->resume, &saved));
    if (saved.storage >= 0 && saved.storage != (int)job->model.storage) {
        const char *here = dt_dtype_name(job->model.storage);
        const char *there = dt_dtype_name((enum dt_dtype)saved.storage);
        if (job->settings.run.precision != DT_PRECISION_AUTO) {
            dt_info("run.precision = %s: %s was trained in %s", here, job->resume, there);
        } else {
            dt_info("run.precision = auto keeps %s, as in %s; a new run here would use %s", there,
                    job->resume, here);
            job->model.storage = (enum dt_dtype)saved.storage;
        }
    }
    if (job->settings.data.block > 0)
        return DT_OK;
    job->settings.data.block = saved.order.block;
    snprintf(text, sizeof text, "%lld", (long long)saved.order.block);
    if (saved.order.block != DT_NEW_BLOCK)
        dt_info("data.block = auto keeps %s, as in %s; a new run would use %d", text, job->resume,
                DT_NEW_BLOCK);
    return dt_config_note(job->config, "data.block", text,
                          job->resume[0] ? job->resume
                                         : dt_config_find(job->config, "data.block")->origin);
}

dt_status dt_job_resolve_model(struct dt_job *job)
{
    const char *dir = job->resume[0] ? job->resume : job->settings.run.init_from;
    enum dt_dtype storage = job->model.storage;
    job->model = job->settings.model;
    job->model.storage = storage;
    if (job->model.segment >= job->settings.data.seq_len)
        job->model.segment = 0;
    if (dir[0] && !job->resume[0]) // job->resume is already verified
        DT_TRY(dt_checkpoint_verify_weights(dir));
    if (dir[0])
        DT_TRY(merge_model(job, dir));
    DT_TRY(keep_saved(job));
    // Checked once the data are known.
    DT_TRY(dt_job_name_origin(job->config, dt_model_config_normalize(&job->model)));
    if (!dir[0])
        DT_TRY(dt_model_config_resolve(&job->model, job->settings.data.seq_len));
    return report_unused(job);
}
