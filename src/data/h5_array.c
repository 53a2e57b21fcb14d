// Opens one dataset of a file, determines its type and layout, checks that all its bytes exist, and
// reads them.
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "data/h5_chunks.h"

#include <inttypes.h>
#include <string.h>

dt_status dt_h5_reject(const struct dt_h5_array *array, const char *file, int line,
                       const char *function, const char *hint, const char *format, ...)
{
    char text[1024];
    DT_PRINT_ARGUMENTS(text, sizeof text, format);
    return dt_error_raise(DT_USER, file, line, function, hint, "%s: %s %s", array->file->path,
                          array->name, text);
}

// IEEE binary16 has no name in the library before 1.14.4.
static bool is_f16(hid_t type)
{
    size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
    return H5Tget_size(type) == 2 && H5Tget_order(type) == H5T_ORDER_LE &&
           H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) >= 0 &&
           sign == 15 && exponent == 10 && exponent_bits == 5 && mantissa == 0 &&
           mantissa_bits == 10 && H5Tget_ebias(type) == 15;
}

static void read_type(hid_t type, struct dt_h5_array *array)
{
    static const dt_dtype integers[2][4] = {{DT_U8, DT_U16, DT_U32, DT_U64},
                                            {DT_I8, DT_I16, DT_I32, DT_I64}};
    static const char *const texts[H5T_NCLASSES] = {
        [H5T_STRING] = "strings",
        [H5T_COMPOUND] = "compound records",
        [H5T_ENUM] = "an enumeration",
        [H5T_VLEN] = "variable-length sequences",
    };
    H5T_class_t class = H5Tget_class(type);
    array->type = DT_DTYPE_COUNT;
    if (class != H5T_INTEGER && class != H5T_FLOAT) {
        const char *text = class >= 0 && class < H5T_NCLASSES ? texts[class] : NULL;
        snprintf(array->type_text, sizeof array->type_text, "%s", text ? text : "other data");
        // h5py stores booleans as an enumeration of bytes.
        hid_t base = class == H5T_ENUM ? H5Tget_super(type) : -1;
        if (class == H5T_ENUM && H5Tget_size(base) == 1 && H5Tget_nmembers(type) == 2) {
            snprintf(array->type_text, sizeof array->type_text, "booleans");
            array->type = DT_U8;
        }
        if (base >= 0)
            H5Tclose(base);
        if (class == H5T_STRING) {
            array->variable = H5Tis_variable_str(type) > 0;
            array->string = array->variable ? DT_H5_REFERENCE : (int64_t)H5Tget_size(type);
        }
        return;
    }
    size_t size = H5Tget_size(type);
    bool swapped = size > 1 && H5Tget_order(type) != H5T_ORDER_LE;
    if (class == H5T_FLOAT) {
        snprintf(array->type_text, sizeof array->type_text, "%s%zu-bit floating-point numbers",
                 swapped ? "big-endian " : "", 8 * size);
        array->type = H5Tequal(type, H5T_IEEE_F32LE) > 0   ? DT_F32
                      : H5Tequal(type, H5T_IEEE_F64LE) > 0 ? DT_F64
                      : is_f16(type)                       ? DT_F16
                                                           : DT_DTYPE_COUNT;
        return;
    }
    bool is_signed = H5Tget_sign(type) != H5T_SGN_NONE;
    bool padded = H5Tget_precision(type) != 8 * size;
    snprintf(array->type_text, sizeof array->type_text, "%s%s%s %zu-bit integers",
             swapped ? "big-endian " : "", padded ? "padded " : "",
             is_signed ? "signed" : "unsigned", 8 * size);
    for (int i = 0; i < 4 && !swapped && !padded; i++)
        if (size == (size_t)1 << i)
            array->type = integers[is_signed][i];
}

static dt_status fail_large(const struct dt_h5_array *array)
{
    return DT_H5_REJECT(array, "copy or create the file again", "is impossibly large");
}

