// Converts one value between text and the field, by its key's row of the table. Checks values and
// words what is allowed.
#include "base/config_internal.h"
#include "base/nearest.h"
#include "base/text.h"

#include <errno.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

union value {
    int64_t whole; // first, so that {0} clears the union
    bool flag;
    double real;
    int choice;
    const char *text; // STRING and ANY
};

__attribute__((format(printf, 2, 3))) static bool refuse(char problem[DT_CONFIG_PROBLEM],
                                                         const char *format, ...)
{
    DT_PRINT_ARGUMENTS(problem, DT_CONFIG_PROBLEM, format);
    return false;
}

static char *field(const struct dt_config_key *key, const void *object)
{
    return (char *)object + key->offset;
}

static size_t field_size(const struct dt_config_key *key)
{
    static const size_t sizes[] = {
        [DT_CONFIG_BOOL] = sizeof(bool),    [DT_CONFIG_INT] = sizeof(int64_t),
        [DT_CONFIG_FLOAT] = sizeof(double), [DT_CONFIG_STRING] = DT_CONFIG_STRING_MAX,
        [DT_CONFIG_ENUM] = sizeof(int),     [DT_CONFIG_ANY] = sizeof(char *)};
    return sizes[key->type];
}

static union value load(const struct dt_config_key *key, const void *object)
{
    union value value = {0};
    if (key->type == DT_CONFIG_STRING)
        value.text = field(key, object);
    else
        memcpy(&value, field(key, object), field_size(key));
    return value;
}

static void store(const struct dt_config_key *key, const union value *value, void *object)
{
    if (key->type == DT_CONFIG_STRING) // the rest of the field is 0
        strncpy(field(key, object), value->text ? value->text : "", DT_CONFIG_STRING_MAX);
    else
        memcpy(field(key, object), value, field_size(key));
}

static size_t count_digits(const char *p)
{
    return strspn(p, "0123456789");
}

// Digits with an optional "-", without leading zeros: 010 would be octal elsewhere.
static bool is_whole_number(const char *text)
{
    const char *p = text + (*text == '-');
    size_t n = count_digits(p);
    return n > 0 && p[n] == 0 && !(n > 1 && *p == '0');
}

// [-]digits[.digits][e[+-]digits] with at least one digit before the e; not hex, inf or nan.
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

// Copies the next word of "a|b|c" and advances; false after the last.
static bool next_choice(const char **choices, char word[DT_CONFIG_NAME])
{
    size_t n = strcspn(*choices, "|");
    if (**choices == 0)
        return false;
    snprintf(word, DT_CONFIG_NAME, "%.*s", (int)n, *choices);
    *choices += n + ((*choices)[n] == '|');
    return true;
}

static bool is_auto(const struct dt_config_key *key, const union value *value)
{
    return key->auto_word && (key->type == DT_CONFIG_INT
                                  ? value->whole == (int64_t)key->auto_value
                                  : key->type == DT_CONFIG_FLOAT && value->real == key->auto_value);
}

// Compares INTs as integers, because as a double 2^53 + 1 equals 2^53.
static bool in_range(const struct dt_config_key *key, const union value *value)
{
    if (key->type == DT_CONFIG_INT)
        return (key->min < -0x1p63 || value->whole >= (int64_t)key->min) &&
               (key->max >= 0x1p63 || value->whole <= (int64_t)key->max);
    return key->type != DT_CONFIG_FLOAT ||
           (value->real <= key->max &&
            (key->above_min ? value->real > key->min : value->real >= key->min));
}

static bool parse_number(const struct dt_config_key *key, const char *text, union value *value,
                         char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    bool whole = key->type == DT_CONFIG_INT, word = key->auto_word && !strcmp(text, key->auto_word);
    if (!word && !(whole ? is_whole_number(text) : is_number(text)))
        return refuse(problem, "'%s' is not a %s", dt_config_shown(text, shown),
                      whole ? "whole number in plain decimal digits" : "plain decimal number");
    errno = 0;
    if (whole)
        value->whole = word ? (int64_t)key->auto_value : strtoll(text, NULL, 10);
    else
        value->real = word ? key->auto_value : strtod(text, NULL);
    if (!word && (errno || !in_range(key, value))) // errno also catches 1e-999, which would become
                                                   // 0
        return refuse(problem, "%s is out of range", dt_config_shown(text, shown));
    return true;
}

