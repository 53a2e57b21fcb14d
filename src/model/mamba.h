// Shared by the Mamba blocks: fields, and the initial values of their tensors.
#pragma once

#include "model/kinds.h"

dt_init dt_mamba_init_a_log;   // ln(1 … N) in each row
dt_init dt_mamba_init_dt_bias; // inverse softplus of exp(uniform(ln 0.001, ln 0.1)), at least 1e-4

struct dt_mamba_values {
    int64_t d_state, d_conv, expand;
};
extern const struct dt_kind_keys dt_mamba_keys;
struct dt_mamba_values *dt_mamba_values(const struct dt_model_config *config);
int64_t dt_mamba_inner(const struct dt_model_config *config); // E