static dt_status read_space(hid_t space, struct dt_h5_array *array)
{
    hsize_t dims[H5S_MAX_RANK] = {1};
    array->n_dims = H5Sget_simple_extent_dims(space, dims, NULL);
    if (array->n_dims < 0)
        return dt_h5_fail(DT_USER, "read the shape in", array->file->path, NULL);
    array->axis = array->file->time_axis < array->n_dims ? array->file->time_axis : 0;
    array->shape[0] = (int64_t)dims[array->axis];
    array->shape[1] = array->outer = 1;
    bool large = array->shape[0] < 0;
    for (int i = 0; i < array->n_dims; i++) {
        if (i == array->axis)
            array->outer = array->shape[1];
        else
            large |= __builtin_mul_overflow(array->shape[1], (int64_t)dims[i], &array->shape[1]) ||
                     array->shape[1] < 0;
    }
    int64_t bytes;
    if (large || __builtin_mul_overflow(array->shape[0], array->shape[1], &bytes) ||
        __builtin_mul_overflow(bytes, (int64_t)8, &bytes))
        return fail_large(array);
    return DT_OK;
}

static dt_status fail_unwritten(const struct dt_h5_array *array)
{
    return DT_H5_REJECT(array, "its writer did not finish; create the shard again",
                        "was never written, or only in part (it would read as zeros)");
}

static dt_status check_contiguous(struct dt_h5_array *array, hid_t plist, int64_t bytes)
{
    if (H5Pget_external_count(plist) > 0)
        return DT_H5_REJECT(array, "store the data in the shard itself",
                            "is stored in external files");
    if (bytes == 0)
        return DT_OK;
    haddr_t offset = H5Dget_offset(array->id);
    hsize_t stored = H5Dget_storage_size(array->id), end = (hsize_t)array->file->bytes;
    if (offset == HADDR_UNDEF || stored < (hsize_t)bytes)
        return fail_unwritten(array);
    if (stored > end || offset > end - stored)
        return DT_H5_REJECT(array, "copy or create the file again",
                            "extends beyond the end of the file");
    array->offset = (int64_t)offset;
    return DT_OK;
}

// Checks that all chunks exist: one that was never written would read as zeros without an error.
static dt_status check_chunks(struct dt_h5_array *array, hid_t plist, hid_t space)
{
    hsize_t chunk[H5S_MAX_RANK], dims[H5S_MAX_RANK], n_chunks = 0, want = 1;
    if (H5Sget_simple_extent_dims(space, dims, NULL) != array->n_dims ||
        H5Pget_chunk(plist, H5S_MAX_RANK, chunk) != array->n_dims)
        return dt_h5_fail(DT_USER, "read the chunks in", array->file->path, NULL);
    for (int i = 0; i < array->n_dims; i++)
        want *= chunk[i] ? (dims[i] + chunk[i] - 1) / chunk[i] : 0;
    if (H5Dget_num_chunks(array->id, space, &n_chunks) < 0)
        return dt_h5_fail(DT_USER, "read the chunks in", array->file->path, NULL);
    return n_chunks < want ? fail_unwritten(array) : DT_OK;
}

static dt_status read_layout(hid_t plist, hid_t space, struct dt_h5_array *array)
{
    int64_t bytes;
    array->offset = -1;
    if (__builtin_mul_overflow(array->shape[0] * array->shape[1], dt_h5_element(array), &bytes))
        return fail_large(array);
    switch (H5Pget_layout(plist)) {
    case H5D_COMPACT: // a false size would make the library read beyond its memory
        return (int64_t)H5Dget_storage_size(array->id) < bytes ? fail_unwritten(array) : DT_OK;
    case H5D_CONTIGUOUS:
        return check_contiguous(array, plist, bytes);
    case H5D_CHUNKED:
        // References are read as stored; the kind's checks refuse other types.
        if ((H5Pget_nfilters(plist) != 0 || array->variable) && dt_h5_element(array) > 0 &&
            array->n_dims > 0)
            DT_TRY(dt_h5_chunks_open(array, plist, &array->chunks));
        return check_chunks(array, plist, space);
    case H5D_VIRTUAL:
        return DT_H5_REJECT(array, "copy the data into plain shards",
                            "is a virtual dataset (a missing source would read as zeros)");
    default:
        return dt_h5_fail(DT_USER, "read the layout in", array->file->path, NULL);
    }
}

