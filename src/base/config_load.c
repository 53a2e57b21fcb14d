// Loads a configuration: default, file, environment and command line in turn set the values of the
// table's keys. Each value remembers where it came from. All problems are collected and reported at
// the end as one error.
#include "base/config.h"

#include "base/config_internal.h"
#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/nearest.h"

#include <ctype.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

enum { FILE_MAX = 16 * 1024 * 1024, PATH_SHOWN = 400 };

struct loader {
    const struct dt_config_table *table;
    struct dt_config *config;
    void *settings;
    struct dt_problems problems;
};

static const struct dt_config_section *find_section(const struct dt_config_table *table,
                                                    const char *name)
{
    const struct dt_config_section *section = table->sections;
    while (section->name && strcmp(section->name, name) != 0)
        section++;
    return section->name ? section : NULL;
}

// Whether `name` is "ENTRIES[NAME]" of the key.
static bool is_entry(const struct dt_config_key *key, const char *name)
{
    size_t n = key->entries ? strlen(key->entries) : 0, all = strlen(name);
    return n > 0 && strncmp(name, key->entries, n) == 0 && name[n] == '[' && all > n + 2 &&
           name[all - 1] == ']';
}

static bool find_key(const struct dt_config_table *table, const char *section, const char *name,
                     struct dt_config_row *row)
{
    *row = (struct dt_config_row){0};
    while (dt_config_next(table, row))
        if (strcmp(row->section->name, section) == 0 &&
            (strcmp(row->key->name, name) == 0 || is_entry(row->key, name)))
            return true;
    return false;
}

static void reject_section(struct loader *loader, const char *origin, const char *name)
{
    struct dt_nearest nearest = dt_nearest_to(name);
    char shown[DT_CONFIG_SHOWN];
    for (const struct dt_config_section *s = loader->table->sections; s->name; s++)
        dt_nearest_offer(&nearest, s->name);
    dt_problems_add(&loader->problems, "%s: unknown section '%s'%s (sections: %s)", origin,
                    dt_config_shown(name, shown), dt_nearest_suggest(&nearest), nearest.names);
}

// Prefers to suggest the same name in another section over a similar name in this section.
static void reject_key(struct loader *loader, const char *origin, const char *section,
                       const char *name)
{
    struct dt_nearest here = dt_nearest_to(name), there = dt_nearest_to(name);
    char shown[DT_CONFIG_SHOWN];
    for (struct dt_config_row row = {0}; dt_config_next(loader->table, &row);) {
        struct dt_nearest *nearest = strcmp(row.section->name, section) == 0 ? &here : &there;
        int before = nearest->distance;
        dt_nearest_offer(nearest, row.key->name);
        if (nearest->distance < before)
            snprintf(nearest->best, sizeof nearest->best, "%s", row.name);
    }
    struct dt_nearest *nearest = there.distance == 0 || !here.best[0] ? &there : &here;
    dt_problems_add(&loader->problems, "%s: unknown key '%s' in section '%s'%s (keys: %s)", origin,
                    dt_config_shown(name, shown), section, dt_nearest_suggest(nearest), here.names);
}

static dt_status assign(struct loader *loader, const struct dt_config_row *row,
                        enum dt_config_source source, const char *origin, const char *text);

// Assigns `name` = text; an entry is appended to the existing words.
static dt_status assign_named(struct loader *loader, const struct dt_config_row *row,
                              const char *name, enum dt_config_source source, const char *origin,
                              const char *text)
{
    struct dt_config_value *value = &loader->config->values[row->index];
    char *list;
    if (!is_entry(row->key, name))
        return assign(loader, row, source, origin, text);
    const char *entry = name + strlen(row->key->entries) + 1;
    if (strpbrk(entry, " \t:") || strpbrk(text, " \t:")) {
        dt_problems_add(&loader->problems,
                        "%s: %s: neither its name nor its value may have blanks "
                        "or colons",
                        origin, row->name);
        return DT_OK;
    }
    DT_TRY(dt_memory_text(&list, "%s%s%.*s:%s", value->text, value->text[0] ? " " : "",
                          (int)strlen(entry) - 1, entry, text));
    value->source = DT_SOURCE_DEFAULT; // not a duplicate
    dt_status status = assign(loader, row, source, origin, list);
    free(list);
    return status;
}

