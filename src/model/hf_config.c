// config.json. Its names and defaults are those of transformers' MambaConfig or Mamba2Config, and
// the fields are rows of the table of a model's fields; what only steers transformers' own
// initialisation or generation is written but not read. A model that transformers does not have has
// the model_type "dtrain" and names its kinds.
#include "model/hf.h"

#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20 }; // bytes; real ones have about 1 KiB

// What transformers calls a model: a Mamba or Mamba-2 language model, or none of its own.
enum hf_type { HF_DTRAIN, HF_MAMBA, HF_MAMBA2, HF_TYPES };
static const struct {
    const char *model_type, *architectures, *block; // of all layers
} types[HF_TYPES] = {{"dtrain", "[\"DtrainModel\"]", NULL},
                     {"mamba", "[\"MambaForCausalLM\"]", "mamba"},
                     {"mamba2", "[\"Mamba2ForCausalLM\"]", "mamba2"}};

// The file's members in order, with the values of those that are always the same; transformers
// would otherwise fill in defaults, some of which have changed between its versions. Floats are
// written as such: transformers 5 checks types. `built`: the only value that this program can
// train.
static const struct member {
    const char *name, *value; // value NULL: a field of dt_model_keys, or derived from some
    bool built;
    enum hf_type of;    // HF_DTRAIN: of all
    const char *mamba2; // what Mamba2Config has where a file lacks it; NULL: the field's default
} members[] = {
    {"torch_dtype", "\"float32\"", false, HF_DTRAIN, NULL},
    {"vocab_size", NULL, false, HF_DTRAIN, NULL},
    {"hidden_size", NULL, false, HF_DTRAIN, NULL},
    {"num_hidden_layers", NULL, false, HF_DTRAIN, NULL},
    {"intermediate_size", NULL, false, HF_MAMBA, NULL}, // expand * hidden_size
    {"num_heads", NULL, false, HF_MAMBA2, NULL},        // of that, of head_dim each
    {"head_dim", NULL, false, HF_MAMBA2, "64"},
    {"n_groups", NULL, false, HF_MAMBA2, "8"},
    {"state_size", NULL, false, HF_DTRAIN, "128"},
    {"conv_kernel", NULL, false, HF_DTRAIN, NULL},
    {"expand", NULL, false, HF_DTRAIN, NULL},
    {"time_step_rank", NULL, false, HF_MAMBA, NULL},
    {"bos_token_id", "0", false, HF_DTRAIN, NULL},
    {"eos_token_id", "0", false, HF_DTRAIN, NULL},
    {"pad_token_id", "0", false, HF_DTRAIN, NULL},
    {"layer_norm_epsilon", NULL, false, HF_DTRAIN, NULL},
    {"initializer_range", "0.1", false, HF_DTRAIN, NULL},
    {"time_step_min", "0.001", false, HF_DTRAIN, NULL},
    {"time_step_max", "0.1", false, HF_DTRAIN, NULL},
    {"time_step_floor", "0.0001", false, HF_DTRAIN, NULL},
    {"time_step_limit", NULL, false, HF_MAMBA2, NULL}, // dt_min, dt_max
    {"time_step_scale", "1.0", false, HF_MAMBA, NULL},
    {"hidden_act", "\"silu\"", true, HF_DTRAIN, NULL},
    {"time_step_init_scheme", "\"random\"", false, HF_MAMBA, NULL},
    {"use_bias", "false", true, HF_DTRAIN, NULL},
    {"use_conv_bias", "true", true, HF_DTRAIN, NULL},
    {"residual_in_fp32", "true", false, HF_DTRAIN, NULL},
    {"rescale_prenorm_residual", "false", false, HF_DTRAIN, NULL},
    {"use_cache", "true", false, HF_DTRAIN, NULL},
    {"chunk_size", "256", false, HF_MAMBA2, NULL},
    {"tie_word_embeddings", NULL, false, HF_DTRAIN, "false"},
};
enum { N_MEMBERS = sizeof members / sizeof *members };

struct config_file {
    char path[DT_PATH];
    cJSON *json;
};

