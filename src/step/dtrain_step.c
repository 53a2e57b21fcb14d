// libdtrain_step is a player (play/player.h) with a plain C interface. Every argument is checked,
// here or by the player.
#include "step/dtrain_step.h"

#include "base/memory.h"
#include "checkpoint/manifest.h"
#include "model/hf.h"
#include "play/player.h"

#include <string.h>

enum { STREAMS_MAX = 1 << 20, THREADS_MAX = 4096 };

struct dtrain_step {
    struct dt_backend backend;
    struct dt_player *player;
    struct dtrain_step_info info;
};

// Begins every call: clears the thread's error.
static dt_status begin(const dtrain_step *handle)
{
    dt_error_clear();
    return handle ? DT_OK : DT_FAIL(DT_USER, NULL, "the handle is NULL");
}

static dt_status check_pointer(const void *pointer, const char *name)
{
    return pointer ? DT_OK : DT_FAIL(DT_USER, NULL, "%s is NULL", name);
}

static dt_status check_range(const char *name, int64_t value, int64_t last)
{
    if (value >= 0 && value <= last)
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "%s is %lld, not in 0 … %lld", name, (long long)value,
                   (long long)last);
}

static dt_status open_player(dtrain_step *handle, const char *path,
                             const struct dtrain_step_options *options)
{
    const char *const files[] = {"config.json", options->ema ? DT_HF_EMA : "model.safetensors",
                                 NULL};
    const struct dt_player_config config = {.streams = options->streams,
                                            .length = 1,
                                            .weights = (enum dt_play_weights)options->weights,
                                            .ema = options->ema,
                                            .action_steps = options->action_steps};
    struct dt_play_info info;
    DT_TRY(dt_manifest_verify(path, files));
    DT_TRY(dt_backend_open("cpu", 0, options->threads, &handle->backend));
    DT_TRY(dt_player_open(&handle->backend, path, &config, &handle->player));
    dt_player_info(handle->player, &info);
    handle->info = (struct dtrain_step_info){
        .streams = (int32_t)info.streams,
        .threads = options->threads,
        .weights = (int32_t)info.weights,
        .n_ids = (int32_t)info.n_ids,
        .frame_size = info.frame,
        .vocab_size = info.vocab,
        .parameters = dt_model_params(dt_player_model(handle->player))->count,
        .state_bytes = info.state,
        .n_outputs = dt_model_outputs(dt_player_model(handle->player))->n,
        .n_values = (int32_t)info.values,
        .n_targets = (int32_t)info.targets,
        .chunk = (int32_t)info.chunk,
        .action_steps = (int32_t)info.action_steps};
    return DT_OK;
}

int dtrain_step_open(const char *path, const struct dtrain_step_options *options,
                     dtrain_step **handle)
{
    struct dtrain_step_options o = {0};
    dt_error_clear();
    DT_TRY(check_pointer(handle, "handle"));
    *handle = NULL;
    DT_TRY(check_pointer(path, "path"));
    if (options)
        o = *options;
    DT_TRY(check_range("options.streams", o.streams, STREAMS_MAX));
    DT_TRY(check_range("options.threads", o.threads, THREADS_MAX));
    DT_TRY(check_range("options.weights", o.weights, DTRAIN_STEP_INT8));
    DT_TRY(check_range("options.ema", o.ema, 1));
    o.streams = o.streams ? o.streams : 1;
    o.threads = o.threads ? o.threads : 1;
    dtrain_step *opened;
    DT_TRY(DT_NEW(&opened, 1, "a handle"));
    dt_status status = open_player(opened, path, &o);
    if (status == DT_OK)
        *handle = opened;
    else
        dtrain_step_close(opened);
    return status;
}

void dtrain_step_close(dtrain_step *handle)
{
    if (!handle)
        return;
    dt_player_close(handle->player);
    if (handle->backend.table)
        dt_backend_close(&handle->backend);
    free(handle);
}

int dtrain_step_describe(const dtrain_step *handle, struct dtrain_step_info *info)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(info, "info"));
    *info = handle->info;
    return DT_OK;
}

