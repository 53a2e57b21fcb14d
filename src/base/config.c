// A loaded configuration: its values, where each came from, and the echo of both.
#include "base/config.h"

#include "base/config_internal.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ECHO_COLUMN = 32 };
const char dt_config_default[] = "default";

static const struct dt_config_key *keys_of(const struct dt_config_section *section)
{
    return section->list ? section->list() : section->keys;
}

bool dt_config_next(const struct dt_config_table *table, struct dt_config_row *row)
{
    const struct dt_config_section *section = row->key ? row->section : table->sections;
    const struct dt_config_key *key = row->key ? row->key + 1 : keys_of(section);
    row->index += row->key != NULL;
    while (!key->name) {
        if (!(++section)->name)
            return false;
        key = keys_of(section);
    }
    row->first = key == keys_of(section);
    row->section = section;
    row->key = key;
    snprintf(row->name, sizeof row->name, "%s.%s", section->name, key->name);
    return true;
}

struct dt_config_value *dt_config_find(const struct dt_config *config, const char *name)
{
    for (struct dt_config_row row = {0}; dt_config_next(config->table, &row);)
        if (strcmp(row.name, name) == 0)
            return &config->values[row.index];
    fprintf(stderr, "bug: '%s' is not in the configuration table\n", name);
    abort();
}

void dt_config_problem(struct dt_problems *problems, const struct dt_config *config,
                       const char *key, const char *format, ...)
{
    char text[DT_PROBLEM_LINE / 2];
    const struct dt_config_value *value = config ? dt_config_find(config, key) : NULL;
    bool missing = value && value->source == DT_SOURCE_DEFAULT; // the user should fix the file
    const char *place = missing ? config->name : value ? value->origin : "";
    DT_PRINT_ARGUMENTS(text, sizeof text, format);
    dt_problems_add(problems, "%.*s%s%s: %s", DT_CONFIG_ORIGIN, place, place[0] ? ": " : "", key,
                    text);
}

dt_status dt_config_keep(struct dt_config_value *value, const char *text, const char *origin)
{
    char *new_text, *new_origin;
    DT_TRY(dt_memory_text(&new_text, "%s", text));
    dt_status status = dt_memory_text(&new_origin, "%s", origin);
    if (status != DT_OK) {
        free(new_text);
        return status;
    }
    free(value->text);
    free(value->origin);
    value->text = new_text;
    value->origin = new_origin;
    return DT_OK;
}

dt_status dt_config_note(struct dt_config *config, const char *key, const char *text,
                         const char *origin)
{
    return dt_config_keep(dt_config_find(config, key), text, origin);
}

dt_status dt_config_reject(const struct dt_config *config, const char *key, const char *hint,
                           const char *format, ...)
{
    char text[DT_PROBLEM_LINE / 2];
    struct dt_problems problems = {0};
    DT_PRINT_ARGUMENTS(text, sizeof text, format);
    dt_config_problem(&problems, config, key, "%s", text);
    return dt_problems_raise(&problems, hint);
}

void dt_config_free(struct dt_config *config)
{
    if (!config)
        return;
    for (struct dt_config_row row = {0}; config->values && dt_config_next(config->table, &row);) {
        free(config->values[row.index].text);
        free(config->values[row.index].origin);
    }
    free(config->values);
    free(config->name);
    free(config);
}

bool dt_config_is_set(const struct dt_config *config, const char *key)
{
    return dt_config_find(config, key)->source != DT_SOURCE_DEFAULT;
}

static int print_value(const char *text, FILE *out)
{
    int n = 2;
    if (!dt_ini_needs_quotes(text))
        return fprintf(out, "%s", text);
    fputc('"', out);
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\')
            n += fputc('\\', out) != EOF;
        n += fputc(*p, out) != EOF;
    }
    fputc('"', out);
    return n;
}

// Prints "key = value", quoting the value if needed. Returns the columns printed.
static int print_setting(const char *key, const char *text, FILE *out)
{
    int column = fprintf(out, "%s = ", key);
    return column + print_value(text, out);
}

// Prints "# origin". A path in the origin may contain any character.
static void print_origin(const char *origin, FILE *out)
{
    fputs("# ", out);
    for (const char *p = origin; *p; p++)
        fputc((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p, out);
    fputc('\n', out);
}

void dt_config_echo(const struct dt_config *config, FILE *out)
{
    fputs("# The resolved configuration: every key, and where its value came from.\n", out);
    for (struct dt_config_row row = {0}; dt_config_next(config->table, &row);) {
        if (row.first)
            fprintf(out, "\n[%s]\n", row.section->name);
        const struct dt_config_value *value = &config->values[row.index];
        if (value->hidden)
            continue;
        bool unset = value->text[0] == 0 && row.key->type != DT_CONFIG_STRING;
        fputs(unset ? "# " : "", out);
        int column = 2 * unset + print_setting(row.key->name, value->text, out);
        fprintf(out, "%*s  ", column < ECHO_COLUMN ? ECHO_COLUMN - column : 0, "");
        print_origin(unset ? "not set" : value->origin, out);
    }
}

void dt_config_print_set(const struct dt_config *config, FILE *out)
{
    const struct dt_config_section *section = NULL;
    for (struct dt_config_row row = {0}; dt_config_next(config->table, &row);) {
        const struct dt_config_value *value = &config->values[row.index];
        if (value->hidden || strcmp(value->origin, dt_config_default) == 0)
            continue;
        if (row.section != section)
            fprintf(out, "[%s]\n", row.section->name);
        section = row.section;
        int column = print_setting(row.key->name, value->text, out);
        int blanks = column < ECHO_COLUMN ? ECHO_COLUMN + 2 - column : 2;
        if (column + blanks + 2 + dt_text_width(value->origin) > dt_columns())
            fprintf(out, "\n%*s", DT_LOG_INDENT, "");
        else
            fprintf(out, "%*s", blanks, "");
        print_origin(value->origin, out);
    }
}

dt_status dt_config_echo_text(const struct dt_config *config, char **text, size_t *size)
{
    FILE *memory = open_memstream(text, size);
    if (memory)
        dt_config_echo(config, memory);
    if (!memory || fclose(memory) != 0)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the text of the configuration");
    return DT_OK;
}
