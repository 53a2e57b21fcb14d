// Text in buffers of fixed size, wrapped lines, and UTF-8 (RFC 3629), as required of JSON files and
// safetensors headers.
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Formats the arguments `format, ...` of the calling function into text[0, size).
#define DT_PRINT_ARGUMENTS(text, size, format)                                                     \
    do {                                                                                           \
        va_list dt_arguments_;                                                                     \
        va_start(dt_arguments_, format);                                                           \
        vsnprintf((text), (size), (format), dt_arguments_);                                        \
        va_end(dt_arguments_);                                                                     \
    } while (0)

// Appends to the string in text[0, size), size >= 1. Returns false if it was truncated.
bool dt_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Appends the parts of `text`, separated by commas and parentheses, that `other` lacks: "avx2" for
// "AMD (avx2)" against "AMD (avx512)". Appends the whole text if `other` lacks none.
void dt_append_difference(char *out, size_t size, const char *text, const char *other);
// Parses "10:12": integers from 1 to 10^15, first <= last.
bool dt_parse_steps(const char *text, int64_t *first, int64_t *last);
// Columns of UTF-8 text, one for each character.
int dt_text_width(const char *text);
// Line width for people: the environment variable COLUMNS, else 80.
int dt_columns(void);
// Appends words, wrapped at `columns`. The first line begins at `column`, later lines with `indent`
// blanks. Words are never cut, and line breaks in `text` stay. Returns false if the text was
// truncated.
bool dt_append_wrapped(char *out, size_t size, const char *text, int column, int indent,
                       int columns);
// Prints the text wrapped at dt_columns, and a newline. Text longer than a help text is truncated.
void dt_print_wrapped(FILE *out, int column, int indent, const char *text);
// dt_print_wrapped on stdout, with an indent of 4.
void dt_print_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
// "0:07", "1:02:03"; rounded to seconds, not negative.
enum { DT_DURATION_TEXT = 32 };
const char *dt_duration(double seconds, char text[DT_DURATION_TEXT]);
// "1 frame" or "3 frames", of nouns that end in the plural's s. The text lives as long as the block
// around DT_COUNT.
enum { DT_COUNT_TEXT = 64 };
#define DT_COUNT(n, nouns) dt_count_text((n), (nouns), (char[DT_COUNT_TEXT]){0})
const char *dt_count_text(int64_t n, const char *nouns, char text[DT_COUNT_TEXT]);
// Length (1 to 4) of the character at bytes[0, size), size >= 1; 0 if it is invalid.
int64_t dt_utf8_length(const char *bytes, int64_t size);
