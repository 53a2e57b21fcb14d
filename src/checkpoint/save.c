// Writing a checkpoint so that it is whole or not there: a temporary folder, everything synced,
// one rename.
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "checkpoint/manifest.h"
#include "checkpoint/trainer_state.h"
#include "model/hf.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static dt_status put_weights(struct dt_manifest *manifest, const char *folder,
                             const struct dt_checkpoint_arrays *arrays)
{
    char path[DT_PATH];
    int64_t size;
    uint64_t hash;
    DT_TRY(dt_path(path, "%s/model.safetensors", folder));
    DT_TRY(dt_hf_write_weights(path, arrays->params, arrays->weights, &size, &hash));
    return dt_manifest_add(manifest, "model.safetensors", size, hash);
}

static dt_status put_config(struct dt_manifest *manifest, const char *folder,
                            const struct dt_model_config *config)
{
    char *text;
    DT_TRY(dt_hf_config_text(config, &text));
    dt_status status = dt_manifest_put(manifest, folder, "config.json", text);
    free(text);
    return status;
}

static dt_status put_trainer(struct dt_manifest *manifest, const char *folder,
                             const struct dt_trainer_state *state, const struct dt_dataset *train)
{
    char *text;
    DT_TRY(dt_trainer_text(state, train, &text));
    dt_status status = dt_manifest_put(manifest, folder, "trainer.json", text);
    free(text);
    return status;
}

static dt_status fill(struct dt_manifest *manifest, const char *folder,
                      const struct dt_checkpoint_arrays *arrays,
                      const struct dt_trainer_state *state, const struct dt_dataset *train)
{
    DT_TRY(put_config(manifest, folder, arrays->model));
    DT_TRY(put_weights(manifest, folder, arrays));
    DT_TRY(dt_optimizer_states_write(manifest, folder, arrays->params, &arrays->states));
    DT_TRY(put_trainer(manifest, folder, state, train));
    DT_TRY(dt_manifest_write(manifest, folder));
    return dt_fsync_dir(folder);
}

// For file systems that cannot exchange two names: the old folder is moved aside, and back should
// the new one not get its place. A kill between the two renames leaves both, hidden.
static dt_status replace_in_two(const char *temporary, const char *path)
{
    char aside[DT_PATH];
    DT_TRY(dt_path(aside, "%s.old", temporary));
    if (rename(path, aside) != 0)
        return DT_FAIL_ERRNO("move aside", path);
    if (rename(temporary, path) != 0) {
        dt_status status = DT_FAIL_ERRNO("rename a checkpoint to", path);
        rename(aside, path);
        return status;
    }
    return dt_remove_tree(aside);
}

// At every instant one of the two lies at `path`.
static dt_status replace(const char *temporary, const char *path)
{
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return dt_remove_tree(temporary);
    if (errno == EINVAL || errno == ENOSYS)
        return replace_in_two(temporary, path);
    return DT_FAIL_ERRNO("replace", path);
}

static dt_status publish(const char *temporary, const char *path)
{
    if (rename(temporary, path) != 0) {
        if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
            return DT_FAIL_ERRNO("rename a checkpoint to", path);
        DT_TRY(replace(temporary, path));
    }
    return dt_fsync_parent(path);
}

static dt_status write_folder(const char *temporary, const char *path,
                              const struct dt_checkpoint_arrays *arrays,
                              const struct dt_trainer_state *state, const struct dt_dataset *train)
{
    struct dt_manifest manifest = {0};
    if (mkdir(temporary, 0777) != 0)
        return DT_FAIL_ERRNO("create", temporary);
    dt_status status = fill(&manifest, temporary, arrays, state, train);
    dt_manifest_free(&manifest);
    DT_TRY(status);
    return publish(temporary, path);
}

// The first error is the one to tell; should the removal fail too, the next prune tries again.
static void clean_up(const char *temporary)
{
    struct dt_error error;
    dt_error_take(&error);
    dt_remove_tree(temporary);
    dt_error_restore(&error);
}

dt_status dt_checkpoint_save(const char *dir, const struct dt_checkpoint_arrays *arrays,
                             const struct dt_trainer_state *state, const struct dt_dataset *train,
                             char *path)
{
    char temporary[DT_PATH];
    long long step = (long long)state->step;
    DT_TRY(dt_path(path, "%s/step-%08lld", dir, step));
    DT_TRY(dt_path(temporary, "%s/.step-%08lld.tmp-%ld", dir, step, (long)getpid()));
    DT_TRY(dt_make_dirs(dir));
    DT_TRY(dt_remove_tree(temporary));
    dt_status status = write_folder(temporary, path, arrays, state, train);
    if (status != DT_OK)
        clean_up(temporary);
    DT_TRY_NOTE(status, "saving the checkpoint of step %lld", step);
    return DT_OK;
}
