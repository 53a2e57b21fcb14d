// Writes safetensors files: the header of the announced tensors, then the data, hashing everything.
// cJSON escapes the names; numbers are added as raw text, because cJSON prints large ones as 1e+15.
#include "base/safetensors.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/round.h"
#include "base/safetensors_format.h"
#include "base/text.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { ALIGN = 8 }; // of the data's start, as in the reference implementation
int64_t dt_safetensors_sync_bytes = 1 << 28;

struct dt_safetensors_writer {
    char *path;
    int fd;
    int64_t written, size; // bytes of the file so far; bytes announced
    int64_t synced;
    XXH64_state_t *hash;
};

static dt_status no_memory(const char *path)
{
    return DT_FAIL(DT_MACHINE, NULL, "no memory to write %s", path);
}

// "[1,2,3]"
static void list_text(char *text, size_t room, const int64_t *values, int n)
{
    text[0] = 0;
    for (int i = 0; i < n; i++)
        dt_append(text, room, "%c%" PRId64, i ? ',' : '[', values[i]);
    dt_append(text, room, n > 0 ? "]" : "[]");
}

// Adds the tensor's object to the header and advances `end` by its size.
static dt_status add_tensor(const char *path, cJSON *root, const struct dt_safetensors_entry *entry,
                            int64_t *end)
{
    const struct dt_safetensors_type *type = dt_safetensors_type_of(entry->dtype);
    char shape[DT_MAX_DIMS * 24], offsets[64];
    int64_t count, bytes, range[2] = {*end, 0};
    if ((unsigned)entry->dtype >= DT_DTYPE_COUNT || entry->n_dims < 0 ||
        entry->n_dims > DT_MAX_DIMS ||
        !dt_safetensors_measure(type, entry->shape, entry->n_dims, &count, &bytes) ||
        __builtin_add_overflow(*end, bytes, &range[1]))
        return DT_FAIL(DT_MACHINE, NULL, "%s: tensor %s has an impossible type or shape", path,
                       entry->name);
    list_text(shape, sizeof shape, entry->shape, entry->n_dims);
    list_text(offsets, sizeof offsets, range, 2);
    cJSON *object = cJSON_AddObjectToObject(root, entry->name);
    if (!cJSON_AddStringToObject(object, "dtype", type->name) ||
        !cJSON_AddRawToObject(object, "shape", shape) ||
        !cJSON_AddRawToObject(object, "data_offsets", offsets))
        return no_memory(path);
    *end = range[1];
    return DT_OK;
}

// The bytes of the file before the data.
struct preamble {
    char *bytes;
    int64_t size, data_bytes;
};

// Formats the preamble: the header length and the JSON, padded with spaces.
static dt_status print_preamble(const char *path, const cJSON *root, struct preamble *preamble)
{
    char *json = cJSON_PrintUnformatted(root);
    if (!json)
        return no_memory(path);
    size_t length = strlen(json), padded = (size_t)dt_round_up((int64_t)length, ALIGN);
    uint64_t word = padded;
    preamble->size = (int64_t)(DT_SAFETENSORS_PREFIX + padded);
    dt_status status = DT_NEW(&preamble->bytes, preamble->size, "the header of %s", path);
    if (status == DT_OK) {
        memcpy(preamble->bytes, &word, sizeof word);
        memcpy(preamble->bytes + DT_SAFETENSORS_PREFIX, json, length);
        memset(preamble->bytes + DT_SAFETENSORS_PREFIX + length, ' ', padded - length);
    }
    cJSON_free(json);
    return status;
}

// Checks the header (names, duplicates, sizes) by the reader's checker, so that written files can
// be read.
static dt_status check_preamble(const char *path, const struct preamble *preamble)
{
    struct dt_safetensors *file;
    DT_TRY_NOTE(dt_safetensors_parse(path, preamble->bytes + DT_SAFETENSORS_PREFIX,
                                     preamble->size - DT_SAFETENSORS_PREFIX, preamble->data_bytes,
                                     &file),
                "checking the header to be written");
    dt_safetensors_close(file);
    return DT_OK;
}

