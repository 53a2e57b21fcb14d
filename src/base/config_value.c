// One value, by the key's row of the table: from text into its field and back, its checks, and the
// wording of what is allowed.
#include "base/config_internal.h"
#include "base/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static bool refuse(char problem[DT_CONFIG_PROBLEM], const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static bool refuse(char problem[DT_CONFIG_PROBLEM], const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(problem, DT_CONFIG_PROBLEM, format, args);
    va_end(args);
    return false;
}

static void *field(const struct dt_config_key *key, const void *object)
{
    return (char *)object + key->offset;
}

static size_t count_digits(const char *p)
{
    return strspn(p, "0123456789");
}

// [-]digits, without leading zeros: 010 would be eight elsewhere.
static bool is_whole_number(const char *text)
{
    const char *p = text + (*text == '-');
    size_t n = count_digits(p);
    return n > 0 && p[n] == 0 && !(n > 1 && *p == '0');
}

// [-]digits[.digits][e[+-]digits], at least one digit before the e; neither hex nor inf nor nan.
static bool is_number(const char *text)
{
    const char *p = text + (*text == '-');
    size_t whole = count_digits(p), fraction = 0;
    if (whole > 1 && *p == '0')
        return false;
    p += whole;
    if (*p == '.') {
        fraction = count_digits(++p);
        p += fraction;
    }
    if (whole + fraction == 0)
        return false;
    if (*p == 'e' || *p == 'E') {
        p += 1 + (p[1] == '+' || p[1] == '-');
        if (count_digits(p) == 0)
            return false;
        p += count_digits(p);
    }
    return *p == 0;
}

static bool is_auto(const struct dt_config_key *key, const char *text)
{
    return key->auto_word && strcmp(text, key->auto_word) == 0;
}

// "*": every value but the default.
static bool is_unbuilt(const struct dt_config_key *key, const char *word)
{
    return key->unbuilt && dt_config_is_choice(key->unbuilt, word, NULL);
}

static bool in_range(const struct dt_config_key *key, double x)
{
    return x <= key->max && (key->above_min ? x > key->min : x >= key->min);
}

// In whole numbers: as a double 2^53 + 1 would pass for 2^53.
static bool in_whole_range(const struct dt_config_key *key, int64_t value)
{
    return (key->min < -0x1p63 || value >= (int64_t)key->min) &&
           (key->max >= 0x1p63 || value <= (int64_t)key->max);
}

static bool convert_bool(const struct dt_config_key *key, const char *text, void *object,
                         char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    bool value = strcmp(text, "true") == 0;
    if (!value && strcmp(text, "false") != 0)
        return refuse(problem, "'%s' is neither true nor false", dt_config_shown(text, shown));
    memcpy(field(key, object), &value, sizeof value);
    return true;
}

static bool convert_int(const struct dt_config_key *key, const char *text, void *object,
                        char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    int64_t value = (int64_t)key->auto_value;
    if (!is_auto(key, text)) {
        if (!is_whole_number(text))
            return refuse(problem, "'%s' is not a whole number in plain decimal digits",
                          dt_config_shown(text, shown));
        errno = 0;
        value = strtoll(text, NULL, 10);
        if (errno || !in_whole_range(key, value))
            return refuse(problem, "%s is out of range", dt_config_shown(text, shown));
    }
    memcpy(field(key, object), &value, sizeof value);
    return true;
}

static bool convert_float(const struct dt_config_key *key, const char *text, void *object,
                          char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    double value = key->auto_value;
    if (!is_auto(key, text)) {
        if (!is_number(text))
            return refuse(problem, "'%s' is not a plain decimal number",
                          dt_config_shown(text, shown));
        errno = 0;
        value = strtod(text, NULL);
        if (errno || !in_range(key, value)) // errno: also where 1e-999 would become 0
            return refuse(problem, "%s is out of range", dt_config_shown(text, shown));
    }
    memcpy(field(key, object), &value, sizeof value);
    return true;
}

