// A loaded configuration: what its values are and where they came from, and the collecting of
// faults.
#include "base/config.h"

#include "base/config_internal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

const char *dt_config_full_name(const struct dt_config_key *key, char out[DT_CONFIG_NAME_MAX])
{
    snprintf(out, DT_CONFIG_NAME_MAX, "%s.%s", key->section, key->name);
    return out;
}

static struct dt_config_value *find_value(const struct dt_config *config, const char *name)
{
    char known[DT_CONFIG_NAME_MAX];
    for (int i = 0; i < config->table->n_keys; i++)
        if (strcmp(dt_config_full_name(&config->table->keys[i], known), name) == 0)
            return &config->values[i];
    fprintf(stderr, "defect: '%s' is not in the configuration table\n", name);
    abort();
}

// Where to mend a key: its line, or the file that it is missing from.
static const char *place_of(const struct dt_config *config, const char *key)
{
    const struct dt_config_value *value = config ? find_value(config, key) : NULL;
    if (!value)
        return "";
    return value->source == DT_SOURCE_DEFAULT ? config->name : value->origin;
}

static void add_fault(struct dt_config_faults *faults, const char *line)
{
    size_t n = strlen(line) + 1; // the newline before it
    faults->count++;
    if (faults->left_out > 0 || faults->used + n >= sizeof faults->text) {
        faults->left_out++;
        return;
    }
    faults->used +=
        (size_t)snprintf(faults->text + faults->used, sizeof faults->text - faults->used, "%s%s",
                         faults->used ? "\n" : "", line);
}

void dt_config_fault_at(struct dt_config_faults *faults, const char *origin, const char *format,
                        ...)
{
    char line[DT_ERROR_MESSAGE / 2];
    size_t used = (size_t)snprintf(line, DT_CONFIG_ORIGIN, "%s%s", origin, origin[0] ? ": " : "");
    va_list args;
    if (used >= DT_CONFIG_ORIGIN)
        used = DT_CONFIG_ORIGIN - 1;
    va_start(args, format);
    vsnprintf(line + used, sizeof line - used, format, args);
    va_end(args);
    add_fault(faults, line);
}

void dt_config_fault(struct dt_config_faults *faults, const struct dt_config *config,
                     const char *key, const char *format, ...)
{
    char text[DT_ERROR_MESSAGE / 4];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dt_config_fault_at(faults, place_of(config, key), "%s: %s", key, text);
}

dt_status dt_config_raise(const struct dt_config_faults *faults, const char *hint)
{
    if (faults->count == 0)
        return DT_OK;
    if (faults->left_out == 0)
        return DT_FAIL(DT_USER, hint, "%s", faults->text);
    return DT_FAIL(DT_USER, hint, "%s\nand %d more", faults->text, faults->left_out);
}

dt_status dt_config_note(struct dt_config *config, const char *key, const char *text,
                         const char *origin)
{
    struct dt_config_value *value = find_value(config, key);
    char *new_text = strdup(text), *new_origin = strdup(origin);
    if (!new_text || !new_origin) {
        free(new_text);
        free(new_origin);
        return DT_FAIL(DT_MACHINE, NULL, "no memory for the value of %s", key);
    }
    free(value->text);
    free(value->origin);
    value->text = new_text;
    value->origin = new_origin;
    return DT_OK;
}

dt_status dt_config_reject(const struct dt_config *config, const char *key, const char *hint,
                           const char *format, ...)
{
    char text[DT_ERROR_MESSAGE / 4];
    struct dt_config_faults faults = {0};
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dt_config_fault(&faults, config, key, "%s", text);
    return dt_config_raise(&faults, hint);
}

bool dt_config_opens_section(const struct dt_config_table *table, int i)
{
    return i == 0 || strcmp(table->keys[i].section, table->keys[i - 1].section) != 0;
}

void dt_config_free(struct dt_config *config)
{
    if (!config)
        return;
    for (int i = 0; i < config->table->n_keys; i++) {
        free(config->values[i].text);
        free(config->values[i].origin);
    }
    free(config->values);
    free(config->name);
    free(config);
}

bool dt_config_is_set(const struct dt_config *config, const char *key)
{
    return find_value(config, key)->source != DT_SOURCE_DEFAULT;
}

const char *dt_config_text(const struct dt_config *config, const char *key)
{
    return find_value(config, key)->text;
}

const char *dt_config_origin(const struct dt_config *config, const char *key)
{
    return find_value(config, key)->origin;
}
