// Builds the index of a safetensors file from its JSON header, without trusting any value. cJSON
// parses the JSON; this file rejects what cJSON accepts (control characters, escaped zeros,
// duplicates, numbers of any kind, text after the end).
#include "base/memory.h"
#include "base/safetensors.h"
#include "base/safetensors_format.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The limit of JSON values bounds the memory for a header: cJSON needs about 80 bytes per value,
// for which two bytes of text suffice. A tensor has up to 14 values.
enum { VALUES_MAX = 4 * 1000 * 1000, SHOWN = 100 };

static const struct dt_safetensors_type types[] = {
    {"F32", 32, DT_F32},
    {"BF16", 16, DT_BF16},
    {"F16", 16, DT_F16},
    {"F64", 64, DT_F64},
    {"U8", 8, DT_U8},
    {"U16", 16, DT_U16},
    {"U32", 32, DT_U32},
    {"U64", 64, DT_U64},
    {"I32", 32, DT_I32},
    {"I64", 64, DT_I64},
    {"BOOL", 8, DT_DTYPE_COUNT},
    {"I8", 8, DT_I8},
    {"I16", 16, DT_I16},
    {"C64", 64, DT_DTYPE_COUNT},
    {"F8_E4M3", 8, DT_DTYPE_COUNT},
    {"F8_E5M2", 8, DT_DTYPE_COUNT},
    {"F8_E8M0", 8, DT_DTYPE_COUNT},
    {"F8_E4M3FNUZ", 8, DT_DTYPE_COUNT},
    {"F8_E5M2FNUZ", 8, DT_DTYPE_COUNT},
    {"F6_E2M3", 6, DT_DTYPE_COUNT},
    {"F6_E3M2", 6, DT_DTYPE_COUNT},
    {"F4", 4, DT_DTYPE_COUNT},
};
enum { N_TYPES = sizeof types / sizeof *types };

static const struct dt_safetensors_type *type_named(const char *name)
{
    for (int i = 0; i < N_TYPES; i++)
        if (strcmp(types[i].name, name) == 0)
            return &types[i];
    return NULL;
}

const struct dt_safetensors_type *dt_safetensors_type_of(dt_dtype dtype)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].dtype == dtype)
            return &types[i];
    return NULL;
}

bool dt_safetensors_measure(const struct dt_safetensors_type *type, const int64_t *shape,
                            int n_dims, int64_t *count, int64_t *bytes)
{
    int64_t bits;
    *count = 1;
    for (int i = 0; i < n_dims; i++)
        if (shape[i] < 0 || __builtin_mul_overflow(*count, shape[i], count))
            return false;
    if (__builtin_mul_overflow(*count, type->bits, &bits) || bits % 8 != 0)
        return false;
    *bytes = bits / 8;
    return true;
}

#define BAD(...)                                                                                   \
    DT_FAIL(DT_USER, "the file is damaged or not a safetensors file; copy or create it again",     \
            __VA_ARGS__)
// Prefix of messages about a tensor, with the function's `path` and `name`.
#define TENSOR "%s: tensor %.*s: "
#define NAMED  path, SHOWN, name

// Rejects what cJSON would accept silently, and too many values.
static dt_status check_text(const char *path, const char *text, int64_t size)
{
    bool in_string = false;
    int values = 0;
    for (int64_t i = 0, length; i < size; i += length) {
        unsigned char c = (unsigned char)text[i];
        length = dt_utf8_length(text + i, size - i);
        if (length == 0)
            return BAD("%s: the header is not UTF-8 at byte %" PRId64, path, i);
        if (c < 0x20 && (in_string || (c != '\t' && c != '\n' && c != '\r')))
            return BAD("%s: a control character in the header, at byte %" PRId64, path, i);
        if (in_string && c == '\\') {
            if (size - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)
                return BAD("%s: a zero byte in a name, at byte %" PRId64 " of the header", path, i);
            length = 2; // skip the escaped character: \" does not end the string
        } else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == ',' || c == '{' || c == '['))
            values++;
        if (values > VALUES_MAX)
            return BAD("%s: the header holds more than %d values", path, VALUES_MAX);
    }
    return DT_OK;
}

static dt_status read_json(const char *path, const char *header, int64_t size, cJSON **root)
{
    *root = NULL;
    if (size < 2 || size > DT_SAFETENSORS_HEADER_MAX)
        return BAD("%s: a header of %" PRId64 " bytes, must be 2 to %d", path, size,
                   DT_SAFETENSORS_HEADER_MAX);
    if (header[0] != '{')
        return BAD("%s: the header does not begin with {", path);
    DT_TRY(check_text(path, header, size));
    char *text; // with a final zero: cJSON reads one byte past the end of truncated JSON
    DT_TRY(DT_NEW(&text, size + 1, "the header of %s", path));
    memcpy(text, header, (size_t)size);
    const char *end = NULL;
    *root = cJSON_ParseWithLengthOpts(text, (size_t)size + 1, &end, 0);
    int64_t at = end ? end - text : 0;
    int64_t rest = at + (int64_t)strspn(text + at, " \t\r\n");
    free(text);
    if (!*root)
        return BAD("%s: the header is not JSON, at byte %" PRId64, path, at);
    if (rest < size)
        return BAD("%s: unexpected text after the JSON of the header, at byte %" PRId64, path,
                   rest);
    return DT_OK;
}