static dt_status inspect(struct dt_h5_array *array)
{
    hid_t type = H5Dget_type(array->id), space = H5Dget_space(array->id);
    hid_t plist = H5Dget_create_plist(array->id);
    dt_status status;
    if (type < 0 || space < 0 || plist < 0) {
        status = dt_h5_fail(DT_USER, "open a dataset of", array->file->path, NULL);
    } else {
        read_type(type, array);
        status = read_space(space, array);
        status = status == DT_OK ? read_layout(plist, space, array) : status;
    }
    H5Tclose(type);
    H5Sclose(space);
    H5Pclose(plist);
    return status;
}

dt_status dt_h5_array_open(const struct dt_h5_file *file, const char *name,
                           struct dt_h5_array *array, bool *found)
{
    static hid_t access = -1; // guarded by the lock
    hid_t group;
    const char *last;
    enum dt_h5_node node;
    uint64_t address;
    *array = (struct dt_h5_array){.file = file, .name = name, .id = -1, .offset = -1};
    DT_TRY(dt_h5_find(file, name, &node, &address));
    *found = node != DT_H5_NOTHING;
    if (!*found)
        return DT_OK;
    if (node != DT_H5_DATASET)
        return DT_H5_REJECT(array, "make it a dataset", "is not a dataset");
    DT_TRY(dt_h5_check_types(file, name, address));
    DT_TRY(dt_h5_locate(file, name, &group, &last, found));
    // Without the library's chunk cache plain chunks are read directly into our memory; h5_chunks.c
    // caches filtered ones.
    if (access < 0) {
        access = H5Pcreate(H5P_DATASET_ACCESS);
        H5Pset_chunk_cache(access, H5D_CHUNK_CACHE_NSLOTS_DEFAULT, 0, H5D_CHUNK_CACHE_W0_DEFAULT);
    }
    array->id = H5Dopen2(group, last, access);
    if (array->id < 0)
        return dt_h5_fail(DT_USER, "open a dataset of", file->path,
                          "copy or create the file again");
    return inspect(array);
}

// Splits off an attribute's name. The owner's path, "/episode_3", ends in a slash only for the
// root.
static const char *split_attribute(const char *path, char owner[DT_H5_PATH])
{
    const char *name = strrchr(path, '/') + 1;
    int n = (int)(name - path);
    snprintf(owner, DT_H5_PATH, "%.*s", n > 1 ? n - 1 : n, path);
    return name + 1;
}

static dt_status read_value(hid_t attribute, hid_t type, hid_t space, struct dt_h5_array *array)
{
    if (type < 0 || space < 0)
        return dt_h5_fail(DT_USER, "read an attribute of", array->file->path, NULL);
    read_type(type, array);
    DT_TRY(read_space(space, array));
    bool empty = H5Sget_simple_extent_type(space) == H5S_NULL;
    array->shape[1] *= empty ? 0 : array->shape[0];
    array->shape[0] = array->outer = 1;
    if (array->type == DT_DTYPE_COUNT || array->shape[1] == 0)
        return DT_OK;
    DT_TRY(DT_NEW_BYTES(&array->value, array->shape[1] * dt_h5_element(array), "%s of %s",
                        array->name, array->file->path));
    if (H5Aread(attribute, type, array->value) < 0)
        return dt_h5_fail(DT_USER, "read an attribute of", array->file->path, NULL);
    return DT_OK;
}

