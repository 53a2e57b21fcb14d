// Parses columns such as PATH[i:j]:id*N@SHIFT, and converts numbers of each stored type.
#include "data/columns.h"

#include "base/list.h"
#include "base/memory.h"
#include "base/nearest.h"
#include "base/round.h"
#include "base/text.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char form[] =
    "write PATH, PATH/@ATTRIBUTE or @ATTRIBUTE, each also with [i], [i:j] (columns i to j - 1) or "
    ":id*N (integers below N) or :id*N=TABLE (a table that columns share), then with @SHIFT (of "
    "row t + SHIFT) or @FROM:TO, of inputs also :valid after it, separated by spaces";

// Parses an integer at *text and advances *text; -1: none.
static int64_t number(const char **text)
{
    int64_t value = -1;
    for (; **text >= '0' && **text <= '9' && value < INT32_MAX; ++*text)
        value = (value < 0 ? 0 : 10 * value) + (**text - '0');
    return value;
}

// Parses an integer with an optional sign.
static bool parse_shift(const char **text, int64_t *shift)
{
    bool minus = **text == '-';
    *text += minus || **text == '+';
    *shift = number(text);
    bool fine = *shift >= 0 && *shift < INT32_MAX;
    *shift *= minus ? -1 : 1;
    return fine;
}

// Parses an optional @SHIFT or @FROM:TO, then an optional :valid, at the end of a word.
static bool parse_shifts(const char *text, struct dt_column *column)
{
    column->to = 1;
    if (*text != '@')
        return !*text;
    text++;
    bool fine = parse_shift(&text, &column->from);
    column->to = column->from + 1;
    if (fine && *text == ':' && text[1] != 'v') {
        text++;
        fine = parse_shift(&text, &column->to);
    }
    column->valid = strcmp(text, ":valid") == 0;
    return fine && (column->valid || !*text);
}

// The length of a path, which may end in an attribute: "obs/@unit", or "@label" of the episode. An
// @ before a digit or a sign is no attribute.
static size_t path_length(const char *word, bool *attribute)
{
    size_t n = strcspn(word, "[:@");
    *attribute =
        word[n] == '@' && (n == 0 || word[n - 1] == '/') && !strchr("+-0123456789", word[n + 1]);
    return *attribute ? n + 1 + strcspn(word + n + 1, "[:@/") : n;
}

// Parses PATH, PATH[i] or PATH[i:j]; *rest is the rest of the word, or NULL on failure.
static dt_status parse_path(const char *key, const char *hint, const char *word,
                            struct dt_column *column, const char **rest)
{
    size_t length = path_length(word, &column->attribute);
    const char *text = word + length, *path = word;
    while (*path == '/') // relative to the file's root or the episode
        path++, length--;
    if (length == 0 || length >= sizeof column->path)
        return DT_FAIL(DT_USER, hint, "%s: '%.80s' has no path, or one of more than %d bytes", key,
                       word, DT_COLUMN_PATH - 1);
    memcpy(column->path, path, length);
    column->end = -1;
    *rest = text;
    if (*text != '[')
        return DT_OK;
    text++;
    column->first = number(&text);
    column->end = column->first + 1;
    if (*text == ':') {
        text++;
        column->end = number(&text);
    }
    *rest = column->first >= 0 && column->end > column->first && *text == ']' ? text + 1 : NULL;
    return DT_OK;
}

// Parses "=TABLE"; a name has letters, digits, _ and -, and begins with a letter.
static bool parse_table(const char **text, struct dt_column *column)
{
    const char *name = *text + 1;
    size_t length = strcspn(name, "@");
    *text = name + length;
    if (length == 0 || length >= sizeof column->shared || !isalpha((unsigned char)name[0]))
        return false;
    memcpy(column->shared, name, length);
    for (size_t i = 0; i < length; i++)
        if (!isalnum((unsigned char)name[i]) && name[i] != '_' && name[i] != '-')
            return false;
    return true;
}

