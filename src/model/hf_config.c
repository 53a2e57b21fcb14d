// Reads and writes config.json. Fields are rows of the table of a model's fields, under the names
// of transformers; members of a type are in its row of dt_hf_types.
#include "model/hf.h"

#include "base/file.h"
#include "base/text.h"
#include "model/hf_types.h"
#include "model/kinds.h"
#include "model/mamba.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_LIMIT = 1 << 20 }; // bytes; real ones have about 1 KiB

// The type of models that transformers does not support: it has all fields of their kinds, and no
// own members.
static const struct dt_hf_type other = {.model_type = "dtrain",
                                        .architectures = "[\"DtrainModel\"]"};

// The special token with this name in config.json.
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

// The range in which the step sizes of new Mamba blocks begin.
static bool add_initial_step(cJSON *json, const char *name, const struct dt_model_config *config)
{
    double published = strcmp(name, "time_step_min") == 0   ? 0.001
                       : strcmp(name, "time_step_max") == 0 ? 0.1
                                                            : 0.0001;
    return dt_json_add_double(json, name, published * dt_mamba_dt_scale(config));
}

// The members of all types in order, with constant values, since defaults of transformers have
// changed between versions. Floats keep their point, because transformers 5 checks types.
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
    {.name = "time_step_min", .add = add_initial_step},
    {.name = "time_step_max", .add = add_initial_step},
    {.name = "time_step_floor", .add = add_initial_step},
    {.name = "hidden_act", .value = "\"silu\"", .built = true},
    {.name = "use_bias", .value = "false", .built = true},
    {.name = "use_conv_bias", .value = "true", .built = true},
    {.name = "residual_in_fp32", .value = "true"},
    {.name = "rescale_prenorm_residual", .value = "false"},
    {.name = "use_cache", .value = "true"},
    {.name = "tie_word_embeddings"},
    {0},
};

enum { MEMBERS_MAX = 64 };

// The members of a type; the written ones come first, in order.
struct merged {
    int n, written;
    const struct dt_hf_member *list[MEMBERS_MAX];
};

static const struct dt_hf_member *stand_in(const struct dt_hf_type *type, const char *name)
{
    for (const struct dt_hf_member *own = type->members; own && own->name; own++)
        if (!own->after && strcmp(own->of ? own->of : own->name, name) == 0)
            return own;
    return NULL;
}

static struct merged merge(const struct dt_hf_type *type)
{
    struct merged all = {0};
    for (const struct dt_hf_member *member = members; member->name; member++) {
        const struct dt_hf_member *own = stand_in(type, member->name);
        all.list[all.n++] = own ? own : member;
        for (own = type->members; own && own->name; own++)
            if (own->after && strcmp(own->after, member->name) == 0)
                all.list[all.n++] = own;
    }
    all.written = all.n;
    for (const struct dt_hf_member *own = type->members; own && own->name; own++) {
        bool listed = false;
        for (int i = 0; i < all.written; i++)
            listed |= all.list[i] == own;
        if (!listed)
            all.list[all.n++] = own;
    }
    return all;
}

// The member of the field with this name in config.json; NULL: none.
static const struct dt_hf_member *member_of(const struct merged *all, const char *json)
{
    for (int i = 0; i < all->n; i++) {
        const struct dt_hf_member *member = all->list[i];
        if (strcmp(member->of ? member->of : member->name, json) == 0 && !member->value &&
            !member->derived && !member->add)
            return member;
    }
    return NULL;
}

static const char *fixed_value(const struct dt_hf_type *type, const char *key)
{
    for (const struct dt_hf_fixed *fixed = type->fixed; fixed && fixed->key; fixed++)
        if (strcmp(fixed->key, key) == 0)
            return fixed->value;
    return NULL;
}

static void *field(const struct dt_config_key *key, const struct dt_model_config *config)
{
    return (char *)config + key->offset;
}

