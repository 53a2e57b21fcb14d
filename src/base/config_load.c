// Brings default, file, environment and command line together over the table, remembers where each
// value came from and collects all that is wrong.
#include "base/config.h"

#include "base/config_internal.h"
#include "base/file.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { FILE_MAX = 16 * 1024 * 1024, PATH_SHOWN = 400 };

struct loader {
    const struct dt_config_table *table;
    struct dt_config *config;
    void *settings;
    struct dt_config_faults faults;
};

// RUN__STEPS behind the prefix.
static const char *environment_name(const struct dt_config_table *table,
                                    const struct dt_config_key *key, char out[DT_CONFIG_NAME_MAX])
{
    int n = snprintf(out, DT_CONFIG_NAME_MAX, "%s", table->env_prefix);
    snprintf(out + n, (size_t)(DT_CONFIG_NAME_MAX - n), "%s__%s", key->section, key->name);
    for (char *p = out + n; *p; p++)
        *p = (char)toupper((unsigned char)*p);
    return out;
}

static const struct dt_config_key *find_key(const struct dt_config_table *table,
                                            const char *section, const char *name)
{
    for (int i = 0; i < table->n_keys; i++)
        if (strcmp(table->keys[i].section, section) == 0 && strcmp(table->keys[i].name, name) == 0)
            return &table->keys[i];
    return NULL;
}

static bool has_section(const struct dt_config_table *table, const char *section)
{
    for (int i = 0; i < table->n_keys; i++)
        if (strcmp(table->keys[i].section, section) == 0)
            return true;
    return false;
}

// Names of sections (section NULL) or of a section's keys, with commas.
static void list_names(const struct dt_config_table *table, const char *section, char *out,
                       size_t size)
{
    size_t used = 0;
    out[0] = 0;
    for (int i = 0; i < table->n_keys && used < size; i++) {
        const struct dt_config_key *key = &table->keys[i];
        if (section ? strcmp(key->section, section) == 0 : dt_config_opens_section(table, i))
            used += (size_t)snprintf(out + used, size - used, "%s%s", used ? ", " : "",
                                     section ? key->name : key->section);
    }
}

static void fault_section(struct loader *loader, const char *origin, const char *section)
{
    const struct dt_config_table *table = loader->table;
    struct dt_nearest nearest = dt_nearest_to(section);
    char question[DT_CONFIG_NAME_MAX + 32], shown[DT_CONFIG_SHOWN], names[512];
    for (int i = 0; i < table->n_keys; i++)
        if (dt_config_opens_section(table, i))
            dt_nearest_offer(&nearest, table->keys[i].section);
    dt_nearest_ask(&nearest, question);
    list_names(table, NULL, names, sizeof names);
    dt_config_fault_at(&loader->faults, origin, "unknown section '%s'%s (sections: %s)",
                       dt_config_shown(section, shown), question, names);
}

// The same name in another section is nearer than a similar one in this.
static void suggest_key(const struct dt_config_table *table, const char *section, const char *name,
                        char question[DT_CONFIG_NAME_MAX + 32])
{
    struct dt_nearest here = dt_nearest_to(name), there = dt_nearest_to(name);
    for (int i = 0; i < table->n_keys; i++) {
        const struct dt_config_key *key = &table->keys[i];
        struct dt_nearest *nearest = strcmp(key->section, section) == 0 ? &here : &there;
        int before = nearest->distance;
        dt_nearest_offer(nearest, key->name);
        if (nearest->distance < before)
            dt_config_full_name(key, nearest->best);
    }
    dt_nearest_ask(there.distance == 0 || !here.best[0] ? &there : &here, question);
}

static void fault_key(struct loader *loader, const char *origin, const char *section,
                      const char *name)
{
    char question[DT_CONFIG_NAME_MAX + 32], shown[DT_CONFIG_SHOWN], names[512];
    suggest_key(loader->table, section, name, question);
    list_names(loader->table, section, names, sizeof names);
    dt_config_fault_at(&loader->faults, origin, "unknown key '%s' in section '%s'%s (keys: %s)",
                       dt_config_shown(name, shown), section, question, names);
}

