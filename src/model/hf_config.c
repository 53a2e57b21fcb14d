// config.json of a MambaForCausalLM. Field names and defaults are those of transformers'
// MambaConfig; fields that only steer transformers' own initialisation or generation are not read.
#include "model/hf.h"

#include "base/file.h"
#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20 }; // bytes; real ones have about 1 KiB
// Far above any real model, low enough for products of a few sizes to stay in 64 bits.
static const int64_t size_max = INT64_C(1) << 31;

struct config_file {
    char path[DT_PATH];
    cJSON *json;
};

static dt_status read_size(const struct config_file *file, const char *field, int64_t fallback,
                           int64_t *value)
{
    *value = fallback;
    if (fallback > 0 && !dt_json_has(file->json, field))
        return DT_OK;
    return dt_json_int(file->path, file->json, field, 1, size_max - 1, value);
}

static dt_status read_flag(const struct config_file *file, const char *field, bool fallback,
                           bool *value)
{
    *value = fallback;
    return dt_json_has(file->json, field) ? dt_json_bool(file->path, file->json, field, value)
                                          : DT_OK;
}

static dt_status read_rank(const struct config_file *file, int64_t d_model, int64_t *rank)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, "time_step_rank");
    *rank = (d_model + 15) / 16;
    if (!dt_json_has(file->json, "time_step_rank") ||
        (cJSON_IsString(item) && strcmp(item->valuestring, "auto") == 0))
        return DT_OK;
    return dt_json_int(file->path, file->json, "time_step_rank", 1, size_max - 1, rank);
}

static dt_status read_eps(const struct config_file *file, double *eps)
{
    *eps = 1e-5;
    if (!dt_json_has(file->json, "layer_norm_epsilon"))
        return DT_OK;
    return dt_json_double(file->path, file->json, "layer_norm_epsilon", 1e-30, 1.0, eps);
}

static dt_status require_text(const struct config_file *file, const char *field, const char *a,
                              const char *b)
{
    const char *text;
    DT_TRY(dt_json_string(file->path, file->json, field, &text));
    if (strcmp(text, a) != 0 && strcmp(text, b) != 0)
        return dt_json_reject(file->path, file->json, field, "\"%s\": no other is built", a);
    return DT_OK;
}

static dt_status require_flag(const struct config_file *file, const char *field, bool wanted)
{
    bool value;
    DT_TRY(read_flag(file, field, wanted, &value));
    if (value != wanted)
        return dt_json_reject(file->path, file->json, field, "%s: the other is not built",
                              wanted ? "true" : "false");
    return DT_OK;
}

// What would be a model other than the one built here.
static dt_status check_kind(const struct config_file *file)
{
    DT_TRY(require_text(file, "model_type", "mamba", "mamba"));
    if (dt_json_has(file->json, "hidden_act"))
        DT_TRY(require_text(file, "hidden_act", "silu", "swish"));
    DT_TRY(require_flag(file, "use_bias", false));
    return require_flag(file, "use_conv_bias", true);
}

static dt_status check_inner(const struct config_file *file, const struct dt_model_config *config)
{
    int64_t inner;
    DT_TRY(read_size(file, "intermediate_size", dt_model_inner(config), &inner));
    if (inner != dt_model_inner(config))
        return dt_json_reject(file->path, file->json, "intermediate_size",
                              "expand * hidden_size = %lld", (long long)dt_model_inner(config));
    return DT_OK;
}

static dt_status read_fields(const struct config_file *file, struct dt_model_config *config)
{
    DT_TRY(check_kind(file));
    DT_TRY(read_size(file, "hidden_size", 0, &config->d_model));
    DT_TRY(read_size(file, "num_hidden_layers", 0, &config->n_layer));
    DT_TRY(read_size(file, "vocab_size", 0, &config->vocab_size));
    DT_TRY(read_size(file, "state_size", 16, &config->d_state));
    DT_TRY(read_size(file, "conv_kernel", 4, &config->d_conv));
    DT_TRY(read_size(file, "expand", 2, &config->expand));
    DT_TRY(check_inner(file, config));
    DT_TRY(read_rank(file, config->d_model, &config->dt_rank));
    DT_TRY(read_eps(file, &config->norm_eps));
    return read_flag(file, "tie_word_embeddings", true, &config->tie_embeddings);
}