// If absent or null, the default of the type or of the key, if any, applies.
static dt_status read_field(const struct dt_hf_file *file, const struct dt_config_key *key,
                            const struct dt_hf_type *type, const struct merged *all,
                            struct dt_model_config *config)
{
    const struct dt_hf_member *member = member_of(all, key->json);
    const char *name = member ? member->name : key->json, *fixed = fixed_value(type, key->name);
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, name);
    char problem[DT_CONFIG_PROBLEM];
    dt_config_set_default(key, config);
    if (fixed || (member && member->absent))
        dt_config_convert(key, fixed ? fixed : member->absent, config, problem);
    bool is_text = key->type == DT_CONFIG_STRING || key->type == DT_CONFIG_ENUM;
    if (fixed || (!dt_json_has(file->json, name) &&
                  (is_text || key->fallback[0] || !dt_model_has_field(config, key))))
        return DT_OK;
    if (key->auto_word && cJSON_IsString(item) && strcmp(item->valuestring, key->auto_word) == 0)
        return DT_OK;
    if (is_text) {
        const char *text;
        DT_TRY(dt_json_string(file->path, file->json, name, &text));
        return dt_config_convert(key, text, config, problem)
                   ? DT_OK
                   : DT_FAIL(DT_USER, NULL, "%s: %s: %s", file->path, name, problem);
    }
    if (key->type == DT_CONFIG_BOOL)
        return dt_json_bool(file->path, file->json, name, field(key, config));
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_double(file->path, file->json, name, key->min, key->max, field(key, config));
    return dt_json_int(file->path, file->json, name, (int64_t)key->min, (int64_t)key->max,
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

// Reads the fields of every model, or those of some kinds.
static dt_status read_keys(const struct dt_hf_file *file, const struct dt_hf_type *type,
                           const struct merged *all, bool of_kinds, struct dt_model_config *config)
{
    char kinds[DT_CONFIG_ALLOWED];
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        bool of_layers = type->layers && (void *)&config->n_layer == field(key, config);
        if (key->json && !of_layers && of_kinds == (dt_model_field_kinds(key, kinds)[0] != 0))
            DT_TRY(read_field(file, key, type, all, config));
    }
    return DT_OK;
}

// Checks members with a fixed value.
static dt_status check_built(const struct dt_hf_file *file, const struct dt_hf_member *member)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(file->json, member->name);
    cJSON *wanted = member->built ? cJSON_Parse(member->value) : NULL; // the only supported value
    bool swish = cJSON_IsString(item) && strcmp(item->valuestring, "swish") == 0; // also SiLU
    bool differs = wanted && dt_json_has(file->json, member->name) && !swish &&
                   !cJSON_Compare(item, wanted, true);
    cJSON_Delete(wanted);
    return differs ? dt_json_reject(file->path, file->json, member->name,
                                    "%s (nothing else is supported)", member->value)
                   : DT_OK;
}

// Checks members that are computed from fields.
static dt_status check_derived(const struct dt_hf_file *file, const struct dt_hf_member *member,
                               const struct dt_model_config *config)
{
    int64_t expected = member->derived ? member->derived(config) : 0, value = expected;
    if (expected == 0 || !dt_json_has(file->json, member->name))
        return DT_OK;
    DT_TRY(dt_json_int(file->path, file->json, member->name, 1, DT_JSON_INT_MAX, &value));
    return value == expected ? DT_OK
                             : dt_json_reject(file->path, file->json, member->name, "%s = %lld",
                                              member->formula, (long long)expected);
}

// The kind of a layer called `text` in layers_block_type, or by its first letter in
// hybrid_override_pattern; NULL: unknown.
static const char *layer_kind(const struct dt_hf_type *type, const char *text, bool is_letter)
{
    for (const struct dt_hf_layer *layer = type->layers; layer->kind; layer++)
        if (is_letter ? *text == layer->letter
                      : strcmp(text, layer->words[0]) == 0 || strcmp(text, layer->words[1]) == 0)
            return layer->kind;
    return NULL;
}

static dt_status append_layer(const struct dt_hf_file *file, const struct dt_hf_type *type,
                              const char *member, const char *text, bool is_letter,
                              struct dt_layers *layers)
{
    const char *name = layer_kind(type, text, is_letter);
    const struct dt_kind *kind;
    if (!name)
        return dt_json_reject(file->path, file->json, member,
                              "made of %s (nothing else is supported)",
                              is_letter ? "the letters M, * and -"
                                        : "\"linear_attention\", \"full_attention\" and \"mlp\"");
    DT_TRY(dt_kind_find(dt_block_kinds, member, name, &kind));
    bool same = layers->n > 0 && layers->runs[layers->n - 1].kind == kind;
    if (!same && layers->n == DT_LAYER_RUNS)
        return DT_FAIL(DT_USER, NULL, "%s: %s has more than %d changes of kind", file->path, member,
                       DT_LAYER_RUNS);
    layers->n += !same;
    layers->runs[layers->n - 1].kind = kind;
    layers->runs[layers->n - 1].times += 1;
    layers->n_layer++;
    return DT_OK;
}