// Opens an attribute of `object`, as seen from the open group or dataset `place`.
static dt_status open_attribute(const struct dt_h5_file *file, hid_t place, const char *object,
                                const char *name, hid_t *attribute, bool *found)
{
    htri_t exists = H5Aexists_by_name(place, object, name, H5P_DEFAULT);
    *found = exists > 0;
    *attribute = *found ? H5Aopen_by_name(place, object, name, H5P_DEFAULT, H5P_DEFAULT) : -1;
    if (exists != 0 && *attribute < 0)
        return dt_h5_fail(DT_USER, "read an attribute of", file->path, NULL);
    return DT_OK;
}

dt_status dt_h5_attribute_open(const struct dt_h5_file *file, const char *path,
                               struct dt_h5_array *array, bool *found)
{
    char owner[DT_H5_PATH];
    const char *name = split_attribute(path, owner), *last;
    hid_t group;
    enum dt_h5_node node;
    uint64_t address;
    *array =
        (struct dt_h5_array){.file = file, .name = path, .id = -1, .offset = -1, .constant = true};
    DT_TRY(dt_h5_find(file, owner, &node, &address));
    *found = node == DT_H5_GROUP || node == DT_H5_DATASET;
    if (!*found)
        return DT_OK;
    DT_TRY(dt_h5_check_types(file, owner, address));
    DT_TRY(dt_h5_locate(file, owner, &group, &last, found));
    hid_t attribute;
    DT_TRY(open_attribute(file, group, last, name, &attribute, found));
    if (!*found)
        return DT_OK;
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    dt_status status = read_value(attribute, type, space, array);
    H5Tclose(type);
    H5Sclose(space);
    H5Aclose(attribute);
    return status;
}

void dt_h5_array_close(struct dt_h5_array *array)
{
    dt_h5_chunks_close(array->chunks);
    free(array->value);
    if (array->file && array->file->id >= 0 && array->id >= 0) {
        dt_h5_enter(array->file->path);
        H5Dclose(array->id);
        dt_h5_leave();
    }
    *array = (struct dt_h5_array){.id = -1};
}

hid_t dt_h5_type(dt_dtype type)
{
    const hid_t types[DT_DTYPE_COUNT] = {
        [DT_U8] = H5T_STD_U8LE,   [DT_U16] = H5T_STD_U16LE, [DT_U32] = H5T_STD_U32LE,
        [DT_U64] = H5T_STD_U64LE, [DT_I32] = H5T_STD_I32LE, [DT_F32] = H5T_IEEE_F32LE,
        [DT_I8] = H5T_STD_I8LE,   [DT_I16] = H5T_STD_I16LE,
    };
    return types[type];
}

// Reads rows in the stored type and order, without conversion.
static dt_status read_by_library(const struct dt_h5_array *array, int64_t first, int64_t count,
                                 void *data)
{
    hsize_t start[H5S_MAX_RANK] = {0}, size[H5S_MAX_RANK];
    hid_t in_file = H5Dget_space(array->id), type = H5Dget_type(array->id);
    H5Sget_simple_extent_dims(in_file, size, NULL);
    start[array->axis] = (hsize_t)first;
    size[array->axis] = (hsize_t)count;
    hid_t in_memory =
        array->n_dims > 0 ? H5Screate_simple(array->n_dims, size, NULL) : H5Screate(H5S_SCALAR);
    herr_t failed = 0;
    if (array->n_dims > 0)
        failed = H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, size, NULL);
    if (failed >= 0)
        failed = H5Dread(array->id, type, in_memory, in_file, H5P_DEFAULT, data);
    dt_status status = DT_OK;
    if (failed < 0)
        status = dt_h5_fail(DT_USER, "read", array->file->path,
                            "the shard is damaged: copy or create it again");
    H5Tclose(type);
    H5Sclose(in_memory);
    H5Sclose(in_file);
    return status;
}

// Reads rows in the stored order: `outer` pieces, each with a part of all rows.
static dt_status read_stored(const struct dt_h5_array *array, int64_t first, int64_t count,
                             char *data)
{
    int64_t piece = array->shape[1] / array->outer * dt_h5_element(array);
    dt_status status = DT_OK;
    if (array->offset >= 0) { // without the lock, so that other threads can read other shards
        for (int64_t i = 0; i < array->outer && status == DT_OK; i++)
            status =
                dt_pread_all(array->file->fd, array->file->path, data + i * count * piece,
                             count * piece, array->offset + (i * array->shape[0] + first) * piece);
    } else {
        dt_h5_enter(array->file->path);
        status = read_by_library(array, first, count, data);
        dt_h5_leave();
    }
    return status;
}

