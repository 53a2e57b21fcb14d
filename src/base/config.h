// INI configuration over a typed key table. One table generates defaults, parsing, checks, --help
// and the echo. Sources in order of increasing precedence: default, file, environment
// (PREFIX_SECTION__KEY), command line (section.key=value). Every value remembers where it came
// from. All errors of all sources are reported together as one DT_USER error, one per line:
// file:line, key, what is allowed, the nearest known name. The reader is strict: `[section]`, `key
// = value`, comments start a line with # or ; (or follow a value after white space), a value that
// would otherwise be misread is written in double quotes, where \" and \\ mean " and \; nothing
// else is accepted. Lines may have up to 64 KiB, NUL bytes and other control characters are errors,
// a UTF-8 BOM and CRLF are fine. A duplicate key or section in one source is an error too.
#pragma once

#include "base/problems.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum dt_config_type {
    DT_CONFIG_BOOL,   // bool
    DT_CONFIG_INT,    // int64_t in [min, max]
    DT_CONFIG_FLOAT,  // double in [min, max], finite
    DT_CONFIG_STRING, // char[DT_CONFIG_STRING_MAX]
    DT_CONFIG_ENUM,   // int: index into choices
    DT_CONFIG_ANY,    // const char *: any text, which the caller keeps; for command-line options
};
enum { DT_CONFIG_STRING_MAX = 1024, DT_CONFIG_NAME = 128, DT_CONFIG_ALLOWED = 512 };

struct dt_config_key {
    const char *name; // NULL ends a list of keys
    enum dt_config_type type;
    size_t offset; // of the field in its struct
    // Default as text, checked like any other value; "": not set (the field is 0 or an empty
    // string).
    const char *fallback;
    // INT and FLOAT: a word that is also allowed ("auto") and is stored as auto_value; or NULL.
    const char *auto_word;
    double auto_value;
    double min, max;     // INT and FLOAT; inclusive
    bool above_min;      // FLOAT: min itself is not allowed
    const char *choices; // ENUM: "auto|cpu|cuda", the index is the value
    bool required;       // must be set by some source, and not to an empty text
    bool neutral;        // changes how or where, but not what is computed
    const char *help;    // one line
    const char *json;    // name of the same value in config.json (model/config.h), or NULL
    // The full name ("run.steps") of a key that overrides this one if a source of higher precedence
    // sets it: `below` lowers this INT to one less than that key's value, `replaced_by` is an
    // alternative to this key. NULL: none.
    const char *below, *replaced_by;
    // STRING: one path, or several separated by commas. A leading ~ or ~NAME is expanded to that
    // user's home folder, since no shell expands it in section.key=value; the echo shows the
    // result.
    bool is_path, is_path_list;
    // STRING: a list of words. A key ENTRIES[NAME] = VALUE appends the word NAME:VALUE; words from
    // sources of higher precedence come later.
    const char *entries;
};

// Rows for a field of a struct. A field whose type does not match its row does not compile.
#define DT_CONFIG_AT(kind, object, field)                                                          \
    _Generic(((object *)0)->field, kind : offsetof(object, field))
#define DT_CONFIG_ROW(kind, at, named, standard, ...)                                              \
    {                                                                                              \
        .name = named, .type = DT_CONFIG_##kind, .offset = at, .fallback = standard,               \
        .help = __VA_ARGS__                                                                        \
    }
#define DT_CONFIG_WHOLE(object, field, named, standard, low, high, ...)                            \
    DT_CONFIG_ROW(INT, DT_CONFIG_AT(int64_t, object, field), named, standard, __VA_ARGS__,         \
                  .min = low, .max = high)
#define DT_CONFIG_REAL(object, field, named, standard, low, high, ...)                             \
    DT_CONFIG_ROW(FLOAT, DT_CONFIG_AT(double, object, field), named, standard, __VA_ARGS__,        \
                  .min = low, .max = high)
#define DT_CONFIG_FLAG(object, field, named, standard, ...)                                        \
    DT_CONFIG_ROW(BOOL, DT_CONFIG_AT(bool, object, field), named, standard, __VA_ARGS__)
#define DT_CONFIG_TEXT(object, field, named, standard, ...)                                        \
    DT_CONFIG_ROW(ANY, DT_CONFIG_AT(const char *, object, field), named, standard, __VA_ARGS__)
#define DT_CONFIG_WORDS(object, field, named, standard, ...)                                       \
    DT_CONFIG_ROW(STRING,                                                                          \
                  _Generic(&((object *)0)->field, char(*)[DT_CONFIG_STRING_MAX]                    \
                           : offsetof(object, field)),                                             \
                  named, standard, __VA_ARGS__)
#define DT_CONFIG_CHOICE(object, field, named, standard, words, ...)                               \
    DT_CONFIG_ROW(ENUM, /* an enum without negative values is unsigned */                          \
                  _Generic(((object *)0)->field, int                                               \
                           : offsetof(object, field), unsigned                                     \
                           : offsetof(object, field)),                                             \
                  named, standard, __VA_ARGS__, .choices = words)

