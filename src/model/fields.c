// The fields of every model, one row each.
#include "model/config.h"

const char *const dt_recompute_name[] = {"none", "scan", "block"};

#define AT(f)          struct dt_model_config, f, #f
#define ROW(kind, ...) DT_CONFIG_##kind(__VA_ARGS__)

// clang-format off
const struct dt_config_key dt_model_fields[] = {
    ROW(WHOLE, AT(d_model), "", 1, 0x1p20, "model width; required unless run.init_from gives it",
        .json = "hidden_size"),
    ROW(WHOLE, AT(n_layer), "", 1, 4096, "number of layers; required unless run.init_from gives it",
        .json = "num_hidden_layers", .replaced_by = "model.layers"),
    ROW(WORDS, AT(layers), "", "layer kinds, such as mamba*24; empty: n_layer times mamba",
        .json = "layers"),
    ROW(WORDS, AT(stem), "", "what reads the input: tokens or frames; empty: tokens", .json = "stem"),
    ROW(WORDS, AT(heads), "",
        "what the model predicts; empty: lm, the next token; mlm, masked tokens; else NAME:KIND[(PARAMETERS)]*N[@WEIGHT] …, KIND "
        "categorical, bernoulli, regression, huber, gmm or quantile",
        .json = "heads"),
    ROW(CHOICE, AT(direction), "forward", DT_DIRECTION_WORDS,
        "how blocks read a sequence; both: from each end, within documents; not for the head lm",
        .json = "direction"),
    ROW(FLAG, AT(tie_directions), "true",
        "both directions share a block's input and output projections", .json = "tie_directions"),
    ROW(WHOLE, AT(mup_base), "0", 0, 0x1p20,
        "µP: rates, initial values and output follow the width, as tuned at this d_model; 0: off",
        .json = "mup_base"),
    ROW(REAL, AT(norm_eps), "1e-5", 1e-30, 1, "epsilon of RMSNorm", .json = "layer_norm_epsilon"),
    ROW(CHOICE, AT(quantize), "none", DT_QUANTIZE_WORDS,
        "round weights and inputs of linear layers to int8, for dtrain export --int8",
        .json = "quantize"),
    ROW(CHOICE, AT(recompute), "none", DT_RECOMPUTE_WORDS,
        "what the backward pass recomputes to save memory", .neutral = true),
    ROW(WHOLE, AT(segment), "0", 0, INT32_MAX,
        "run a window this many positions at a time, with the memory of these: same result, forward "
        "runs twice; auto: the most that fit; 0: whole windows",
        .auto_word = "auto", .auto_value = -1, .neutral = true),
    {0},
};
// clang-format on