static dt_status parse_word(const char *key, const char *word, struct dt_column *column)
{
    const char *text, *why = "";
    DT_TRY(parse_path(key, form, word, column, &text));
    bool fine = text != NULL;
    if (fine && strncmp(text, ":id*", 4) == 0) {
        text += 4;
        column->table = number(&text);
        fine = column->table > 0 && column->table <= INT32_MAX &&
               (*text != '=' || parse_table(&text, column));
    }
    fine = fine && parse_shifts(text, column);
    int64_t shifts = column->to - column->from;
    if (fine && (shifts < 1 || shifts > DT_SHIFTS_MOST))
        why = ": @FROM:TO means FROM to TO - 1, at most 4096 rows";
    else if (fine && column->target && column->table)
        why = ": a target has no table of ids";
    else if (fine && column->target && column->valid)
        why = ": a target that is missing has no loss, and no flag";
    if (fine && !*why)
        return DT_OK;
    return DT_FAIL(DT_USER, form, "%s: '%.80s' is not understood%s", key, word, why);
}

dt_status dt_columns_add(struct dt_columns *columns, const struct dt_column *column)
{
    DT_TRY(dt_list_grow(&columns->at, columns->n, sizeof *columns->at));
    columns->at[columns->n++] = *column;
    return DT_OK;
}

dt_status dt_columns_parse(const char *key, const char *text, bool target,
                           struct dt_columns *columns)
{
    char *words, *rest;
    dt_status status = dt_memory_text(&words, "%s", text);
    rest = words;
    for (char *word; status == DT_OK && (word = strsep(&rest, " \t\n"));) {
        struct dt_column column = {.target = target, .word = columns->n};
        if (!*word)
            continue;
        status = parse_word(key, word, &column);
        for (int64_t i = 0; i < columns->n && status == DT_OK && column.shared[0]; i++)
            if (strcmp(columns->at[i].shared, column.shared) == 0 &&
                columns->at[i].table != column.table)
                status = DT_FAIL(DT_USER, "give both the same size",
                                 "%s: the table %s has %" PRId64 " rows for %.80s, %" PRId64
                                 " for %.80s",
                                 key, column.shared, columns->at[i].table, columns->at[i].path,
                                 column.table, column.path);
        if (status == DT_OK)
            status = dt_columns_add(columns, &column);
    }
    free(words);
    return status;
}

// Parses a word PATH or PATH:HEAD of data.weights.
static dt_status parse_weight(const struct dt_scan_rules *rules, const char *word,
                              struct dt_columns *columns)
{
    static const char
        key[] = "data.weights",
        hint[] =
            "write PATH (the weight of a frame) or PATH:HEAD (of one head), separated by spaces";
    struct dt_column column = {.to = 1, .weight = true, .word = -1};
    struct dt_nearest nearest = dt_nearest_to("");
    const char *rest;
    DT_TRY(parse_path(key, hint, word, &column, &rest));
    if (rest && *rest == ':') {
        nearest = dt_nearest_to(++rest);
        for (int k = 0; k < rules->n_targets; k++) {
            dt_nearest_offer(&nearest, rules->target[k].name);
            if (strcmp(rules->target[k].name, rest) == 0)
                column.at = k + 1;
        }
        if (column.at == 0)
            return DT_FAIL(DT_USER, hint, "%s: '%.80s': there is no head '%.80s'%s (known: %s)",
                           key, word, rest, dt_nearest_suggest(&nearest), nearest.names);
    } else if (!rest || *rest) {
        return DT_FAIL(DT_USER, hint, "%s: '%.80s' is not understood", key, word);
    }
    for (int64_t i = 0; i < columns->n; i++)
        if (columns->at[i].weight && columns->at[i].at == column.at)
            return DT_FAIL(DT_USER, "store their product", "%s: %.80s and %.80s are both of %s",
                           key, columns->at[i].path, column.path,
                           column.at > 0 ? rules->target[column.at - 1].name : "all heads");
    return dt_columns_add(columns, &column);
}

