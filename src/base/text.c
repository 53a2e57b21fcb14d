// Appending, and UTF-8.
#include "base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

void dt_append(char *text, size_t size, const char *format, ...)
{
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
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