static dt_status store(char **out, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return DT_FAIL(DT_MACHINE, NULL, "no memory for %zu bytes of configuration", strlen(text));
    free(*out);
    *out = copy;
    return DT_OK;
}

static dt_status assign(struct loader *loader, const struct dt_config_key *key,
                        enum dt_config_source source, const char *origin, const char *text)
{
    struct dt_config_value *value = &loader->config->values[key - loader->table->keys];
    char problem[DT_CONFIG_PROBLEM], allowed[DT_CONFIG_ALLOWED], name[DT_CONFIG_NAME_MAX];
    if (source != DT_SOURCE_DEFAULT && value->source == source) {
        dt_config_fault_at(&loader->faults, origin, "%s is given twice (first: %s)",
                           dt_config_full_name(key, name), value->origin);
        return DT_OK;
    }
    value->source = source;
    DT_TRY(store(&value->origin, origin));
    DT_TRY(store(&value->text, text));
    if (source == DT_SOURCE_DEFAULT && text[0] == 0)
        return DT_OK;
    if (dt_config_convert(key, text, loader->settings, problem))
        return DT_OK;
    dt_config_allowed(key, allowed);
    dt_config_fault_at(&loader->faults, origin, "%s: %s (allowed: %s)",
                       dt_config_full_name(key, name), problem, allowed);
    return DT_OK;
}

static dt_status load_defaults(struct loader *loader)
{
    for (int i = 0; i < loader->table->n_keys; i++) {
        const struct dt_config_key *key = &loader->table->keys[i];
        DT_TRY(assign(loader, key, DT_SOURCE_DEFAULT, "default", key->fallback));
    }
    return DT_OK;
}

// Where the reader stands in the file: the section's name, or "" where its keys are to be passed
// over because the section itself was wrong.
struct place {
    const char *path;
    char section[DT_CONFIG_NAME_MAX];
    bool in_section;
    int *opened; // a key's index: the line at which its section was opened, or 0
};

static void enter_section(struct loader *loader, struct place *place, const struct dt_ini *ini,
                          const char *origin)
{
    const struct dt_config_table *table = loader->table;
    place->in_section = true;
    place->section[0] = 0;
    if (!has_section(table, ini->name)) {
        fault_section(loader, origin, ini->name);
        return;
    }
    snprintf(place->section, sizeof place->section, "%s", ini->name);
    for (int i = 0; i < table->n_keys; i++) {
        if (strcmp(table->keys[i].section, ini->name) != 0)
            continue;
        if (place->opened[i] && dt_config_opens_section(table, i))
            dt_config_fault_at(&loader->faults, origin,
                               "section '%s' is opened twice: first in line %d; put its keys "
                               "together there",
                               ini->name, place->opened[i]);
        if (!place->opened[i])
            place->opened[i] = ini->line;
    }
}

static dt_status read_line(struct loader *loader, struct place *place, const struct dt_ini *ini)
{
    char origin[DT_CONFIG_ORIGIN], shown[DT_CONFIG_SHOWN];
    const struct dt_config_key *key;
    snprintf(origin, sizeof origin, "%s:%d", place->path, ini->line);
    if (ini->kind == DT_INI_BAD) {
        dt_config_fault_at(&loader->faults, origin, "%s", ini->problem);
        return DT_OK;
    }
    if (ini->kind == DT_INI_SECTION) {
        enter_section(loader, place, ini, origin);
        return DT_OK;
    }
    if (!place->in_section) {
        dt_config_fault_at(&loader->faults, origin, "'%s' stands before any '[section]'",
                           dt_config_shown(ini->name, shown));
        return DT_OK;
    }
    if (place->section[0] == 0)
        return DT_OK;
    key = find_key(loader->table, place->section, ini->name);
    if (key)
        return assign(loader, key, DT_SOURCE_FILE, origin, ini->value);
    fault_key(loader, origin, place->section, ini->name);
    return DT_OK;
}

