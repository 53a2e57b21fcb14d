// Reading a checkpoint that was verified: first what must not have changed, then the arrays.
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/problems.h"
#include "checkpoint/manifest.h"
#include "checkpoint/trainer_state.h"
#include "model/hf.h"

static dt_status read_trainer(const char *path, struct dt_trainer_state *state,
                              struct dt_dataset **train)
{
    char file[DT_PATH];
    DT_TRY(dt_path(file, "%s/trainer.json", path));
    return dt_trainer_read(file, state, train);
}

dt_status dt_checkpoint_storage(const char *path, int *storage)
{
    struct dt_trainer_state state;
    struct dt_dataset *train;
    DT_TRY(read_trainer(path, &state, &train));
    dt_dataset_free(train);
    *storage = state.storage;
    return DT_OK;
}

static dt_status compare(const char *path, const struct dt_model_config *model,
                         const struct dt_trainer_state *expected, const struct dt_dataset *train,
                         struct dt_trainer_state *state)
{
    struct dt_model_config saved_model = *model;
    struct dt_dataset *saved_train;
    struct dt_problems problems = {0};
    DT_TRY(dt_hf_read_config(path, &saved_model));
    DT_TRY(read_trainer(path, state, &saved_train));
    dt_model_config_compare(&problems, model, &saved_model);
    dt_trainer_compare(&problems, expected, state);
    dt_trainer_compare_shards(&problems, train, saved_train);
    dt_dataset_free(saved_train);
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
