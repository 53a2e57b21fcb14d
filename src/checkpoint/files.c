// Writes and reads the files of one checkpoint. It is written into a temporary folder, synced, and
// published by one rename, so that it is complete or does not exist. It is read after verification:
// first what must not have changed, then the arrays.
#include "checkpoint/checkpoint.h"

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/problems.h"
#include "checkpoint/manifest.h"
#include "checkpoint/trainer_state.h"
#include "model/hf.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The states in optimizer files, that is, those without a separate file.
static struct dt_optimizer_states in_optimizer_files(const struct dt_optimizer_states *states)
{
    struct dt_optimizer_states own = {.pieces = states->pieces, .others = states->others};
    for (int i = 0; i < states->n; i++)
        if (!states->list[i].weights)
            own.list[own.n++] = states->list[i];
    return own;
}

static dt_status write_weights(struct dt_manifest *manifest, const char *folder, const char *name,
                               const struct dt_params *params, const float *weights)
{
    char path[DT_PATH];
    int64_t size;
    uint64_t hash;
    DT_TRY(dt_path(path, "%s/%s", folder, name));
    DT_TRY(dt_hf_write_weights(path, params, weights, &size, &hash));
    return dt_manifest_add(manifest, name, size, hash);
}

dt_status dt_checkpoint_draft(const char *dir, int64_t step, uint64_t id, int part, int parts,
                              struct dt_checkpoint_draft *draft)
{
    draft->part = part;
    draft->parts = parts;
    DT_TRY(dt_path(draft->path, "%s/step-%08lld", dir, (long long)step));
    return dt_path(draft->folder, "%s/.step-%08lld.tmp-%016llx", dir, (long long)step,
                   (unsigned long long)id);
}

static bool is_spread(const struct dt_checkpoint_arrays *arrays)
{
    return dt_pieces_are_spread(&arrays->states.pieces, arrays->params->elements);
}

// A list with one state `name`, the weights in `data`.
static struct dt_optimizer_states alone(const char *name, float *data, struct dt_pieces pieces)
{
    return (struct dt_optimizer_states){
        .n = 1, .list = {{.name = name, .data = data, .weights = true}}, .pieces = pieces};
}

// Weights that may be spread over ranks: the prefix of their files in a draft, and the checkpoint's
// joined file.
static const struct joined {
    const char *state, *parts, *name;
} joined[] = {{"weights", DT_WEIGHTS_FILES, "model.safetensors"}, {"ema", DT_EMA_FILES, DT_HF_EMA}};
enum { JOINED = sizeof joined / sizeof *joined };

// Writes this rank's pieces: of the states, and of spread weights and their average.
static dt_status write_pieces(const struct dt_checkpoint_draft *draft,
                              const struct dt_checkpoint_arrays *arrays,
                              const struct dt_trainer_state *state, struct dt_manifest *manifest)
{
    const struct dt_part_stamp stamp = dt_trainer_stamp(state);
    const struct dt_optimizer_states states = in_optimizer_files(&arrays->states);
    struct dt_manifest_file file;
    DT_TRY(dt_optimizer_states_write(draft->folder, DT_OPTIMIZER_FILES, draft->part, draft->parts,
                                     arrays->params, &states, &stamp, &file));
    DT_TRY(dt_manifest_add(manifest, file.name, file.size, file.hash));
    for (const struct joined *j = joined; j < joined + JOINED && is_spread(arrays); j++) {
        const struct dt_optimizer_states weights =
            alone(j->state, dt_optimizer_state(&arrays->states, j->state), states.pieces);
        if (weights.list[0].data)
            DT_TRY(dt_optimizer_states_write(draft->folder, j->parts, draft->part, draft->parts,
                                             arrays->params, &weights, &stamp, &file));
    }
    return DT_OK;
}