// Whether a text is safe to print on a terminal.
static bool is_plain(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f)
            return false;
    return true;
}

// cJSON stores numbers as doubles: below 2^53 integers are exact and distinct.
static bool whole_number(const cJSON *item, int64_t *value)
{
    double x = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(x >= 0 && x < 0x1p53))
        return false;
    *value = (int64_t)x;
    return (double)*value == x;
}

// The three members of a tensor's object; others are skipped, as in the reference.
enum member { DTYPE, SHAPE, OFFSETS, MEMBERS };

static dt_status find_members(const char *path, const cJSON *object, const cJSON *members[MEMBERS])
{
    static const char *const wanted[MEMBERS] = {"dtype", "shape", "data_offsets"};
    const char *name = object->string;
    if (!cJSON_IsObject(object))
        return BAD(TENSOR "not a JSON object", NAMED);
    for (int i = 0; i < MEMBERS; i++) {
        for (const cJSON *item = object->child; item; item = item->next) {
            if (strcmp(item->string, wanted[i]) != 0)
                continue;
            if (members[i])
                return BAD(TENSOR "duplicate %s", NAMED, wanted[i]);
            members[i] = item;
        }
        if (!members[i])
            return BAD(TENSOR "%s is missing", NAMED, wanted[i]);
    }
    return DT_OK;
}

static dt_status read_tensor(const char *path, const cJSON *object, int64_t data_bytes,
                             struct dt_safetensor *tensor)
{
    const cJSON *members[MEMBERS] = {NULL};
    const char *name = object->string;
    int64_t bytes, end;
    if (!is_plain(name))
        return BAD("%s: a tensor has control characters in its name", path);
    DT_TRY(find_members(path, object, members));
    DT_TRY(dt_memory_text(&tensor->name, "%s", name));

    const cJSON *dtype = members[DTYPE], *shape = members[SHAPE], *offsets = members[OFFSETS];
    if (!cJSON_IsString(dtype))
        return BAD(TENSOR "dtype is not a string", NAMED);
    const struct dt_safetensors_type *type = type_named(dtype->valuestring);
    if (!type)
        return BAD(TENSOR "dtype %.*s is not known (F32, BF16, F16, …)", NAMED, SHOWN,
                   is_plain(dtype->valuestring) ? dtype->valuestring : "?");
    tensor->dtype = type->dtype;
    tensor->type_name = type->name;

    if (!cJSON_IsArray(shape))
        return BAD(TENSOR "shape is not a list", NAMED);
    for (const cJSON *item = shape->child; item; item = item->next) {
        if (tensor->n_dims == DT_MAX_DIMS)
            return BAD(TENSOR "more than %d dimensions", NAMED, DT_MAX_DIMS);
        if (!whole_number(item, &tensor->shape[tensor->n_dims]))
            return BAD(TENSOR "dimension %d is not a whole number from 0 to 2^53", NAMED,
                       tensor->n_dims);
        tensor->n_dims++;
    }

    if (!cJSON_IsArray(offsets) || cJSON_GetArraySize(offsets) != 2)
        return BAD(TENSOR "data_offsets is not a list of two", NAMED);
    if (!whole_number(offsets->child, &tensor->begin) || !whole_number(offsets->child->next, &end))
        return BAD(TENSOR "data_offsets are not whole numbers from 0 to 2^53", NAMED);
    if (tensor->begin > end)
        return BAD(TENSOR "data_offsets %" PRId64 ", %" PRId64 " are in reverse order", NAMED,
                   tensor->begin, end);
    if (end > data_bytes)
        return BAD(TENSOR "its data ends at %" PRId64 ", but the file has %" PRId64
                          " bytes of data",
                   NAMED, end, data_bytes);
    tensor->bytes = end - tensor->begin;
    if (!dt_safetensors_measure(type, tensor->shape, tensor->n_dims, &tensor->count, &bytes))
        return BAD(TENSOR "a shape of more than 2^63 bits, or not of whole bytes", NAMED);
    if (bytes != tensor->bytes)
        return BAD(TENSOR "%" PRId64 " bytes of data, its shape needs %" PRId64, NAMED,
                   tensor->bytes, bytes);
    return DT_OK;
}

