// Reads and writes config.json. The fields are rows of the table of a model's fields, under the
// names of transformers; what else a type has is in its row of dt_hf_types.
#include "model/hf.h"

#include "base/file.h"
#include "base/text.h"
#include "model/hf_types.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20 }; // bytes; real ones have about 1 KiB

// The type of models that transformers does not have: it has all fields of their kinds, and no
// members of its own.
static const struct dt_hf_type other = {.model_type = "dtrain",
                                        .architectures = "[\"DtrainModel\"]"};

// The special token of this name in config.json.
static int64_t *special_token(const char *name, struct dt_model_config *config)
{
    return strcmp(name, "bos_token_id") == 0   ? &config->bos_token
           : strcmp(name, "eos_token_id") == 0 ? &config->eos_token
                                               : &config->pad_token;
}

static bool add_special(cJSON *json, const char *name, const struct dt_model_config *config)
{
    struct dt_model_config copy = *config;
    int64_t token = *special_token(name, &copy);
    return token < 0 ? cJSON_AddNullToObject(json, name) != NULL
                     : dt_json_add_int(json, name, token);
}

// What each type has, in order, with the values of those that are always the same; transformers
// would otherwise fill in defaults, some of which have changed between its versions. Floats are
// written as such: transformers 5 checks types.
static const struct dt_hf_member members[] = {
    {.name = "torch_dtype", .value = "\"float32\""},
    {.name = "vocab_size"},
    {.name = "hidden_size"},
    {.name = "num_hidden_layers"},
    {.name = "state_size"},
    {.name = "conv_kernel"},
    {.name = "expand"},
    {.name = "bos_token_id", .add = add_special},
    {.name = "eos_token_id", .add = add_special},
    {.name = "pad_token_id", .add = add_special},
    {.name = "layer_norm_epsilon"},
    {.name = "initializer_range", .value = "0.1"},
    {.name = "time_step_min", .value = "0.001"},
    {.name = "time_step_max", .value = "0.1"},
    {.name = "time_step_floor", .value = "0.0001"},
    {.name = "hidden_act", .value = "\"silu\"", .built = true},
    {.name = "use_bias", .value = "false", .built = true},
    {.name = "use_conv_bias", .value = "true", .built = true},
    {.name = "residual_in_fp32", .value = "true"},
    {.name = "rescale_prenorm_residual", .value = "false"},
    {.name = "use_cache", .value = "true"},
    {.name = "tie_word_embeddings"},
    {0},
};

static void type_layers(const struct dt_hf_type *type, int64_t n, char text[DT_CONFIG_STRING_MAX])
{
    snprintf(text, DT_CONFIG_STRING_MAX, "%s*%lld", type->block, (long long)n);
}

static void *field(const struct dt_config_key *key, const struct dt_model_config *config)
{
    return (char *)config + key->offset;
}

// Absent or null: the type's default, or the key's, where it has one.
static dt_status read_field(const struct dt_hf_file *file, const struct dt_config_key *key,
                            const struct dt_hf_type *type, struct dt_model_config *config)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, key->json);
    char problem[DT_CONFIG_PROBLEM];
    dt_config_set_default(key, config);
    for (const struct dt_hf_member *member = type->members; member && member->name; member++)
        if (member->absent && strcmp(member->name, key->json) == 0)
            dt_config_convert(key, member->absent, config, problem);
    bool is_text = key->type == DT_CONFIG_STRING || key->type == DT_CONFIG_ENUM;
    if (!dt_json_has(file->json, key->json) &&
        (is_text || key->fallback[0] || !dt_model_has_field(config, key)))
        return DT_OK;
    if (key->auto_word && cJSON_IsString(item) && strcmp(item->valuestring, key->auto_word) == 0)
        return DT_OK;
    if (is_text) {
        const char *text;
        DT_TRY(dt_json_string(file->path, file->json, key->json, &text));
        return dt_config_convert(key, text, config, problem)
                   ? DT_OK
                   : DT_FAIL(DT_USER, NULL, "%s: %s: %s", file->path, key->json, problem);
    }
    if (key->type == DT_CONFIG_BOOL)
        return dt_json_bool(file->path, file->json, key->json, field(key, config));
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_double(file->path, file->json, key->json, key->min, key->max,
                              field(key, config));
    return dt_json_int(file->path, file->json, key->json, (int64_t)key->min, (int64_t)key->max,
                       field(key, config));
}

static dt_status find_type(const struct dt_hf_file *file, const struct dt_hf_type **type)
{
    const char *name;
    char known[DT_CONFIG_ALLOWED] = "";
    *type = &other;
    DT_TRY(dt_json_string(file->path, file->json, "model_type", &name));
    if (strcmp(name, other.model_type) == 0)
        return DT_OK;
    for (int i = 0; dt_hf_types[i]; i++) {
        *type = dt_hf_types[i];
        if (strcmp((*type)->model_type, name) == 0)
            return DT_OK;
        dt_append(known, sizeof known, "%s\"%s\"", i > 0 ? ", " : "", (*type)->model_type);
    }
    return dt_json_reject(file->path, file->json, "model_type", "%s or \"%s\"", known,
                          other.model_type);
}