dt_status dt_checkpoint_write(const struct dt_checkpoint_draft *draft,
                              const struct dt_checkpoint_arrays *arrays,
                              const struct dt_trainer_state *state, const struct dt_dataset *train,
                              struct dt_manifest *manifest)
{
    const float *ema = dt_optimizer_state(&arrays->states, "ema");
    const float *own = dt_optimizer_state(&arrays->states, "weights");
    const char *folder = draft->folder;
    char *config = NULL, *trainer = NULL;
    dt_status status;
    DT_TRY(dt_make_dirs(folder)); // the first rank creates it
    if (draft->part > 0)
        return write_pieces(draft, arrays, state, manifest);
    DT_TRY_GOTO(status, out, dt_hf_config_text(arrays->model, &config));
    DT_TRY_GOTO(status, out,
                dt_manifest_put(manifest, folder, "config.json", config, (int64_t)strlen(config)));
    if (!own || !is_spread(arrays))
        DT_TRY_GOTO(status, out,
                    write_weights(manifest, folder, "model.safetensors", arrays->params,
                                  own ? own : arrays->weights));
    if (ema && !is_spread(arrays))
        DT_TRY_GOTO(status, out, write_weights(manifest, folder, DT_HF_EMA, arrays->params, ema));
    DT_TRY_GOTO(status, out, write_pieces(draft, arrays, state, manifest));
    if (arrays->slots)
        DT_TRY_GOTO(status, out, dt_slot_states_write(manifest, folder, arrays->slots));
    if (arrays->tokenizer)
        DT_TRY_GOTO(status, out, dt_tokenizer_write(arrays->tokenizer, manifest, folder));
    DT_TRY_GOTO(status, out, dt_trainer_text(state, train, &trainer));
    DT_TRY_GOTO(
        status, out,
        dt_manifest_put(manifest, folder, "trainer.json", trainer, (int64_t)strlen(trainer)));
out:
    free(config);
    free(trainer);
    return status;
}

// Joins the parts of weights in one file. Uses the array of the weights as a buffer, since they are
// written already or are such parts themselves.
static dt_status join(const struct joined *j, const struct dt_checkpoint_draft *draft,
                      const struct dt_checkpoint_arrays *arrays, struct dt_manifest *manifest)
{
    char path[DT_PATH];
    struct dt_span all = {0, arrays->params->elements};
    const struct dt_optimizer_states whole =
        alone(j->state, arrays->weights, (struct dt_pieces){&all, 1, 0, all.end});
    if (!is_spread(arrays) || !dt_optimizer_state(&arrays->states, j->state))
        return DT_OK;
    DT_TRY(dt_optimizer_states_read(draft->folder, j->parts, draft->parts, arrays->params, &whole,
                                    NULL));
    DT_TRY(write_weights(manifest, draft->folder, j->name, arrays->params, arrays->weights));
    for (int part = 0; part < draft->parts; part++) {
        DT_TRY(dt_states_file(path, draft->folder, j->parts, part, draft->parts));
        if (unlink(path) != 0)
            return DT_FAIL_ERRNO("remove", path);
    }
    return DT_OK;
}

// Renames the folder, replacing one of the same step by an atomic exchange. If the file system
// cannot exchange names, the old folder is first moved aside; a kill between the two renames leaves
// both, hidden.
static dt_status rename_to(const char *temporary, const char *path)
{
    char old[DT_PATH];
    DT_TRY(dt_path(old, "%s", temporary)); // the old folder after an exchange
    if (rename(temporary, path) == 0)
        return dt_fsync_parent(path);
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
        return DT_FAIL_ERRNO("rename a checkpoint to", path);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) != 0) {
        if (errno != EINVAL && errno != ENOSYS)
            return DT_FAIL_ERRNO("replace", path);
        DT_TRY(dt_path(old, "%s.old", temporary));
        if (rename(path, old) != 0)
            return DT_FAIL_ERRNO("move aside", path);
        if (rename(temporary, path) != 0) {
            dt_status status = DT_FAIL_ERRNO("rename a checkpoint to", path);
            rename(old, path);
            return status;
        }
    }
    DT_TRY(dt_fsync_parent(path));
    return dt_remove_tree(old);
}