static dt_status read_rows(const struct dt_h5_array *array, int64_t first, int64_t count,
                           char *data)
{
    int64_t row = array->shape[1] * dt_h5_element(array), n = array->outer, piece = row / n;
    char *stored;
    if (array->chunks)
        return dt_h5_chunks_read(array->chunks, array, first, count, data);
    if (n == 1)
        return read_stored(array, first, count, data);
    DT_TRY(DT_NEW_BYTES(&stored, count * row, "%" PRId64 " rows of %s", count, array->name));
    dt_status status = read_stored(array, first, count, stored);
    for (int64_t t = 0; t < count && status == DT_OK; t++)
        for (int64_t i = 0; i < n; i++)
            memcpy(data + t * row + i * piece, stored + (i * count + t) * piece, (size_t)piece);
    free(stored);
    return status;
}

dt_status dt_h5_array_read(const struct dt_h5_array *array, int64_t first, int64_t count,
                           void *data)
{
    int64_t row = array->shape[1] * dt_h5_element(array);
    dt_status status = DT_OK;
    if (count == 0 || row == 0)
        return DT_OK;
    if (array->value)
        memcpy(data, array->value, (size_t)row);
    else
        status =
            array->constant ? read_rows(array, 0, 1, data) : read_rows(array, first, count, data);
    for (int64_t i = 1; i < count && array->constant && status == DT_OK; i++)
        memcpy((char *)data + i * row, data, (size_t)row);
    DT_TRY_NOTE(status, "reading rows %" PRId64 " to %" PRId64 " of %s", first, first + count - 1,
                array->name);
    return DT_OK;
}

dt_status dt_h5_check_vector(const struct dt_h5_array *array)
{
    if (array->n_dims == 1)
        return DT_OK;
    return DT_H5_REJECT(array, "make it one-dimensional", "has %d dimensions, not 1",
                        array->n_dims);
}

// `wanted` is the type of *value in memory.
static dt_status read_integer(const struct dt_h5_array *array, const char *name, hid_t wanted,
                              void *value, bool *found)
{
    hid_t attribute;
    DT_TRY(open_attribute(array->file, array->id, ".", name, &attribute, found));
    if (!*found)
        return DT_OK;
    hid_t type = H5Aget_type(attribute), space = H5Aget_space(attribute);
    dt_status status = DT_OK;
    if (H5Tget_class(type) != H5T_INTEGER || H5Sget_simple_extent_npoints(space) != 1)
        status = DT_FAIL(DT_USER, "store a single integer, or remove the attribute",
                         "%s: attribute %s of %s is not a single integer", array->file->path, name,
                         array->name);
    else if (H5Aread(attribute, wanted, value) < 0)
        status = dt_h5_fail(DT_USER, "read an attribute of", array->file->path, NULL);
    H5Tclose(type);
    H5Sclose(space);
    H5Aclose(attribute);
    return status;
}

dt_status dt_h5_attribute(const struct dt_h5_array *array, const char *name, int64_t *value,
                          bool *found)
{
    DT_TRY(read_integer(array, name, H5T_NATIVE_INT64, value, found));
    if (!*found || *value >= 1)
        return DT_OK;
    return DT_FAIL(DT_USER, "store an integer of at least 1, or remove the attribute",
                   "%s: attribute %s of %s is %" PRId64 ", not a positive integer",
                   array->file->path, name, array->name, *value);
}

dt_status dt_h5_attribute_u64(const struct dt_h5_array *array, const char *name, uint64_t *value,
                              bool *found)
{
    return read_integer(array, name, H5T_NATIVE_UINT64, value, found);
}
