// Functions on texts in buffers of fixed size, on lines that people read, and on UTF-8 (RFC 3629),
// which JSON files and safetensors headers must be.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Prints the arguments of a function, declared as `format, ...`, into text[0, size).
#define DT_PRINT_ARGUMENTS(text, size, format)                                                     \
    do {                                                                                           \
        va_list dt_arguments_;                                                                     \
        va_start(dt_arguments_, format);                                                           \
        vsnprintf((text), (size), (format), dt_arguments_);                                        \
        va_end(dt_arguments_);                                                                     \
    } while (0)

// Appends to the string in text[0, size), size >= 1. false: not all of it fitted; the rest is cut.
bool dt_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Appends, of the parts of `text` that commas and parentheses separate, those that `other` lacks:
// "avx2" where it is "AMD (avx2)" and the other "AMD (avx512)". The whole
// text where it lacks none.
void dt_append_difference(char *out, size_t size, const char *text, const char *other);
// Reads "10:12": whole numbers from 1 to 10^15, the first not above the last.
bool dt_parse_steps(const char *text, int64_t *first, int64_t *last);
// Columns of UTF-8 text, one for each character.
int dt_text_width(const char *text);
// How wide lines that people read may be: the variable COLUMNS, else 80.
int dt_columns(void);
// Appends words with line breaks in place of blanks where a line would pass `columns`. Further
// lines begin with `indent` blanks; `column` is where the first one begins. A word is never cut; a
// line break in `text` stays. false: not all of it fitted; the rest is cut.
bool dt_append_wrapped(char *out, size_t size, const char *text, int column, int indent,
                       int columns);
// Prints the text so, dt_columns wide, and a newline. Longer than a help text may be: it is cut.
void dt_print_wrapped(FILE *out, int column, int indent, const char *text);
// The same on stdout, with an indent of 4.
void dt_print_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
// "0:07", "1:02:03"; rounded to seconds, not negative.
enum { DT_DURATION_TEXT = 32 };
const char *dt_duration(double seconds, char text[DT_DURATION_TEXT]);
// Bytes (1 to 4) of the character at bytes[0, size), size >= 1; 0 where no valid one begins there.
int64_t dt_utf8_length(const char *bytes, int64_t size);