static void free_writer(struct dt_safetensors_writer *writer)
{
    XXH64_freeState(writer->hash);
    free(writer->path);
    free(writer);
}

// On failure, discard *writer.
static dt_status open_writer(const char *path, int64_t size, struct dt_safetensors_writer **writer)
{
    DT_TRY(DT_NEW(writer, 1, "a writer of %s", path));
    struct dt_safetensors_writer *w = *writer;
    w->size = size;
    w->fd = -1;
    w->hash = XXH64_createState();
    if (!w->hash)
        return no_memory(path);
    XXH64_reset(w->hash, 0);
    DT_TRY(dt_memory_text(&w->path, "%s", path));
    w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    return w->fd < 0 ? DT_FAIL_ERRNO("create", path) : DT_OK;
}

dt_status dt_safetensors_create(const char *path, const struct dt_safetensors_entry *entries,
                                int n_entries, const char *const *metadata, int n_metadata,
                                struct dt_safetensors_writer **writer)
{
    struct preamble preamble = {0};
    dt_status status;
    *writer = NULL;
    cJSON *root = cJSON_CreateObject();
    if (!root)
        return no_memory(path);
    cJSON *texts = n_metadata > 0 ? cJSON_AddObjectToObject(root, "__metadata__") : NULL;
    for (int i = 0; i < n_metadata; i++)
        if (!cJSON_AddStringToObject(texts, metadata[2 * i], metadata[2 * i + 1]))
            DT_TRY_GOTO(status, out, no_memory(path));
    for (int i = 0; i < n_entries; i++)
        DT_TRY_GOTO(status, out, add_tensor(path, root, &entries[i], &preamble.data_bytes));
    DT_TRY_GOTO(status, out, print_preamble(path, root, &preamble));
    DT_TRY_GOTO(status, out, check_preamble(path, &preamble));
    DT_TRY_GOTO(status, out, open_writer(path, preamble.size + preamble.data_bytes, writer));
    DT_TRY_GOTO(status, out, dt_safetensors_write(*writer, preamble.bytes, preamble.size));
out:
    cJSON_Delete(root);
    free(preamble.bytes);
    if (status != DT_OK) {
        dt_safetensors_discard(*writer);
        *writer = NULL;
    }
    return status;
}

dt_status dt_safetensors_write(struct dt_safetensors_writer *writer, const void *data,
                               int64_t bytes)
{
    if (bytes < 0 || bytes > writer->size - writer->written)
        return DT_FAIL(DT_MACHINE, NULL,
                       "%s: %" PRId64 " more bytes were written than the %" PRId64 " announced",
                       writer->path, bytes - (writer->size - writer->written), writer->size);
    DT_TRY(dt_write_all(writer->fd, writer->path, data, bytes));
    XXH64_update(writer->hash, data, (size_t)bytes);
    writer->written += bytes;
    if (writer->written - writer->synced >= dt_safetensors_sync_bytes) {
        if (fdatasync(writer->fd) != 0)
            return DT_FAIL_ERRNO("write", writer->path);
        writer->synced = writer->written;
    }
    return DT_OK;
}

dt_status dt_safetensors_finish(struct dt_safetensors_writer *writer, int64_t *size, uint64_t *hash)
{
    dt_status status = dt_close_synced(writer->fd, writer->path);
    if (status == DT_OK && writer->written != writer->size)
        status = DT_FAIL(DT_MACHINE, NULL,
                         "%s: %" PRId64 " bytes were written, but %" PRId64 " announced",
                         writer->path, writer->written, writer->size);
    if (status != DT_OK)
        unlink(writer->path);
    if (size)
        *size = writer->written;
    if (hash)
        *hash = XXH64_digest(writer->hash);
    free_writer(writer);
    return status;
}

void dt_safetensors_discard(struct dt_safetensors_writer *writer)
{
    if (!writer)
        return;
    if (writer->fd >= 0) {
        close(writer->fd);
        unlink(writer->path);
    }
    free_writer(writer);
}
