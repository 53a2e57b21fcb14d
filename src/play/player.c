// Opens a player and runs inference steps: inputs are checked and copied to the device, the model
// runs, and its outputs are copied back one by one; values are drawn from each output before the
// next one is computed. streams.c keeps the states between steps.
#include "play/player.h"

#include "base/finite.h"
#include "base/memory.h"
#include "model/hf.h"
#include "play/player_internal.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { STEPS_MOST = 1 << 16 }; // limit of steps for feedback

static dt_status alloc_host(struct dt_player *player, int64_t floats, float **array)
{
    return dt_alloc_host(&player->backend, (floats > 0 ? floats : 1) * (int64_t)sizeof **array,
                         array);
}

static int64_t width_of(const struct dt_player *player, int index)
{
    return index < 0 ? 0 : dt_model_arrays(player->model)->arrays[index].width;
}

// Finds and allocates the arrays that the model reads.
static dt_status create_inputs(struct dt_player *player)
{
    const struct dt_array_list *arrays = dt_model_arrays(player->model);
    int64_t rows = player->group * player->info.length, width;
    player->frames = dt_array_list_find(arrays, "frames");
    player->ids = dt_array_list_find(arrays, "ids");
    player->targets = dt_array_list_find(arrays, "targets");
    player->tokens = -1;
    if (player->frames < 0 && player->ids < 0) {
        DT_TRY(dt_model_token_array(player->model, &player->tokens));
        player->ids = player->tokens;
        player->info.vocab = dt_model_config(player->model)->vocab_size;
    }
    DT_TRY(dt_ids_parse(dt_model_config(player->model)->ids, &player->tables));
    player->info.frame = width_of(player, player->frames);
    player->info.n_ids = player->tokens < 0 ? width_of(player, player->ids) : 0;
    const int read[] = {player->frames, player->ids, player->targets};
    for (int i = 0; i < 3; i++)
        if (read[i] >= 0)
            DT_TRY(dt_alloc(&player->backend, dt_array_bytes(&arrays->arrays[read[i]], rows),
                            &player->device[read[i]]));
    width = player->info.frame;
    DT_TRY(alloc_host(player, rows * width, &player->staged));
    DT_TRY(alloc_host(player, width, &player->mean));
    DT_TRY(alloc_host(player, width, &player->deviation));
    for (int64_t i = 0; i < width; i++)
        player->deviation[i] = 1;
    return DT_OK;
}

// Finds inputs that are targets of earlier steps, by a text that may be untrusted.
static dt_status create_feedback(struct dt_player *player)
{
    const struct dt_play_info *info = &player->info;
    const int64_t widths[] = {info->frame, info->n_ids};
    const struct dt_model_config *config = dt_model_config(player->model);
    DT_TRY(dt_columns_fed(config->inputs, config->targets, &player->n_fed, player->fed));
    for (int i = 0; i < 2; i++)
        DT_TRY(DT_NEW(&player->is_fed[i], widths[i], "inputs that are fed back"));
    DT_TRY(DT_NEW(&player->staged_ids, player->group * info->n_ids, "ids that are fed back"));
    for (int i = 0; i < player->n_fed; i++) {
        const struct dt_fed *f = &player->fed[i];
        int ids = f->array == DT_FED_IDS;
        int64_t end;
        if (f->back > STEPS_MOST || __builtin_mul_overflow(f->step, f->count - 1, &end) ||
            __builtin_add_overflow(end, f->at + f->n, &end) || end > widths[ids] ||
            (f->array != DT_FED_FLAG && f->target > info->targets - f->n))
            return DT_FAIL(DT_USER, "the model's config.json was changed, or is damaged",
                           "inputs = %s and targets = %s are not the %lld numbers and %lld ids of "
                           "a frame and the %lld targets",
                           config->inputs, config->targets, (long long)info->frame,
                           (long long)info->n_ids, (long long)info->targets);
        for (int64_t k = 0; k < f->count; k++)
            memset(player->is_fed[ids] + f->at + k * f->step, 1, (size_t)f->n);
        player->back = dt_max_i64(player->back, f->back);
    }
    return DT_OK;
}

