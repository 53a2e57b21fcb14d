// Reading a checkpoint that was verified: first what must not have changed, then the arrays.
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/problems.h"
#include "checkpoint/manifest.h"
#include "checkpoint/trainer_state.h"
#include "model/hf.h"

static dt_status read_trainer(const char *path, struct dt_trainer_state *state,
                              struct dt_fingerprints *shards)
{
    char file[DT_PATH];
    DT_TRY(dt_path(file, "%s/trainer.json", path));
    return dt_trainer_read(file, state, shards);
}

dt_status dt_checkpoint_storage(const char *path, int *storage)
{
    struct dt_trainer_state state;
    struct dt_fingerprints shards;
    DT_TRY(read_trainer(path, &state, &shards));
    dt_fingerprints_free(&shards);
    *storage = state.storage;
    return DT_OK;
}

static dt_status compare(const char *path, const struct dt_model_config *model,
                         const struct dt_trainer_state *expected, const struct dt_dataset *train,
                         struct dt_trainer_state *state)
{
    struct dt_model_config saved = *model;
    struct dt_fingerprints shards;
    struct dt_problems problems = {0};
    DT_TRY(dt_hf_read_config(path, &saved));
    DT_TRY(read_trainer(path, state, &shards));
    dt_model_config_compare(&problems, model, &saved);
    dt_trainer_compare(&problems, expected, state);
    dt_fingerprints_compare(&problems, train, &shards);
    dt_fingerprints_free(&shards);
    return dt_problems_report(&problems,
                              "restore these settings, or start a new run (another run.name) "
                              "with run.init_from = this checkpoint",
                              "%s cannot be resumed: settings that fix the data order or the model "
                              "have changed",
                              path);
}

dt_status dt_checkpoint_load(const char *path, const struct dt_checkpoint_arrays *arrays,
                             const struct dt_trainer_state *expected,
                             const struct dt_dataset *train, struct dt_trainer_state *state)
{
    struct dt_trainer_state saved;
    struct dt_manifest manifest;
    DT_TRY(compare(path, arrays->model, expected, train, &saved));
    DT_TRY(
        dt_hf_read_weights(path, arrays->params, arrays->model->tie_embeddings, arrays->weights));
    DT_TRY(dt_manifest_read(path, &manifest));
    dt_status status = dt_optimizer_states_read(&manifest, path, arrays->params, &arrays->states);
    dt_manifest_free(&manifest);
    if (status == DT_OK)
        *state = saved;
    return status;
}