static dt_status assign(struct loader *loader, const struct dt_config_row *row,
                        enum dt_config_source source, const char *origin, const char *text)
{
    struct dt_config_value *value = &loader->config->values[row->index];
    char problem[DT_CONFIG_PROBLEM], allowed[DT_CONFIG_ALLOWED], expanded[DT_CONFIG_STRING_MAX];
    void *object = (char *)loader->settings + row->section->offset;
    if (source != DT_SOURCE_DEFAULT && value->source == source) {
        dt_problems_add(&loader->problems, "%s: duplicate %s (first: %s)", origin, row->name,
                        value->origin);
        return DT_OK;
    }
    value->source = source;
    bool has_home = (row->key->is_path || row->key->is_path_list) && strchr(text, '~');
    bool is_found = !has_home || dt_config_expand_homes(row->key, text, expanded, problem);
    text = has_home && is_found ? expanded : text;
    DT_TRY(dt_config_keep(value, text, origin));
    if (source == DT_SOURCE_DEFAULT && text[0] == 0)
        return DT_OK;
    value->refused = !is_found || !dt_config_convert(row->key, text, object, problem);
    if (!value->refused)
        return DT_OK;
    dt_config_allowed(row->key, allowed);
    dt_problems_add(&loader->problems, "%s: %s: %s (allowed: %s)", origin, row->name, problem,
                    allowed);
    return DT_OK;
}

// The reader's position in the file. Keys of an unknown section are skipped.
struct place {
    const char *path;
    const struct dt_config_section *section; // NULL: none yet, or unknown
    bool in_section;
    int *opened; // [sections]: the line of each section's header, or 0
};

static void enter_section(struct loader *loader, struct place *place, const struct dt_ini *ini,
                          const char *origin)
{
    place->in_section = true;
    place->section = find_section(loader->table, ini->name);
    if (!place->section) {
        reject_section(loader, origin, ini->name);
        return;
    }
    int *opened = &place->opened[place->section - loader->table->sections];
    if (*opened)
        dt_problems_add(&loader->problems,
                        "%s: duplicate section '%s': first in line %d; put its keys together there",
                        origin, ini->name, *opened);
    else
        *opened = ini->line;
}

static dt_status read_line(struct loader *loader, struct place *place, const struct dt_ini *ini)
{
    char origin[DT_CONFIG_ORIGIN], shown[DT_CONFIG_SHOWN];
    struct dt_config_row row;
    snprintf(origin, sizeof origin, "%s:%d", place->path, ini->line);
    if (ini->kind == DT_INI_BAD)
        dt_problems_add(&loader->problems, "%s: %s", origin, ini->problem);
    else if (ini->kind == DT_INI_SECTION)
        enter_section(loader, place, ini, origin);
    else if (!place->in_section)
        dt_problems_add(&loader->problems, "%s: '%s' comes before any '[section]'", origin,
                        dt_config_shown(ini->name, shown));
    else if (place->section && find_key(loader->table, place->section->name, ini->name, &row))
        return assign_named(loader, &row, ini->name, DT_SOURCE_FILE, origin, ini->value);
    else if (place->section)
        reject_key(loader, origin, place->section->name, ini->name);
    return DT_OK;
}

static dt_status load_text(struct loader *loader, const char *path, const char *text, int64_t size)
{
    const char *zero = size > 0 ? memchr(text, 0, (size_t)size) : NULL;
    if (zero) // one message instead of one per line
        return DT_FAIL(DT_USER, "save it as plain text in UTF-8",
                       "%s is not a text file: byte 0x00 at offset %td", path, zero - text);
    struct dt_ini *ini = NULL;
    struct place place = {.path = path};
    size_t length = strlen(path);
    int64_t n_sections = 0;
    while (loader->table->sections[n_sections].name)
        n_sections++;
    dt_status status;
    DT_TRY_GOTO(status, out, DT_NEW(&place.opened, n_sections, "the sections of %s", path));
    DT_TRY_GOTO(status, out, DT_NEW(&ini, 1, "reading %s", path));
    if (length > PATH_SHOWN) // keep its end; the line number must fit too
        place.path += length - PATH_SHOWN;
    dt_ini_open(ini, text, size);
    while (dt_ini_next(ini))
        DT_TRY_GOTO(status, out, read_line(loader, &place, ini));
out:
    free(ini);
    free(place.opened);
    return status;
}