static int by_key(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct dt_safetensor *)a)->name, ((const struct dt_safetensor *)b)->name);
}

// Empty tensors come before a tensor that begins at the same byte.
static int by_begin(const void *a, const void *b)
{
    const struct dt_safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? -1 : 1;
    return by_name(a, b);
}

static dt_status read_metadata(const char *path, const cJSON *object, struct dt_safetensors *file)
{
    if (!cJSON_IsObject(object))
        return BAD("%s: __metadata__ is not a JSON object", path);
    if (file->metadata)
        return BAD("%s: duplicate __metadata__", path);
    DT_TRY(DT_NEW(&file->metadata, 2 * cJSON_GetArraySize(object), "the header of %s", path));
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return BAD("%s: __metadata__: a value is not a string", path);
        char **pair = &file->metadata[2 * file->n_metadata++];
        DT_TRY(dt_memory_text(&pair[0], "%s", item->string));
        DT_TRY(dt_memory_text(&pair[1], "%s", item->valuestring));
    }
    qsort(file->metadata, (size_t)file->n_metadata, 2 * sizeof *file->metadata, by_key);
    for (int i = 1; i < file->n_metadata; i++)
        if (strcmp(file->metadata[2 * i - 2], file->metadata[2 * i]) == 0)
            return BAD("%s: __metadata__: duplicate key", path);
    return DT_OK;
}

// Tensors must cover the data without gaps, each beginning at the end of the previous one.
static dt_status check_layout(const struct dt_safetensors *file, int64_t data_bytes)
{
    int64_t end = 0;
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_begin);
    for (int i = 0; i < file->n_tensors; i++) {
        const struct dt_safetensor *tensor = &file->tensors[i];
        if (tensor->begin != end)
            return BAD("%s: tensor %.*s begins at %" PRId64
                       " of the data, the previous one ends at %" PRId64 " (%s)",
                       file->path, SHOWN, tensor->name, tensor->begin, end,
                       tensor->begin < end ? "overlap" : "gap");
        end += tensor->bytes;
    }
    if (end != data_bytes)
        return BAD("%s: the tensors need %" PRId64 " bytes, but the file has %" PRId64
                   " bytes of data",
                   file->path, end, data_bytes);
    return DT_OK;
}

static dt_status index_header(const cJSON *root, int64_t header_size, int64_t data_bytes,
                              struct dt_safetensors *file)
{
    DT_TRY(DT_NEW(&file->tensors, cJSON_GetArraySize(root), "the header of %s", file->path));
    for (const cJSON *item = root->child; item; item = item->next) {
        if (strcmp(item->string, "__metadata__") == 0)
            DT_TRY(read_metadata(file->path, item, file));
        else
            DT_TRY(read_tensor(file->path, item, data_bytes, &file->tensors[file->n_tensors++]));
    }
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_name);
    for (int i = 1; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i - 1].name, file->tensors[i].name) == 0)
            return BAD("%s: duplicate tensor %.*s", file->path, SHOWN, file->tensors[i].name);
    DT_TRY(check_layout(file, data_bytes));
    for (int i = 0; i < file->n_tensors; i++)
        file->tensors[i].begin += DT_SAFETENSORS_PREFIX + header_size;
    return DT_OK;
}

dt_status dt_safetensors_parse(const char *path, const char *header, int64_t size,
                               int64_t data_bytes, struct dt_safetensors **file)
{
    cJSON *root = NULL;
    dt_status status;
    DT_TRY(DT_NEW(file, 1, "the header of %s", path));
    (*file)->fd = -1;
    DT_TRY_GOTO(status, out, dt_memory_text(&(*file)->path, "%s", path));
    DT_TRY_GOTO(status, out, read_json(path, header, size, &root));
    DT_TRY_GOTO(status, out, index_header(root, size, data_bytes, *file));
out:
    cJSON_Delete(root);
    if (status != DT_OK) {
        dt_safetensors_close(*file);
        *file = NULL;
    }
    return status;
}

void dt_safetensors_close(struct dt_safetensors *file)
{
    if (!file)
        return;
    for (int i = 0; i < file->n_tensors; i++)
        free(file->tensors[i].name);
    for (int i = 0; i < 2 * file->n_metadata; i++)
        free(file->metadata[i]);
    if (file->fd >= 0)
        close(file->fd);
    free(file->tensors);
    free(file->metadata);
    free(file->path);
    free(file);
}

const struct dt_safetensor *dt_safetensors_find(const struct dt_safetensors *file, const char *name)
{
    for (int i = 0; i < file->n_tensors; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    return NULL;
}

const char *dt_safetensors_metadata(const struct dt_safetensors *file, const char *key)
{
    for (int i = 0; i < file->n_metadata; i++)
        if (strcmp(file->metadata[2 * i], key) == 0)
            return file->metadata[2 * i + 1];
    return NULL;
}
