// Shared by the Mamba blocks: fields, and the initial values of their tensors.
#pragma once

#include "model/kinds.h"

dt_init dt_mamba_init_a_log;   // ln(1 … N) in each row
dt_init dt_mamba_init_dt_bias; // inverse softplus of init_scale * exp(uniform(ln 0.001, ln 0.1))

struct dt_mamba_values {
    int64_t d_state, d_conv, expand;
    double dt_init_min;
};
extern const struct dt_kind_keys dt_mamba_keys;
struct dt_mamba_values *dt_mamba_values(const struct dt_model_config *config);
double dt_mamba_dt_scale(const struct dt_model_config *config); // of that: 1, or model.dt_init_min
int64_t dt_mamba_inner(const struct dt_model_config *config);   // E