struct dt_config_section {
    const char *name; // NULL ends a table's list
    size_t offset;    // added to the offsets of its keys
    const struct dt_config_key *keys;
    const struct dt_config_key *(*list)(void); // replaces `keys`; built by the first call
    bool neutral;                              // all its keys are neutral
};

struct dt_config_table {
    const struct dt_config_section *sections;
    size_t settings_size;
    const char *env_prefix; // "DTRAIN_"
};

// Iterates over all keys: for (struct dt_config_row row = {0}; dt_config_next(table, &row);)
struct dt_config_row {
    const struct dt_config_section *section;
    const struct dt_config_key *key;
    int index;                 // index of the key in the table
    bool first;                // first key of its section
    char name[DT_CONFIG_NAME]; // "section.key"
};
bool dt_config_next(const struct dt_config_table *table, struct dt_config_row *row);

// Functions on one value of a key; `object` is the struct whose field the row describes. The first
// checks `text` and stores it; if it returns false, `problem` says why.
enum { DT_CONFIG_PROBLEM = 1024 };
bool dt_config_convert(const struct dt_config_key *key, const char *text, void *object,
                       char problem[DT_CONFIG_PROBLEM]);
// What is allowed, for messages: "a whole number from 1 to 64".
void dt_config_allowed(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED]);
void dt_config_set_default(const struct dt_config_key *key, void *object);
bool dt_config_in_range(const struct dt_config_key *key, const void *object);
bool dt_config_equal(const struct dt_config_key *key, const void *a, const void *b);
// Whether `word` is one of the words of "a|b|c"; *at (may be NULL) gets its index.
bool dt_config_is_choice(const char *choices, const char *word, int *at);
// The value as text that parses to the same value.
const char *dt_config_value_text(const struct dt_config_key *key, const void *object,
                                 char out[DT_CONFIG_STRING_MAX]);

struct dt_config; // values, texts and provenance of one configuration

enum dt_config_source { DT_SOURCE_DEFAULT, DT_SOURCE_FILE, DT_SOURCE_ENV, DT_SOURCE_COMMAND };

struct dt_config_value {
    char *text, *origin;          // "10", "config.ini:12"
    enum dt_config_source source; // the last source that gave the key, valid or not
    bool refused;                 // its text is invalid, or it is required and missing
    bool hidden;                  // omitted from the echo, because nothing reads it
};

// Reports missing values and values that contradict each other. The field of a refused value is as
// if its key had not been given.
typedef void dt_config_check(struct dt_problems *problems, const void *settings,
                             const struct dt_config *config);
// Reads everything and fills `settings` (settings_size bytes). `path` may be NULL (no file) and
// `overrides` are n words `section.key=value`. Unknown DTRAIN_X__Y variables are errors too. On
// failure *config is NULL and `settings` must not be used. `check` may be NULL.
dt_status dt_config_load(const struct dt_config_table *table, dt_config_check *check,
                         const char *path, const char *const *overrides, int n_overrides,
                         void *settings, struct dt_config **config);
// Loads a configuration from text in memory, for broadcasts, tests and the fuzz target. `name` is
// the path in messages. `environment`: NULL-terminated NAME=value list, or NULL for none.
dt_status dt_config_parse(const struct dt_config_table *table, dt_config_check *check,
                          const char *name, const char *text, int64_t size,
                          const char *const *environment, const char *const *overrides,
                          int n_overrides, void *settings, struct dt_config **config);
void dt_config_free(struct dt_config *config); // NULL is fine

// Finds a key of the table ("run.steps"); aborts on unknown keys.
struct dt_config_value *dt_config_find(const struct dt_config *config, const char *key);
bool dt_config_is_set(const struct dt_config *config, const char *key); // not the default

// Reports a problem that a check across keys found with `key`: DT_USER, with the message "origin:
// key: " and the text. Without origin if `config` is NULL, as on ranks that received the settings
// from rank 0.
dt_status dt_config_reject(const struct dt_config *config, const char *key, const char *hint,
                           const char *format, ...) __attribute__((format(printf, 4, 5)));
// Adds the same message to `problems`.
void dt_config_problem(struct dt_problems *problems, const struct dt_config *config,
                       const char *key, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// Records for the echo a value that was decided by something other than a source, such as the model
// that a run starts from. Settings are unchanged.
dt_status dt_config_note(struct dt_config *config, const char *key, const char *text,
                         const char *origin);

// Writes the resolved configuration, every key with its value and, as a comment, its origin. The
// output is valid input for the same settings; every key then counts as set.
void dt_config_echo(const struct dt_config *config, FILE *out);
// Prints for people the keys that are not at their default, wrapped at dt_columns.
void dt_config_print_set(const struct dt_config *config, FILE *out);
dt_status dt_config_echo_text(const struct dt_config *config, char **text, size_t *size); // malloc