dt_status dt_columns_parse_weights(const struct dt_scan_rules *rules, struct dt_columns *columns)
{
    char text[DT_DATA_TEXT], *rest = text;
    snprintf(text, sizeof text, "%s", rules->weights);
    for (char *word; (word = strsep(&rest, " \t\n"));)
        if (*word)
            DT_TRY(parse_weight(rules, word, columns));
    return DT_OK;
}

// Appends a word for rows t + from to t + to - 1. False: it does not fit.
static bool add_word(const struct dt_column *column, int64_t from, int64_t to,
                     char text[DT_DATA_TEXT])
{
    bool fits = dt_append(text, DT_DATA_TEXT, "%s%s", text[0] ? " " : "", column->path);
    if (column->end >= 0)
        fits =
            dt_append(text, DT_DATA_TEXT, "[%" PRId64 ":%" PRId64 "]", column->first, column->end);
    if (column->table > 0)
        fits = dt_append(text, DT_DATA_TEXT, ":id*%" PRId64 "%s%s", column->table,
                         column->shared[0] ? "=" : "", column->shared);
    if (to - from > 1)
        fits = dt_append(text, DT_DATA_TEXT, "@%" PRId64 ":%" PRId64, from, to);
    else if (from != 0 || column->valid)
        fits = dt_append(text, DT_DATA_TEXT, "@%+" PRId64, from);
    if (column->valid)
        fits = dt_append(text, DT_DATA_TEXT, ":valid");
    return fits;
}

bool dt_columns_text(const struct dt_columns *columns, bool target, char text[DT_DATA_TEXT])
{
    bool fits = true;
    text[0] = 0;
    for (int64_t i = 0, end; i < columns->n && fits; i = end) {
        const struct dt_column *word = &columns->at[i];
        for (end = i; end < columns->n && columns->at[end].word == word->word;)
            end++;
        if (word->weight || word->target != target)
            continue;
        // The rows of several datasets alternate.
        int64_t step = end - i > 1 ? 1 : word->to - word->from;
        for (int64_t from = word->from; from < word->to && fits; from += step)
            for (int64_t k = i; k < end && fits; k++)
                fits = add_word(&columns->at[k], from, from + step, text);
    }
    return fits;
}

void dt_columns_tidy(bool target, char text[DT_DATA_TEXT])
{
    struct dt_columns columns = {0};
    char tidy[DT_DATA_TEXT];
    if (dt_columns_parse("", text, target, &columns) != DT_OK)
        dt_error_clear(); // reported when the shards are opened
    else if (dt_columns_text(&columns, target, tidy))
        memcpy(text, tidy, sizeof tidy);
    dt_columns_free(&columns);
}

void dt_columns_tidy_weights(char text[DT_DATA_TEXT])
{
    static const char key[] = "data.weights";
    char words[DT_DATA_TEXT], tidy[DT_DATA_TEXT] = "", *rest = words;
    memcpy(words, text, sizeof words);
    for (char *word; (word = strsep(&rest, " \t\n"));) {
        struct dt_column column = {0};
        const char *head;
        if (!*word)
            continue;
        if (parse_path(key, NULL, word, &column, &head) != DT_OK) {
            dt_error_clear(); // reported when the shards are opened
            return;
        }
        if (!head || column.end - column.first > 1)
            return;
        dt_append(tidy, sizeof tidy, "%s%s", tidy[0] ? " " : "", column.path);
        if (column.first > 0) // otherwise it is the only one
            dt_append(tidy, sizeof tidy, "[%" PRId64 "]", column.first);
        dt_append(tidy, sizeof tidy, "%s", head);
    }
    memcpy(text, tidy, sizeof tidy);
}

