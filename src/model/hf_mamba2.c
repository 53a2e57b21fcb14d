// Maps models to transformers' Mamba2Config. Members that only affect its initialisation or
// generation are written but not read.
#include "model/hf_types.h"
#include "model/mamba.h"

#include <math.h>
#include <string.h>

static int64_t heads(const struct dt_model_config *config)
{
    return dt_mamba_inner(config) / *(int64_t *)dt_model_field(config, "head_dim");
}

bool dt_hf_add_step_limits(cJSON *json, const char *name, const struct dt_model_config *config)
{
    const double *low = dt_model_field(config, "dt_min"), *high = dt_model_field(config, "dt_max");
    if (*low == 0 && *high == 0)
        return true; // no limit is transformers' default
    char text[64];   // # keeps the point, which marks floats
    snprintf(text, sizeof text, "[%#.9g, %#.9g]", *low, *high > 0 ? *high : 1e30);
    return cJSON_AddRawToObject(json, name, text);
}

// Reads a number, or infinity as written by transformers 5; false: neither.
static bool read_limit(const cJSON *item, double *value)
{
    const cJSON *word = cJSON_GetObjectItemCaseSensitive(item, "__float__");
    bool infinite = cJSON_IsString(word) && strcmp(word->valuestring, "Infinity") == 0;
    *value = infinite ? INFINITY : cJSON_IsNumber(item) ? item->valuedouble : NAN;
    return *value >= 0;
}

static dt_status read(const struct dt_hf_file *file, struct dt_model_config *config)
{
    double *low = dt_model_field(config, "dt_min"), *high = dt_model_field(config, "dt_max");
    const cJSON *limits = cJSON_GetObjectItemCaseSensitive(file->json, "time_step_limit");
    if (!dt_json_has(file->json, "time_step_limit"))
        return DT_OK;
    if (cJSON_GetArraySize(limits) != 2 || !read_limit(cJSON_GetArrayItem(limits, 0), low) ||
        !read_limit(cJSON_GetArrayItem(limits, 1), high) ||
        !(*low <= *high && *low < 1e30 && *high > 0))
        return dt_json_reject(file->path, file->json, "time_step_limit",
                              "[smallest, largest] of step sizes");
    *high = *high < 1e30 ? *high : 0;
    return DT_OK;
}

static const struct dt_hf_member members[] = {
    {.name = "intermediate_size", .derived = dt_mamba_inner, .formula = "expand * hidden_size"},
    {.name = "num_heads",
     .after = "num_hidden_layers",
     .derived = heads,
     .formula = "expand * hidden_size / head_dim"},
    {.name = "head_dim", .after = "num_hidden_layers", .absent = "64"},
    {.name = "n_groups", .after = "num_hidden_layers", .absent = "8"},
    {.name = "state_size", .absent = "128"},
    {.name = "time_step_limit", .after = "time_step_floor", .add = dt_hf_add_step_limits},
    {.name = "chunk_size", .after = "use_cache", .value = "256"},
    {.name = "tie_word_embeddings", .absent = "false"},
    {0},
};

const struct dt_hf_type dt_hf_mamba2 = {
    .model_type = "mamba2",
    .architectures = "[\"Mamba2ForCausalLM\"]",
    .stem = "tokens",
    .block = "mamba2",
    .head = "lm",
    .members = members,
    .read = read,
};