// Of a normalized configuration.
static enum hf_type type_of(const struct dt_model_config *config)
{
    char layers[DT_CONFIG_STRING_MAX];
    enum hf_type type = HF_TYPES - 1;
    if (strcmp(config->stem, "tokens") != 0 || strcmp(config->heads, "lm") != 0)
        return HF_DTRAIN;
    for (; type > HF_DTRAIN; type--) {
        snprintf(layers, sizeof layers, "%s*%lld", types[type].block, (long long)config->n_layer);
        if (strcmp(config->layers, layers) == 0)
            break;
    }
    return type;
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

// Absent or null: Mamba2Config's default, or the key's, where it has one.
static dt_status read_field(const struct config_file *file, const struct dt_config_key *key,
                            enum hf_type type, struct dt_model_config *config)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, key->json);
    char problem[DT_CONFIG_PROBLEM];
    dt_config_set_default(key, config);
    for (int i = 0; i < N_MEMBERS && type == HF_MAMBA2; i++)
        if (members[i].mamba2 && strcmp(members[i].name, key->json) == 0)
            dt_config_convert(key, members[i].mamba2, config, problem);
    if ((key->fallback[0] || !dt_model_has_field(config, key)) &&
        !dt_json_has(file->json, key->json))
        return DT_OK;
    if (key->auto_word && cJSON_IsString(item) && strcmp(item->valuestring, key->auto_word) == 0)
        return DT_OK;
    if (key->type == DT_CONFIG_STRING || key->type == DT_CONFIG_ENUM)
        return read_text(file, key, config);
    if (key->type == DT_CONFIG_BOOL)
        return dt_json_bool(file->path, file->json, key->json, field(key, config));
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_double(file->path, file->json, key->json, key->min, key->max,
                              field(key, config));
    return dt_json_int(file->path, file->json, key->json, (int64_t)key->min, (int64_t)key->max,
                       field(key, config));
}

// Rejects what this program cannot build. *type: the model_type.
static dt_status check_built(const struct config_file *file, enum hf_type *type)
{
    const char *name;
    DT_TRY(dt_json_string(file->path, file->json, "model_type", &name));
    for (*type = HF_DTRAIN; *type < HF_TYPES && strcmp(types[*type].model_type, name) != 0;)
        ++*type;
    if (*type == HF_TYPES)
        return dt_json_reject(file->path, file->json, "model_type",
                              "\"mamba\", \"mamba2\" or \"dtrain\"");
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

// A member that follows from the fields, where the file has it.
static dt_status check_derived(const struct config_file *file, const char *name, int64_t expected,
                               const char *formula)
{
    int64_t value = expected;
    if (dt_json_has(file->json, name))
        DT_TRY(dt_json_int(file->path, file->json, name, 1, DT_JSON_INT_MAX, &value));
    return value == expected ? DT_OK
                             : dt_json_reject(file->path, file->json, name, "%s = %lld", formula,
                                              (long long)expected);
}

// A number, or infinity as transformers 5 writes it. false: neither.
static bool read_limit(const cJSON *item, double *value)
{
    const cJSON *word = cJSON_GetObjectItemCaseSensitive(item, "__float__");
    bool infinite = cJSON_IsString(word) && strcmp(word->valuestring, "Infinity") == 0;
    *value = infinite ? INFINITY : cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return *value >= 0;
}

static dt_status read_limits(const struct config_file *file, struct dt_model_config *config)
{
    const cJSON *limits = cJSON_GetObjectItemCaseSensitive(file->json, "time_step_limit");
    if (!dt_json_has(file->json, "time_step_limit"))
        return DT_OK;
    if (cJSON_GetArraySize(limits) != 2 ||
        !read_limit(cJSON_GetArrayItem(limits, 0), &config->dt_min) ||
        !read_limit(cJSON_GetArrayItem(limits, 1), &config->dt_max) ||
        !(config->dt_min <= config->dt_max && config->dt_min < 1e30 && config->dt_max > 0))
        return dt_json_reject(file->path, file->json, "time_step_limit",
                              "[smallest, largest] of step sizes");
    config->dt_max = config->dt_max < 1e30 ? config->dt_max : 0;
    return DT_OK;
}

// The fields that every model has, or those of some kinds.
static dt_status read_keys(const struct config_file *file, enum hf_type type, bool of_kinds,
                           struct dt_model_config *config)
{
    char kinds[DT_CONFIG_ALLOWED];
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++)
        if (key->json && of_kinds == (dt_model_field_kinds(key, kinds)[0] != 0))
            DT_TRY(read_field(file, key, type, config));
    return DT_OK;
}

static dt_status read_fields(const struct config_file *file, struct dt_model_config *config)
{
    enum hf_type type = HF_DTRAIN;
    DT_TRY(check_built(file, &type));
    // Every model has those that name its kinds, which say what else it has.
    DT_TRY(read_keys(file, type, false, config));
    if (type != HF_DTRAIN) {
        strcpy(config->stem, "tokens");
        strcpy(config->heads, "lm");
        snprintf(config->layers, sizeof config->layers, "%s*%lld", types[type].block,
                 (long long)config->n_layer);
    }
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    DT_TRY(read_keys(file, type, true, config));
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    DT_TRY(dt_model_config_resolve(config, 0));
    DT_TRY(
        check_derived(file, "intermediate_size", dt_model_inner(config), "expand * hidden_size"));
    if (type != HF_MAMBA2)
        return DT_OK;
    DT_TRY(check_derived(file, "num_heads", dt_model_inner(config) / config->head_dim,
                         "expand * hidden_size / head_dim"));
    return read_limits(file, config);
}

