// UTF-8 (RFC 3629): what JSON files and safetensors headers must be.
#pragma once

#include <stdint.h>

// Bytes (1 to 4) of the character at bytes[0, size), size >= 1; 0 where no valid one begins there.
int64_t dt_utf8_length(const char *bytes, int64_t size);