// Prepares for chunks: the last step's targets are kept, and the next step plays their next row.
static dt_status create_chunk(struct dt_player *player)
{
    struct dt_play_info *info = &player->info;
    const char *targets = dt_model_config(player->model)->targets;
    DT_TRY(DT_NEW(&player->next, info->targets, "the rows of a chunk"));
    DT_TRY(DT_NEW(&player->later, info->targets, "the rows of a chunk"));
    info->chunk = dt_columns_chunk(targets, info->targets, player->next);
    if (info->action_steps < 1 || info->action_steps > info->chunk)
        return DT_FAIL(DT_USER,
                       "train with chunks of one length as all targets, such as data.targets = "
                       "actions@0:8, to play several steps of a prediction",
                       "action_steps is %lld, not in 1 … %lld, the steps that the model predicts "
                       "at a time (targets = %s)",
                       (long long)info->action_steps, (long long)info->chunk, targets);
    for (int64_t i = 0; i < info->targets && info->action_steps > 1; i++)
        if (player->next[i] != i)
            player->later[player->next[i]] = true;
    player->back = dt_max_i64(player->back, info->action_steps > 1);
    if (player->back > 0 && info->length > 1)
        return DT_FAIL(DT_USER, "play it one position at a time",
                       "the model's targets are remembered from step to step, and a step has up to "
                       "%lld positions",
                       (long long)info->length);
    return DT_OK;
}

// A backend without int8 products rounds the operands as in training.
static dt_status create(struct dt_player *player, const struct dt_model_config *model)
{
    struct dt_model_config config = *model;
    enum dt_play_weights weights = player->info.weights;
    int64_t rows = player->group * player->info.length,
            widest = model->d_model; // the residual is read into it, too
    char *text;
    struct dt_model_shape shape = {.sequences = player->group,
                                   .length = player->info.length,
                                   .int8 = weights == DT_PLAY_INT8 && player->backend.op->int8,
                                   .play = true};
    config.storage = weights == DT_PLAY_BF16 ? DT_BF16 : DT_F32;
    config.quantize = weights == DT_PLAY_INT8 ? DT_QUANTIZE_INT8 : DT_QUANTIZE_NONE;
    if (config.direction == DT_DIRECTION_BOTH)
        return DT_FAIL(DT_USER, "use dtrain predict, or a model trained with direction = forward",
                       "model.direction is both: the model reads whole windows, and has no form "
                       "for one position at a time");
    DT_TRY(dt_model_create(&player->backend, &config, &shape, &player->model));
    DT_TRY(create_inputs(player));
    const struct dt_outputs *outputs = dt_model_outputs(player->model);
    for (int k = 0; k < outputs->n; k++) {
        player->info.values += outputs->list[k].width;
        widest = dt_max_i64(outputs->list[k].width, widest);
    }
    player->info.targets = player->targets < 0 ? outputs->n : width_of(player, player->targets);
    DT_TRY(create_feedback(player));
    DT_TRY(create_chunk(player));
    if (player->info.vocab > 0 && outputs->n == 1 && outputs->list[0].type->one_of)
        DT_TRY(DT_NEW((char **)&player->scratch, DT_CHOOSE_SCRATCH(outputs->list[0].width),
                      "choosing tokens"));
    DT_TRY(alloc_host(player, player->group * widest, &player->predicted));
    DT_TRY(alloc_host(player, rows * player->info.targets, &player->drawn));
    DT_TRY(dt_hf_config_text(dt_model_config(player->model), &text));
    player->kind = XXH64(text, strlen(text),
                         (XXH64_hash_t)dt_model_config(player->model)->storage +
                             ((XXH64_hash_t)(player->info.action_steps - 1) << 32));
    free(text);
    return dt_streams_create(player);
}

