// Appends to texts, breaks their lines, compares the lists in them, and parses ranges of steps and
// UTF-8.
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dt_append(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text + used, size - used, format, args);
    va_end(args);
    return n >= 0 && (size_t)n < size - used;
}

// The next part at *text, trimmed; advances *text. NULL: no more parts.
static const char *next_part(const char **text, size_t *length)
{
    const char *part = *text + strspn(*text, ",() ");
    size_t n = strcspn(part, ",()");
    *text = part + n;
    while (n > 0 && part[n - 1] == ' ')
        n--;
    *length = n;
    return n > 0 ? part : NULL;
}

static bool has_part(const char *text, const char *part, size_t length)
{
    const char *found;
    size_t n;
    while ((found = next_part(&text, &n)))
        if (n == length && memcmp(found, part, n) == 0)
            return true;
    return false;
}

void dt_append_difference(char *out, size_t size, const char *text, const char *other)
{
    const char *rest = text, *part, *separator = "";
    size_t length;
    while ((part = next_part(&rest, &length)))
        if (!has_part(other, part, length)) {
            dt_append(out, size, "%s%.*s", separator, (int)length, part);
            separator = ", ";
        }
    if (!separator[0])
        dt_append(out, size, "%s", text);
}

int dt_text_width(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += (*text & 0xC0) != 0x80;
    return n;
}

bool dt_append_wrapped(char *out, size_t size, const char *text, int column, int indent,
                       int columns)
{
    size_t used = strlen(out);
    int begins = column;
    for (const char *at = text; *at;) {
        int blanks = (int)strspn(at, " "), width = blanks;
        size_t length = (size_t)blanks + strcspn(at + blanks, " \n");
        for (size_t i = (size_t)blanks; i < length; i++)
            width += (at[i] & 0xC0) != 0x80;
        bool breaks = column + width > columns && column > begins && blanks > 0;
        int room = breaks ? indent + 1 - blanks : 0;
        if (used + length + (size_t)(room > 0 ? room : 0) + 1 >= size)
            return false;
        if (breaks) {
            used += (size_t)snprintf(out + used, size - used, "\n%*s", indent, "");
            column = begins = indent;
            at += blanks, length -= (size_t)blanks, width -= blanks;
        }
        memcpy(out + used, at, length);
        used += length;
        column += width;
        at += length;
        if (*at == '\n') {
            out[used++] = *at++;
            column = begins = 0;
        }
        out[used] = 0;
    }
    return true;
}

int dt_columns(void)
{
    const char *given = getenv("COLUMNS");
    int columns = given ? atoi(given) : 0;
    return columns > 0 ? columns : 80;
}

void dt_print_wrapped(FILE *out, int column, int indent, const char *text)
{
    char lines[1 << 13] = "";
    dt_append_wrapped(lines, sizeof lines, text, column, indent, dt_columns());
    fprintf(out, "%s\n", lines);
}

void dt_print_line(const char *format, ...)
{
    char text[4096]; // longer text is truncated
    DT_PRINT_ARGUMENTS(text, sizeof text, format);
    dt_print_wrapped(stdout, 0, 4, text);
}

const char *dt_duration(double seconds, char text[DT_DURATION_TEXT])
{
    long long s = seconds > 0 ? (long long)(seconds + 0.5) : 0;
    if (s >= 3600)
        snprintf(text, DT_DURATION_TEXT, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(text, DT_DURATION_TEXT, "%lld:%02lld", s / 60, s % 60);
    return text;
}

const char *dt_count_text(int64_t n, const char *nouns, char text[DT_COUNT_TEXT])
{
    int length = (int)strlen(nouns) - (n == 1);
    snprintf(text, DT_COUNT_TEXT, "%lld %.*s", (long long)n, length, nouns);
    return text;
}

bool dt_parse_steps(const char *text, int64_t *first, int64_t *last)
{
    enum { DIGITS = 15 };
    static const char digits[] = "0123456789";
    size_t n = strspn(text, digits), m = text[n] == ':' ? strspn(text + n + 1, digits) : 0;
    if (n < 1 || n > DIGITS || m < 1 || m > DIGITS || text[n + 1 + m] != 0)
        return false;
    *first = strtoll(text, NULL, 10);
    *last = strtoll(text + n + 1, NULL, 10);
    return *first >= 1 && *last >= *first;
}

// Table 3-7 of the Unicode standard: no overlong forms, no surrogates, nothing above U+10FFFF.
int64_t dt_utf8_length(const char *bytes, int64_t size)
{
    const unsigned char *text = (const unsigned char *)bytes;
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    unsigned char first = text[0];
    if (first < 0x80)
        return 1;
    int length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    if (first < 0xc2 || first > 0xf4 || length > size)
        return 0;
    uint32_t code = first & (0x7fu >> length);
    for (int i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3fu);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff;
    return code < least[length] || surrogate || code > 0x10ffff ? 0 : length;
}