// Older transformers write infinity as Python does, which is no JSON: a number that overflows takes
// its place.
static void replace_infinity(char *text)
{
    static const char word[] = "Infinity", number[] = "1e999999";
    bool quoted = false;
    for (char *c = text; *c; c++) {
        quoted = quoted != (*c == '"');
        if (*c == '\\' && c[1])
            c++;
        else if (!quoted && strncmp(c, word, sizeof word - 1) == 0)
            memcpy(c, number, sizeof number - 1);
    }
}

dt_status dt_hf_read_config(const char *dir, struct dt_model_config *config)
{
    struct config_file file = {0};
    struct dt_model_config read = *config;
    char *text;
    int64_t size;
    DT_TRY(dt_path(file.path, "%s/config.json", dir));
    if (!dt_file_exists(file.path))
        return DT_FAIL(DT_USER,
                       "give a checkpoint, such as runs/NAME/checkpoints/step-00001000, or the "
                       "directory of a downloaded Hugging Face model",
                       "cannot open %s: %s", file.path, strerror(errno));
    DT_TRY_NOTE(dt_read_file(file.path, CONFIG_LIMIT, &text, &size), "reading the model %s", dir);
    replace_infinity(text);
    dt_status status = dt_json_parse(file.path, text, size, &file.json);
    free(text);
    if (status == DT_OK)
        status = read_fields(&file, &read);
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
    if (key->type == DT_CONFIG_STRING || key->type == DT_CONFIG_ENUM ||
        (key->auto_word && strcmp(value, key->auto_word) == 0))
        return cJSON_AddStringToObject(json, key->json, value);
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_add_double(json, key->json, *(const double *)field(key, config));
    return cJSON_AddRawToObject(json, key->json, value);
}

static bool add_limits(cJSON *json, const struct dt_model_config *config)
{
    char text[64]; // # keeps the point: floats are checked to be such
    snprintf(text, sizeof text, "[%#.9g, %#.9g]", config->dt_min,
             config->dt_max > 0 ? config->dt_max : 1e30);
    return cJSON_AddRawToObject(json, "time_step_limit", text);
}

static bool add_member(cJSON *json, const struct member *member,
                       const struct dt_model_config *config)
{
    if (member->value)
        return cJSON_AddRawToObject(json, member->name, member->value);
    if (strcmp(member->name, "num_heads") == 0)
        return dt_json_add_int(json, member->name, dt_model_inner(config) / config->head_dim);
    if (strcmp(member->name, "time_step_limit") == 0) // none is transformers' default
        return (config->dt_min == 0 && config->dt_max == 0) || add_limits(json, config);
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++)
        if (key->json && strcmp(key->json, member->name) == 0)
            return !dt_model_has_field(config, key) || add_field(json, key, config);
    return dt_json_add_int(json, member->name, dt_model_inner(config));
}

static bool add_all(cJSON *json, const struct dt_model_config *config)
{
    enum hf_type type = type_of(config);
    bool fine = cJSON_AddRawToObject(json, "architectures", types[type].architectures) &&
                cJSON_AddStringToObject(json, "model_type", types[type].model_type);
    for (int i = 0; i < N_MEMBERS && fine; i++)
        if (members[i].of == HF_DTRAIN || members[i].of == type)
            fine = add_member(json, &members[i], config);
    // A model of transformers has its members only; the others have the fields of their kinds.
    // Choices that it does not know are there where they are not the default.
    for (const struct dt_config_key *key = dt_model_keys; key->name && fine; key++)
        if (key->json && dt_model_has_field(config, key) && !cJSON_HasObjectItem(json, key->json) &&
            (type == HF_DTRAIN ||
             (key->type == DT_CONFIG_ENUM && *(const int *)field(key, config) != 0)))
            fine = add_field(json, key, config);
    return fine;
}

dt_status dt_hf_config_text(const struct dt_model_config *config, char **text)
{
    struct dt_model_config full = *config;
    DT_TRY(dt_model_config_normalize(&full));
    DT_TRY(dt_model_config_resolve(&full, 0));
    cJSON *json = cJSON_CreateObject();
    *text = json && add_all(json, &full) ? dt_json_text(json) : NULL;
    cJSON_Delete(json);
    return *text ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the text of config.json");
}
