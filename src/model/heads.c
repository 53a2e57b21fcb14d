// Parses the lists of a policy: outputs in model.heads, tables in model.ids.
#include "model/kinds.h"

#include "base/nearest.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_MAX = 65536 };

const char *const dt_pool_name[] = {"none", "mean", "last", "max"};

static dt_status malformed(const char *entry)
{
    return DT_FAIL(DT_USER,
                   "all after KIND is optional: \"buttons:bernoulli*8 main_x:categorical*17@0.5\"",
                   "model.heads: expected NAME:KIND(PARAMETERS)*N@WEIGHT/POOL, not \"%s\"", entry);
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

// Cuts `text` at the last `mark` and returns the rest after it, or NULL.
static char *cut(char *text, char mark)
{
    char *at = strrchr(text, mark);
    if (at)
        *at++ = 0;
    return at;
}

// Parses "5,-1,1)" into the output's list.
static bool parse_parameters(char *text, struct dt_output *output)
{
    for (char *at = text, *end; text; at = end + 1) {
        bool number = isdigit((unsigned char)at[strspn(at, "+-.")]);
        float value = strtof(at, &end);
        if (!number || !isfinite(value) || output->n_parameters == DT_OUTPUT_PARAMETERS)
            return false;
        output->parameters[output->n_parameters++] = value;
        if (*end == ')' && !end[1])
            return true;
        if (*end != ',')
            return false;
    }
    return true;
}

static bool parse_pool(const char *text, enum dt_pool *pool)
{
    *pool = DT_POOL_NONE;
    for (int i = DT_POOL_MEAN; text && i <= DT_POOL_MAX; i++)
        if (strcmp(text, dt_pool_name[i]) == 0)
            *pool = (enum dt_pool)i;
    return !text || *pool != DT_POOL_NONE;
}

static dt_status parse_entry(const char *entry, struct dt_output *output)
{
    static const char in_name[] =
        "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_-";
    char text[DT_CONFIG_STRING_MAX], *end = text;
    snprintf(text, sizeof text, "%s", entry);
    char *pool = cut(text, '/'), *weight = cut(text, '@'), *size = cut(text, '*');
    char *parameters = cut(text, '('), *kind = cut(text, ':');
    *output = (struct dt_output){.size = 1, .weight = 1};
    size_t n = strspn(text, in_name); // names are also names of datasets and metrics
    if (!kind || n == 0 || text[n])
        return malformed(entry);
    if (n >= DT_OUTPUT_NAME)
        return DT_FAIL(DT_USER, NULL, "model.heads: the name of %s is longer than %d bytes", entry,
                       DT_OUTPUT_NAME - 1);
    DT_TRY(find_type(entry, kind, &output->type));
    const struct dt_output_type *type = output->type;
    if (!parse_parameters(parameters, output) || !parse_pool(pool, &output->pool))
        return malformed(entry);
    if (size)
        output->size = strtoll(size, &end, 10);
    if (size && (!isdigit((unsigned char)size[0]) || *end))
        return malformed(entry);
    if (weight)
        output->weight = strtod(weight, &end);
    if (weight && (!(isdigit((unsigned char)weight[0]) || weight[0] == '.') || *end))
        return malformed(entry);
    int64_t least = type->one_of ? 2 : 1;
    if (output->size < least || output->size > WIDTH_MAX)
        return DT_FAIL(DT_USER, NULL, "model.heads: %s: %lld %s (allowed: %lld to %d)", entry,
                       (long long)output->size, type->one_of ? "classes" : "values",
                       (long long)least, WIDTH_MAX);
    if (!(output->weight <= 1e6))
        return DT_FAIL(DT_USER, NULL, "model.heads: %s: the weight is above 1e6", entry);
    memcpy(output->name, text, n + 1);
    output->measure = type->measure;
    output->width = output->size;
    output->parts = 1;
    output->target_width = type->one_of ? 1 : output->size;
    output->classes = type->one_of ? output->size : type->classes;
    if (type->shape ? !type->shape(output) : output->n_parameters > 0)
        return DT_FAIL(DT_USER, NULL, "model.heads: %s: expected %s", entry,
                       type->shape ? type->parameters : "no parameters");
    output->scaled = type->scaled && !(output->low < output->high);
    if (output->width > WIDTH_MAX)
        return DT_FAIL(DT_USER, NULL, "model.heads: %s: %lld numbers to predict (allowed: %d)",
                       entry, (long long)output->width, WIDTH_MAX);
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

// Parses "33" or "33=char" at *text and advances *text.
static bool parse_table(const char **text, int64_t *size, char name[DT_TABLE_NAME])
{
    char *end;
    bool fine = isdigit((unsigned char)**text);
    *size = strtoll(*text, &end, 10);
    size_t length = *end == '=' ? strcspn(end + 1, " ") : 0;
    fine = fine && *size >= 1 && *size <= INT32_MAX && length < DT_TABLE_NAME;
    if (fine && *end == '=') {
        memcpy(name, end + 1, length);
        name[length] = 0;
        fine = isalpha((unsigned char)name[0]);
        end += 1 + length;
    }
    *text = end;
    return fine && (!*end || *end == ' ');
}

dt_status dt_ids_parse(const char *text, struct dt_id_tables *tables)
{
    *tables = (struct dt_id_tables){0};
    for (const char *at = text + strspn(text, " "), *word; *at; at += strspn(at, " ")) {
        int n = tables->n, first = n;
        word = at;
        if (n == DT_IDS_MAX)
            return DT_FAIL(DT_USER, NULL, "model.ids: more than %d id columns", DT_IDS_MAX);
        if (!parse_table(&at, &tables->size[n], tables->name[n]))
            return DT_FAIL(DT_USER, "for example \"33 400\", or \"33=char 33=char\" for one table",
                           "model.ids: expected sizes of tables, not \"%s\"", word);
        for (int i = n - 1; i >= 0 && tables->name[n][0]; i--)
            if (strcmp(tables->name[i], tables->name[n]) == 0)
                first = i;
        if (tables->size[first] != tables->size[n])
            return DT_FAIL(DT_USER, NULL, "model.ids: the table %s has %lld and %lld rows",
                           tables->name[n], (long long)tables->size[first],
                           (long long)tables->size[n]);
        tables->first[n] = first;
        tables->n++;
    }
    return DT_OK;
}