dt_status dt_player_create(const struct dt_backend *backend, const struct dt_model_config *model,
                           const struct dt_player_config *config, struct dt_player **out)
{
    if (config->streams < 1 || config->length < 1)
        return DT_FAIL(DT_USER, NULL, "%lld streams of up to %lld positions: both must be positive",
                       (long long)config->streams, (long long)config->length);
    struct dt_player *player;
    DT_TRY(DT_NEW(&player, 1, "a player"));
    player->backend = *backend;
    player->backend.memory_hint =
        "use fewer streams or a shorter prompt, bf16 or int8 weights, or a smaller model";
    player->group = dt_min_i64(config->streams, DT_GEMM_FEW_ROWS);
    player->info = (struct dt_play_info){
        .streams = config->streams,
        .length = config->length,
        .action_steps = config->action_steps == 0 ? 1 : config->action_steps,
        .weights = config->weights == DT_PLAY_AS_STORED ? DT_PLAY_F32 : config->weights};
    dt_status status = create(player, model);
    if (status != DT_OK)
        dt_player_close(player);
    else
        *out = player;
    return status;
}

void dt_player_close(struct dt_player *player)
{
    if (!player)
        return;
    if (player->model)
        dt_streams_destroy(player);
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        dt_free(&player->backend, player->device[i]);
    float *host[] = {player->staged, player->mean, player->deviation, player->predicted,
                     player->drawn};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++)
        dt_free_host(&player->backend, host[i]);
    free(player->is_fed[0]);
    free(player->is_fed[1]);
    free(player->staged_ids);
    free(player->next);
    free(player->later);
    free(player->scratch);
    dt_model_destroy(player->model);
    free(player);
}

void dt_player_info(const struct dt_player *player, struct dt_play_info *info)
{
    *info = player->info;
}

const struct dt_model *dt_player_model(const struct dt_player *player)
{
    return player->model;
}

static void find_row(const struct dt_player *player, const float *weights, const char *name,
                     float *row)
{
    const struct dt_param *param = dt_params_find(dt_model_params(player->model), name);
    if (param)
        memcpy(row, weights + param->offset, (size_t)player->info.frame * sizeof *row);
}

dt_status dt_player_set_weights(struct dt_player *player, const float *weights)
{
    find_row(player, weights, "stem.mean", player->mean);
    find_row(player, weights, "stem.deviation", player->deviation);
    player->weights =
        XXH3_64bits(weights, (size_t)dt_model_params(player->model)->elements * sizeof *weights);
    return dt_model_set_weights(player->model, weights);
}

dt_status dt_player_open(const struct dt_backend *backend, const char *dir,
                         const struct dt_player_config *config, struct dt_player **out)
{
    struct dt_model_config model = {.pad_vocab_multiple = 8};
    struct dt_player *player;
    struct dt_player_config resolved = *config;
    float *weights = NULL;
    enum dt_dtype type;
    dt_status status;
    DT_TRY(dt_hf_read_config(dir, &model));
    DT_TRY(dt_hf_check_weights(dir, config->ema, &model, &type));
    if (config->weights == DT_PLAY_AS_STORED) // int8 if trained for it, else bf16 if no file has
                                              // fp32
        resolved.weights = model.quantize == DT_QUANTIZE_INT8 ? DT_PLAY_INT8
                           : type == DT_F32                   ? DT_PLAY_F32
                                                              : DT_PLAY_BF16;
    DT_TRY(dt_player_create(backend, &model, &resolved, &player));
    const struct dt_params *params = dt_model_params(player->model);
    int64_t bytes = params->elements * (int64_t)sizeof *weights;
    DT_TRY_GOTO(status, out, dt_alloc_host(backend, bytes, &weights));
    DT_TRY_GOTO(status, out,
                dt_hf_read_weights(dir, config->ema, params, model.tie_embeddings, weights));
    DT_TRY_GOTO(status, out, dt_player_set_weights(player, weights));
    *out = player;
out:
    dt_free_host(backend, weights);
    if (status != DT_OK)
        dt_player_close(player);
    return status;
}

