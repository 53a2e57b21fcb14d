// Maps models to transformers' FalconMambaConfig: Mamba with norms of dt, B and C. Its published
// files give the inner channels in intermediate_size, regardless of `expand`.
#include "model/hf_types.h"
#include "model/mamba.h"

static bool add_inner(cJSON *json, const char *name, const struct dt_model_config *config)
{
    return dt_json_add_int(json, name, dt_mamba_inner(config));
}

static dt_status read(const struct dt_hf_file *file, struct dt_model_config *config)
{
    static const char eps[] = "mixer_rms_eps", inner[] = "intermediate_size";
    int64_t channels = dt_mamba_inner(config);
    if (*(double *)dt_model_field(config, eps) == 0)
        return dt_json_reject(file->path, file->json, eps, "above 0");
    if (dt_json_has(file->json, inner))
        DT_TRY(dt_json_int(file->path, file->json, inner, 1, DT_JSON_INT_MAX, &channels));
    if (channels % config->d_model != 0)
        return dt_json_reject(file->path, file->json, inner, "a multiple of hidden_size = %lld",
                              (long long)config->d_model);
    dt_mamba_values(config)->expand = channels / config->d_model;
    return DT_OK;
}

static const struct dt_hf_member members[] = {
    {.name = "intermediate_size", .after = "num_hidden_layers", .add = add_inner},
    {.name = "time_step_rank", .after = "expand"},
    {.name = "time_step_scale", .after = "time_step_floor", .value = "1.0"},
    {.name = "time_step_init_scheme", .after = "hidden_act", .value = "\"random\""},
    {.name = "mixer_rms_eps", .after = "layer_norm_epsilon", .absent = "1e-6"},
    {0},
};

const struct dt_hf_type dt_hf_falcon_mamba = {
    .model_type = "falcon_mamba",
    .architectures = "[\"FalconMambaForCausalLM\"]",
    .stem = "tokens",
    .block = "mamba",
    .head = "lm",
    .members = members,
    .read = read,
};