static dt_status read_variable(struct loader *loader, const char *variable, const char *text)
{
    struct dt_nearest nearest = dt_nearest_to(variable);
    char name[DT_CONFIG_NAME], origin[DT_CONFIG_ORIGIN], shown[DT_CONFIG_SHOWN];
    for (struct dt_config_row row = {0}; dt_config_next(loader->table, &row);) {
        int n = snprintf(name, sizeof name, "%s", loader->table->env_prefix); // DTRAIN_RUN__STEPS
        snprintf(name + n, sizeof name - (size_t)n, "%s__%s", row.section->name, row.key->name);
        for (char *p = name + n; *p; p++)
            *p = (char)toupper((unsigned char)*p);
        if (strcmp(name, variable) == 0) {
            snprintf(origin, sizeof origin, "environment %s", variable);
            return assign(loader, &row, DT_SOURCE_ENV, origin, text);
        }
        dt_nearest_offer(&nearest, name);
    }
    dt_problems_add(&loader->problems,
                    "environment: %s is not a known key%s (write %sSECTION__KEY, or unset it)",
                    dt_config_shown(variable, shown), dt_nearest_suggest(&nearest),
                    loader->table->env_prefix);
    return DT_OK;
}

// Whether a variable is meant for the configuration, by its name after the prefix: DTRAIN_RUN_STEPS
// is a mistake to report, DTRAIN_DEBUG is not.
static bool is_configuration(const struct dt_config_table *table, const char *name)
{
    size_t n = strcspn(name, "_");
    if (strstr(name, "__"))
        return true;
    for (const struct dt_config_section *s = table->sections; name[n] == '_' && s->name; s++)
        if (strlen(s->name) == n && strncasecmp(s->name, name, n) == 0)
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
        DT_TRY(dt_memory_text(&variable, "%.*s", (int)(equals - *environment), *environment));
        if (is_configuration(loader->table, variable + n))
            status = read_variable(loader, variable, equals + 1);
        free(variable);
        DT_TRY(status);
    }
    return DT_OK;
}

static dt_status read_override(struct loader *loader, const char *word)
{
    static const char origin[] = "command line";
    const char *equals = strchr(word, '='), *dot = strchr(word, '.');
    char section[DT_CONFIG_NAME], name[DT_CONFIG_NAME], shown[DT_CONFIG_SHOWN]; // no key is longer
    struct dt_config_row row;
    if (!equals || !dot || dot > equals) {
        dt_problems_add(&loader->problems, "%s: '%s' is not of the form section.key=value", origin,
                        dt_config_shown(word, shown));
        return DT_OK;
    }
    snprintf(section, sizeof section, "%.*s", (int)(dot - word), word);
    snprintf(name, sizeof name, "%.*s", (int)(equals - dot - 1), dot + 1);
    if (find_key(loader->table, section, name, &row))
        return assign_named(loader, &row, name, DT_SOURCE_COMMAND, origin, equals + 1);
    if (find_section(loader->table, section))
        reject_key(loader, origin, section, name);
    else
        reject_section(loader, origin, section);
    return DT_OK;
}

