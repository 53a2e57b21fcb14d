// What the fields of a model imply, and whether such a model can be built.
#include "model/config.h"

#include "base/round.h"
#include "model/kinds.h"

#include <string.h>

int64_t dt_model_padded_vocab(const struct dt_model_config *config)
{
    return dt_round_up(config->vocab_size, config->pad_vocab_multiple);
}

void dt_model_config_resolve(struct dt_model_config *c)
{
    int64_t d = c->d_model;
    if (c->dt_rank == 0)
        c->dt_rank = dt_ceil_div(d, 16);
    if (c->d_mlp == 0) // the gate's matrix is paid for by a smaller width [Shazeer 2020]
        c->d_mlp = c->mlp_gated ? dt_round_up(dt_ceil_div(8 * d, 3), 8) : 4 * d;
    if (c->head_dim == 0)
        c->head_dim = dt_min_i64(64, dt_model_inner(c));
    if (c->n_groups == 0)
        c->n_groups = 1;
    if (c->d_rnn == 0)
        c->d_rnn = d;
    if (c->n_head == 0)
        c->n_head = dt_max_i64(d / 64, 1);
    if (c->n_kv_head == 0)
        c->n_kv_head = c->n_head;
}

dt_status dt_stem_find(const struct dt_model_config *config, const struct dt_kind **kind)
{
    bool frames = dt_model_is_policy(config) && !config->stem[0];
    return dt_kind_find(dt_stem_kinds, "model.stem", frames ? "frames" : config->stem, kind);
}

dt_status dt_head_find(const struct dt_model_config *config, const struct dt_kind **kind)
{
    const char *name = dt_model_is_policy(config) ? "policy" : config->heads;
    return dt_kind_find(dt_head_kinds, "model.heads", name, kind);
}

static void single_spaces(char *text)
{
    char *to = text;
    for (const char *at = text; *at; at++)
        if (*at != ' ' || (to > text && to[-1] != ' '))
            *to++ = *at;
    to -= to > text && to[-1] == ' ';
    *to = 0;
}

dt_status dt_model_config_normalize(struct dt_model_config *config)
{
    struct dt_layers layers;
    const struct dt_kind *stem, *head;
    DT_TRY(dt_layers_parse(config->layers, config->n_layer, &layers));
    DT_TRY(dt_stem_find(config, &stem));
    DT_TRY(dt_head_find(config, &head));
    config->n_layer = layers.n_layer;
    snprintf(config->stem, sizeof config->stem, "%s", stem->name);
    if (!dt_model_is_policy(config))
        snprintf(config->heads, sizeof config->heads, "%s", head->name);
    single_spaces(config->heads);
    single_spaces(config->ids);
    return dt_layers_text(&layers, config->layers, sizeof config->layers);
}

static dt_status check_kinds(const struct dt_model_config *config)
{
    struct dt_layers layers;
    DT_TRY(dt_layers_parse(config->layers, config->n_layer, &layers));
    for (int i = 0; i < layers.n; i++)
        if (layers.runs[i].kind->check)
            DT_TRY(layers.runs[i].kind->check(config));
    return DT_OK;
}

// Frames and heads go together, and some fields are theirs alone.
static dt_status check_policy(const struct dt_model_config *config)
{
    static const char hint[] = "list the heads, such as model.heads = buttons:bernoulli*8";
    if (dt_model_is_policy(config))
        return strcmp(config->stem, "tokens") != 0
                   ? DT_OK
                   : DT_FAIL(
                         DT_USER, "leave model.stem empty",
                         "model.stem is tokens, but the heads of model.heads learn from frames");
    if (strcmp(config->stem, "frames") == 0)
        return DT_FAIL(DT_USER, hint,
                       "model.stem is frames, but model.heads is %s, which predicts "
                       "tokens",
                       config->heads);
    if (config->autoregressive || config->label_smoothing > 0)
        return DT_FAIL(DT_USER, hint, "model.%s needs the heads of a policy, but model.heads is %s",
                       config->autoregressive ? "autoregressive" : "label_smoothing",
                       config->heads);
    return DT_OK;
}

dt_status dt_model_config_check(struct dt_model_config *config)
{
    static const char hint[] = "set it in the [model] section";
    char value[DT_CONFIG_STRING_MAX], allowed[DT_CONFIG_ALLOWED];
    DT_TRY(dt_model_config_normalize(config));
    dt_model_config_resolve(config);
    for (const struct dt_config_key *key = dt_model_keys; key->name; key++) {
        if (dt_config_in_range(key, config) || !dt_model_has_field(config, key))
            continue;
        dt_config_allowed(key, allowed);
        return DT_FAIL(DT_USER, hint, "model.%s is %s (allowed: %s)", key->name,
                       dt_config_value_text(key, config, value), allowed);
    }
    if (config->dt_rank > dt_model_inner(config))
        return DT_FAIL(DT_USER, hint, "model.dt_rank is %lld, more than expand * d_model = %lld",
                       (long long)config->dt_rank, (long long)dt_model_inner(config));
    DT_TRY(check_policy(config));
    return check_kinds(config);
}
