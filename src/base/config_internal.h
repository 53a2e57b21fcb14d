// The files src/base/config*.c, and they alone, share these: values, the lines of an INI text, and
// a user's text made fit for messages.
#pragma once

#include "base/config.h"

enum {
    DT_CONFIG_LINE_MAX = 64 * 1024, // bytes
    DT_CONFIG_SHOWN = 96,           // a user's text as quoted in messages
    DT_CONFIG_ORIGIN = 512,
};

struct dt_config {
    char *name; // of the file, or ""
    const struct dt_config_table *table;
    struct dt_config_value *values; // one per key, in the table's order
};

// config.c: the origin of a value that nothing gave.
extern const char dt_config_default[];
// config.c: copies text and origin into a value.
dt_status dt_config_keep(struct dt_config_value *value, const char *text, const char *origin);

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

// config_value.c: the text of a key of paths with home folders in place of each leading ~. false:
// `problem` says why there is none.
bool dt_config_expand_homes(const struct dt_config_key *key, const char *text,
                            char out[DT_CONFIG_STRING_MAX], char problem[DT_CONFIG_PROBLEM]);

// A user's text fit for a message: one line, no control characters, not too long.
const char *dt_config_shown(const char *text, char out[DT_CONFIG_SHOWN]);