int dtrain_step_describe_output(const dtrain_step *handle, int32_t index,
                                struct dtrain_step_output *output)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(output, "output"));
    const struct dt_outputs *outputs = dt_model_outputs(dt_player_model(handle->player));
    DT_TRY(check_range("index", index, outputs->n - 1));
    const struct dt_output *o = &outputs->list[index];
    static const int kinds[] = {[DT_OUTPUT_CATEGORICAL] = DTRAIN_STEP_CATEGORICAL,
                                [DT_OUTPUT_BERNOULLI] = DTRAIN_STEP_BERNOULLI,
                                [DT_OUTPUT_REGRESSION] = DTRAIN_STEP_REGRESSION,
                                [DT_OUTPUT_HUBER] = DTRAIN_STEP_REGRESSION,
                                [DT_OUTPUT_GMM] = DTRAIN_STEP_GMM,
                                [DT_OUTPUT_QUANTILE] = DTRAIN_STEP_QUANTILE};
    *output = (struct dtrain_step_output){.kind = kinds[o->type->loss],
                                          .width = (int32_t)o->width,
                                          .target = (int32_t)o->target,
                                          .target_width = o->type->one_of ? 1 : (int32_t)o->size};
    for (int32_t k = 0; k < index; k++)
        output->first += (int32_t)outputs->list[k].width;
    _Static_assert(sizeof output->name == sizeof o->name, "a name fits");
    memcpy(output->name, o->name, sizeof o->name);
    return DT_OK;
}

static int play(dtrain_step *handle, struct dt_play *call)
{
    bool not_finite = false;
    call->length = 1;
    call->not_finite = &not_finite;
    DT_TRY(begin(handle));
    dt_status status = dt_player_step(handle->player, call);
    return not_finite ? (int)DTRAIN_STEP_NOT_FINITE : (int)status;
}

int dtrain_step_batch(dtrain_step *handle, int32_t first, int32_t n, const float *frames,
                      const int32_t *ids, double temperature, float *drawn, float *outputs)
{
    return play(handle, &(struct dt_play){.first = first,
                                          .n = n,
                                          .frames = frames,
                                          .ids = ids,
                                          .temperature = temperature,
                                          .predicted = outputs,
                                          .drawn = drawn});
}

int dtrain_step_choose(dtrain_step *handle, int32_t first, int32_t n, const int32_t *tokens,
                       const struct dtrain_step_choice *choice, const uint8_t *seen, float *drawn)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(choice, "choice"));
    DT_TRY(check_pointer(drawn, "drawn"));
    const struct dt_choice how = {.temperature = choice->temperature,
                                  .top_k = choice->top_k,
                                  .top_p = choice->top_p,
                                  .min_p = choice->min_p,
                                  .repetition_penalty = choice->repetition_penalty};
    return play(
        handle,
        &(struct dt_play){
            .first = first, .n = n, .ids = tokens, .choice = &how, .seen = seen, .drawn = drawn});
}

int dtrain_step_step(dtrain_step *handle, int32_t stream, const float *frame, const int32_t *ids,
                     float *outputs)
{
    return dtrain_step_batch(handle, stream, 1, frame, ids, 0, NULL, outputs);
}

int dtrain_step_sample(dtrain_step *handle, int32_t stream, const float *frame, const int32_t *ids,
                       double temperature, float *drawn, float *outputs)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(drawn, "drawn"));
    return dtrain_step_batch(handle, stream, 1, frame, ids, temperature, drawn, outputs);
}

int dtrain_step_reset(dtrain_step *handle, int32_t stream)
{
    DT_TRY(begin(handle));
    return dt_player_reset(handle->player, stream);
}

int dtrain_step_feed(dtrain_step *handle, int32_t stream, const float *targets)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(targets, "targets"));
    return dt_player_feed(handle->player, stream, targets);
}

int dtrain_step_seed(dtrain_step *handle, int32_t stream, uint64_t seed)
{
    DT_TRY(begin(handle));
    return dt_player_seed(handle->player, stream, seed);
}

int dtrain_step_save(dtrain_step *handle, int32_t stream, void *block, size_t bytes)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(block, "block"));
    if (bytes != (size_t)handle->info.state_bytes)
        return DT_FAIL(DT_USER, NULL, "the block has %zu bytes; a state of this model has %lld",
                       bytes, (long long)handle->info.state_bytes);
    return dt_player_save(handle->player, stream, block);
}

int dtrain_step_restore(dtrain_step *handle, int32_t stream, const void *block, size_t bytes)
{
    DT_TRY(begin(handle));
    DT_TRY(check_pointer(block, "block"));
    return dt_player_restore(handle->player, stream, block,
                             bytes > INT64_MAX ? INT64_MAX : (int64_t)bytes);
}

void dtrain_step_error(char *text, size_t size)
{
    const struct dt_error *error = dt_error_current();
    if (!text || size == 0)
        return;
    text[0] = '\0';
    if (error->code != DT_OK)
        dt_error_format(error, 0, text, size);
}
