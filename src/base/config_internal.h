// What the files of the configuration reader share: the lines of an INI text, the conversion of one
// value, names that are near to another, faults at any place. For src/base/config*.c only.
#pragma once

#include "base/config.h"

enum {
    DT_CONFIG_LINE_MAX = 64 * 1024, // bytes
    DT_CONFIG_NAME_MAX = 128,       // section, dot, key; in the environment prefix and __ too
    DT_CONFIG_SHOWN = 96,           // a user's text as quoted in messages
    DT_CONFIG_ALLOWED = 512,
    DT_CONFIG_PROBLEM = 1024,
};

enum dt_config_source { DT_SOURCE_DEFAULT, DT_SOURCE_FILE, DT_SOURCE_ENV, DT_SOURCE_COMMAND };

struct dt_config_value {
    char *text, *origin;
    enum dt_config_source source; // the last one that gave the key, right or wrong
};

struct dt_config {
    char *name; // of the file, or ""
    const struct dt_config_table *table;
    struct dt_config_value *values; // one a key, in the table's order
};

// config_read.c: the lines of a text, one after the other. `name`, `value` and `problem` point into
// the reader and last until the next call.
enum dt_ini_kind { DT_INI_SECTION, DT_INI_PAIR, DT_INI_BAD };
struct dt_ini {
    const char *text;
    int64_t size, at;
    int line;
    enum dt_ini_kind kind;
    char *name, *value;
    char problem[DT_CONFIG_SHOWN + 128];
    char buffer[DT_CONFIG_LINE_MAX + 1];
};
void dt_ini_open(struct dt_ini *ini, const char *text, int64_t size);
bool dt_ini_next(struct dt_ini *ini); // false at the end
// Whether a value must be quoted to be read back as it is.
bool dt_ini_needs_quotes(const char *value);

// config_value.c: checks `text` and stores it in its field; otherwise says in `problem` why not.
bool dt_config_convert(const struct dt_config_key *key, const char *text, void *settings,
                       char problem[DT_CONFIG_PROBLEM]);
// "a whole number from 1 to 64", without the choices that are not built.
void dt_config_allowed(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED]);
// Whether `word` is one of the words of "a|b|c"; at: which (may be NULL).
bool dt_config_is_choice(const char *choices, const char *word, int *at);
// Copies the next word of "a|b|c" and moves on; false behind the last.
bool dt_config_next_choice(const char **choices, char word[DT_CONFIG_NAME_MAX]);

// config_names.c: the search for the name that was meant. Offer candidates, then read `best`.
struct dt_nearest {
    const char *word;
    int distance; // of best
    char best[DT_CONFIG_NAME_MAX];
};
struct dt_nearest dt_nearest_to(const char *word);
void dt_nearest_offer(struct dt_nearest *nearest, const char *candidate);
// ": did you mean 'X'?", or "" where nothing is near.
void dt_nearest_ask(const struct dt_nearest *nearest, char out[DT_CONFIG_NAME_MAX + 32]);
// A user's text fit for a message: one line, no control characters, not too long.
const char *dt_config_shown(const char *text, char out[DT_CONFIG_SHOWN]);

// config.c
enum { DT_CONFIG_ORIGIN = 512 };
void dt_config_fault_at(struct dt_config_faults *faults, const char *origin, const char *format,
                        ...) __attribute__((format(printf, 3, 4)));
// "section.key"
const char *dt_config_full_name(const struct dt_config_key *key, char out[DT_CONFIG_NAME_MAX]);
// Whether row i is the first of its section; the rows of a section stand together.
bool dt_config_opens_section(const struct dt_config_table *table, int i);
