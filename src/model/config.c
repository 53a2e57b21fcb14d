// Derives what the fields of a model imply, and checks whether such a model can be built.
#include "model/config.h"

#include "base/round.h"
#include "base/text.h"
#include "data/columns.h"
#include "model/kinds.h"

#include <stdlib.h>
#include <string.h>

int64_t dt_model_padded_vocab(const struct dt_model_config *config)
{
    return dt_round_up(config->vocab_size, config->pad_vocab_multiple);
}

dt_status dt_head_find(const struct dt_model_config *config, const struct dt_head_kind **head)
{
    const struct dt_kind *kind;
    bool list = strpbrk(config->heads, ":*@ ");
    for (int i = 0; list && dt_head_kinds[i]; i++) {
        *head = (const struct dt_head_kind *)dt_head_kinds[i];
        if ((*head)->lists)
            return DT_OK;
    }
    dt_status status = dt_kind_find(dt_head_kinds, "model.heads", config->heads, &kind);
    *head = (const struct dt_head_kind *)kind;
    return status;
}

dt_status dt_stem_find(const struct dt_model_config *config, const struct dt_stem_kind **stem)
{
    const struct dt_head_kind *head = NULL;
    const struct dt_kind *kind = NULL;
    const char *name = config->stem;
    dt_status status = name[0] ? DT_OK : dt_head_find(config, &head);
    if (!name[0] && status == DT_OK && head->stem)
        name = head->stem;
    if (status == DT_OK)
        status = dt_kind_find(dt_stem_kinds, "model.stem", name, &kind);
    *stem = (const struct dt_stem_kind *)kind;
    return status;
}

struct dt_masking dt_model_masking(const struct dt_model_config *config)
{
    const struct dt_head_kind *head;
    if (dt_head_find(config, &head) == DT_OK)
        return head->masking ? head->masking(config) : (struct dt_masking){0};
    dt_error_clear();
    return (struct dt_masking){0};
}

const char *dt_model_unit(const struct dt_model_config *config)
{
    const struct dt_stem_kind *stem;
    if (dt_stem_find(config, &stem) == DT_OK)
        return stem->unit;
    dt_error_clear();
    return "positions";
}

bool dt_model_reads_tokens(const struct dt_model_config *config)
{
    const struct dt_stem_kind *stem;
    bool found = dt_stem_find(config, &stem) == DT_OK;
    if (!found)
        dt_error_clear();
    return found && stem->tokens;
}

// A model's stem, head and blocks, with duplicates.
struct kinds_used {
    int n;
    const struct dt_kind *list[2 + DT_LAYER_RUNS];
};

static dt_status find_kinds(const struct dt_model_config *config, struct kinds_used *used)
{
    const struct dt_stem_kind *stem;
    const struct dt_head_kind *head;
    struct dt_layers layers;
    DT_TRY(dt_stem_find(config, &stem));
    DT_TRY(dt_head_find(config, &head));
    DT_TRY(dt_layers_parse(config->layers, config->n_layer, &layers));
    *used = (struct kinds_used){2, {&stem->kind, &head->kind}};
    for (int i = 0; i < layers.n; i++)
        used->list[used->n++] = layers.runs[i].kind;
    return DT_OK;
}

static const struct dt_kind *const *const tables[] = {dt_stem_kinds, dt_block_kinds, dt_head_kinds};
enum { TABLES = sizeof tables / sizeof *tables, KEYS_MAX = 128, LISTS_MAX = 32 };

// All keys, and the offset in dt_model_config of the struct of each kind's list.
struct fields {
    struct dt_config_key keys[KEYS_MAX];
    int n_lists;
    const struct dt_kind_keys *lists[LISTS_MAX];
    size_t places[LISTS_MAX];
};

