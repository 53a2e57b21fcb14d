// The configuration as text for people: the echo of a resolved one, and the help of a table.
#include "base/config.h"

#include "base/config_internal.h"

#include <stdio.h>
#include <string.h>

enum { HELP_COLUMNS = 100, ECHO_COLUMN = 32 };

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

// The origin quotes a path, which may hold anything; the comment must stay one line of text.
static void print_comment(const char *text, FILE *out)
{
    fputs("  # ", out);
    for (const char *p = text; *p; p++)
        fputc((unsigned char)*p < 0x20 || *p == 0x7f ? '?' : *p, out);
    fputc('\n', out);
}

static void echo_key(const struct dt_config_key *key, const struct dt_config_value *value,
                     FILE *out)
{
    bool unset = value->text[0] == 0 && key->type != DT_CONFIG_STRING;
    int column = fprintf(out, "%s%s = ", unset ? "# " : "", key->name);
    column += print_value(value->text, out);
    fprintf(out, "%*s", column < ECHO_COLUMN ? ECHO_COLUMN - column : 0, "");
    print_comment(unset ? "not set" : value->origin, out);
}

void dt_config_echo(const struct dt_config *config, FILE *out)
{
    fputs("# The resolved configuration: every key, and where its value came from.\n", out);
    for (struct dt_config_row row = {0}; dt_config_next(config->table, &row);) {
        if (row.key == row.section->keys)
            fprintf(out, "\n[%s]\n", row.section->name);
        echo_key(row.key, &config->values[row.index], out);
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

static const char *default_text(const struct dt_config_key *key)
{
    if (key->required)
        return "required";
    return key->fallback[0] ? key->fallback : "-";
}

struct widths {
    int name, fallback;
};

static struct widths measure(const struct dt_config_table *table)
{
    struct widths widths = {0};
    for (struct dt_config_row row = {0}; dt_config_next(table, &row);) {
        int name = (int)strlen(row.key->name);
        int fallback = (int)strlen(default_text(row.key));
        widths.name = name > widths.name ? name : widths.name;
        widths.fallback = fallback > widths.fallback ? fallback : widths.fallback;
    }
    return widths;
}

static void help_key(const struct dt_config_key *key, struct widths widths, FILE *out)
{
    char allowed[DT_CONFIG_ALLOWED];
    int indent = 2 + widths.name + 2 + widths.fallback + 2;
    int column = fprintf(out, "  %-*s  %-*s  %s", widths.name, key->name, widths.fallback,
                         default_text(key), key->help);
    if (key->type != DT_CONFIG_STRING || key->unbuilt) {
        dt_config_allowed(key, allowed);
        if (column + 3 + (int)strlen(allowed) > HELP_COLUMNS)
            fprintf(out, "\n%*s(%s)", indent, "", allowed);
        else
            fprintf(out, " (%s)", allowed);
    }
    fputc('\n', out);
}

void dt_config_help(const struct dt_config_table *table, FILE *out)
{
    struct widths widths = measure(table);
    for (struct dt_config_row row = {0}; dt_config_next(table, &row);) {
        if (row.key == row.section->keys)
            fprintf(out, "%s[%s]\n", row.index > 0 ? "\n" : "", row.section->name);
        help_key(row.key, widths, out);
    }
}