// Checks tokens, or the ids of each frame.
static dt_status check_ids(const struct dt_player *player, const struct dt_play *play)
{
    bool tokens = player->info.vocab > 0;
    int64_t width = tokens ? 1 : player->info.n_ids, n = play->n * play->length * width;
    if (n > 0 && !play->ids)
        return tokens ? DT_FAIL(DT_USER, NULL, "the model reads tokens; none was given")
                      : DT_FAIL(DT_USER, NULL, "the model reads %lld ids; no ids were given",
                                (long long)width);
    for (int64_t i = 0; i < n; i++) {
        long long stream = play->first + i / width / play->length, column = i % width;
        long long end = tokens ? player->info.vocab : player->tables.size[column];
        if ((play->ids[i] >= 0 && play->ids[i] < end) || (!tokens && player->is_fed[1][column]))
            continue;
        return tokens ? DT_FAIL(DT_USER, NULL, "token %d of stream %lld is not in 0 … %lld",
                                play->ids[i], stream, end - 1)
                      : DT_FAIL(DT_USER, NULL, "id %lld of stream %lld is %d, not in 0 … %lld",
                                column, stream, play->ids[i], end - 1);
    }
    return DT_OK;
}

static dt_status check(const struct dt_player *player, const struct dt_play *play)
{
    const struct dt_play_info *info = &player->info;
    int64_t width = info->frame, n = play->n * play->length * width;
    if (play->n < 1 || play->first < 0 || play->first > info->streams - play->n)
        return DT_FAIL(DT_USER, NULL, "%lld streams from %lld on: there are %lld",
                       (long long)play->n, (long long)play->first, (long long)info->streams);
    if (play->length < 1 || play->length > info->length)
        return DT_FAIL(DT_USER, NULL, "%lld positions at a time, the player allows 1 … %lld",
                       (long long)play->length, (long long)info->length);
    if (!(play->temperature >= 0) || !isfinite(play->temperature))
        return DT_FAIL(DT_USER, NULL, "the temperature is %g; it must be 0 or more",
                       play->temperature);
    if (play->choice && !player->scratch)
        return DT_FAIL(DT_USER, "give a temperature alone",
                       "the model is no language model, whose tokens are chosen");
    if (play->choice)
        DT_TRY(dt_choice_check(play->choice));
    if (width > 0 && !play->frames)
        return DT_FAIL(DT_USER, NULL, "the model reads frames of %lld numbers; no frame was given",
                       (long long)width);
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(play->frames[i]) && !player->is_fed[0][i % width])
            return DT_FAIL(DT_USER, NULL, "number %lld of the frame of stream %lld is %g",
                           (long long)(i % width),
                           (long long)(play->first + i / width / play->length),
                           (double)play->frames[i]);
    return check_ids(player, play);
}

// Writes column `column` of a normalised frame; a missing number becomes the mean. Uses the
// loader's arithmetic, so that frames of training and inference are bitwise identical.
static void stage(const struct dt_player *player, int64_t row, int64_t column, bool missing,
                  float value)
{
    int64_t at = row * player->info.frame + column;
    float x = missing ? 0 : (value - player->mean[column]) / player->deviation[column];
    if (player->info.weights == DT_PLAY_BF16)
        ((dt_bf16 *)(void *)player->staged)[at] = dt_f32_to_bf16(x);
    else
        player->staged[at] = x;
}

// Fills those inputs in row `row` of `stream` that are targets of its earlier steps. A class
// outside its table of ids, which no data have, becomes id 0.
static void feed_back(const struct dt_player *player, const struct dt_fed *fed, int64_t stream,
                      int64_t row)
{
    for (int64_t k = 0; k < fed->count; k++) {
        int64_t column = fed->at + k * fed->step, back = fed->back - k;
        bool missing = player->steps[stream] < back;
        const float *targets = dt_streams_memory(player, stream, back) + fed->target;
        if (fed->array == DT_FED_FLAG) {
            stage(player, row, column, false, !missing);
            continue;
        }
        for (int64_t i = 0; i < fed->n; i++, column++) {
            if (fed->array == DT_FED_FRAMES) {
                stage(player, row, column, missing, targets[i]);
                continue;
            }
            bool fits =
                !missing && targets[i] >= 0 && targets[i] < (float)player->tables.size[column];
            player->staged_ids[row * player->info.n_ids + column] = fits ? (int32_t)targets[i] : 0;
        }
    }
}