dt_status dt_checkpoint_publish(const struct dt_checkpoint_draft *draft,
                                const struct dt_checkpoint_arrays *arrays,
                                struct dt_manifest *manifest)
{
    char path[DT_PATH];
    for (int i = 0; i < manifest->n; i++) { // files written by other ranks must be visible here
        const struct dt_manifest_file *file = &manifest->files[i];
        DT_TRY(dt_path(path, "%s/%s", draft->folder, file->name));
        if (dt_file_size(path) != file->size)
            return DT_FAIL(DT_USER,
                           "with optim.shard every rank writes a part of a checkpoint: set run.dir "
                           "to a folder that all hosts share",
                           "%s, which another rank wrote, is missing or incomplete here", path);
    }
    for (int i = 0; i < JOINED; i++)
        DT_TRY(join(&joined[i], draft, arrays, manifest));
    DT_TRY(dt_manifest_write(manifest, draft->folder));
    DT_TRY(dt_fsync_dir(draft->folder));
    return rename_to(draft->folder, draft->path);
}

void dt_checkpoint_discard(const struct dt_checkpoint_draft *draft)
{
    dt_discard_tree(draft->folder); // if this fails too, the next prune tries again
}

static dt_status read_trainer(const char *path, struct dt_trainer_state *state,
                              struct dt_dataset **train)
{
    char file[DT_PATH];
    DT_TRY(dt_path(file, "%s/trainer.json", path));
    return dt_trainer_read(file, state, train);
}

dt_status dt_checkpoint_state(const char *path, struct dt_trainer_state *state)
{
    struct dt_dataset *train;
    DT_TRY(read_trainer(path, state, &train));
    dt_dataset_free(train);
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
    dt_trainer_compare(&problems, expected, train, state, saved_train);
    dt_dataset_free(saved_train);
    return dt_problems_report(&problems,
                              "restore these settings, or start a new run (another run.name) "
                              "with run.init_from = this checkpoint",
                              "%s cannot be resumed: settings that define the data order or the "
                              "model have changed",
                              path);
}

static dt_status read_states(const struct dt_manifest *manifest, const char *path,
                             const struct dt_checkpoint_arrays *arrays,
                             const struct dt_part_stamp *stamp)
{
    const struct dt_optimizer_states states = in_optimizer_files(&arrays->states);
    DT_TRY(dt_optimizer_states_read(path, DT_OPTIMIZER_FILES, dt_optimizer_states_files(manifest),
                                    arrays->params, &states, stamp));
    if (!dt_optimizer_state(&arrays->states, "ema"))
        return DT_OK;
    // The moving average is read through the array of the weights, or one of the same size. If the
    // checkpoint has none, it starts from the weights.
    bool has = dt_manifest_find(manifest, DT_HF_EMA);
    float *ema = dt_optimizer_state(&arrays->states, "ema"), *whole = arrays->weights;
    if (!whole)
        DT_TRY(DT_NEW(&whole, arrays->params->elements, "the moving average"));
    if (!has)
        dt_info("the moving average of the weights starts from those of %s", path);
    dt_status status =
        dt_hf_read_weights(path, has, arrays->params, arrays->model->tie_embeddings, whole);
    if (status == DT_OK)
        dt_pieces_pick(&arrays->states.pieces, whole, ema);
    if (!arrays->weights)
        free(whole);
    return status;
}

dt_status dt_checkpoint_load_states(const char *path, const struct dt_checkpoint_arrays *arrays)
{
    struct dt_manifest manifest;
    DT_TRY(dt_manifest_read(path, &manifest));
    dt_status status = read_states(&manifest, path, arrays, NULL); // stamps were checked by rank 0
    dt_manifest_free(&manifest);
    return status;
}

dt_status dt_checkpoint_load(const char *path, const struct dt_checkpoint_arrays *arrays,
                             const struct dt_trainer_state *expected,
                             const struct dt_dataset *train, struct dt_trainer_state *state)
{
    struct dt_trainer_state saved;
    struct dt_manifest manifest;
    DT_TRY(compare(path, arrays->model, expected, train, &saved));
    DT_TRY(dt_manifest_read(path, &manifest));
    const struct dt_part_stamp stamp = dt_trainer_stamp(&saved);
    dt_status status = read_states(&manifest, path, arrays, &stamp);
    if (status == DT_OK)
        status = dt_hf_read_weights(path, false, arrays->params, arrays->model->tie_embeddings,
                                    arrays->weights);
    if (status == DT_OK && arrays->slots)
        status = dt_slot_states_read(&manifest, path, arrays->slots);
    dt_manifest_free(&manifest);
    if (status == DT_OK)
        *state = saved;
    return status;
}