void dt_columns_tidy_groups(char *pattern)
{
    char *to = pattern;
    for (const char *from = pattern + strspn(pattern, "/"); *from; from++)
        if (*from != '/' || (from[1] != '/' && from[1]))
            *to++ = *from;
    if (to == pattern && *pattern) // the file's root
        *to++ = '/';
    *to = 0;
}

// Parses a text that was parsed before. A name with a blank in it cannot be parsed again: then no
// columns are known.
static void parse_again(const char *text, bool target, struct dt_columns *columns)
{
    *columns = (struct dt_columns){0};
    if (dt_columns_parse("", text, target, columns) != DT_OK) {
        dt_error_clear();
        dt_columns_free(columns);
    }
}

static bool meet(const struct dt_column *a, const struct dt_column *b, char *which, size_t size)
{
    int64_t column = dt_max_i64(a->first, b->first), row = dt_max_i64(a->from, b->from);
    if (strcmp(a->path, b->path) != 0 || column >= dt_min_i64(a->end, b->end) ||
        row >= dt_min_i64(a->to, b->to))
        return false;
    snprintf(which, size, "%s[%" PRId64 "]", a->path, column);
    if (row != 0)
        dt_append(which, size, "@%+" PRId64, row);
    return true;
}

bool dt_columns_meet(const char *inputs, const char *targets, char which[DT_COLUMN_PATH + 64])
{
    struct dt_columns from, to;
    bool found = false;
    parse_again(inputs, false, &from);
    parse_again(targets, true, &to);
    for (int64_t i = 0; i < from.n && !found; i++)
        for (int64_t k = 0; k < to.n && !found; k++)
            found = meet(&from.at[i], &to.at[k], which, DT_COLUMN_PATH + 64);
    dt_columns_free(&from);
    dt_columns_free(&to);
    return found;
}

bool dt_columns_beyond(const char *text, bool target, int64_t rows, char which[DT_DATA_TEXT])
{
    struct dt_columns columns;
    bool all = true;
    which[0] = 0;
    parse_again(text, target, &columns);
    for (const struct dt_column *c = columns.at; c < columns.at + columns.n; c++) {
        int64_t before = dt_min_i64(c->to, 1 - rows), after = dt_max_i64(c->from, rows);
        if (c->from < before)
            add_word(c, c->from, before, which);
        if (after < c->to)
            add_word(c, after, c->to, which);
        all &= before == c->to || after == c->from;
    }
    dt_columns_free(&columns);
    return all && which[0];
}

static dt_status add_fed(struct dt_fed part, int *n, struct dt_fed fed[DT_FED_MOST])
{
    if (*n == DT_FED_MOST)
        return DT_FAIL(DT_USER, "name fewer datasets of the targets in data.inputs",
                       "more than %d parts of a frame are earlier targets", DT_FED_MOST);
    fed[(*n)++] = part;
    return DT_OK;
}

// Adds the columns of `input`, at `at` in frames or ids, that are also in `target`.
static dt_status pair(const struct dt_column *input, const struct dt_column *target, int *n,
                      struct dt_fed fed[DT_FED_MOST])
{
    int64_t first = dt_max_i64(input->first, target->first),
            columns = dt_min_i64(input->end, target->end) - first,
            back = target->from - input->from;
    struct dt_fed part = {.array = input->table > 0 ? DT_FED_IDS : DT_FED_FRAMES,
                          .at = input->at + first - input->first,
                          .step = input->step,
                          .n = columns,
                          .target = target->at + first - target->first,
                          .back = back,
                          .count = dt_min_i64(input->to - input->from, back)};
    if (columns < 1 || back < 1 || strcmp(input->path, target->path) != 0)
        return DT_OK;
    DT_TRY(add_fed(part, n, fed));
    part.array = DT_FED_FLAG;
    part.at = input->flag;
    part.step = input->flag_step;
    part.n = 1;
    return input->valid ? add_fed(part, n, fed) : DT_OK;
}

