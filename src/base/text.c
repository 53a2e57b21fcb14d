// Appends to texts, compares the lists in them, and parses ranges of steps and UTF-8.
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

// The next part at *text, without blanks around it; *text moves after it. NULL: there is none.
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