// The fields that every model has, or those of some kinds.
static dt_status read_keys(const struct dt_hf_file *file, const struct dt_hf_type *type,
                           bool of_kinds, struct dt_model_config *config)
{
    char kinds[DT_CONFIG_ALLOWED];
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (key->json && of_kinds == (dt_model_field_kinds(key, kinds)[0] != 0))
            DT_TRY(read_field(file, key, type, config));
    return DT_OK;
}

static dt_status read_fields(const struct dt_hf_file *file, struct dt_model_config *config)
{
    const struct dt_hf_type *type;
    DT_TRY(find_type(file, &type));
    for (const struct dt_hf_member *member = members; member->name; member++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, member->name);
        cJSON *wanted = member->built ? cJSON_Parse(member->value) : NULL; // all that can be built
        bool swish = cJSON_IsString(item) && strcmp(item->valuestring, "swish") == 0; // also SiLU
        bool differs = wanted && dt_json_has(file->json, member->name) && !swish &&
                       !cJSON_Compare(item, wanted, true);
        cJSON_Delete(wanted);
        if (differs)
            return dt_json_reject(file->path, file->json, member->name,
                                  "%s (nothing else is supported)", member->value);
    }
    // Every model has those that name its kinds, which say what else it has.
    DT_TRY(read_keys(file, type, false, config));
    if (type != &other) {
        snprintf(config->stem, sizeof config->stem, "%s", type->stem);
        snprintf(config->heads, sizeof config->heads, "%s", type->head);
        type_layers(type, config->n_layer, config->layers);
    }
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    DT_TRY(read_keys(file, type, true, config));
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    DT_TRY(dt_model_config_resolve(config, 0));
    for (const struct dt_hf_member *own = type->members; own && own->name; own++) {
        int64_t expected = own->derived ? own->derived(config) : 0, value = expected;
        if (!own->derived || !dt_json_has(file->json, own->name))
            continue;
        DT_TRY(dt_json_int(file->path, file->json, own->name, 1, DT_JSON_INT_MAX, &value));
        if (value != expected)
            return dt_json_reject(file->path, file->json, own->name, "%s = %lld", own->formula,
                                  (long long)expected);
    }
    return type->read ? type->read(file, config) : DT_OK;
}

// Where a file lacks them they stay as they are. Of a list, which generation stops at, the first.
static void read_special(const struct dt_hf_file *file, struct dt_model_config *config)
{
    for (const struct dt_hf_member *member = members; member->name; member++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, member->name);
        if (member->add != add_special || !item)
            continue;
        const cJSON *first = cJSON_IsArray(item) ? cJSON_GetArrayItem(item, 0) : item;
        bool is_token = cJSON_IsNumber(first) && first->valuedouble >= 0 &&
                        first->valuedouble < (double)config->vocab_size;
        *special_token(member->name, config) = is_token ? (int64_t)first->valuedouble : -1;
    }
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
    struct dt_hf_file file = {0};
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
    if (status == DT_OK)
        read_special(&file, &read);
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

static bool add_member(cJSON *json, const struct dt_hf_member *member,
                       const struct dt_model_config *config)
{
    if (member->value)
        return cJSON_AddRawToObject(json, member->name, member->value);
    if (member->derived)
        return dt_json_add_int(json, member->name, member->derived(config));
    if (member->add)
        return member->add(json, member->name, config);
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (key->json && strcmp(key->json, member->name) == 0)
            return !dt_model_has_field(config, key) || add_field(json, key, config);
    return true;
}

// Expects a normalized configuration.
static bool add_all(cJSON *json, const struct dt_model_config *config)
{
    const struct dt_hf_type *type = &other;
    char layers[DT_CONFIG_STRING_MAX];
    for (const struct dt_hf_type *const *known = dt_hf_types; *known; known++) {
        type_layers(*known, config->n_layer, layers);
        if (strcmp(config->stem, (*known)->stem) == 0 &&
            strcmp(config->heads, (*known)->head) == 0 && strcmp(config->layers, layers) == 0)
            type = *known;
    }
    bool fine = cJSON_AddRawToObject(json, "architectures", type->architectures) &&
                cJSON_AddStringToObject(json, "model_type", type->model_type);
    for (const struct dt_hf_member *member = members; member->name && fine; member++) {
        const struct dt_hf_member *own = type->members;
        fine = add_member(json, member, config);
        for (; own && own->name && fine; own++)
            if (own->after && strcmp(own->after, member->name) == 0)
                fine = add_member(json, own, config);
    }
    // A model of transformers has its members only; the others have the fields of their kinds.
    // Choices that it does not know are there where they are not the default.
    for (const struct dt_config_key *key = dt_model_keys(); key->name && fine; key++)
        if (key->json && dt_model_has_field(config, key) && !cJSON_HasObjectItem(json, key->json) &&
            (type == &other ||
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