// Assigns positions to the columns [i, end) of one word, and its flags.
static void place_word(struct dt_columns *columns, int64_t i, int64_t end,
                       struct dt_frame_layout *layout)
{
    const struct dt_column word = columns->at[i];
    if (word.weight)
        return;
    int64_t *width = word.target      ? &layout->target_width
                     : word.table > 0 ? &layout->n_ids
                                      : &layout->frame_width;
    bool apart = width != &layout->frame_width; // the flags are
    int64_t first = *width, shifts = word.to - word.from, step = 0, flag = layout->frame_width;
    for (int64_t k = i; k < end; k++) {
        struct dt_column *column = &columns->at[k];
        column->at = first + step;
        step += column->end - column->first;
        column->flag = apart ? flag : first + step; // the last column's counts
    }
    int64_t flag_step = apart ? 1 : step + word.valid;
    step += word.valid && !apart;
    for (int64_t k = i; k < end; k++) {
        struct dt_column *column = &columns->at[k];
        column->step = step;
        column->flag_step = flag_step;
        column->valid = word.valid && k == end - 1;
    }
    const int64_t most = INT64_MAX / (2 * DT_COLUMNS_MOST); // a limit without overflow
    if (__builtin_mul_overflow(shifts, step, &step) || step > most)
        step = most;
    *width = first + step;
    if (word.valid && apart)
        layout->frame_width += shifts;
    if (!word.target && word.table == 0 && dt_column_is_shifted(&word))
        layout->shifted = 1;
}

void dt_columns_place(struct dt_columns *columns, struct dt_frame_layout *layout)
{
    for (int64_t i = 0, end; i < columns->n; i = end) {
        for (end = i; end < columns->n && columns->at[end].word == columns->at[i].word;)
            end++;
        place_word(columns, i, end, layout);
    }
}

// Parses a text and places its columns, if all ends are known. Returns the width of targets.
static int64_t parse_and_place(const char *text, bool target, struct dt_columns *columns)
{
    struct dt_frame_layout layout = {0};
    parse_again(text, target, columns);
    for (int64_t i = 0; i < columns->n; i++)
        if (columns->at[i].end < 0)
            dt_columns_free(columns);
    dt_columns_place(columns, &layout);
    return layout.target_width;
}

// Whether the columns of target k also occur in an earlier row, as in a chunk.
static bool is_later(const struct dt_columns *targets, int64_t k)
{
    const struct dt_column *late = &targets->at[k];
    for (const struct dt_column *c = targets->at; c < targets->at + targets->n; c++)
        if (c->from < late->from && c->first <= late->first && c->end >= late->end &&
            strcmp(c->path, late->path) == 0)
            return true;
    return false;
}

dt_status dt_columns_fed(const char *inputs, const char *targets, int *n,
                         struct dt_fed fed[DT_FED_MOST])
{
    struct dt_columns from, to;
    dt_status status = DT_OK;
    *n = 0;
    parse_and_place(inputs, false, &from);
    parse_and_place(targets, true, &to);
    for (int64_t i = 0; i < from.n && status == DT_OK; i++)
        for (int64_t k = 0; k < to.n && status == DT_OK; k++)
            status = is_later(&to, k) ? DT_OK : pair(&from.at[i], &to.at[k], n, fed);
    dt_columns_free(&from);
    dt_columns_free(&to);
    return status;
}

// The position of column `column` of a path in row t + shift; -1: none.
static int64_t find_target(const struct dt_columns *columns, const char *path, int64_t column,
                           int64_t shift)
{
    for (const struct dt_column *c = columns->at; c < columns->at + columns->n; c++)
        if (column >= c->first && column < c->end && shift >= c->from && shift < c->to &&
            strcmp(c->path, path) == 0)
            return c->at + (shift - c->from) * c->step + column - c->first;
    return -1;
}