// Adjusts values that another key from a source of higher precedence overrides, so that a file for
// a long run does not prevent a short trial.
static dt_status settle(struct loader *loader, bool report)
{
    for (struct dt_config_row row = {0}; dt_config_next(loader->table, &row);) {
        const char *other = row.key->below ? row.key->below : row.key->replaced_by;
        struct dt_config_value *value = &loader->config->values[row.index];
        struct dt_config_row by = {0};
        while (other && dt_config_next(loader->table, &by) && strcmp(by.name, other) != 0)
            ;
        const struct dt_config_value *stronger = &loader->config->values[by.index];
        if (!other || value->source == DT_SOURCE_DEFAULT || stronger->source <= value->source ||
            value->refused || stronger->refused || !stronger->text[0])
            continue;
        char *object = (char *)loader->settings + row.section->offset, text[24] = "";
        int64_t *whole = (int64_t *)(object + row.key->offset);
        if (row.key->below) {
            int64_t most =
                *(int64_t *)((char *)loader->settings + by.section->offset + by.key->offset) - 1;
            if (*whole <= most)
                continue;
            snprintf(text, sizeof text, "%" PRId64, most);
            if (report)
                dt_warn("%s: %s = %s is not below %s = %s (%s): it becomes %s", value->origin,
                        row.name, value->text, by.name, stronger->text, stronger->origin, text);
            *whole = most;
        } else {
            if (report)
                dt_info("%s: %s = %s is replaced by %s = %s (%s)", value->origin, row.name,
                        value->text, by.name, stronger->text, stronger->origin);
            dt_config_set_default(row.key, object);
            value->source = DT_SOURCE_DEFAULT;
        }
        DT_TRY(dt_config_keep(value, row.key->below ? text : row.key->fallback, stronger->origin));
    }
    return DT_OK;
}

static void check_required(struct loader *loader)
{
    const char *file = loader->config->name;
    char allowed[DT_CONFIG_ALLOWED];
    for (struct dt_config_row row = {0}; dt_config_next(loader->table, &row);) {
        struct dt_config_value *value = &loader->config->values[row.index];
        if (row.key->required && value->source == DT_SOURCE_DEFAULT) {
            bool text = row.key->type == DT_CONFIG_STRING; // its help says what is allowed
            dt_config_allowed(row.key, allowed);
            dt_problems_add(&loader->problems, "%s%s%s is required: %s%s%s%s", file,
                            file[0] ? ": " : "", row.name, row.key->help,
                            text ? "" : " (allowed: ", text ? "" : allowed, text ? "" : ")");
            value->refused = true;
        }
    }
}

dt_status dt_config_parse(const struct dt_config_table *table, dt_config_check *check,
                          const char *name, const char *text, int64_t size,
                          const char *const *environment, const char *const *overrides,
                          int n_overrides, void *settings, struct dt_config **config)
{
    struct loader loader = {.table = table, .settings = settings};
    struct dt_config_row row = {0};
    dt_status status;
    *config = NULL;
    memset(settings, 0, table->settings_size);
    while (dt_config_next(table, &row)) // row.index is the number of keys at the end
        ;
    DT_TRY(DT_NEW(&loader.config, 1, "a configuration"));
    loader.config->table = table;
    DT_TRY_GOTO(status, out,
                DT_NEW(&loader.config->values, row.index, "the values of a configuration"));
    DT_TRY_GOTO(status, out, dt_memory_text(&loader.config->name, "%s", name ? name : ""));
    for (row = (struct dt_config_row){0}; dt_config_next(table, &row);)
        DT_TRY_GOTO(status, out,
                    assign(&loader, &row, DT_SOURCE_DEFAULT, dt_config_default, row.key->fallback));
    if (text)
        DT_TRY_GOTO(status, out, load_text(&loader, name, text, size));
    DT_TRY_GOTO(status, out, load_environment(&loader, environment));
    for (int i = 0; i < n_overrides; i++)
        DT_TRY_GOTO(status, out, read_override(&loader, overrides[i]));
    DT_TRY_GOTO(status, out, settle(&loader, check != NULL));
    check_required(&loader);
    if (check)
        check(&loader.problems, settings, loader.config);
    DT_TRY_GOTO(
        status, out,
        dt_problems_raise(&loader.problems,
                          "dtrain --help lists every key with its default and allowed values"));
    *config = loader.config;
    return DT_OK;
out:
    dt_config_free(loader.config);
    return status;
}

dt_status dt_config_load(const struct dt_config_table *table, dt_config_check *check,
                         const char *path, const char *const *overrides, int n_overrides,
                         void *settings, struct dt_config **config)
{
    char *text = NULL;
    int64_t size = 0;
    dt_status status;
    *config = NULL;
    if (path)
        DT_TRY_NOTE(dt_read_file(path, FILE_MAX, &text, &size), "reading the configuration");
    status = dt_config_parse(table, check, path, text, size, (const char *const *)environ,
                             overrides, n_overrides, settings, config);
    free(text);
    return status;
}