static dt_status send(struct dt_player *player, int index, const void *from, int64_t rows)
{
    const struct dt_array_spec *spec = &dt_model_arrays(player->model)->arrays[index];
    return dt_to_device(&player->backend, player->device[index], from, dt_array_bytes(spec, rows),
                        NULL);
}

// Draws values from output k and sends them to the model if they condition later outputs.
static dt_status draw(struct dt_player *player, const struct dt_play *play,
                      const struct dt_outputs *outputs, int k)
{
    const struct dt_output *output = &outputs->list[k];
    int64_t width = player->info.targets;
    for (int64_t i = 0; i < play->n; i++) {
        bool likely = !play->drawn || dt_streams_in_chunk(player, play->first + i);
        const float *predicted = player->predicted + i * output->width;
        struct dt_philox *rng = &player->rng[play->first + i];
        float *drawn = player->drawn + ((i + 1) * play->length - 1) * width + output->target;
        if (play->choice && !likely)
            *drawn = (float)dt_choose(play->choice, predicted, output->width,
                                      play->seen ? play->seen + i * output->width : NULL,
                                      player->scratch, rng);
        else
            output->type->draw(output, predicted, likely ? 0 : play->temperature, rng, drawn);
    }
    bool last = k == outputs->n - 1;
    return outputs->autoregressive && !last
               ? send(player, player->targets, player->drawn, play->n * play->length)
               : DT_OK;
}

// Checks a row of `width` values per stream in player->predicted: all must be within ±most.
static dt_status check_values(const struct dt_player *player, const struct dt_play *play,
                              const char *name, int64_t width, float most)
{
    int64_t n = play->n * width, bad = dt_find_outside(player->predicted, n, -most, most);
    if (bad == n)
        return DT_OK;
    if (play->not_finite)
        *play->not_finite = true;
    return DT_FAIL(DT_MACHINE,
                   "the frame is far outside the values of training, or the weights have diverged: "
                   "use an earlier checkpoint",
                   "number %lld of \"%s\" of stream %lld is %g; it must be finite, and at most %g",
                   (long long)(bad % width), name, (long long)(play->first + bad / width),
                   (double)player->predicted[bad], (double)most);
}

// Above this limit a norm's sum of squares may overflow, which turns the whole row into zeros, so
// that outputs are finite but meaningless. Rows have at most 2^20 numbers.
static const float residual_most = 1e16f;

static dt_status read_outputs(struct dt_player *player, const struct dt_play *play,
                              const struct dt_pass *pass)
{
    const struct dt_outputs *outputs = dt_model_outputs(player->model);
    const struct dt_play_info *info = &player->info;
    for (int64_t k = 0, column = 0; k < outputs->n; column += outputs->list[k++].width) {
        struct dt_view view;
        int64_t width = outputs->list[k].width;
        DT_TRY(dt_model_output(player->model, pass, (int)k, &view));
        for (int64_t i = 0; i < play->n; i++)
            DT_TRY(dt_to_host(&player->backend, player->predicted + i * width,
                              dt_view_at(&view, i, 0), width * (int64_t)sizeof(float), NULL));
        DT_TRY(dt_stream_sync(&player->backend, NULL));
        DT_TRY(check_values(player, play, outputs->list[k].name, width, FLT_MAX));
        for (int64_t i = 0; i < play->n && play->predicted; i++)
            memcpy(play->predicted + i * info->values + column, player->predicted + i * width,
                   (size_t)width * sizeof(float));
        if (play->drawn || outputs->autoregressive || player->back > 0)
            DT_TRY(draw(player, play, outputs, (int)k));
    }
    for (int64_t i = 0; i < play->n && player->back > 0; i++) {
        int64_t stream = play->first + i;
        float *drawn = player->drawn + i * info->targets;
        if (dt_streams_in_chunk(player, stream)) {
            const float *last = dt_streams_memory(player, stream, 1);
            for (int64_t k = 0; k < info->targets; k++)
                drawn[k] = last[player->next[k]];
        }
        memcpy(dt_streams_memory(player, stream, 0), drawn, (size_t)info->targets * sizeof(float));
    }
    for (int64_t i = 0; i < play->n && play->drawn; i++)
        memcpy(play->drawn + i * info->targets,
               player->drawn + ((i + 1) * play->length - 1) * info->targets,
               (size_t)info->targets * sizeof(float));
    return DT_OK;
}

