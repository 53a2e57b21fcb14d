// Maps models to transformers' MambaConfig. What only steers its own initialisation or generation
// is written but not read.
#include "model/hf_types.h"
#include "model/mamba.h"

static bool add_inner(cJSON *json, const char *name, const struct dt_model_config *config)
{
    return dt_json_add_int(json, name, dt_mamba_inner(config));
}

static dt_status read(const struct dt_hf_file *file, struct dt_model_config *config)
{
    return dt_hf_check_derived(file, "intermediate_size", dt_mamba_inner(config),
                               "expand * hidden_size");
}

static const struct dt_hf_member members[] = {
    {.name = "intermediate_size", .after = "num_hidden_layers", .add = add_inner},
    {.name = "time_step_rank", .after = "expand"},
    {.name = "time_step_scale", .after = "time_step_floor", .value = "1.0"},
    {.name = "time_step_init_scheme", .after = "hidden_act", .value = "\"random\""},
    {0},
};

const struct dt_hf_type dt_hf_mamba = {
    .model_type = "mamba",
    .architectures = "[\"MambaForCausalLM\"]",
    .stem = "tokens",
    .block = "mamba",
    .head = "lm",
    .members = members,
    .read = read,
};
