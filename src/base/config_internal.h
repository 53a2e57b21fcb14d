// Private to src/base/config*.c: values, the lines of an INI text, and user text in messages.
#pragma once

#include "base/config.h"

enum {
    DT_CONFIG_LINE_MAX = 64 * 1024, // bytes
    DT_CONFIG_SHOWN = 96,           // bytes of a user's text when quoted in messages
    DT_CONFIG_ORIGIN = 512,
};

struct dt_config {
    char *name; // of the file, or ""
    const struct dt_config_table *table;
    struct dt_config_value *values; // one per key, in the table's order
};

// config.c: the origin of a value that no source gave.
extern const char dt_config_default[];
// config.c: copies text and origin into a value.
dt_status dt_config_keep(struct dt_config_value *value, const char *text, const char *origin);

// config_read.c: reads a text line by line. `name`, `value` and `problem` point into the reader and
// are valid until the next call.
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
// Whether a value must be quoted to be read back unchanged.
bool dt_ini_needs_quotes(const char *value);

// config_value.c: expands each leading ~ in the text of a key of paths. false: `problem` says why
// that failed.
bool dt_config_expand_homes(const struct dt_config_key *key, const char *text,
                            char out[DT_CONFIG_STRING_MAX], char problem[DT_CONFIG_PROBLEM]);

// A user's text for a message: one line, no control characters, truncated.
const char *dt_config_shown(const char *text, char out[DT_CONFIG_SHOWN]);
