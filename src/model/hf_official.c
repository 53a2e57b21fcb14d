// config.json of state-spaces/mamba (mamba_ssm's MambaConfig), for models whose layers are all
// Mamba or all Mamba-2: members have other names, those of layers are in ssm_cfg. It is translated
// to the names of transformers before it is read.
#include "model/hf.h"

#include "base/round.h"
#include "model/hf_types.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *theirs, *ours;
    bool of_layers;
} names[] = {
    {"d_model", "hidden_size", false},
    {"n_layer", "num_hidden_layers", false},
    {"vocab_size", "vocab_size", false},
    {"tie_embeddings", "tie_word_embeddings", false},
    {"d_state", "state_size", true},
    {"d_conv", "conv_kernel", true},
    {"expand", "expand", true},
    {"dt_rank", "time_step_rank", true},
    {"headdim", "head_dim", true},
    {"ngroups", "n_groups", true},
    {"dt_limit", "time_step_limit", true},
};
enum { NAMES = sizeof names / sizeof *names };

static bool is_mamba2(const cJSON *layers)
{
    const cJSON *layer = cJSON_GetObjectItemCaseSensitive(layers, "layer");
    return cJSON_IsString(layer) && strcmp(layer->valuestring, "Mamba2") == 0;
}

// Refuses layers that dtrain does not support.
static dt_status check_built(const struct dt_hf_file *file)
{
    const cJSON *attention = cJSON_GetObjectItemCaseSensitive(file->json, "attn_layer_idx");
    int64_t inner = 0;
    bool rms = true;
    if (cJSON_GetArraySize(attention) > 0)
        return dt_json_reject(file->path, file->json, "attn_layer_idx",
                              "[] (nothing else is supported)");
    if (dt_json_has(file->json, "d_intermediate"))
        DT_TRY(dt_json_int(file->path, file->json, "d_intermediate", 0, 0, &inner));
    if (dt_json_has(file->json, "rms_norm"))
        DT_TRY(dt_json_bool(file->path, file->json, "rms_norm", &rms));
    return rms ? DT_OK
               : dt_json_reject(file->path, file->json, "rms_norm",
                                "true (nothing else is supported)");
}

bool dt_hf_is_official(const cJSON *json)
{
    return !dt_json_has(json, "model_type") && dt_json_has(json, "d_model");
}

dt_status dt_hf_read_official(struct dt_hf_file *file)
{
    const cJSON *layers = cJSON_GetObjectItemCaseSensitive(file->json, "ssm_cfg");
    int64_t vocab, multiple = 8;
    DT_TRY(check_built(file));
    DT_TRY(dt_json_int(file->path, file->json, "vocab_size", 1, 1 << 24, &vocab));
    if (dt_json_has(file->json, "pad_vocab_size_multiple"))
        DT_TRY(
            dt_json_int(file->path, file->json, "pad_vocab_size_multiple", 1, 1 << 16, &multiple));
    cJSON *json = cJSON_CreateObject();
    cJSON_AddStringToObject(json, "model_type", is_mamba2(layers) ? "mamba2" : "mamba");
    for (int i = 0; i < NAMES; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(
            names[i].of_layers ? layers : file->json, names[i].theirs);
        if (item)
            cJSON_AddItemToObject(json, names[i].ours, cJSON_Duplicate(item, true));
    }
    // Its defaults, if different from transformers'. Its files include the rows that pad the
    // vocabulary.
    if (is_mamba2(layers) && !cJSON_HasObjectItem(json, "n_groups"))
        cJSON_AddNumberToObject(json, "n_groups", 1);
    if (!cJSON_HasObjectItem(json, "tie_word_embeddings"))
        cJSON_AddTrueToObject(json, "tie_word_embeddings");
    cJSON_DeleteItemFromObject(json, "vocab_size");
    cJSON_AddNumberToObject(json, "vocab_size", (double)dt_round_up(vocab, multiple));
    cJSON_Delete(file->json);
    file->json = json;
    return DT_OK;
}

// Translates from transformers' config.json.
static cJSON *translate(const cJSON *from, bool mamba2)
{
    cJSON *json = cJSON_CreateObject(), *layers = cJSON_CreateObject();
    cJSON_AddStringToObject(layers, "layer", mamba2 ? "Mamba2" : "Mamba1");
    for (int i = 0; i < NAMES; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, names[i].ours);
        if (item)
            cJSON_AddItemToObject(names[i].of_layers ? layers : json, names[i].theirs,
                                  cJSON_Duplicate(item, true));
    }
    cJSON_AddItemToObject(json, "ssm_cfg", layers);
    cJSON_AddArrayToObject(json, "attn_layer_idx");
    cJSON_AddObjectToObject(json, "attn_cfg");
    cJSON_AddTrueToObject(json, "rms_norm");
    cJSON_AddTrueToObject(json, "residual_in_fp32");
    cJSON_AddTrueToObject(json, "fused_add_norm");
    cJSON_AddNumberToObject(json, "pad_vocab_size_multiple", 1);
    return json;
}

dt_status dt_hf_official_text(const struct dt_model_config *config, char **text)
{
    char type[DT_CONFIG_ALLOWED];
    *text = NULL;
    DT_TRY(dt_hf_type_text(config, type, sizeof type));
    bool mamba2 = strncmp(type, "mamba2,", 7) == 0;
    if (!mamba2 && strncmp(type, "mamba,", 6) != 0)
        return DT_FAIL(DT_USER, "write it without --official",
                       "state-spaces/mamba has language models whose layers are all mamba or all "
                       "mamba2, with heads = lm; this one is %s",
                       type);
    if (config->norm_eps != 1e-5)
        return DT_FAIL(DT_USER, "write it without --official",
                       "state-spaces/mamba has norm_eps = 1e-5; this model has %g",
                       config->norm_eps);
    DT_TRY(dt_hf_config_text(config, text));
    cJSON *from = cJSON_Parse(*text), *json = from ? translate(from, mamba2) : NULL;
    free(*text);
    *text = json ? dt_json_text(json) : NULL;
    cJSON_Delete(from);
    cJSON_Delete(json);
    return *text ? DT_OK : DT_FAIL(DT_MACHINE, NULL, "no memory for the text of config.json");
}
