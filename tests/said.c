// The linker's --wrap puts these functions in place of dt_error_raise and dt_log_message in each
// test program. They append each whole message to the file that $SAID names and then call the
// original. answers/messages.txt has the messages that the tests of each room raise.
#define _GNU_SOURCE // vasprintf
#include "base/error.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

// The originals are weak because some tests link neither.
dt_status __real_dt_error_raise(dt_status code, const char *file, int line, const char *function,
                                const char *hint, const char *format, ...) __attribute__((weak));
dt_status __wrap_dt_error_raise(dt_status code, const char *file, int line, const char *function,
                                const char *hint, const char *format, ...);
void __real_dt_log_message(const char *prefix, const char *format, ...) __attribute__((weak));
void __wrap_dt_log_message(const char *prefix, const char *format, ...);

// Appends a line "FORMAT<tab>TEXT", in which \n, \t and \\ stand for these characters. It is
// written with one call, since several threads may raise errors.
static void note(const char *format, const char *what, const char *message, const char *hint)
{
    char text[2 * DT_ERROR_MESSAGE], line[4 * DT_ERROR_MESSAGE];
    const char *path = getenv("SAID");
    size_t n = 0;
    if (!path)
        return;
    snprintf(text, sizeof text, "%.500s\t%s%s%s%s", format, what, message, hint ? "\n  hint: " : "",
             hint ? hint : "");
    for (const char *c = text; *c && n + 3 < sizeof line; c++) {
        if (*c == '\n')
            line[n++] = '\\';
        line[n++] = *c == '\n' ? 'n' : *c;
    }
    line[n++] = '\n';
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, n) != (ssize_t)n)
        fprintf(stderr, "cannot write %s\n", path);
    close(fd);
}

dt_status __wrap_dt_error_raise(dt_status code, const char *file, int line, const char *function,
                                const char *hint, const char *format, ...)
{
    char message[DT_ERROR_MESSAGE];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    note(format, code == DT_USER ? "user: " : "machine: ", message, hint);
    return __real_dt_error_raise(code, file, line, function, hint, "%s", message);
}

void __wrap_dt_log_message(const char *prefix, const char *format, ...)
{
    char *message; // of any length
    va_list list;
    va_start(list, format);
    if (vasprintf(&message, format, list) < 0)
        abort();
    va_end(list);
    note(format, prefix, message, NULL);
    __real_dt_log_message(prefix, "%s", message);
    free(message);
}
