// The echo of a resolved configuration.
#include "base/config.h"

#include "base/config_internal.h"

#include <stdio.h>
#include <string.h>

enum { ECHO_COLUMN = 32 };

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