dt_status dt_hf_read_config(const char *dir, struct dt_model_config *config)
{
    struct config_file file = {0};
    struct dt_model_config read = *config;
    DT_TRY(dt_path(file.path, "%s/config.json", dir));
    DT_TRY_NOTE(dt_json_read(file.path, CONFIG_LIMIT, &file.json), "reading the model %s", dir);
    dt_status status = read_fields(&file, &read);
    cJSON_Delete(file.json);
    if (status == DT_OK)
        *config = read; // nothing is changed by a file that is wrong
    return status;
}

// transformers 5 checks types: what is a float there must be written as one.
static bool add_floats(cJSON *json, const struct dt_model_config *config)
{
    return dt_json_add_double(json, "layer_norm_epsilon", config->norm_eps) &&
           dt_json_add_double(json, "initializer_range", 0.1) &&
           dt_json_add_double(json, "time_step_min", 0.001) &&
           dt_json_add_double(json, "time_step_max", 0.1) &&
           dt_json_add_double(json, "time_step_floor", 1e-4) &&
           dt_json_add_double(json, "time_step_scale", 1.0);
}

static bool add_sizes(cJSON *json, const struct dt_model_config *config)
{
    int64_t rank = config->dt_rank > 0 ? config->dt_rank : (config->d_model + 15) / 16;
    const struct {
        const char *name;
        int64_t value;
    } fields[] = {
        {"vocab_size", config->vocab_size},
        {"hidden_size", config->d_model},
        {"num_hidden_layers", config->n_layer},
        {"intermediate_size", dt_model_inner(config)},
        {"state_size", config->d_state},
        {"conv_kernel", config->d_conv},
        {"expand", config->expand},
        {"time_step_rank", rank},
        {"bos_token_id", 0},
        {"eos_token_id", 0},
        {"pad_token_id", 0},
    };
    bool fine = true;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        fine = dt_json_add_int(json, fields[i].name, fields[i].value) && fine;
    return fine;
}

// What transformers would otherwise take from defaults, some of which have changed between its
// versions.
static bool add_constants(cJSON *json, const struct dt_model_config *config)
{
    return cJSON_AddStringToObject(json, "hidden_act", "silu") &&
           cJSON_AddStringToObject(json, "time_step_init_scheme", "random") &&
           cJSON_AddFalseToObject(json, "use_bias") &&
           cJSON_AddTrueToObject(json, "use_conv_bias") &&
           cJSON_AddTrueToObject(json, "residual_in_fp32") &&
           cJSON_AddFalseToObject(json, "rescale_prenorm_residual") &&
           cJSON_AddTrueToObject(json, "use_cache") &&
           cJSON_AddBoolToObject(json, "tie_word_embeddings", config->tie_embeddings);
}

static bool add_kind(cJSON *json)
{
    cJSON *list = cJSON_AddArrayToObject(json, "architectures");
    return list && cJSON_AddItemToArray(list, cJSON_CreateString("MambaForCausalLM")) &&
           cJSON_AddStringToObject(json, "model_type", "mamba") &&
           cJSON_AddStringToObject(json, "torch_dtype", "float32");
}

dt_status dt_hf_config_text(const struct dt_model_config *config, char **text)
{
    cJSON *json = cJSON_CreateObject();
    bool fine = json && add_kind(json) && add_sizes(json, config) && add_floats(json, config) &&
                add_constants(json, config);
    char *print = fine ? cJSON_Print(json) : NULL;
    int64_t length = print ? (int64_t)strlen(print) : 0;
    *text = print ? malloc((size_t)length + 2) : NULL;
    if (*text)
        memcpy(mempcpy(*text, print, (size_t)length), "\n", 2);
    cJSON_free(print);
    cJSON_Delete(json);
    return *text ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the text of config.json");
}

dt_status dt_hf_write_config(const char *path, const struct dt_model_config *config)
{
    char *text;
    DT_TRY(dt_hf_config_text(config, &text));
    dt_status status = dt_write_file_atomic(path, text, (int64_t)strlen(text));
    free(text);
    return status;
}
