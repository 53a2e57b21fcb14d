// Finds kinds by name and parses the pattern of model.layers.
#include "model/kinds.h"

#include "base/nearest.h"
#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 64 }; // bytes

dt_status dt_kind_find(const struct dt_kind *const *kinds, const char *where, const char *name,
                       const struct dt_kind **kind)
{
    struct dt_nearest nearest = dt_nearest_to(name);
    for (int i = 0; kinds[i]; i++) {
        *kind = kinds[i];
        dt_nearest_offer(&nearest, kinds[i]->name);
        if (!name[0] || strcmp(kinds[i]->name, name) == 0)
            return DT_OK;
    }
    return DT_FAIL(DT_USER, NULL, "%s: unknown kind '%s'%s (known: %s)", where, name,
                   dt_nearest_suggest(&nearest), nearest.names);
}

// Parses "KIND" or "KIND*COUNT", `length` bytes long.
static dt_status parse_run(const char *text, size_t length, struct dt_layer_run *run)
{
    char name[NAME], *end = (char *)text + length;
    size_t n = strcspn(text, "* ");
    run->times = n < length ? strtoll(text + n + 1, &end, 10) : 1;
    if (n == 0 || n >= sizeof name || run->times < 1 || run->times > INT32_MAX ||
        end != text + length)
        return DT_FAIL(DT_USER, "write a pattern such as \"mamba*24\"",
                       "model.layers: expected KIND or KIND*COUNT, not \"%.*s\"", (int)length,
                       text);
    snprintf(name, sizeof name, "%.*s", (int)n, text);
    return dt_kind_find(dt_block_kinds, "model.layers", name, &run->kind);
}

dt_status dt_layers_parse(const char *text, int64_t n_layer, struct dt_layers *layers)
{
    *layers = (struct dt_layers){0};
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (layers->n == DT_LAYER_RUNS)
            return DT_FAIL(DT_USER, "merge equal neighbours, as in \"mamba*24\"",
                           "model.layers: more than %d entries", DT_LAYER_RUNS);
        DT_TRY(parse_run(at, length, &layers->runs[layers->n]));
        layers->n_layer += layers->runs[layers->n++].times;
        at += length;
    }
    if (layers->n == 0) {
        *layers = (struct dt_layers){n_layer, 1, {{dt_block_kinds[0], n_layer}}};
        return DT_OK;
    }
    if (n_layer > 0 && layers->n_layer != n_layer)
        return DT_FAIL(DT_USER, "remove one of the two",
                       "model.layers has %" PRId64 " layers, but model.n_layer is %" PRId64,
                       layers->n_layer, n_layer);
    return DT_OK;
}

dt_status dt_layers_text(const struct dt_layers *layers, char *text, size_t size)
{
    bool fits = true;
    text[0] = 0;
    for (int i = 0; i < layers->n && fits; i++) {
        const struct dt_kind *kind = layers->runs[i].kind;
        int64_t times = layers->runs[i].times;
        for (; i + 1 < layers->n && layers->runs[i + 1].kind == kind; i++)
            times += layers->runs[i + 1].times;
        fits = dt_append(text, size, "%s%s*%" PRId64, text[0] ? " " : "", kind->name, times);
    }
    return fits ? DT_OK
                : DT_FAIL(DT_USER, "use fewer changes of kind",
                          "model.layers: more than %zu bytes as a pattern", size - 1);
}

const struct dt_kind *dt_layers_kind(const struct dt_layers *layers, int64_t layer)
{
    int run = 0;
    while (run < layers->n - 1 && layer >= layers->runs[run].times)
        layer -= layers->runs[run++].times;
    return layers->runs[run].kind;
}

int64_t dt_model_whole_shares(const struct dt_model_config *config)
{
    struct dt_layers layers;
    int64_t shares = 0; // the greatest common divisor
    if (dt_layers_parse(config->layers, config->n_layer, &layers) != DT_OK)
        dt_error_clear(); // dt_model_config_normalize reports it
    else if (config->direction == DT_DIRECTION_BOTH)
        for (int i = 0; i < layers.n; i++) {
            const struct dt_block_kind *kind = (const struct dt_block_kind *)layers.runs[i].kind;
            for (int64_t n = kind->whole ? kind->whole(config) : 0, rest; n > 0; n = rest)
                rest = shares % n, shares = n;
        }
    return shares;
}
