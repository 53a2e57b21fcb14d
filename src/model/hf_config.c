// config.json. Its names and defaults are those of transformers' MambaConfig, and the fields are
// rows of the table of a model's fields; what only steers transformers' own initialisation or
// generation is written but not read. A model that is not a Mamba language model has the model_type
// "dtrain" and names its kinds.
#include "model/hf.h"

#include "base/file.h"
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20 }; // bytes; real ones have about 1 KiB

// The file's members in order, with the values of those that are always the same; transformers
// would otherwise fill in defaults, some of which have changed between its versions. Floats are
// written as such: transformers 5 checks types. `built`: the only value that this program can
// train.
static const struct member {
    const char *name, *value; // value NULL: a field of dt_model_keys
    bool built;
} members[] = {
    {"torch_dtype", "\"float32\"", false},
    {"vocab_size", NULL, false},
    {"hidden_size", NULL, false},
    {"num_hidden_layers", NULL, false},
    {"intermediate_size", NULL, false}, // expand * hidden_size
    {"state_size", NULL, false},
    {"conv_kernel", NULL, false},
    {"expand", NULL, false},
    {"time_step_rank", NULL, false},
    {"bos_token_id", "0", false},
    {"eos_token_id", "0", false},
    {"pad_token_id", "0", false},
    {"layer_norm_epsilon", NULL, false},
    {"initializer_range", "0.1", false},
    {"time_step_min", "0.001", false},
    {"time_step_max", "0.1", false},
    {"time_step_floor", "0.0001", false},
    {"time_step_scale", "1.0", false},
    {"hidden_act", "\"silu\"", true},
    {"time_step_init_scheme", "\"random\"", false},
    {"use_bias", "false", true},
    {"use_conv_bias", "true", true},
    {"residual_in_fp32", "true", false},
    {"rescale_prenorm_residual", "false", false},
    {"use_cache", "true", false},
    {"tie_word_embeddings", NULL, false},
};
enum { N_MEMBERS = sizeof members / sizeof *members };

struct config_file {
    char path[DT_PATH];
    cJSON *json;
};

// Of a normalized configuration: whether transformers knows such a model.
static bool is_mamba(const struct dt_model_config *config)
{
    char layers[DT_CONFIG_STRING_MAX];
    snprintf(layers, sizeof layers, "mamba*%lld", (long long)config->n_layer);
    return strcmp(config->stem, "tokens") == 0 && strcmp(config->heads, "lm") == 0 &&
           strcmp(config->layers, layers) == 0;
}

static void *field(const struct dt_config_key *key, const struct dt_model_config *config)
{
    return (char *)config + key->offset;
}

static dt_status read_text(const struct config_file *file, const struct dt_config_key *key,
                           struct dt_model_config *config)
{
    const char *text;
    char problem[DT_CONFIG_PROBLEM];
    if (!dt_json_has(file->json, key->json))
        return DT_OK;
    DT_TRY(dt_json_string(file->path, file->json, key->json, &text));
    if (dt_config_convert(key, text, config, problem))
        return DT_OK;
    return DT_FAIL(DT_USER, NULL, "%s: %s: %s", file->path, key->json, problem);
}

// Absent or null: the key's default, where it has one.
static dt_status read_field(const struct config_file *file, const struct dt_config_key *key,
                            struct dt_model_config *config)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, key->json);
    dt_config_set_default(key, config);
    if ((key->fallback[0] || !dt_model_has_field(config, key)) &&
        !dt_json_has(file->json, key->json))
        return DT_OK;
    if (key->auto_word && cJSON_IsString(item) && strcmp(item->valuestring, key->auto_word) == 0)
        return DT_OK;
    if (key->type == DT_CONFIG_STRING)
        return read_text(file, key, config);
    if (key->type == DT_CONFIG_BOOL)
        return dt_json_bool(file->path, file->json, key->json, field(key, config));
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_double(file->path, file->json, key->json, key->min, key->max,
                              field(key, config));
    return dt_json_int(file->path, file->json, key->json, (int64_t)key->min, (int64_t)key->max,
                       field(key, config));
}

