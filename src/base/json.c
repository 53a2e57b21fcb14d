// Reads and writes JSON by cJSON. Its numbers are doubles, so integers are accepted only up to
// 2^53.
#include "base/json.h"

#include "base/file.h"
#include "base/text.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE_SHOWN = 60 }; // bytes of an invalid value in a message

dt_status dt_json_parse(const char *path, const char *text, int64_t size, cJSON **root)
{
    const char *end = text;
    *root = cJSON_ParseWithLengthOpts(text, (size_t)size + 1, &end, 1);
    if (!*root) {
        long long line = 1;
        for (const char *c = text; c < end; c++)
            line += *c == '\n';
        return DT_FAIL(DT_USER, "the file is damaged, or was edited by hand",
                       "%s: line %lld is not JSON", path, line);
    }
    if (!cJSON_IsObject(*root)) {
        cJSON_Delete(*root);
        *root = NULL;
        return DT_FAIL(DT_USER, NULL, "%s: must hold a JSON object { … }", path);
    }
    return DT_OK;
}

dt_status dt_json_read(const char *path, int64_t limit, cJSON **root)
{
    char *text = NULL;
    int64_t size = 0;
    *root = NULL;
    DT_TRY(dt_read_file(path, limit, &text, &size));
    dt_status status = dt_json_parse(path, text, size, root);
    free(text);
    return status;
}

static const cJSON *item(const cJSON *object, const char *field)
{
    return cJSON_GetObjectItemCaseSensitive(object, field);
}

static double number(const cJSON *object, const char *field)
{
    const cJSON *value = item(object, field);
    return cJSON_IsNumber(value) ? value->valuedouble : NAN;
}

bool dt_json_has(const cJSON *object, const char *field)
{
    const cJSON *value = item(object, field);
    return value && !cJSON_IsNull(value);
}

dt_status dt_json_reject(const char *path, const cJSON *object, const char *field,
                         const char *allowed, ...)
{
    const cJSON *value = item(object, field);
    char *json = value ? cJSON_PrintUnformatted(value) : NULL; // escapes control characters
    char rule[256];
    DT_PRINT_ARGUMENTS(rule, sizeof rule, allowed);
    DT_FAIL(DT_USER, NULL, "%s: %s is %.*s%s; it must be %s", path, field, VALUE_SHOWN,
            json ? json : "missing", json && strlen(json) > VALUE_SHOWN ? "..." : "", rule);
    cJSON_free(json);
    return DT_USER;
}

dt_status dt_json_int(const char *path, const cJSON *object, const char *field, int64_t min,
                      int64_t max, int64_t *value)
{
    double x = number(object, field);
    if (!(x >= (double)min && x <= (double)max) || x != floor(x))
        return dt_json_reject(path, object, field, "a whole number from %lld to %lld",
                              (long long)min, (long long)max);
    *value = (int64_t)x;
    return DT_OK;
}

dt_status dt_json_double(const char *path, const cJSON *object, const char *field, double min,
                         double max, double *value)
{
    double x = number(object, field);
    if (!(x >= min && x <= max))
        return dt_json_reject(path, object, field, "a number from %g to %g", min, max);
    *value = x;
    return DT_OK;
}

dt_status dt_json_bool(const char *path, const cJSON *object, const char *field, bool *value)
{
    const cJSON *flag = item(object, field);
    if (!cJSON_IsBool(flag))
        return dt_json_reject(path, object, field, "true or false");
    *value = cJSON_IsTrue(flag);
    return DT_OK;
}

dt_status dt_json_string(const char *path, const cJSON *object, const char *field,
                         const char **value)
{
    const cJSON *text = item(object, field);
    if (!cJSON_IsString(text))
        return dt_json_reject(path, object, field, "a string");
    *value = text->valuestring;
    return DT_OK;
}

static char *print_text(const cJSON *json, bool indented)
{
    char *print = NULL, *text = NULL;
    if (json)
        print = indented ? cJSON_Print(json) : cJSON_PrintUnformatted(json);
    if (print && asprintf(&text, "%s\n", print) < 0)
        text = NULL;
    cJSON_free(print);
    return text;
}

char *dt_json_text(const cJSON *json)
{
    return print_text(json, true);
}

char *dt_json_line(const cJSON *json)
{
    return print_text(json, false);
}

bool dt_json_add_int(cJSON *object, const char *field, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return cJSON_AddRawToObject(object, field, text);
}

bool dt_json_add_double(cJSON *object, const char *field, double value)
{
    char text[40];
    snprintf(text, sizeof text - 2, "%.15g", value);
    if (strtod(text, NULL) != value)
        snprintf(text, sizeof text - 2, "%.17g", value);
    if (!strpbrk(text, ".e"))
        strcat(text, ".0");
    return cJSON_AddRawToObject(object, field, text);
}