static bool check_text(const char *text, char problem[DT_CONFIG_PROBLEM])
{
    size_t n = strlen(text);
    if (n >= DT_CONFIG_STRING_MAX)
        return refuse(problem, "the text is too long: %zu bytes", n);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            return refuse(problem, "control character 0x%02x in the text", (unsigned char)text[i]);
    for (int64_t i = 0, length; i < (int64_t)n; i += length) { // it may be written to JSON files
        length = dt_utf8_length(text + i, (int64_t)n - i);
        if (length == 0)
            return refuse(problem, "the text is not UTF-8 at byte %lld (0x%02x)", (long long)i,
                          (unsigned char)text[i]);
    }
    return true;
}

static bool parse_choice(const struct dt_config_key *key, const char *text, int *choice,
                         char problem[DT_CONFIG_PROBLEM])
{
    struct dt_nearest nearest = dt_nearest_to(text);
    char shown[DT_CONFIG_SHOWN], word[DT_CONFIG_NAME];
    if (dt_config_is_choice(key->choices, text, choice))
        return true;
    for (const char *choices = key->choices; next_choice(&choices, word);)
        dt_nearest_offer(&nearest, word);
    return refuse(problem, "'%s' is not one of the choices%s", dt_config_shown(text, shown),
                  dt_nearest_suggest(&nearest));
}

static bool parse(const struct dt_config_key *key, const char *text, union value *value,
                  char problem[DT_CONFIG_PROBLEM])
{
    char shown[DT_CONFIG_SHOWN];
    *value = (union value){0};
    switch (key->type) {
    case DT_CONFIG_BOOL:
        value->flag = strcmp(text, "true") == 0;
        return value->flag || strcmp(text, "false") == 0 ||
               refuse(problem, "'%s' is neither true nor false", dt_config_shown(text, shown));
    case DT_CONFIG_INT:
    case DT_CONFIG_FLOAT:
        return parse_number(key, text, value, problem);
    case DT_CONFIG_ENUM:
        return parse_choice(key, text, &value->choice, problem);
    case DT_CONFIG_STRING:
        value->text = text;
        return check_text(text, problem);
    case DT_CONFIG_ANY:
        value->text = text;
        return true;
    }
    return refuse(problem, "the key has no type");
}

void dt_config_set_default(const struct dt_config_key *key, void *object)
{
    union value value = {0};
    char problem[DT_CONFIG_PROBLEM];
    if (key->fallback[0])
        parse(key, key->fallback, &value, problem);
    store(key, &value, object);
}

bool dt_config_in_range(const struct dt_config_key *key, const void *object)
{
    union value value = load(key, object);
    return in_range(key, &value) || is_auto(key, &value);
}

bool dt_config_equal(const struct dt_config_key *key, const void *a, const void *b)
{
    union value x = load(key, a), y = load(key, b);
    return key->type == DT_CONFIG_STRING ? strcmp(x.text, y.text) == 0
                                         : memcmp(&x, &y, sizeof x) == 0;
}

const char *dt_config_value_text(const struct dt_config_key *key, const void *object,
                                 char out[DT_CONFIG_STRING_MAX])
{
    union value value = load(key, object);
    const char *choices = key->choices;
    if (is_auto(key, &value))
        return key->auto_word;
    switch (key->type) {
    case DT_CONFIG_BOOL:
        return value.flag ? "true" : "false";
    case DT_CONFIG_INT:
        snprintf(out, DT_CONFIG_STRING_MAX, "%lld", (long long)value.whole);
        break;
    case DT_CONFIG_FLOAT:
        snprintf(out, DT_CONFIG_STRING_MAX, "%.15g", value.real);
        if (strtod(out, NULL) != value.real)
            snprintf(out, DT_CONFIG_STRING_MAX, "%.17g", value.real);
        break;
    case DT_CONFIG_ENUM:
        for (int i = 0; i <= value.choice && next_choice(&choices, out);)
            i++;
        break;
    case DT_CONFIG_STRING:
    case DT_CONFIG_ANY:
        return value.text ? value.text : "";
    }
    return out;
}

