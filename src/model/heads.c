// Reads the lists of a policy: its outputs in model.heads, its tables in model.ids.
#include "model/kinds.h"

#include "base/nearest.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_MAX = 65536 };

static dt_status malformed(const char *entry)
{
    return DT_FAIL(DT_USER, "for example \"buttons:bernoulli*8 main_x:categorical*17@0.5\"",
                   "model.heads: expected NAME:KIND*N or NAME:KIND*N@WEIGHT, not \"%s\"", entry);
}

static dt_status find_type(const char *entry, const char *name, const struct dt_output_type **type)
{
    struct dt_nearest nearest = dt_nearest_to(name);
    for (int i = 0; dt_output_types[i]; i++) {
        *type = dt_output_types[i];
        dt_nearest_offer(&nearest, (*type)->name);
        if (strcmp((*type)->name, name) == 0)
            return DT_OK;
    }
    return DT_FAIL(DT_USER, NULL, "model.heads: %s: unknown kind '%s'%s (known: %s)", entry, name,
                   dt_nearest_suggest(&nearest), nearest.names);
}

// Cuts `text` at the last `mark`, and gives what follows it, or NULL.
static char *cut(char *text, char mark)
{
    char *at = strrchr(text, mark);
    if (at)
        *at++ = 0;
    return at;
}

static dt_status parse_entry(const char *entry, struct dt_output *output)
{
    static const char in_name[] =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";
    char text[DT_CONFIG_STRING_MAX], *end = text;
    snprintf(text, sizeof text, "%s", entry);
    char *weight = cut(text, '@'), *width = cut(text, '*'), *kind = cut(text, ':');
    *output = (struct dt_output){.width = 1, .weight = 1};
    size_t n = strspn(text, in_name); // a name is also that of a dataset and of a metric
    if (!kind || n == 0 || n >= DT_OUTPUT_NAME || text[n])
        return malformed(entry);
    DT_TRY(find_type(entry, kind, &output->type));
    bool one_of = output->type->one_of;
    if (width)
        output->width = strtoll(width, &end, 10);
    if (width && (!isdigit((unsigned char)width[0]) || *end))
        return malformed(entry);
    if (weight)
        output->weight = strtod(weight, &end);
    if (weight && (!(isdigit((unsigned char)weight[0]) || weight[0] == '.') || *end))
        return malformed(entry);
    int64_t least = one_of ? 2 : 1;
    if (output->width < least || output->width > WIDTH_MAX)
        return DT_FAIL(DT_USER, NULL, "model.heads: %s: %lld %s (allowed: %lld to %d)", entry,
                       (long long)output->width, one_of ? "classes" : "values", (long long)least,
                       WIDTH_MAX);
    if (!(output->weight <= 1e6))
        return DT_FAIL(DT_USER, NULL, "model.heads: %s: the weight is above 1e6", entry);
    memcpy(output->name, text, n + 1);
    output->measure = output->type->measure;
    output->target_width = one_of ? 1 : output->width;
    output->classes = one_of ? output->width : output->type->classes;
    return DT_OK;
}

dt_status dt_heads_parse(const char *text, struct dt_outputs *outputs)
{
    char entry[DT_CONFIG_STRING_MAX];
    *outputs = (struct dt_outputs){0};
    for (const char *at = text + strspn(text, " "); *at; at += strspn(at, " ")) {
        size_t length = strcspn(at, " ");
        if (outputs->n == DT_OUTPUTS_MAX)
            return DT_FAIL(DT_USER, NULL, "model.heads: more than %d heads", DT_OUTPUTS_MAX);
        snprintf(entry, sizeof entry, "%.*s", (int)length, at);
        struct dt_output *output = &outputs->list[outputs->n];
        DT_TRY(parse_entry(entry, output));
        for (int i = 0; i < outputs->n; i++)
            if (strcmp(outputs->list[i].name, output->name) == 0)
                return DT_FAIL(DT_USER, NULL, "model.heads: duplicate name \"%s\"", output->name);
        if (outputs->n > 0)
            output->target = output[-1].target + output[-1].target_width;
        outputs->n++;
        at += length;
    }
    return DT_OK;
}

dt_status dt_ids_parse(const char *text, int *n, int64_t sizes[DT_IDS_MAX])
{
    char *end;
    *n = 0;
    for (const char *at = text + strspn(text, " "); *at; at = end + strspn(end, " ")) {
        int64_t size = strtoll(at, &end, 10);
        if (!isdigit((unsigned char)*at) || (*end && *end != ' ') || size < 1 || size > INT32_MAX)
            return DT_FAIL(DT_USER, "for example \"33 400\"",
                           "model.ids: expected sizes of tables, not \"%s\"", at);
        if (*n == DT_IDS_MAX)
            return DT_FAIL(DT_USER, NULL, "model.ids: more than %d id columns", DT_IDS_MAX);
        sizes[(*n)++] = size;
    }
    return DT_OK;
}