// Reads the layers of a model type with different layers: a list of words, or a text with one
// letter per layer.
static dt_status read_layers(const struct dt_hf_file *file, const struct dt_hf_type *type,
                             struct dt_model_config *config)
{
    static const char list_name[] = "layers_block_type", text_name[] = "hybrid_override_pattern";
    struct dt_layers layers = {0};
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(file->json, list_name), *item;
    const char *text = "";
    if (dt_json_has(file->json, list_name)) {
        if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) == 0)
            return dt_json_reject(file->path, file->json, list_name, "a list of layers");
        cJSON_ArrayForEach(item, list) DT_TRY(append_layer(
            file, type, list_name, cJSON_IsString(item) ? item->valuestring : "", false, &layers));
    } else {
        DT_TRY(dt_json_string(file->path, file->json, text_name, &text));
        for (const char *at = text; *at || !text[0]; at++)
            DT_TRY(append_layer(file, type, text_name, at, true, &layers));
    }
    config->n_layer = layers.n_layer;
    return dt_layers_text(&layers, config->layers, sizeof config->layers);
}

static dt_status read_fields(const struct dt_hf_file *file, struct dt_model_config *config)
{
    const struct dt_hf_type *type;
    DT_TRY(find_type(file, &type));
    const struct merged all = merge(type);
    for (int i = 0; i < all.n; i++)
        DT_TRY(check_built(file, all.list[i]));
    // First read the fields of every model, which name the kinds, then those of the kinds.
    DT_TRY(read_keys(file, type, &all, false, config));
    if (type != &other) {
        snprintf(config->stem, sizeof config->stem, "%s", type->stem);
        snprintf(config->heads, sizeof config->heads, "%s", type->head);
        if (type->block)
            snprintf(config->layers, sizeof config->layers, "%s*%lld", type->block,
                     (long long)config->n_layer);
        else
            DT_TRY(read_layers(file, type, config));
    }
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    DT_TRY(read_keys(file, type, &all, true, config));
    DT_TRY_NOTE(dt_model_config_normalize(config), "reading %s", file->path);
    DT_TRY(dt_model_config_resolve(config, 0));
    for (int i = 0; i < all.n; i++)
        DT_TRY(check_derived(file, all.list[i], config));
    return type->read ? type->read(file, config) : DT_OK;
}

// Reads special tokens; missing ones are unchanged. A list (tokens at which generation stops) gives
// its first.
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

// Older transformers write infinity as in Python, which is not JSON: replaced by a number that
// overflows.
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
    if (status == DT_OK && dt_hf_is_official(file.json))
        status = dt_hf_read_official(&file);
    if (status == DT_OK)
        status = read_fields(&file, &read);
    if (status == DT_OK)
        read_special(&file, &read);
    cJSON_Delete(file.json);
    if (status == DT_OK)
        *config = read; // an invalid file changes nothing
    return status;
}

static bool add_field(cJSON *json, const char *name, const struct dt_config_key *key,
                      const struct dt_model_config *config)
{
    char text[DT_CONFIG_STRING_MAX];
    const char *value = dt_config_value_text(key, config, text);
    if (key->type == DT_CONFIG_STRING || key->type == DT_CONFIG_ENUM ||
        (key->auto_word && strcmp(value, key->auto_word) == 0))
        return cJSON_AddStringToObject(json, name, value);
    if (key->type == DT_CONFIG_FLOAT)
        return dt_json_add_double(json, name, *(const double *)field(key, config));
    return cJSON_AddRawToObject(json, name, value);
}

static bool add_member(cJSON *json, const struct dt_hf_member *member,
                       const struct dt_model_config *config)
{
    if (member->value)
        return cJSON_AddRawToObject(json, member->name, member->value);
    if (member->derived)
        return member->derived(config) == 0 ||
               dt_json_add_int(json, member->name, member->derived(config));
    if (member->add)
        return member->add(json, member->name, config);
    const char *of = member->of ? member->of : member->name;
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (key->json && strcmp(key->json, of) == 0)
            return !dt_model_has_field(config, key) || add_field(json, member->name, key, config);
    return true;
}

