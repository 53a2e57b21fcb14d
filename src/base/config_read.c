// The strict INI reader splits a text into lines `[section]` and `name = value`, and reports what
// is wrong with any other line. It does not know tables or types.
#include "base/config_internal.h"
#include "base/text.h"

#include <string.h>

void dt_ini_open(struct dt_ini *ini, const char *text, int64_t size)
{
    static const char byte_order_mark[] = "\xef\xbb\xbf";
    ini->text = text;
    ini->size = size;
    ini->at = size >= 3 && memcmp(text, byte_order_mark, 3) == 0 ? 3 : 0;
    ini->line = 0;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_comment(char c)
{
    return c == '#' || c == ';';
}

static char *skip_blanks(const char *p)
{
    return (char *)p + strspn(p, " \t");
}

static void trim_end(char *begin)
{
    size_t n = strlen(begin);
    while (n > 0 && is_blank(begin[n - 1]))
        n--;
    begin[n] = 0;
}

// Whether nothing but white space, or a comment after white space, follows.
static bool is_end(const char *p)
{
    const char *q = skip_blanks(p);
    return *q == 0 || (is_comment(*q) && q > p);
}

// Records what is wrong with the line.
__attribute__((format(printf, 2, 3))) static void bad(struct dt_ini *ini, const char *format, ...)
{
    ini->kind = DT_INI_BAD;
    DT_PRINT_ARGUMENTS(ini->problem, sizeof ini->problem, format);
}

// Copies the next line without its newline into the buffer; returns its length, or -1 if it is too
// long.
static int64_t next_line(struct dt_ini *ini)
{
    const char *begin = ini->text + ini->at;
    size_t length = (size_t)(ini->size - ini->at);
    const char *newline = memchr(begin, '\n', length);
    if (newline)
        length = (size_t)(newline - begin);
    ini->at += (int64_t)length + (newline ? 1 : 0);
    ini->line++;
    if (length > 0 && begin[length - 1] == '\r')
        length--;
    if (length > DT_CONFIG_LINE_MAX)
        return -1;
    memcpy(ini->buffer, begin, length);
    ini->buffer[length] = 0;
    return (int64_t)length;
}

static bool has_control(struct dt_ini *ini, int64_t length)
{
    for (int64_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)ini->buffer[i];
        if ((c < 0x20 && c != '\t') || c == 0x7f) {
            bad(ini, "control character 0x%02x at column %d: a configuration is plain text", c,
                (int)i + 1);
            return true;
        }
    }
    return false;
}

static void read_section(struct dt_ini *ini, char *p)
{
    char *end = strchr(p, ']');
    ini->kind = DT_INI_SECTION;
    ini->name = p + 1;
    if (!end)
        bad(ini, "missing ']' after the section's name");
    else if (!is_end(end + 1))
        bad(ini, "unexpected text after '[section]': put each key on its own line");
    else
        *end = 0;
}

// `p` points after the opening quote; the text is unescaped in place.
static void read_quoted(struct dt_ini *ini, char *p)
{
    char *out = p;
    ini->value = p;
    for (; *p && *p != '"'; p++) {
        if (*p == '\\' && p[1] != '"' && p[1] != '\\') {
            bad(ini, "within double quotes '\\' may only precede '\"' or '\\'");
            return;
        }
        if (*p == '\\')
            p++;
        *out++ = *p;
    }
    if (*p == 0)
        bad(ini, "missing closing '\"'");
    else if (!is_end(p + 1))
        bad(ini, "unexpected text after the closing '\"'");
    *out = 0;
}

static void read_pair(struct dt_ini *ini, char *p)
{
    char *equals = strchr(p, '=');
    char shown[DT_CONFIG_SHOWN];
    if (!equals) {
        bad(ini, "'%s' is neither '[section]' nor 'key = value' nor a comment",
            dt_config_shown(p, shown));
        return;
    }
    *equals = 0;
    trim_end(p);
    ini->kind = DT_INI_PAIR;
    ini->name = p;
    ini->value = skip_blanks(equals + 1);
    if (*p == 0)
        bad(ini, "missing key before '='");
    else if (*ini->value == '"')
        read_quoted(ini, ini->value + 1);
    else {
        for (p = equals + 1; *p && !(is_blank(*p) && is_comment(p[1])); p++)
            ;
        *p = 0;
        trim_end(equals + 1);
        ini->value = skip_blanks(equals + 1); // may be a comment
    }
}

bool dt_ini_next(struct dt_ini *ini)
{
    while (ini->at < ini->size) {
        int64_t length = next_line(ini);
        char *p = skip_blanks(ini->buffer);
        if (length < 0)
            bad(ini, "the line is longer than 64 KiB");
        else if (has_control(ini, length))
            return true;
        else if (*p == 0 || is_comment(*p))
            continue;
        else if (*p == '[')
            read_section(ini, p);
        else
            read_pair(ini, p);
        return true;
    }
    return false;
}

bool dt_ini_needs_quotes(const char *value)
{
    size_t n = strlen(value);
    if (n == 0)
        return false;
    if (value[0] == '"' || is_comment(value[0]) || is_blank(value[0]) || is_blank(value[n - 1]))
        return true;
    for (const char *p = value; *p; p++)
        if (is_blank(*p) && is_comment(p[1]))
            return true;
    return false;
}

const char *dt_config_shown(const char *text, char out[DT_CONFIG_SHOWN])
{
    static const char dots[] = "...";
    size_t n = strlen(text);
    bool cut = n >= DT_CONFIG_SHOWN;
    if (cut) {
        n = DT_CONFIG_SHOWN - sizeof dots;
        while (n > 0 && ((unsigned char)text[n] & 0xc0) == 0x80) // do not cut UTF-8 characters
            n--;
    }
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        out[i] = c < 0x20 || c == 0x7f ? '?' : text[i];
    }
    snprintf(out + n, DT_CONFIG_SHOWN - n, "%s", cut ? dots : "");
    return out;
}