static dt_status load_text(struct loader *loader, const char *path, const char *text, int64_t size)
{
    struct dt_ini *ini = malloc(sizeof *ini);
    int *opened = calloc((size_t)loader->table->n_keys + 1, sizeof *opened);
    size_t length = strlen(path);
    struct place place = {.path = path, .opened = opened};
    dt_status status = DT_OK;
    if (!ini || !opened) {
        status = DT_FAIL(DT_MACHINE, NULL, "no memory to read %s", path);
        goto out;
    }
    if (length > PATH_SHOWN) // its end, or the line number would find no room
        place.path += length - PATH_SHOWN;
    dt_ini_open(ini, text, size);
    while (dt_ini_next(ini))
        DT_TRY_GOTO(status, out, read_line(loader, &place, ini));
out:
    free(ini);
    free(opened);
    return status;
}

static void fault_variable(struct loader *loader, const char *variable)
{
    const struct dt_config_table *table = loader->table;
    struct dt_nearest nearest = dt_nearest_to(variable);
    char question[DT_CONFIG_NAME_MAX + 32], name[DT_CONFIG_NAME_MAX], shown[DT_CONFIG_SHOWN];
    for (int i = 0; i < table->n_keys; i++)
        dt_nearest_offer(&nearest, environment_name(table, &table->keys[i], name));
    dt_nearest_ask(&nearest, question);
    dt_config_fault_at(&loader->faults, "environment",
                       "%s names no key%s (write %sSECTION__KEY, or unset it)",
                       dt_config_shown(variable, shown), question, table->env_prefix);
}

static dt_status read_variable(struct loader *loader, const char *variable, const char *text)
{
    const struct dt_config_table *table = loader->table;
    char name[DT_CONFIG_NAME_MAX], origin[DT_CONFIG_ORIGIN];
    for (int i = 0; i < table->n_keys; i++) {
        const struct dt_config_key *key = &table->keys[i];
        if (strcmp(environment_name(table, key, name), variable) != 0)
            continue;
        snprintf(origin, sizeof origin, "environment %s", variable);
        return assign(loader, key, DT_SOURCE_ENV, origin, text);
    }
    fault_variable(loader, variable);
    return DT_OK;
}

// Whether the name of a variable after the prefix is meant for the configuration: DTRAIN_RUN_STEPS
// is a mistake to report, DTRAIN_DEBUG is not.
static bool is_configuration(const struct dt_config_table *table, const char *name)
{
    size_t n = strcspn(name, "_");
    if (strstr(name, "__"))
        return true;
    for (int i = 0; name[n] == '_' && i < table->n_keys; i++)
        if (strlen(table->keys[i].section) == n &&
            strncasecmp(table->keys[i].section, name, n) == 0)
            return true;
    return false;
}

static dt_status load_environment(struct loader *loader, const char *const *environment)
{
    const char *prefix = loader->table->env_prefix;
    size_t n = strlen(prefix);
    for (; environment && *environment; environment++) {
        const char *equals = strchr(*environment, '=');
        char *variable;
        dt_status status = DT_OK;
        if (!equals || strncmp(*environment, prefix, n) != 0)
            continue;
        variable = strndup(*environment, (size_t)(equals - *environment));
        if (!variable)
            return DT_FAIL(DT_MACHINE, NULL, "no memory to read the environment");
        if (is_configuration(loader->table, variable + n))
            status = read_variable(loader, variable, equals + 1);
        free(variable);
        DT_TRY(status);
    }
    return DT_OK;
}

