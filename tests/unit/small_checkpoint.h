// A checkpoint of the small model, with a state and a dataset of awkward values, for tests of
// saving and loading.
#pragma once

#include "checkpoint/checkpoint.h"

#include "small_model.h"

#include <string.h>

static const char optimizer[] = "optimizer-00001-of-00001.safetensors";
static struct dt_shard shards[] = {
    {.path = (char *)"/data/one/a.h5",
     .file_bytes = 1234567,
     .count = 600000,
     .first_hash = UINT64_C(0xfedcba9876543210),
     .last_hash = 1,
     .data_hash = UINT64_C(0x0123456789abcdef)},
    {.path = (char *)"b \"quoted\".h5",
     .file_bytes = 42,
     .count = 7,
     .first_hash = 0,
     .last_hash = UINT64_MAX},
};
static const struct dt_dataset dataset = {.n_shards = 2, .shards = shards};

static inline struct dt_trainer_state state_at(int64_t step)
{
    return (struct dt_trainer_state){.step = step,
                                     .updates = step - 3,
                                     .skips = 3,
                                     .skipped_in_a_row = 1,
                                     .tokens = INT64_C(9007199254740991), // 2^53 - 1
                                     .order = {.seed = INT64_C(9223372036854775553),
                                               .batch = 16,
                                               .seq_len = 77,
                                               .block = 64,
                                               .reset_token = 4000000000,
                                               .shuffle = true,
                                               .reset_after = true},
                                     .storage = DT_BF16};
}

static inline struct dt_checkpoint_arrays arrays_of(const struct small_model *model)
{
    return (struct dt_checkpoint_arrays){
        &model->config,
        &model->params,
        model->weights,
        {.n = 2,
         .list = {{.name = "exp_avg", .data = model->m},
                  {.name = "exp_avg_sq", .data = model->v, .squares = true}},
         .pieces = {model->all, 1, 0, model->params.elements}},
        NULL,
        NULL};
}

// One rank's save, at once. `path` (DT_PATH bytes) gets the folder.
static inline dt_status save_arrays(const char *dir, const struct dt_checkpoint_arrays *arrays,
                                    const struct dt_trainer_state *state, char *path)
{
    static uint64_t id;
    struct dt_checkpoint_draft draft;
    struct dt_manifest manifest = {0};
    dt_status status = dt_checkpoint_draft(dir, state->step, ++id, 0, 1, &draft);
    if (status == DT_OK)
        status = dt_checkpoint_write(&draft, arrays, state, &dataset, &manifest);
    if (status == DT_OK)
        status = dt_checkpoint_publish(&draft, arrays, &manifest);
    if (status != DT_OK)
        dt_checkpoint_discard(&draft);
    dt_manifest_free(&manifest);
    memcpy(path, draft.path, DT_PATH);
    return status;
}

static inline dt_status save(const char *dir, const struct small_model *model, int64_t step)
{
    char path[DT_PATH];
    struct dt_checkpoint_arrays arrays = arrays_of(model);
    struct dt_trainer_state state = state_at(step);
    return save_arrays(dir, &arrays, &state, path);
}

static inline dt_status load(const char *path, struct small_model *model,
                             const struct dt_trainer_state *expected,
                             const struct dt_dataset *train, struct dt_trainer_state *state)
{
    struct dt_checkpoint_arrays arrays = arrays_of(model);
    return dt_checkpoint_load(path, &arrays, expected, train, state);
}

static inline void check_same(const struct small_model *a, const struct small_model *b)
{
    size_t bytes = (size_t)a->params.elements * sizeof(float);
    CHECK(memcmp(a->weights, b->weights, bytes) == 0, "other weights");
    CHECK(memcmp(a->m, b->m, bytes) == 0, "other first moments");
    CHECK(memcmp(a->v, b->v, bytes) == 0, "other second moments");
}

// Padding must be written too.
static inline void forget(struct small_model *model)
{
    for (int64_t i = 0; i < model->params.elements; i++)
        model->weights[i] = model->m[i] = model->v[i] = NAN;
}

static inline struct small_model make_blank(bool tied)
{
    struct small_model model = small_model_make(tied);
    forget(&model);
    return model;
}

static inline void fresh_save(const char *dir, const struct small_model *model, int64_t step)
{
    CHECK_OK(dt_remove_tree(dir));
    CHECK_OK(save(dir, model, step));
}

// A name in the only checkpoint of scratch/one.
static inline const char *in_one(const char *name)
{
    return in_scratch("one/step-00000007/%s", name);
}