static bool convert_string(const struct dt_config_key *key, const char *text, void *object,
                           char problem[DT_CONFIG_PROBLEM])
{
    char *out = field(key, object);
    size_t n = strlen(text);
    if (n >= DT_CONFIG_STRING_MAX)
        return refuse(problem, "%zu bytes of text", n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return refuse(problem, "control character 0x%02x in the text", (unsigned char)text[i]);
    for (int64_t i = 0, length; i < (int64_t)n; i += length) { // JSON files will have it
        length = dt_utf8_length(text + i, (int64_t)n - i);
        if (length == 0)
            return refuse(problem, "the text is not UTF-8 at its byte %lld, 0x%02x", (long long)i,
                          (unsigned char)text[i]);
    }
    memset(out, 0, DT_CONFIG_STRING_MAX);
    memcpy(out, text, n);
    return true;
}

static void add_suggestion(const char *choices, const char *word, char problem[DT_CONFIG_PROBLEM])
{
    struct dt_nearest nearest = dt_nearest_to(word);
    char choice[DT_CONFIG_NAME], question[DT_CONFIG_NAME + 32];
    size_t used = strlen(problem);
    while (dt_config_next_choice(&choices, choice))
        dt_nearest_offer(&nearest, choice);
    dt_nearest_ask(&nearest, question);
    snprintf(problem + used, DT_CONFIG_PROBLEM - used, "%s", question);
}

static bool convert_enum(const struct dt_config_key *key, const char *text, void *object,
                         char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    int value;
    if (!dt_config_is_choice(key->choices, text, &value)) {
        refuse(problem, "'%s' is not one of the choices", dt_config_shown(text, shown));
        add_suggestion(key->choices, text, problem);
        return false;
    }
    if (is_unbuilt(key, text))
        return refuse(problem, "'%s' is not built yet in this version", text);
    memcpy(field(key, object), &value, sizeof value);
    return true;
}

static bool convert_typed(const struct dt_config_key *key, const char *text, void *object,
                          char problem[DT_CONFIG_PROBLEM])
{
    switch (key->type) {
    case DT_CONFIG_BOOL:
        return convert_bool(key, text, object, problem);
    case DT_CONFIG_INT:
        return convert_int(key, text, object, problem);
    case DT_CONFIG_FLOAT:
        return convert_float(key, text, object, problem);
    case DT_CONFIG_STRING:
        return convert_string(key, text, object, problem);
    case DT_CONFIG_ENUM:
        return convert_enum(key, text, object, problem);
    case DT_CONFIG_ANY:
        memcpy(field(key, object), &text, sizeof text);
        return true;
    }
    return refuse(problem, "the key has no type");
}

static size_t field_size(const struct dt_config_key *key)
{
    static const size_t sizes[] = {
        [DT_CONFIG_BOOL] = sizeof(bool),    [DT_CONFIG_INT] = sizeof(int64_t),
        [DT_CONFIG_FLOAT] = sizeof(double), [DT_CONFIG_STRING] = DT_CONFIG_STRING_MAX,
        [DT_CONFIG_ENUM] = sizeof(int),     [DT_CONFIG_ANY] = sizeof(char *)};
    return sizes[key->type];
}

void dt_config_set_default(const struct dt_config_key *key, void *object)
{
    static const char nothing[DT_CONFIG_STRING_MAX];
    char problem[DT_CONFIG_PROBLEM];
    if (key->fallback[0])
        convert_typed(key, key->fallback, object, problem);
    else
        memcpy(field(key, object), nothing, field_size(key));
}

bool dt_config_in_range(const struct dt_config_key *key, const void *object)
{
    int64_t whole;
    double real;
    if (key->type == DT_CONFIG_INT) {
        memcpy(&whole, field(key, object), sizeof whole);
        return in_whole_range(key, whole) || (key->auto_word && whole == (int64_t)key->auto_value);
    }
    if (key->type != DT_CONFIG_FLOAT)
        return true;
    memcpy(&real, field(key, object), sizeof real);
    return in_range(key, real) || (key->auto_word && real == key->auto_value);
}

// Values are compared, not texts: 1e1 and 10 are the same.
bool dt_config_equal(const struct dt_config_key *key, const void *a, const void *b)
{
    if (key->type == DT_CONFIG_STRING)
        return strcmp(field(key, a), field(key, b)) == 0;
    return memcmp(field(key, a), field(key, b), field_size(key)) == 0;
}

const char *dt_config_value_text(const struct dt_config_key *key, const void *object,
                                 char out[DT_CONFIG_STRING_MAX])
{
    const char *choices = key->choices;
    char word[DT_CONFIG_NAME];
    union {
        bool flag;
        int64_t whole;
        double real;
        int choice;
        const char *text;
    } value = {0};
    if (key->type == DT_CONFIG_STRING) {
        memcpy(out, field(key, object), DT_CONFIG_STRING_MAX);
        return out;
    }
    memcpy(&value, field(key, object), field_size(key));
    switch (key->type) {
    case DT_CONFIG_BOOL:
        return value.flag ? "true" : "false";
    case DT_CONFIG_INT:
        if (key->auto_word && value.whole == (int64_t)key->auto_value)
            return key->auto_word;
        snprintf(out, DT_CONFIG_STRING_MAX, "%lld", (long long)value.whole);
        return out;
    case DT_CONFIG_FLOAT:
        if (key->auto_word && value.real == key->auto_value)
            return key->auto_word;
        snprintf(out, DT_CONFIG_STRING_MAX, "%.15g", value.real);
        if (strtod(out, NULL) != value.real)
            snprintf(out, DT_CONFIG_STRING_MAX, "%.17g", value.real);
        return out;
    case DT_CONFIG_ENUM:
        for (int i = 0; dt_config_next_choice(&choices, word); i++)
            if (i == value.choice)
                return memcpy(out, word, sizeof word);
        return "";
    case DT_CONFIG_ANY:
        return value.text ? value.text : "";
    case DT_CONFIG_STRING:
        break;
    }
    return "";
}

static bool is_default(const struct dt_config_key *key, const void *object)
{
    char fallback[DT_CONFIG_STRING_MAX];
    struct dt_config_key alone = *key;
    alone.offset = 0;
    dt_config_set_default(&alone, fallback);
    return dt_config_equal(&alone, fallback, field(key, object));
}

bool dt_config_convert(const struct dt_config_key *key, const char *text, void *object,
                       char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    if (text[0] == 0 && (key->type != DT_CONFIG_STRING || key->required))
        return refuse(problem, "missing value");
    if (!convert_typed(key, text, object, problem))
        return false;
    if (is_unbuilt(key, "*") && !is_default(key, object))
        return refuse(problem, "the feature is not built yet in this version, so '%s' is refused",
                      dt_config_shown(text, shown));
    return true;
}

bool dt_config_next_choice(const char **choices, char word[DT_CONFIG_NAME])
{
    size_t n = strcspn(*choices, "|");
    if (**choices == 0)
        return false;
    snprintf(word, DT_CONFIG_NAME, "%.*s", (int)n, *choices);
    *choices += n + ((*choices)[n] == '|');
    return true;
}

bool dt_config_is_choice(const char *choices, const char *word, int *at)
{
    char choice[DT_CONFIG_NAME];
    for (int i = 0; dt_config_next_choice(&choices, choice); i++) {
        if (strcmp(choice, word) != 0)
            continue;
        if (at)
            *at = i;
        return true;
    }
    return false;
}

static const char *number_text(double x, char out[32])
{
    if (x == 0x1p53 || x == 0x1p63)
        return x == 0x1p53 ? "2^53" : "2^63";
    snprintf(out, 32, fabs(x) < 0x1p63 && x == floor(x) ? "%.0f" : "%g", x);
    return out;
}

static void allowed_number(const struct dt_config_key *key, char *out, size_t size)
{
    const char *kind = key->type == DT_CONFIG_INT ? "a whole number" : "a number";
    char low[32], high[32];
    number_text(key->min, low);
    snprintf(out, size, "%s%s%s %s %s%s%s", key->auto_word ? key->auto_word : "",
             key->auto_word ? " or " : "", kind, key->above_min ? "above" : "from", low,
             key->above_min ? " up to " : " to ", number_text(key->max, high));
}

// The choices, built or not, appended to out[used].
static size_t list_choices(const struct dt_config_key *key, bool unbuilt, char *out, size_t used)
{
    const char *choices = key->choices, *between = "";
    char word[DT_CONFIG_NAME];
    while (dt_config_next_choice(&choices, word)) {
        if (is_unbuilt(key, word) != unbuilt || used >= DT_CONFIG_ALLOWED)
            continue;
        used += (size_t)snprintf(out + used, DT_CONFIG_ALLOWED - used, "%s%s", between, word);
        between = " | ";
    }
    return used;
}

static void allowed_choices(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED])
{
    size_t used = list_choices(key, false, out, 0);
    if (!key->unbuilt || used >= DT_CONFIG_ALLOWED)
        return;
    used += (size_t)snprintf(out + used, DT_CONFIG_ALLOWED - used, "; not built yet: ");
    list_choices(key, true, out, used);
}

void dt_config_allowed(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED])
{
    if (is_unbuilt(key, "*")) {
        snprintf(out, DT_CONFIG_ALLOWED, "only %s in this version",
                 key->fallback[0] ? key->fallback : "empty");
        return;
    }
    switch (key->type) {
    case DT_CONFIG_BOOL:
        snprintf(out, DT_CONFIG_ALLOWED, "true | false");
        break;
    case DT_CONFIG_INT:
    case DT_CONFIG_FLOAT:
        allowed_number(key, out, DT_CONFIG_ALLOWED);
        break;
    case DT_CONFIG_ANY:
        snprintf(out, DT_CONFIG_ALLOWED, "any text");
        break;
    case DT_CONFIG_STRING:
        snprintf(out, DT_CONFIG_ALLOWED, "text of at most %d bytes", DT_CONFIG_STRING_MAX - 1);
        break;
    case DT_CONFIG_ENUM:
        allowed_choices(key, out);
        break;
    }
}