static dt_status run(struct dt_player *player, const struct dt_play *play)
{
    int64_t rows = play->n * play->length;
    int side = player->side[play->first];
    struct dt_pass pass = {.input = {.sequences = play->n, .length = play->length},
                           .before = player->state[side],
                           .after = player->state[!side],
                           .first = play->first};
    for (int i = 0; i < DT_BATCH_ARRAYS; i++)
        pass.input.arrays[i] = player->device[i];
    DT_TRY(dt_streams_begin(player, play->first, play->n));
    const int32_t *ids = player->back > 0 ? player->staged_ids : play->ids;
    if (player->back > 0 && player->info.n_ids > 0)
        memcpy(player->staged_ids, play->ids, (size_t)(rows * player->info.n_ids) * sizeof *ids);
    for (int64_t i = 0, width = player->info.frame; i < rows; i++)
        for (int64_t j = 0; j < width; j++)
            stage(player, i, j, false, play->frames[i * width + j]);
    for (int64_t i = 0; i < play->n; i++)
        for (int k = 0; k < player->n_fed; k++)
            feed_back(player, &player->fed[k], play->first + i, i);
    if (player->frames >= 0)
        DT_TRY(send(player, player->frames, player->staged, rows));
    if (player->ids >= 0)
        DT_TRY(send(player, player->ids, ids, rows));
    DT_TRY(dt_model_forward(player->model, &pass));
    const struct dt_view residual = dt_model_residual(player->model, &pass);
    int64_t d = residual.cols;
    for (int64_t i = 0; i < play->n; i++)
        DT_TRY(dt_to_host(&player->backend, player->predicted + i * d,
                          dt_view_at(&residual, (i + 1) * play->length - 1, 0),
                          d * (int64_t)sizeof(float), NULL));
    DT_TRY(dt_stream_sync(&player->backend, NULL));
    DT_TRY(check_values(player, play, "residual", d, residual_most));
    return read_outputs(player, play, &pass);
}

dt_status dt_player_step(struct dt_player *player, const struct dt_play *play)
{
    const struct dt_play_info *info = &player->info;
    size_t bytes = (size_t)play->n * sizeof *player->rng;
    dt_status status = DT_OK;
    DT_TRY(check(player, play));
    memcpy(player->rng_before, player->rng + play->first, bytes);
    // A group has few enough rows that each has the same bits as alone. Longer runs have more rows,
    // so they run one stream at a time.
    int64_t group = play->length == 1 ? player->group : 1;
    for (int64_t done = 0; done < play->n && status == DT_OK; done += group) {
        int64_t rows = done * play->length;
        struct dt_play part = *play;
        part.first += done;
        part.n = dt_min_i64(play->n - done, group);
        part.frames += play->frames ? rows * info->frame : 0;
        part.ids += play->ids ? rows * (info->vocab > 0 ? 1 : info->n_ids) : 0;
        part.seen += play->seen ? done * info->vocab : 0;
        part.predicted += play->predicted ? done * info->values : 0;
        part.drawn += play->drawn ? done * info->targets : 0;
        status = run(player, &part);
    }
    if (status == DT_OK)
        dt_streams_end(player, play->first, play->n);
    else
        memcpy(player->rng + play->first, player->rng_before, bytes);
    return status;
}
