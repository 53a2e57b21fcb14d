// Reads and checks the fields of an object in a small JSON file (config.json, trainer.json). Every
// error is DT_USER and names file, field, the value found and what is allowed.
#pragma once

#include "base/error.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stdint.h>

// Integers up to this are exact in JSON's doubles.
#define DT_JSON_INT_MAX (INT64_C(1) << 53)

// The file must be one object of at most `limit` bytes. Free with cJSON_Delete.
dt_status dt_json_read(const char *path, int64_t limit, cJSON **root);
// Parses text that was read from `path`; text[size] is 0.
dt_status dt_json_parse(const char *path, const char *text, int64_t size, cJSON **root);

bool dt_json_has(const cJSON *object, const char *field); // present, and not null
dt_status dt_json_int(const char *path, const cJSON *object, const char *field, int64_t min,
                      int64_t max, int64_t *value);
dt_status dt_json_double(const char *path, const cJSON *object, const char *field, double min,
                         double max, double *value);
dt_status dt_json_bool(const char *path, const cJSON *object, const char *field, bool *value);
// The string belongs to the object.
dt_status dt_json_string(const char *path, const cJSON *object, const char *field,
                         const char **value);
// Reports an invalid `field`: "PATH: FIELD is VALUE; it must be ALLOWED".
dt_status dt_json_reject(const char *path, const cJSON *object, const char *field,
                         const char *allowed, ...) __attribute__((format(printf, 4, 5)));

// Text for a file: indented, with a final newline; caller frees. NULL if out of memory or `json` is
// NULL.
char *dt_json_text(const cJSON *json);
char *dt_json_line(const cJSON *json); // dt_json_text on one line

// Write numbers exactly (cJSON itself drops digits after the fifteenth if the difference is within
// an epsilon); a float always has a point or an exponent. False if out of memory.
bool dt_json_add_int(cJSON *object, const char *field, int64_t value);
bool dt_json_add_double(cJSON *object, const char *field, double value); // finite
