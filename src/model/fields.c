// The table of a model's fields, and what is derived from it alone. Uses base, and the
// limits that the kernels state.
#include "model/config.h"

#include "kernels/attention.h"
#include "kernels/conv1d_silu.h"
#include "kernels/scan.h"
#include "kernels/ssd.h"

const char *const dt_recompute_name[] = {"none", "scan", "block"};

#define AT(f)          struct dt_model_config, f, #f
#define ROW(kind, ...) DT_CONFIG_##kind(__VA_ARGS__)

// clang-format off
const struct dt_config_key dt_model_keys[] = {
    ROW(WHOLE, AT(d_model), "", 1, 0x1p20, "model width; required unless run.init_from gives it",
        .json = "hidden_size"),
    ROW(WHOLE, AT(n_layer), "", 1, 4096, "number of layers; required unless run.init_from gives it",
        .json = "num_hidden_layers"),
    ROW(WORDS, AT(layers), "", "layer kinds, such as mamba*24; empty: n_layer times mamba",
        .json = "layers"),
    ROW(WORDS, AT(stem), "", "what reads the input: tokens or frames; empty: tokens", .json = "stem"),
    ROW(WORDS, AT(heads), "",
        "what the model predicts; empty: lm, the next token; else NAME:KIND*N[@WEIGHT] …, KIND "
        "categorical, bernoulli, regression or huber",
        .json = "heads"),
    // A token is an int32_t, and so is the padded vocabulary.
    ROW(WHOLE, AT(vocab_size), "", 1, INT32_MAX - 65536,
        "vocabulary size; required unless run.init_from gives it",
        .json = "vocab_size"),
    ROW(WHOLE, AT(frame_size), "auto", 1, 0x1p20, "numbers per frame; auto: from the data",
        .auto_word = "auto", .auto_value = 0, .json = "frame_size"),
    ROW(WORDS, AT(ids), "", "embedding table sizes of the id columns; empty: from data.inputs",
        .json = "ids"),
    ROW(FLAG, AT(autoregressive), "false", "condition each head on the targets of those before it",
        .json = "autoregressive"),
    ROW(REAL, AT(label_smoothing), "0", 0, 0.999,
        "fraction of categorical and bernoulli targets to spread evenly"),
    ROW(WHOLE, AT(d_state), "16", 1, DT_SCAN_STATES_MAX, "SSM state size", .json = "state_size"),
    ROW(WHOLE, AT(d_conv), "4", 1, DT_CONV1D_TAPS_MAX, "conv kernel size", .json = "conv_kernel"),
    ROW(WHOLE, AT(expand), "2", 1, 64, "inner channels as a multiple of d_model",
        .json = "expand"),
    ROW(WHOLE, AT(dt_rank), "auto", 1, 0x1p20,
        "rank of the step-size projection; auto: d_model / 16, rounded up", .auto_word = "auto",
        .auto_value = 0, .json = "time_step_rank"),
    ROW(WHOLE, AT(head_dim), "auto", 1, DT_SSD_HEAD_MAX,
        "channels of a head; auto: 64, or all inner channels if those are fewer",
        .auto_word = "auto", .auto_value = 0, .json = "head_dim"),
    ROW(WHOLE, AT(n_groups), "auto", 1, 0x1p20,
        "groups of heads that share B and C; auto: 1", .auto_word = "auto",
        .auto_value = 0, .json = "n_groups"),
    ROW(REAL, AT(dt_min), "0", 0, 1e30, "smallest step size", .json = "dt_min"),
    ROW(REAL, AT(dt_max), "0", 0, 1e30, "largest step size; 0: no limit",
        .json = "dt_max"),
    ROW(WHOLE, AT(d_mlp), "auto", 1, 0x1p22,
        "inner channels; auto: 4 d_model, gated: 8/3 d_model, rounded up to 8",
        .auto_word = "auto", .auto_value = 0, .json = "d_mlp"),
    ROW(FLAG, AT(mlp_gated), "true", "down(silu(gate(x)) * up(x)); false: down(silu(up(x)))",
        .json = "mlp_gated"),
    ROW(WHOLE, AT(d_rnn), "auto", 1, 0x1p20, "hidden size; auto: d_model",
        .auto_word = "auto", .auto_value = 0, .json = "d_rnn"),
    ROW(WHOLE, AT(n_head), "auto", 1, 65536,
        "heads; auto: d_model / 64, at least 1", .auto_word = "auto",
        .auto_value = 0, .json = "num_attention_heads"),
    ROW(WHOLE, AT(n_kv_head), "auto", 1, 65536,
        "heads of keys and values, each shared by n_head / n_kv_head; auto: n_head",
        .auto_word = "auto", .auto_value = 0, .json = "num_key_value_heads"),
    ROW(WHOLE, AT(attn_window), "auto", 1, DT_ATTENTION_WINDOW_MAX,
        "positions that each one attends to, itself included; auto: data.seq_len", .auto_word = "auto",
        .auto_value = 0, .json = "sliding_window"),
    ROW(REAL, AT(rope_base), "10000", 0, 1e12, "base of the rotary position embedding; 0: none",
        .json = "rope_theta"),
    ROW(REAL, AT(norm_eps), "1e-5", 1e-30, 1, "epsilon of RMSNorm", .json = "layer_norm_epsilon"),
    ROW(FLAG, AT(tie_embeddings), "true", "the output layer shares the embedding's weights",
        .json = "tie_word_embeddings"),
    ROW(WHOLE, AT(pad_vocab_multiple), "8", 1, 65536,
        "in memory, pad the vocabulary to a multiple of this", .neutral = true),
    ROW(CHOICE, AT(quantize), "none", DT_QUANTIZE_WORDS,
        "round weights and inputs of linear layers to int8, for dtrain export --int8",
        .json = "quantize"),
    ROW(CHOICE, AT(recompute), "none", DT_RECOMPUTE_WORDS,
        "what the backward pass recomputes to save memory", .neutral = true),
    {0},
};
// clang-format on