// The number of successive rows from each column's first row on; 1: columns differ.
static int64_t chunk_rows(const struct dt_columns *columns, int64_t *next)
{
    int64_t all = 0;
    for (const struct dt_column *c = columns->at; c < columns->at + columns->n; c++)
        for (int64_t k = 0; k < (c->to - c->from) * c->step; k++) {
            int64_t column = c->first + k % c->step, shift = c->from + k / c->step, rows = 1;
            int64_t later = find_target(columns, c->path, column, shift + 1);
            next[c->at + k] = later < 0 ? c->at + k : later;
            if (find_target(columns, c->path, column, shift - 1) >= 0)
                continue;
            while (find_target(columns, c->path, column, shift + rows) >= 0)
                rows++;
            all = all == 0 || all == rows ? rows : 1;
        }
    return all;
}

int64_t dt_columns_chunk(const char *targets, int64_t n, int64_t *next)
{
    struct dt_columns columns;
    bool all = parse_and_place(targets, true, &columns) == n && columns.n > 0;
    int64_t rows = all ? chunk_rows(&columns, next) : 1;
    dt_columns_free(&columns);
    return rows;
}

void dt_columns_free(struct dt_columns *columns)
{
    free(columns->at);
    *columns = (struct dt_columns){0};
}

// Integer types, for switches with a case per type.
#define INTEGERS(CASE)                                                                             \
    CASE(DT_U8, uint8_t)                                                                           \
    CASE(DT_I8, int8_t)                                                                            \
    CASE(DT_U16, uint16_t)                                                                         \
    CASE(DT_I16, int16_t)                                                                          \
    CASE(DT_U32, uint32_t)                                                                         \
    CASE(DT_I32, int32_t)                                                                          \
    CASE(DT_U64, uint64_t)                                                                         \
    CASE(DT_I64, int64_t)

#define CONVERT(TYPE, type, convert)                                                               \
    case TYPE:                                                                                     \
        for (int64_t i = 0; i < rows; i++)                                                         \
            for (int64_t j = 0; j < n; j++)                                                        \
                to[i * stride + j] = convert(((const type *)from)[i * width + first + j]);         \
        break;
#define CAST(TYPE, type) CONVERT(TYPE, type, (float))

void dt_columns_to_floats(dt_dtype type, const void *from, int64_t rows, int64_t width,
                          int64_t first, int64_t n, float *restrict to, int64_t stride)
{
    if (n == width && n == stride) { // one long row
        n = width = stride = rows * n;
        rows = 1;
    }
    switch (type) {
        INTEGERS(CAST)
        CAST(DT_F32, float)
        CAST(DT_F64, double)
        CONVERT(DT_F16, uint16_t, dt_f16_to_f32)
    default:
        break;
    }
}

#define READ(TYPE, type)                                                                           \
    case TYPE:                                                                                     \
        return (int64_t)((const type *)from)[i];

int64_t dt_columns_integer(dt_dtype type, const void *from, int64_t i)
{
    switch (type) {
        INTEGERS(READ)
    default:
        return -1;
    }
}

int64_t dt_columns_to_ids(dt_dtype type, const void *from, int64_t rows, int64_t width,
                          int64_t first, int64_t n, int64_t table, int32_t *to, int64_t stride,
                          int64_t *wrong)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++) {
            int64_t value = dt_columns_integer(type, from, i * width + first + j);
            if (value < 0 || value >= table) {
                *wrong = value;
                return i * n + j;
            }
            to[i * stride + j] = (int32_t)value;
        }
    return -1;
}

const char *dt_columns_integer_text(dt_dtype type, int64_t bits, char text[DT_INTEGER_TEXT])
{
    if (type == DT_U64)
        snprintf(text, DT_INTEGER_TEXT, "%" PRIu64, (uint64_t)bits);
    else
        snprintf(text, DT_INTEGER_TEXT, "%" PRId64, bits);
    return text;
}
