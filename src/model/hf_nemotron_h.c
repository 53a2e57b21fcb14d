// Maps models to transformers' NemotronHConfig: layers of mamba2, attention without rotary
// positions and plain mlp in any order. Its step sizes begin at time_step_min, without an upper
// limit. Its attention has no window, so the model is the same up to attn_window positions, written
// as max_position_embeddings. Members that only affect its initialisation or generation are written
// but not read.
#include "model/hf_types.h"
#include "model/mamba.h"

#include <math.h>
#include <string.h>

static const struct dt_hf_layer layers[] = {
    {"mamba2", 'M', {"linear_attention", "mamba"}},
    {"attention", '*', {"full_attention", "attention"}},
    {"mlp", '-', {"mlp", "mlp"}},
    {0},
};

// NemotronHForCausalLM does not tie its weights.
static const struct dt_hf_fixed fixed[] = {
    {"tie_embeddings", "false"}, {"rope_base", "0"}, {"mlp_gated", "false"}, {"dt_max", "0"}, {0}};

static int64_t width(const struct dt_model_config *config)
{
    int64_t n_head = *(int64_t *)dt_model_field(config, "n_head");
    return n_head > 0 ? config->d_model / n_head : 0;
}

static int64_t mamba_heads(const struct dt_model_config *config)
{
    int64_t head_dim = *(int64_t *)dt_model_field(config, "head_dim");
    return head_dim > 0 ? dt_mamba_inner(config) / head_dim : 0;
}

static bool add_pattern(cJSON *json, const char *name, const struct dt_model_config *config)
{
    struct dt_layers pattern;
    char text[4097] = ""; // a letter per layer, at most 4096
    if (dt_layers_parse(config->layers, 0, &pattern) != DT_OK)
        return false;
    for (int64_t i = 0; i < pattern.n_layer; i++) {
        const struct dt_hf_layer *layer = layers;
        while (strcmp(layer->kind, dt_layers_kind(&pattern, i)->name) != 0)
            layer++;
        text[i] = layer->letter;
    }
    return cJSON_AddStringToObject(json, name, text);
}

// Its initialisation takes the logarithm, so "no limit" is a value that no step size reaches.
static const double no_limit = 1e-30;

static bool add_smallest_step(cJSON *json, const char *name, const struct dt_model_config *config)
{
    double least = *(double *)dt_model_field(config, "dt_min");
    return dt_json_add_double(json, name, fmax(no_limit, least));
}

static dt_status read(const struct dt_hf_file *file, struct dt_model_config *config)
{
    double *least = dt_model_field(config, "dt_min");
    *least = 0.001;
    if (dt_json_has(file->json, "time_step_min"))
        DT_TRY(dt_json_double(file->path, file->json, "time_step_min", 0, 1e30, least));
    *least = *least > no_limit ? *least : 0;
    return DT_OK;
}

static const struct dt_hf_member members[] = {
    {.name = "hybrid_override_pattern", .after = "num_hidden_layers", .add = add_pattern},
    {.name = "num_attention_heads", .after = "num_hidden_layers", .absent = "32"},
    {.name = "num_key_value_heads", .after = "num_hidden_layers", .absent = "8"},
    {.name = "head_dim",
     .after = "num_hidden_layers",
     .derived = width,
     .formula = "hidden_size / num_attention_heads"},
    {.name = "max_position_embeddings",
     .of = "sliding_window",
     .after = "num_hidden_layers",
     .absent = "4096"},
    {.name = "intermediate_size", .of = "d_mlp", .after = "num_hidden_layers", .absent = "21504"},
    {.name = "mlp_hidden_act",
     .of = "mlp_activation",
     .after = "num_hidden_layers",
     .absent = "relu2"},
    {.name = "ssm_state_size", .of = "state_size", .absent = "128"},
    {.name = "mamba_num_heads",
     .after = "num_hidden_layers",
     .derived = mamba_heads,
     .formula = "expand * hidden_size / mamba_head_dim"},
    {.name = "mamba_head_dim", .of = "head_dim", .after = "num_hidden_layers", .absent = "64"},
    {.name = "n_groups", .after = "num_hidden_layers", .absent = "8"},
    {.name = "mamba_hidden_act", .of = "hidden_act", .value = "\"silu\"", .built = true},
    {.name = "time_step_min", .add = add_smallest_step},
    {.name = "time_step_limit", .after = "time_step_floor", .add = dt_hf_add_step_limits},
    {.name = "attention_bias", .after = "use_conv_bias", .value = "false", .built = true},
    {.name = "mlp_bias", .after = "use_conv_bias", .value = "false", .built = true},
    {.name = "mamba_proj_bias", .after = "use_conv_bias", .value = "false", .built = true},
    {0},
};

const struct dt_hf_type dt_hf_nemotron_h = {
    .model_type = "nemotron_h",
    .architectures = "[\"NemotronHForCausalLM\"]",
    .stem = "tokens",
    .head = "lm",
    .layers = layers,
    .fixed = fixed,
    .members = members,
    .read = read,
};
