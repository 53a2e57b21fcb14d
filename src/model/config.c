// What the sizes of a model imply, and their ranges.
#include "model/config.h"

#include "model/kinds.h"

int64_t dt_model_padded_vocab(const struct dt_model_config *config)
{
    int64_t multiple = config->pad_vocab_multiple;
    return (config->vocab_size + multiple - 1) / multiple * multiple;
}

static dt_status check_range(const char *key, int64_t value, int64_t min, int64_t max)
{
    if (value >= min && value <= max)
        return DT_OK;
    return DT_FAIL(DT_USER, "set it in the [model] section",
                   "model.%s is %lld, must be in [%lld, %lld]", key, (long long)value,
                   (long long)min, (long long)max);
}

dt_status dt_model_config_check(struct dt_model_config *config)
{
    struct dt_layers layers;
    const struct dt_kind *kind;
    DT_TRY(dt_layers_parse(config->layers, config->n_layer, &layers));
    DT_TRY(dt_kind_find(dt_stem_kinds, "stem", config->stem, &kind));
    DT_TRY(dt_kind_find(dt_head_kinds, "head", config->head, &kind));
    config->n_layer = layers.n_layer;
    DT_TRY(check_range("d_model", config->d_model, 1, 1 << 20));
    DT_TRY(check_range("n_layer", config->n_layer, 1, 1 << 16));
    DT_TRY(check_range("vocab_size", config->vocab_size, 1, INT32_MAX - (1 << 16)));
    DT_TRY(check_range("d_state", config->d_state, 1, 256));
    DT_TRY(check_range("d_conv", config->d_conv, 1, 8));
    DT_TRY(check_range("expand", config->expand, 1, 64));
    if (config->dt_rank == 0)
        config->dt_rank = (config->d_model + 15) / 16;
    DT_TRY(check_range("dt_rank", config->dt_rank, 1, dt_model_inner(config)));
    return check_range("pad_vocab_multiple", config->pad_vocab_multiple, 1, 1 << 16);
}