static bool has_layers(const struct dt_hf_type *type, const struct dt_model_config *config)
{
    struct dt_layers layers;
    bool fine = dt_layers_parse(config->layers, 0, &layers) == DT_OK;
    for (int i = 0; i < layers.n && fine; i++) {
        const char *kind = layers.runs[i].kind->name;
        const struct dt_hf_layer *known = type->layers;
        while (known && known->kind && strcmp(known->kind, kind) != 0)
            known++;
        fine = type->block ? strcmp(type->block, kind) == 0 : known && known->kind;
    }
    return fine;
}

// Lists the fixed fields of the type in which the model differs, as "model.KEY = VALUE, …" with the
// required values.
static const char *misfits(const struct dt_hf_type *type, const struct dt_model_config *config,
                           char text[DT_CONFIG_ALLOWED])
{
    struct dt_model_config wanted = *config;
    char problem[DT_CONFIG_PROBLEM];
    text[0] = 0;
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        const char *value = fixed_value(type, key->name);
        if (!value || !dt_model_has_field(config, key))
            continue;
        dt_config_convert(key, value, &wanted, problem);
        if (!dt_config_equal(key, &wanted, config))
            dt_append(text, DT_CONFIG_ALLOWED, "%smodel.%s = %s", text[0] ? ", " : "", key->name,
                      value);
    }
    return text;
}

// The type as which a normalized model is written. If no type of transformers fits, *almost is the
// first that would fit with the key values in `misfit`, or NULL.
static const struct dt_hf_type *type_of(const struct dt_model_config *config, const char **almost,
                                        char misfit[DT_CONFIG_ALLOWED])
{
    char text[DT_CONFIG_ALLOWED];
    *almost = NULL;
    misfit[0] = 0;
    for (const struct dt_hf_type *const *known = dt_hf_types; *known; known++) {
        if (strcmp(config->stem, (*known)->stem) != 0 ||
            strcmp(config->heads, (*known)->head) != 0 || !has_layers(*known, config))
            continue;
        if (!misfits(*known, config, text)[0])
            return *known;
        if (!*almost) {
            *almost = (*known)->model_type;
            memcpy(misfit, text, sizeof text);
        }
    }
    return &other;
}

dt_status dt_hf_type_text(const struct dt_model_config *config, char *text, size_t size)
{
    struct dt_model_config full = *config;
    const char *almost;
    char misfit[DT_CONFIG_ALLOWED];
    DT_TRY(dt_model_config_normalize(&full));
    DT_TRY(dt_model_config_resolve(&full, 0));
    const struct dt_hf_type *type = type_of(&full, &almost, misfit);
    if (type != &other)
        snprintf(text, size, "%s, which transformers loads", type->model_type);
    else if (almost)
        snprintf(text, size, "%s; it would be %s, which transformers loads, with %s",
                 type->model_type, almost, misfit);
    else
        snprintf(text, size, "%s; transformers has no model with these layers, stem and heads",
                 type->model_type);
    return DT_OK;
}

// Expects a normalized configuration.
static bool add_all(cJSON *json, const struct dt_model_config *config)
{
    const char *almost;
    char misfit[DT_CONFIG_ALLOWED];
    const struct dt_hf_type *type = type_of(config, &almost, misfit);
    const struct merged all = merge(type);
    bool fine = cJSON_AddRawToObject(json, "architectures", type->architectures) &&
                cJSON_AddStringToObject(json, "model_type", type->model_type);
    for (int i = 0; i < all.written && fine; i++)
        fine = add_member(json, all.list[i], config);
    // A transformers type has only its own members; other models have the fields of their kinds.
    // Choices unknown to transformers are written if they are not the default.
    for (const struct dt_config_key *key = dt_model_keys(); key->name && fine; key++)
        if (key->json && dt_model_has_field(config, key) && !member_of(&all, key->json) &&
            (type == &other ||
             (key->type == DT_CONFIG_ENUM && *(const int *)field(key, config) != 0)))
            fine = add_field(json, key->json, key, config);
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
