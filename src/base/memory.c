// Allocates memory, or fails with a message that says what it was for.
#include "base/memory.h"

#include "base/text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

dt_status dt_memory_new(void *pointer, int64_t n, size_t item_bytes, size_t align, const char *hint,
                        const char *format, ...)
{
    char what[256];
    void *memory = NULL;
    size_t bytes = 0;
    bool fits = n >= 0 && !__builtin_mul_overflow((size_t)n, item_bytes, &bytes);
    if (fits && align == 0)
        memory = calloc(bytes > 0 ? bytes : 1, 1);
    else if (fits && posix_memalign(&memory, align, bytes > 0 ? bytes : 1) != 0)
        memory = NULL;
    memcpy(pointer, &memory, sizeof memory); // a void ** must not alias another pointer type
    if (memory)
        return DT_OK;
    DT_PRINT_ARGUMENTS(what, sizeof what, format);
    if (!fits)
        return DT_FAIL(DT_MACHINE, hint, "no memory for %s (%lld times %zu bytes)", what,
                       (long long)n, item_bytes);
    return DT_FAIL(DT_MACHINE, hint, "no memory for %s (%zu bytes)", what, bytes);
}

dt_status dt_memory_text(char **text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vasprintf(text, format, args);
    va_end(args);
    if (length >= 0)
        return DT_OK;
    *text = NULL;
    return DT_FAIL(DT_MACHINE, NULL, "no memory for a text of the form \"%s\"", format);
}