// Adds a list unless another kind has added it.
static void add_list(struct fields *f, const struct dt_kind_keys *list, int *n, size_t *end)
{
    for (int i = 0; i < f->n_lists; i++)
        if (f->lists[i] == list)
            return;
    size_t place = list->size > 0 ? *end : 0;
    f->lists[f->n_lists] = list;
    f->places[f->n_lists++] = place;
    *end = dt_round_up(*end + list->size, 8);
    for (const struct dt_config_key *key = list->rows; key->name; key++) {
        f->keys[*n] = *key;
        f->keys[(*n)++].offset += place;
    }
    if (f->n_lists == LISTS_MAX || *n >= KEYS_MAX - 16 ||
        *end > offsetof(struct dt_model_config, own) + sizeof((struct dt_model_config *)0)->own) {
        fputs("bug: the kinds have more fields than dt_model_config has room for\n", stderr);
        abort();
    }
}

static const struct fields *model_fields(void)
{
    static struct fields f;
    size_t end = offsetof(struct dt_model_config, own);
    int n = 1;
    if (f.keys[0].name)
        return &f; // publish the first row last
    for (const struct dt_config_key *key = dt_model_fields + 1; key->name; key++)
        f.keys[n++] = *key;
    for (int t = 0; t < TABLES; t++)
        for (const struct dt_kind *const *kind = tables[t]; *kind; kind++)
            for (int k = 0; k < DT_KIND_KEYS && (*kind)->keys[k]; k++)
                add_list(&f, (*kind)->keys[k], &n, &end);
    f.keys[0] = dt_model_fields[0];
    return &f;
}

const struct dt_config_key *dt_model_keys(void)
{
    return model_fields()->keys;
}

void *dt_model_own(const struct dt_model_config *config, const struct dt_kind_keys *keys)
{
    const struct fields *f = model_fields();
    int i = 0;
    while (f->lists[i] != keys)
        i++;
    return (char *)config + f->places[i];
}

void *dt_model_field(const struct dt_model_config *config, const char *name)
{
    const struct dt_config_key *key = dt_model_keys();
    while (strcmp(key->name, name) != 0)
        key++;
    return (char *)config + key->offset;
}

static bool reads(const struct dt_kind *kind, const struct dt_config_key *key)
{
    for (int k = 0; k < DT_KIND_KEYS && kind->keys[k]; k++)
        for (const struct dt_config_key *row = kind->keys[k]->rows; row->name; row++)
            if (strcmp(row->name, key->name) == 0)
                return true;
    return false;
}

const char *dt_model_field_kinds(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED])
{
    out[0] = 0;
    for (int t = 0; t < TABLES; t++)
        for (const struct dt_kind *const *kind = tables[t]; *kind; kind++)
            if (reads(*kind, key))
                dt_append(out, DT_CONFIG_ALLOWED, "%s%s", out[0] ? ", " : "", (*kind)->name);
    return out;
}

bool dt_model_has_field(const struct dt_model_config *config, const struct dt_config_key *key)
{
    struct kinds_used used;
    char kinds[DT_CONFIG_ALLOWED];
    if (!dt_model_field_kinds(key, kinds)[0])
        return true;
    if (find_kinds(config, &used) != DT_OK) {
        dt_error_clear();
        return true;
    }
    for (int i = 0; i < used.n; i++)
        if (reads(used.list[i], key))
            return true;
    return false;
}

// Whether the text is unknown because an older dtrain did not write it.
static bool is_unknown(const struct dt_config_key *key, const struct dt_model_config *saved)
{
    return key->type == DT_CONFIG_STRING && !((const char *)saved)[key->offset];
}

void dt_model_config_compare(struct dt_problems *problems, const struct dt_model_config *now,
                             const struct dt_model_config *saved)
{
    char is[DT_CONFIG_STRING_MAX], was[DT_CONFIG_STRING_MAX];
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (key->json && dt_model_has_field(now, key) && !dt_config_equal(key, now, saved) &&
            !is_unknown(key, saved))
            dt_problems_add(problems, "model.%s is %s, the checkpoint has %s", key->name,
                            dt_config_value_text(key, now, is),
                            dt_config_value_text(key, saved, was));
}