static dt_status read_override(struct loader *loader, char *word)
{
    static const char origin[] = "command line";
    char *equals = strchr(word, '='), *dot = strchr(word, '.'), shown[DT_CONFIG_SHOWN];
    const struct dt_config_key *key;
    if (!equals || !dot || dot > equals) {
        dt_config_fault_at(&loader->faults, origin, "'%s' is not of the form section.key=value",
                           dt_config_shown(word, shown));
        return DT_OK;
    }
    *dot = *equals = 0;
    key = find_key(loader->table, word, dot + 1);
    if (key)
        return assign(loader, key, DT_SOURCE_COMMAND, origin, equals + 1);
    if (has_section(loader->table, word))
        fault_key(loader, origin, word, dot + 1);
    else
        fault_section(loader, origin, word);
    return DT_OK;
}

static dt_status load_overrides(struct loader *loader, const char *const *overrides, int n)
{
    for (int i = 0; i < n; i++) {
        char *word = strdup(overrides[i]);
        dt_status status;
        if (!word)
            return DT_FAIL(DT_MACHINE, NULL, "no memory to read the command line");
        status = read_override(loader, word);
        free(word);
        DT_TRY(status);
    }
    return DT_OK;
}

static void check_required(struct loader *loader)
{
    for (int i = 0; i < loader->table->n_keys; i++) {
        const struct dt_config_key *key = &loader->table->keys[i];
        char name[DT_CONFIG_NAME_MAX], allowed[DT_CONFIG_ALLOWED];
        if (!key->required || loader->config->values[i].source != DT_SOURCE_DEFAULT)
            continue;
        dt_config_allowed(key, allowed);
        dt_config_fault_at(&loader->faults, loader->config->name,
                           "%s is required: %s (allowed: %s)", dt_config_full_name(key, name),
                           key->help, allowed);
    }
}

static dt_status create(const struct dt_config_table *table, const char *name,
                        struct dt_config **config)
{
    struct dt_config *made = calloc(1, sizeof *made);
    if (made) {
        made->table = table;
        made->name = strdup(name ? name : "");
        made->values = calloc((size_t)table->n_keys + 1, sizeof *made->values);
    }
    if (!made || !made->name || !made->values) {
        if (made)
            free(made->name);
        free(made);
        return DT_FAIL(DT_MACHINE, NULL, "no memory for a configuration");
    }
    *config = made;
    return DT_OK;
}

dt_status dt_config_parse(const struct dt_config_table *table, const char *name, const char *text,
                          int64_t size, const char *const *environment,
                          const char *const *overrides, int n_overrides, void *settings,
                          struct dt_config **config)
{
    struct loader loader = {.table = table, .settings = settings};
    dt_status status;
    *config = NULL;
    memset(settings, 0, table->settings_size);
    DT_TRY(create(table, name, &loader.config));
    DT_TRY_GOTO(status, out, load_defaults(&loader));
    if (text)
        DT_TRY_GOTO(status, out, load_text(&loader, name, text, size));
    DT_TRY_GOTO(status, out, load_environment(&loader, environment));
    DT_TRY_GOTO(status, out, load_overrides(&loader, overrides, n_overrides));
    check_required(&loader);
    DT_TRY_GOTO(status, out,
                dt_config_raise(&loader.faults, "dtrain --help lists every key with its default "
                                                "and what is allowed"));
    *config = loader.config;
    return DT_OK;
out:
    dt_config_free(loader.config);
    return status;
}

dt_status dt_config_load(const struct dt_config_table *table, const char *path,
                         const char *const *overrides, int n_overrides, void *settings,
                         struct dt_config **config)
{
    char *text = NULL;
    int64_t size = 0;
    dt_status status;
    *config = NULL;
    if (path)
        DT_TRY_NOTE(dt_read_file(path, FILE_MAX, &text, &size), "reading the configuration");
    status = dt_config_parse(table, path, text, size, (const char *const *)environ, overrides,
                             n_overrides, settings, config);
    free(text);
    DT_TRY(status);
    return DT_OK;
}
