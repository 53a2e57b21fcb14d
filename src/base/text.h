// Text in buffers of fixed size, and UTF-8 (RFC 3629): what JSON files and safetensors headers must
// be.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Appends to the string in text[0, size), size >= 1; what does not fit is cut.
void dt_append(char *text, size_t size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
// Bytes (1 to 4) of the character at bytes[0, size), size >= 1; 0 where no valid one begins there.
int64_t dt_utf8_length(const char *bytes, int64_t size);
