// Reads lists of strings, such as /mask/train. Their elements are read as rows of bytes: strings,
// or references to a heap. The heap is parsed here, because libhdf5 (1.10.8) trusts damaged
// references and heaps. [HDF5 file format specification, III.E and IV.A.2.d: global heap]
#include "base/file.h"
#include "base/memory.h"
#include "data/h5_file.h"

#include <string.h>

enum {
    STRING_BYTES = 1023, // the most
    HEAP_HEADER = 16,    // "GCOL", a version, reserved bytes; its size
    OBJECT_HEADER = 16,  // index, references, reserved bytes; its size
    HEAP_BYTES = 1 << 26 // the most
};

struct reference {
    uint32_t length;
    uint64_t address; // address of the heap
    uint32_t index;   // of the object in the heap
} __attribute__((packed));
_Static_assert(sizeof(struct reference) == DT_H5_REFERENCE, "as stored");

struct heap {
    uint64_t address;
    int64_t bytes, room;
    char *at;
};

static dt_status fail_heap(const struct dt_h5_array *array, int64_t i)
{
    return DT_FAIL(DT_USER, "copy or create the file again",
                   "%s: string %lld of %s is damaged, or has more than %d bytes", array->file->path,
                   (long long)i, array->name, STRING_BYTES);
}

static dt_status read_heap(const struct dt_h5_array *array, int64_t i, uint64_t address,
                           struct heap *heap)
{
    const struct dt_h5_file *file = array->file;
    uint64_t size, end = (uint64_t)(file->bytes - file->base);
    char header[HEAP_HEADER];
    if (heap->bytes > 0 && heap->address == address)
        return DT_OK;
    heap->bytes = 0;
    if (address > end || end - address < HEAP_HEADER)
        return fail_heap(array, i);
    DT_TRY(
        dt_pread_all(file->fd, file->path, header, sizeof header, file->base + (int64_t)address));
    memcpy(&size, header + 8, sizeof size);
    if (memcmp(header, "GCOL\1", 5) != 0 || size < HEAP_HEADER || size > HEAP_BYTES ||
        size > end - address)
        return fail_heap(array, i);
    DT_TRY(
        DT_ROOM(&heap->at, &heap->room, (int64_t)size, NULL, "%s of %s", array->name, file->path));
    DT_TRY(
        dt_pread_all(file->fd, file->path, heap->at, (int64_t)size, file->base + (int64_t)address));
    heap->address = address;
    heap->bytes = (int64_t)size;
    return DT_OK;
}

// Finds the object with that index and at least `length` bytes; NULL: none.
static const char *find_object(const struct heap *heap, uint32_t index, uint32_t length)
{
    for (int64_t at = HEAP_HEADER; heap->bytes - at >= OBJECT_HEADER;) {
        uint64_t size;
        uint16_t number;
        int64_t left = heap->bytes - at - OBJECT_HEADER;
        memcpy(&number, heap->at + at, sizeof number);
        memcpy(&size, heap->at + at + 8, sizeof size);
        if (number == 0 || size > (uint64_t)left) // the rest is free space or damaged
            return NULL;
        at += OBJECT_HEADER;
        if (number == index)
            return length <= size ? heap->at + at : NULL;
        at += (int64_t)(size + 7) / 8 * 8;
    }
    return NULL;
}

// Fixed strings need not be zero-terminated.
static dt_status add_all(const struct dt_h5_array *array, int64_t n, const char *bytes,
                         struct dt_h5_names *names)
{
    struct heap heap = {0};
    dt_status status = DT_OK;
    for (int64_t i = 0; i < n && status == DT_OK; i++, bytes += array->string) {
        struct reference reference = {.length = (uint32_t)array->string};
        const char *text = bytes;
        if (array->variable) {
            memcpy(&reference, bytes, sizeof reference);
            if (reference.length > STRING_BYTES)
                status = fail_heap(array, i);
            else if (reference.length > 0)
                status = read_heap(array, i, reference.address, &heap);
            text = status == DT_OK && reference.length > 0
                       ? find_object(&heap, reference.index, reference.length)
                       : "";
            if (!text)
                status = fail_heap(array, i);
        }
        if (status == DT_OK)
            status = dt_h5_names_add(names, text, strnlen(text, reference.length));
    }
    free(heap.at);
    return status;
}

static dt_status read_list(const struct dt_h5_array *array, int64_t most, struct dt_h5_names *names)
{
    const char *path = array->file->path;
    int64_t n = array->shape[0] < most ? array->shape[0] : most;
    if (array->string == 0 || array->n_dims != 1)
        return DT_H5_REJECT(array, "store the episodes' names in one dimension",
                            "is not a list of strings");
    if (array->string > STRING_BYTES)
        return DT_FAIL(DT_USER, "store the episodes' names alone",
                       "%s: the strings of %s have %lld bytes, the most are %d", path, array->name,
                       (long long)array->string, STRING_BYTES);
    if (n == 0)
        return DT_OK;
    if (array->variable && (array->file->base < 0 || (array->offset < 0 && !array->chunks)))
        return DT_FAIL(DT_USER, "store them as strings of fixed length",
                       "%s: dtrain does not read strings of variable length that are stored as "
                       "those of %s",
                       path, array->name);
    char *bytes;
    DT_TRY(DT_NEW_BYTES(&bytes, n * array->string, "%lld strings of %s of %s", (long long)n,
                        array->name, path));
    dt_status status = dt_h5_array_read(array, 0, n, bytes);
    if (status == DT_OK)
        status = add_all(array, n, bytes, names);
    free(bytes);
    return status;
}

dt_status dt_h5_strings(const struct dt_h5_file *file, const char *path, int64_t most,
                        struct dt_h5_names *names)
{
    struct dt_h5_array array;
    bool found;
    *names = (struct dt_h5_names){0};
    dt_status status = dt_h5_array_open(file, path, &array, &found);
    if (status == DT_OK && !found)
        status = DT_FAIL(DT_USER, NULL, "%s has no %s", file->path, path);
    if (status == DT_OK)
        status = read_list(&array, most, names);
    dt_h5_array_close(&array);
    return status;
}