dt_status dt_model_config_resolve(struct dt_model_config *config, int64_t length)
{
    struct kinds_used used;
    DT_TRY(find_kinds(config, &used));
    for (int i = 0; i < used.n; i++)
        if (used.list[i]->resolve)
            used.list[i]->resolve(config, length);
    return DT_OK;
}

void dt_model_config_narrow(struct dt_model_config *config, int64_t d_model)
{
    struct dt_model_config automatic = *config;
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (key->auto_word)
            dt_config_set_default(key, &automatic);
    struct dt_model_config again = automatic;
    automatic.d_model = d_model;
    dt_model_config_resolve(&automatic, 0);
    dt_model_config_resolve(&again, 0);
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++)
        if (key->auto_word && dt_config_equal(key, config, &again))
            memcpy((char *)config + key->offset, (char *)&automatic + key->offset,
                   sizeof(int64_t)); // int64_t or double
    config->d_model = d_model;
}

dt_status dt_model_config_fit(struct dt_model_config *config, const struct dt_model_data *data)
{
    struct kinds_used used;
    DT_TRY(find_kinds(config, &used));
    for (int i = 0; i < used.n; i++)
        if (used.list[i]->fit)
            DT_TRY(used.list[i]->fit(config, data));
    return DT_OK;
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
    const struct dt_stem_kind *stem;
    const struct dt_head_kind *head;
    DT_TRY(dt_layers_parse(config->layers, config->n_layer, &layers));
    DT_TRY(dt_stem_find(config, &stem));
    DT_TRY(dt_head_find(config, &head));
    config->n_layer = layers.n_layer;
    snprintf(config->stem, sizeof config->stem, "%s", stem->kind.name);
    if (!head->lists)
        snprintf(config->heads, sizeof config->heads, "%s", head->kind.name);
    single_spaces(config->heads);
    single_spaces(config->ids);
    single_spaces(config->inputs);
    single_spaces(config->targets);
    return dt_layers_text(&layers, config->layers, sizeof config->layers);
}

// Refuses heads that predict the next position, which blocks in both directions have read.
static dt_status check_direction(const struct dt_model_config *config)
{
    static const char hint[] = "set model.direction = forward";
    const struct dt_head_kind *head;
    struct dt_fed fed[DT_FED_MOST];
    int n;
    if (config->direction == DT_DIRECTION_FORWARD)
        return DT_OK;
    DT_TRY(dt_head_find(config, &head));
    if (head->next)
        return DT_FAIL(DT_USER, hint,
                       "model.direction is both, but model.heads is %s, which predicts the next %s",
                       head->kind.name, dt_model_unit(config));
    DT_TRY(dt_columns_fed(config->inputs, config->targets, &n, fed));
    if (n > 0)
        return DT_FAIL(DT_USER, hint,
                       "model.direction is both, but data.inputs has earlier targets (%s, of %s), "
                       "which the next position would show",
                       config->inputs, config->targets);
    return DT_OK;
}

dt_status dt_model_config_check(struct dt_model_config *config)
{
    static const char hint[] = "set it in the [model] section";
    struct kinds_used used;
    char value[DT_CONFIG_STRING_MAX], allowed[DT_CONFIG_ALLOWED];
    DT_TRY(dt_model_config_normalize(config));
    DT_TRY(dt_model_config_resolve(config, 0));
    DT_TRY(find_kinds(config, &used));
    for (const struct dt_config_key *key = dt_model_keys(); key->name; key++) {
        if (dt_config_in_range(key, config) || !dt_model_has_field(config, key))
            continue;
        dt_config_allowed(key, allowed);
        return DT_FAIL(DT_USER, hint, "model.%s is %s (allowed: %s)", key->name,
                       dt_config_value_text(key, config, value), allowed);
    }
    for (int i = 0; i < used.n; i++)
        if (used.list[i]->check)
            DT_TRY(used.list[i]->check(config));
    return check_direction(config);
}