bool dt_config_expand_homes(const struct dt_config_key *key, const char *text,
                            char out[DT_CONFIG_STRING_MAX], char problem[DT_CONFIG_PROBLEM])
{
    bool fits = true;
    out[0] = 0;
    for (const char *at = text; *at;) {
        size_t rest = strlen(at), n = key->is_path_list ? strcspn(at, ",") + 1 : rest;
        n = n < rest ? n : rest;
        size_t blanks = strspn(at, " \t"), length = strcspn(at + blanks, "/,");
        if (at[blanks] == '~') {
            char user[DT_CONFIG_SHOWN], shown[DT_CONFIG_SHOWN];
            glob_t found;
            snprintf(user, sizeof user, "%.*s", (int)length, at + blanks);
            if (length >= sizeof user || glob(user, GLOB_TILDE_CHECK, NULL, &found) != 0)
                return refuse(problem, "there is no home folder '%s'",
                              dt_config_shown(user, shown));
            fits &=
                dt_append(out, DT_CONFIG_STRING_MAX, "%.*s%s", (int)blanks, at, found.gl_pathv[0]);
            globfree(&found);
            at += blanks + length;
            n -= blanks + length;
        }
        fits &= dt_append(out, DT_CONFIG_STRING_MAX, "%.*s", (int)n, at);
        at += n;
    }
    return fits || refuse(problem, "the text is too long");
}

bool dt_config_convert(const struct dt_config_key *key, const char *text, void *object,
                       char problem[DT_CONFIG_PROBLEM])
{
    union value value;
    if (text[0] == 0 &&
        ((key->type != DT_CONFIG_STRING && key->type != DT_CONFIG_ANY) || key->required))
        return refuse(problem, "missing value");
    if (!parse(key, text, &value, problem))
        return false;
    store(key, &value, object);
    return true;
}

bool dt_config_is_choice(const char *choices, const char *word, int *at)
{
    char choice[DT_CONFIG_NAME];
    for (int i = 0; next_choice(&choices, choice); i++) {
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
        snprintf(out, 32, x == 0x1p53 ? "2^53" : "2^63");
    else
        snprintf(out, 32, fabs(x) < 0x1p63 && x == floor(x) ? "%.0f" : "%g", x);
    return out;
}

void dt_config_allowed(const struct dt_config_key *key, char out[DT_CONFIG_ALLOWED])
{
    const char *choices = key->choices, *word = key->auto_word;
    char low[32], high[32], choice[DT_CONFIG_NAME];
    switch (key->type) {
    case DT_CONFIG_BOOL:
        snprintf(out, DT_CONFIG_ALLOWED, "true | false");
        break;
    case DT_CONFIG_INT:
    case DT_CONFIG_FLOAT:
        number_text(key->min, low);
        number_text(key->max, high); // 0.9999999 becomes "1"
        snprintf(out, DT_CONFIG_ALLOWED, "%s%s%s %s %s%s%s%s", word ? word : "", word ? " or " : "",
                 key->type == DT_CONFIG_INT ? "a whole number" : "a number",
                 key->above_min ? "above" : "from", low, key->above_min ? " up to " : " to ",
                 key->max < 1 && strcmp(high, "1") == 0 ? "below " : "", high);
        break;
    case DT_CONFIG_ANY:
        snprintf(out, DT_CONFIG_ALLOWED, "any text");
        break;
    case DT_CONFIG_STRING:
        snprintf(out, DT_CONFIG_ALLOWED, "text of at most %d bytes", DT_CONFIG_STRING_MAX - 1);
        break;
    case DT_CONFIG_ENUM:
        out[0] = 0;
        while (next_choice(&choices, choice))
            dt_append(out, DT_CONFIG_ALLOWED, "%s%s", out[0] ? " | " : "", choice);
        break;
    }
}
