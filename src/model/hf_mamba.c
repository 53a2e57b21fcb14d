// Maps models to transformers' MambaConfig. Members that only affect its initialisation or
// generation are written but not read.
#include "model/hf_types.h"
#include "model/mamba.h"

static const struct dt_hf_member members[] = {
    {.name = "intermediate_size",
     .after = "num_hidden_layers",
     .derived = dt_mamba_inner,
     .formula = "expand * hidden_size"},
    {.name = "time_step_rank", .after = "expand"},
    {.name = "time_step_scale", .after = "time_step_floor", .value = "1.0"},
    {.name = "time_step_init_scheme", .after = "hidden_act", .value = "\"random\""},
    {0},
};

static const struct dt_hf_fixed fixed[] = {{"mixer_rms_eps", "0"}, {0}};

const struct dt_hf_type dt_hf_mamba = {
    .model_type = "mamba",
    .architectures = "[\"MambaForCausalLM\"]",
    .stem = "tokens",
    .block = "mamba",
    .head = "lm",
    .fixed = fixed,
    .members = members,
};