// What would be a model other than those built here.
static dt_status check_built(const struct config_file *file, bool *mamba)
{
    const char *type;
    DT_TRY(dt_json_string(file->path, file->json, "model_type", &type));
    *mamba = strcmp(type, "mamba") == 0;
    if (!*mamba && strcmp(type, "dtrain") != 0)
        return dt_json_reject(file->path, file->json, "model_type", "\"mamba\" or \"dtrain\"");
    for (int i = 0; i < N_MEMBERS; i++) {
        const struct member *member = &members[i];
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, member->name);
        cJSON *wanted = member->built ? cJSON_Parse(member->value) : NULL;
        bool swish = cJSON_IsString(item) && strcmp(item->valuestring, "swish") == 0; // also SiLU
        bool other = wanted && dt_json_has(file->json, member->name) && !swish &&
                     !cJSON_Compare(item, wanted, true);
        cJSON_Delete(wanted);
        if (other)
            return dt_json_reject(file->path, file->json, member->name,
                                  "%s (nothing else is supported)", member->value);
    }
    return DT_OK;
}

static dt_status read_fields(const struct config_file *file, struct dt_model_config *config)
{
    bool mamba = false;
    DT_TRY(check_built(file, &mamba));
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++)
        if (key->json)
            DT_TRY(read_field(file, key, config));
    if (mamba) {
        strcpy(config->stem, "tokens");
        strcpy(config->heads, "lm");
        snprintf(config->layers, sizeof config->layers, "mamba*%lld", (long long)config->n_layer);
    }
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    dt_model_config_resolve(config);
    int64_t expected = dt_model_inner(config), inner = expected;
    if (dt_json_has(file->json, "intermediate_size"))
        DT_TRY(
            dt_json_int(file->path, file->json, "intermediate_size", 1, DT_JSON_INT_MAX, &inner));
    if (inner != expected)
        return dt_json_reject(file->path, file->json, "intermediate_size",
                              "expand * hidden_size = %lld", (long long)expected);
    return DT_OK;
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

static bool add_field(cJSON *json, const struct dt_config_key *key,
                      const struct dt_model_config *config)
{
    char text[DT_CONFIG_STRING_MAX];
    const char *value = dt_config_value_text(key, config, text);
    if (key->type == DT_CONFIG_STRING || (key->auto_word && strcmp(value, key->auto_word) == 0))
        return cJSON_AddStringToObject(json, key->json, value);
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_add_double(json, key->json, *(const double *)field(key, config));
    return cJSON_AddRawToObject(json, key->json, value);
}

static bool add_member(cJSON *json, const struct member *member,
                       const struct dt_model_config *config)
{
    if (member->value)
        return cJSON_AddRawToObject(json, member->name, member->value);
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++)
        if (key->json && strcmp(key->json, member->name) == 0)
            return !dt_model_has_field(config, key) || add_field(json, key, config);
    return dt_json_add_int(json, member->name, dt_model_inner(config));
}

static bool add_all(cJSON *json, const struct dt_model_config *config)
{
    bool mamba = is_mamba(config);
    bool fine = cJSON_AddRawToObject(json, "architectures",
                                     mamba ? "[\"MambaForCausalLM\"]" : "[\"DtrainModel\"]") &&
                cJSON_AddStringToObject(json, "model_type", mamba ? "mamba" : "dtrain");
    for (int i = 0; i < N_MEMBERS && fine; i++)
        fine = add_member(json, &members[i], config);
    // A Mamba language model has transformers' members only; the others have every field.
    for (const struct dt_config_key *key = dt_model_keys; key->name && fine && !mamba; key++)
        if (key->json && dt_model_has_field(config, key) && !cJSON_HasObjectItem(json, key->json))
            fine = add_field(json, key, config);
    return fine;
}

dt_status dt_hf_config_text(const struct dt_model_config *config, char **text)
{
    struct dt_model_config full = *config;
    DT_TRY(dt_model_config_normalize(&full));
    dt_model_config_resolve(&full);
    cJSON *json = cJSON_CreateObject();
    char *print = json && add_all(json, &full) ? cJSON_Print(json) : NULL;
    int length = print ? asprintf(text, "%s\n", print) : -1;
    cJSON_free(print);
    cJSON_Delete(json);
    return length >= 0 ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the text of config.json");
}
